//! Removal of old days from a dataset. Only files that bear a name of Lull's are removed.

use super::names::{self, TABLES};
use super::store::Store;
use crate::cli::Days;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// The days that were removed.
#[derive(Debug, Default, Serialize)]
pub(super) struct Removed {
    /// Days of hosts.
    days: BTreeSet<(String, String)>,
    files: usize,
    /// Files of these days that Lull did not write, and which stay.
    left: usize,
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removed {} days of hosts ({} files)", self.days.len(), self.files)?;
        match self.left {
            0 => Ok(()),
            left => write!(f, "; left {left} files in them that are not Lull's"),
        }
    }
}

/// Returns the first day that is kept: the one `keep` days before today, UTC, by the clock of this
/// machine.
pub(super) fn oldest_day(keep: Days, now: Timestamp) -> anyhow::Result<Date> {
    let today = now.to_zoned(TimeZone::UTC).date();
    Ok(today.checked_sub(i64::from(keep.0).days())?)
}

/// Removes the days before this one, of these hosts or of all.
pub(super) fn remove_old(
    store: &dyn Store,
    hosts: Option<&BTreeSet<String>>,
    oldest: Date,
) -> anyhow::Result<Removed> {
    let is_old = |path: &str| {
        let mut folders = path.split('/').filter_map(|folder| folder.strip_prefix("day="));
        folders.next().and_then(|day| day.parse().ok()).is_some_and(|day| oldest > day)
    };
    let mut removed = Removed::default();
    // `runs` is first: its entries announce the others, which no reader then reads during the
    // removal.
    for table in TABLES.into_iter().rev() {
        let folders = match &hosts {
            Some(hosts) => hosts.iter().map(|host| names::host_folder(table, host)).collect(),
            None => store.folders(table)?,
        };
        for folder in folders {
            for path in store.list(&folder)?.iter().filter(|path| is_old(path)) {
                let Some(file) = names::parse(path) else {
                    removed.left += 1;
                    continue;
                };
                store.remove(path)?;
                removed.files += 1;
                removed.days.insert((file.host.to_owned(), file.date.to_string()));
            }
        }
    }
    Ok(removed)
}
