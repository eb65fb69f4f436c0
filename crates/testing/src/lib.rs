//! What the tests of several crates share. Nothing of the product depends on it.

pub mod fetched;

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The environment variable that names the file to which [`skip`] appends. `cargo xtask
/// test` sets it, reads the file after each phase, and counts those tests as skipped.
pub const SKIPPED_FILE: &str = "LULL_SKIPPED_TESTS";

/// The environment variable that names the file to which [`figure`] appends. Benchmarks set it.
pub const FIGURES_FILE: &str = "LULL_TEST_FIGURES";

/// Prints a value that the running test has measured, and records it for a benchmark, which judges
/// it: one line `what<TAB>value<TAB>unit`.
///
/// # Panics
/// If the file cannot be written.
pub fn figure(what: &str, value: f64, unit: &str) {
    eprintln!("{what}: {value:.2} {unit}");
    if let Some(file) = std::env::var_os(FIGURES_FILE) {
        append_line(Path::new(&file), &format!("{what}\t{value}\t{unit}\n"));
    }
}

/// Records that the running test cannot test anything here, and why. The test returns right
/// afterwards.
///
/// The test runner counts such a test as passed and hides its output, so the record goes to a file:
/// one line `program<TAB>test<TAB>why`.
///
/// # Panics
/// If the file cannot be written: the test must not count as passed.
pub fn skip(why: &str) {
    eprintln!("skipped: {why}");
    if let Some(file) = std::env::var_os(SKIPPED_FILE) {
        append(Path::new(&file), why);
    }
}

fn append(file: &Path, why: &str) {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(Path::file_stem).map(OsStr::to_string_lossy);
    let thread = std::thread::current();
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let line =
        format!("{}\t{}\t{why}\n", program.unwrap_or_default(), thread.name().unwrap_or_default());
    append_line(file, &line);
}

fn append_line(file: &Path, line: &str) {
    // The text is written in one piece, since the tests of a program run in parallel.
    let file = OpenOptions::new().append(true).create(true).open(file);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    assert!(written.is_ok(), "cannot record what this test found: {written:?}");
}

/// Returns the directory in which fetched and built programs are kept for all clones of a user:
/// `LULL_CACHE`, or `lull` in the user's cache directory. Returns `None` for a user without one.
pub fn cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = |name: &str| variable(name).map(PathBuf::from);
    let users = || path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    path("LULL_CACHE").or_else(|| Some(users()?.join("lull")))
}

/// Returns a digest of all files below a directory, which names the results built from them. It
/// holds for one version of Rust.
///
/// # Errors
/// If one of them cannot be read.
pub fn digest(directory: &Path) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    add(directory, &mut hasher)?;
    Ok(format!("{:016x}", hasher.finish()))
}

fn add(path: &Path, hasher: &mut DefaultHasher) -> io::Result<()> {
    path.file_name().hash(hasher);
    if !path.is_dir() {
        std::fs::read(path)?.hash(hasher);
        return Ok(());
    }
    let below = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut below: Vec<_> = below.collect::<io::Result<_>>()?;
    below.sort();
    below.iter().try_for_each(|path| add(path, hasher))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_program_the_test_and_the_reason_in_one_line() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("skipped");
        append(&file, "no root\nhere");
        append(&file, "again");
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0][0].starts_with("lull_testing-"), "{text}");
        assert!(
            lines[0][1].ends_with("a_line_names_the_program_the_test_and_the_reason_in_one_line")
        );
        assert_eq!(lines[0][2], "no root here");
    }

    #[test]
    fn a_digest_is_of_the_names_and_contents_of_all_files_and_of_nothing_else() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let make = |place: &tempfile::TempDir, names: [&str; 2]| {
            let sources = place.path().join("sources");
            std::fs::create_dir_all(sources.join("below")).unwrap();
            names.iter().for_each(|name| std::fs::write(sources.join(name), name).unwrap());
            sources
        };
        let one = make(&first, ["a", "below/b"]);
        let same = make(&second, ["below/b", "a"]);
        let before = digest(&one).unwrap();
        assert_eq!(digest(&same).unwrap(), before);
        std::fs::write(same.join("below/b"), "other").unwrap();
        assert_ne!(digest(&same).unwrap(), before);
        std::fs::rename(one.join("a"), one.join("c")).unwrap();
        assert_ne!(digest(&one).unwrap(), before);
        assert!(digest(Path::new("/no/such/directory")).is_err());
    }

    #[test]
    #[should_panic(expected = "cannot record")]
    fn a_record_that_cannot_be_written_fails_the_test() {
        append(Path::new("/no/such/directory/file"), "no root");
    }
}
