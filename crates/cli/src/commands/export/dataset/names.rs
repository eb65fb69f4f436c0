//! Names of the files of a dataset, by which Lull recognises its own.

use jiff::civil::Date;

/// The tables, in the order in which their files are written: that of `runs` says that the
/// others are whole.
pub(super) const TABLES: [&str; 6] =
    ["apps", "objectives", "minutes", "app_minutes", "latencies", super::RUNS];

/// Most letters of the name of a host, as in DNS.
const HOST_MAX: usize = 253;

/// The file of a part of a run, in any table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DayFile<'a> {
    pub(super) host: &'a str,
    pub(super) date: Date,
    pub(super) run: &'a str,
    /// Numbers of the first and the last epoch.
    pub(super) first: i64,
    pub(super) last: i64,
}

impl DayFile<'_> {
    /// Returns its path in a table.
    pub(super) fn in_table(&self, table: &str) -> String {
        let Self { host, date, run, first, last } = self;
        format!("{}/day={date}/{run}-{first}-{last}.parquet", host_folder(table, host))
    }
}

/// Returns the folder of a host in a table.
pub(super) fn host_folder(table: &str, host: &str) -> String {
    format!("{table}/host={host}")
}

/// Reads the path of a file; `None` for one that Lull did not write.
pub(super) fn parse(path: &str) -> Option<DayFile<'_>> {
    let mut parts = path.split('/');
    let (table, host, day, name) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || !TABLES.contains(&table) {
        return None;
    }
    let (host, day) = (host.strip_prefix("host=")?, day.strip_prefix("day=")?);
    check_host(host).ok()?;
    let mut name = name.strip_suffix(".parquet")?.rsplitn(3, '-');
    let (last, first, run) = (name.next()?, name.next()?, name.next()?);
    let file = DayFile {
        host,
        date: day.parse().ok()?,
        run: Some(run).filter(|run| is_run(run))?,
        first: first.parse().ok()?,
        last: last.parse().ok()?,
    };
    // Only the one spelling that Lull uses is its own.
    (file.in_table(table) == path).then_some(file)
}

/// Whether a text is a run as [`lull_agent::recorded::RunLabel`] writes it.
fn is_run(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_number =
        |text: &str, digits| text.len() == digits && text.bytes().all(|it| it.is_ascii_digit());
    let is_digest = |text: &str| {
        text.len() == 8 && text.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
    };
    matches!(*parts, [date, time, digest]
        if is_number(date, 8) && is_number(time, 6) && is_digest(digest))
}

/// Refuses a host whose name cannot be the name of a directory.
///
/// # Errors
/// The fault.
pub(super) fn check_host(host: &str) -> Result<(), String> {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'.' | b'-' | b'_');
    if !host.is_empty() && host.len() <= HOST_MAX && host.bytes().all(is_plain) {
        return Ok(());
    }
    Err(format!(
        "the host `{host}` has characters other than letters, digits, `.`, `-` and `_`: name \
         another with --host"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str =
        "minutes/host=web-1.example/day=2026-11-26/20261126-010203-0a1b2c3d-0-86399.parquet";

    #[test]
    fn a_path_is_read_as_it_is_written() {
        let file = parse(PATH).unwrap();
        assert_eq!((file.host, file.run), ("web-1.example", "20261126-010203-0a1b2c3d"));
        assert_eq!((file.first, file.last), (0, 86_399));
        assert_eq!(file.in_table("minutes"), PATH);
    }

    #[test]
    fn files_of_others_are_not_taken_for_ours() {
        for (part, other) in [
            ("minutes/", "hours/"),
            ("minutes/", "a/minutes/"),
            ("host=", "node="),
            ("web-1.example", "web 1"),
            ("web-1.example", ""),
            ("2026-11-26", "2026-11-31"),
            ("day=2026-11-26", "day=20261126"),
            ("20261126-010203-0a1b2c3d", "part"),
            ("0a1b2c3d", "0A1B2C3D"),
            ("-0-", "-00-"),
            ("-0-", "-+0-"),
            ("parquet", "csv"),
        ] {
            let path = PATH.replacen(part, other, 1);
            assert_ne!(path, PATH, "{part}");
            assert_eq!(parse(&path), None, "{path}");
        }
    }

    #[test]
    fn hosts_that_are_no_folders_are_refused() {
        for host in ["", "a/b", "a=b", "a b", "ä", &"a".repeat(254)] {
            assert!(check_host(host).is_err(), "{host}");
        }
        assert!(check_host("ip-10-0-0-1.eu_west").is_ok());
    }
}
