//! Writes result files so that each is complete or absent.

use super::UsageError;
use crate::signals::stop_flag;
use anyhow::Context;
use lull_agent::scratch::temporary_file;
use std::path::{Path, PathBuf};

/// A file that is to be written.
pub(super) struct Destination {
    path: PathBuf,
    folder: PathBuf,
}

impl Destination {
    /// Checks that the file can be written, without creating it.
    pub(super) fn new(path: &Path) -> Result<Self, UsageError> {
        let refuse = |problem: &str| UsageError(format!("{}: {problem}", path.display()));
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(refuse("cannot be written: there is no such directory"));
        }
        if path.is_dir() || path.file_name().is_none() {
            return Err(refuse("cannot be written: is a directory; name a file"));
        }
        Ok(Self { path: path.to_owned(), folder: folder.to_owned() })
    }

    /// Writes a temporary file in the same directory and renames it, so that a process that
    /// has the old file open keeps it, and no process reads half of the new one.
    fn write(&self, bytes: &[u8]) -> std::io::Result<()> {
        temporary_file(&self.folder, bytes)?.persist(&self.path)?;
        Ok(())
    }
}

/// Writes all files. Before this call an interrupt ends the process and leaves no file;
/// during it an interrupt waits until the files are complete, which takes little time
/// compared with the simulation.
pub(super) fn all(files: &[(&Destination, Vec<u8>)]) -> anyhow::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let _interrupts_wait = stop_flag()?;
    for (to, bytes) in files {
        to.write(bytes).with_context(|| format!("cannot write {}", to.path.display()))?;
    }
    Ok(())
}

/// Writes the text of a result over a file.
pub(super) fn text(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_in_one_step_and_nothing_is_left_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out.csv");
        std::fs::write(&path, "old").unwrap();
        let to = Destination::new(&path).unwrap();
        let mut reader = std::fs::File::open(&path).unwrap();
        to.write(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let mut seen = String::new();
        std::io::Read::read_to_string(&mut reader, &mut seen).unwrap();
        assert_eq!(seen, "old");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_a_file_is_refused_at_once() {
        let place = tempfile::tempdir().unwrap();
        assert!(Destination::new(&place.path().join("no/such/out.csv")).is_err());
        assert!(Destination::new(place.path()).is_err());
        assert!(Destination::new(Path::new("out.csv")).is_ok());
    }
}
