//! Several kernel files written together: all of them, or none.

use super::text::{self, FileError};
use std::path::PathBuf;

/// One text to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextWrite {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) kept: ReadBack,
}

/// How a text must read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadBack {
    /// The text reads back as it was written.
    Exactly,
    /// Another number of the same size reads back: the hardware has its own steps.
    Nearly,
}

/// A relative difference that a step of the hardware explains.
const STEP: f64 = 0.05;

/// The former and the present text of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) path: PathBuf,
    pub(crate) before: String,
    pub(crate) now: String,
}

/// The first failure of a write. Earlier writes are undone.
#[derive(Debug)]
pub(crate) enum WriteError {
    File(FileError),
    NotKept { path: PathBuf, wanted: String, found: String },
}

impl From<FileError> for WriteError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl TextWrite {
    pub(crate) fn exactly(path: PathBuf, text: impl Into<String>) -> Self {
        Self { path, text: text.into(), kept: ReadBack::Exactly }
    }

    fn is_kept(&self, found: &str) -> bool {
        let number = |text: &str| text.parse::<f64>().ok();
        match (self.kept, number(&self.text), number(found)) {
            (ReadBack::Nearly, Some(wanted), Some(found)) => {
                (wanted - found).abs() <= STEP * wanted.abs()
            }
            _ => self.text == found,
        }
    }

    fn apply(&self, before: String) -> Result<Written, WriteError> {
        text::write(&self.path, &self.text)?;
        let found = text::read(&self.path)?;
        if !self.is_kept(&found) {
            let (path, wanted) = (self.path.clone(), self.text.clone());
            return Err(WriteError::NotKept { path, wanted, found });
        }
        Ok(Written { path: self.path.clone(), before, now: found })
    }
}

/// Writes all in order; a file that has its text already is left alone.
pub(crate) fn write_all(writes: &[TextWrite]) -> Result<Vec<Written>, WriteError> {
    let mut done: Vec<Written> = Vec::new();
    for write in writes {
        let before = text::read(&write.path).map_err(WriteError::from);
        let written = before.and_then(|before| match write.is_kept(&before) {
            true => Ok(None),
            // Noted before it is checked, so that a failed check is undone too.
            false => {
                let now = before.clone();
                done.push(Written { path: write.path.clone(), before: before.clone(), now });
                write.apply(before).map(Some)
            }
        });
        match written {
            Ok(Some(written)) => {
                done.pop();
                done.push(written);
            }
            Ok(None) => {}
            Err(error) => {
                undo(&done);
                return Err(error);
            }
        }
    }
    Ok(done)
}

/// Writes the old texts in reverse order; what fails here is in the ledger still.
pub(crate) fn undo(done: &[Written]) {
    for Written { path, before, .. } in done.iter().rev() {
        let _ = text::write(path, before);
    }
}

#[cfg(test)]
mod tests {
    use super::text::faults;
    use super::*;
    use crate::testing::Tree;

    fn scene() -> (Tree, Vec<TextWrite>) {
        let tree = Tree::new();
        let write = |name: &str| {
            tree.write(&format!("sys/{name}"), "old\n");
            TextWrite::exactly(tree.path(&format!("sys/{name}")), "new")
        };
        let writes = ["a", "b", "c"].map(write).to_vec();
        (tree, writes)
    }

    #[test]
    fn all_are_written_and_reported() {
        let (_tree, writes) = scene();
        let done = write_all(&writes).unwrap();
        assert!(done.iter().all(|one| one.before == "old" && one.now == "new"));
        assert_eq!(done.len(), 3);
        assert_eq!(write_all(&writes).unwrap(), [], "they are so already");
        undo(&done);
        assert_eq!(text::read(&writes[1].path).unwrap(), "old");
    }

    #[test]
    fn a_refusal_at_any_position_undoes_the_writes_before_it() {
        for errno in [libc::EINVAL, libc::EBUSY, libc::EACCES, libc::ENODEV, libc::EROFS, libc::EIO]
        {
            for file in ["a", "b", "c"] {
                let (_tree, writes) = scene();
                faults::refuse(file, 0, errno);
                let error = write_all(&writes).unwrap_err();
                faults::clear();
                let WriteError::File(error) = error else { panic!("{error:?}") };
                assert!(error.path.ends_with(file) && error.source.raw_os_error() == Some(errno));
                for write in &writes {
                    assert_eq!(text::read(&write.path).unwrap(), "old");
                }
            }
        }
    }

    #[test]
    fn a_file_that_vanished_undoes_the_writes_before_it() {
        let (tree, writes) = scene();
        tree.remove("sys/c");
        let WriteError::File(error) = write_all(&writes).unwrap_err() else { panic!() };
        assert!(error.is_absent());
        assert_eq!(text::read(&writes[0].path).unwrap(), "old");
    }

    #[test]
    fn a_number_may_be_kept_in_the_steps_of_the_hardware_and_no_further() {
        let write = |kept| TextWrite { path: "/a".into(), text: "45000000".into(), kept };
        assert!(write(ReadBack::Nearly).is_kept("44875000"));
        assert!(!write(ReadBack::Nearly).is_kept("28000000"));
        assert!(!write(ReadBack::Exactly).is_kept("44875000"));
    }
}
