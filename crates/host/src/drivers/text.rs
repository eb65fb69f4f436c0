//! Kernel files that take and show one text.
//!
//! A driver sees each `write(2)` as one request, so a value is written with
//! one call and its newline: resctrl refuses a text without it, and all other
//! files accept it. The value that a driver has set is known only by reading it back.

use crate::files::read_text;
use lull_measure::Missing;
use rustix::fs::{Access, access};
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why a kernel file could not be read or written: the file and the kernel's error.
#[derive(Debug)]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The text to write; `None` for a reading.
    pub wanted: Option<String>,
    /// The error of the kernel.
    pub source: io::Error,
}

impl FileError {
    /// Whether what the file belongs to is not there now: its core offline,
    /// its device or driver gone.
    pub(crate) fn is_absent(&self) -> bool {
        let absent = [libc::ENOENT, libc::ENODEV, libc::ENXIO, libc::EBUSY, libc::ENOTDIR];
        self.source.raw_os_error().is_some_and(|code| absent.contains(&code))
    }

    /// Returns what a user can do about the kernel's error.
    fn remedy(&self) -> &'static str {
        match self.source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "; run as root, and if it is root, look whether a container or lockdown forbids it"
            }
            Some(libc::EROFS) => {
                "; it is mounted read-only here, as in a container: run on the host"
            }
            Some(libc::EINVAL | libc::ERANGE | libc::EOPNOTSUPP) if self.wanted.is_some() => {
                "; the driver does not take this value"
            }
            Some(libc::EBUSY) => "; its core is offline, or the kernel uses it otherwise",
            Some(libc::ENODEV | libc::ENXIO) => "; the device is gone",
            Some(libc::ENOENT) => "; the driver is gone or has no such knob",
            _ => "",
        }
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.wanted {
            Some(text) => write!(f, "cannot write `{text}` to {path}: {}", self.source)?,
            None => write!(f, "cannot read {path}: {}", self.source)?,
        }
        f.write_str(self.remedy())
    }
}

impl std::error::Error for FileError {}

/// The text of a kernel file.
pub(crate) fn read(path: &Path) -> Result<String, FileError> {
    let failed = |source| FileError { path: path.to_owned(), wanted: None, source };
    read_text(path).map_err(failed)
}

/// Reads a kernel file that holds one number.
pub(crate) fn read_number(path: &Path) -> Result<u64, FileError> {
    let text = read(path)?;
    text.parse().map_err(|_| FileError {
        path: path.to_owned(),
        wanted: None,
        source: io::Error::new(io::ErrorKind::InvalidData, format!("`{text}` is not a number")),
    })
}

/// Checks that this process may write a kernel file.
///
/// # Errors
/// The file, the error, and what to do.
pub(crate) fn check_writable(path: &Path) -> Result<(), Missing> {
    access(path, Access::WRITE_OK).map_err(|error| {
        let path = path.display();
        Missing::because(format!("{path} cannot be written: {error}; run as root, on the host"))
    })
}

/// Writes a text with its newline in one call; the file must be there. An ordinary file is cut
/// behind it afterwards: cut at its opening, it would be empty if the process died before the call.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), FileError> {
    let line = format!("{text}\n");
    #[cfg(test)]
    if let Some(source) = faults::next(path) {
        return Err(FileError { path: path.to_owned(), wanted: Some(text.to_owned()), source });
    }
    let open = OpenOptions::new().write(true).open(path);
    let written = open.and_then(|mut file| match file.write(line.as_bytes())? {
        length if length == line.len() => file.set_len(length as u64),
        length => {
            Err(io::Error::other(format!("the kernel took {length} of {} bytes", line.len())))
        }
    });
    let wanted = Some(text.to_owned());
    written.map_err(|source| FileError { path: path.to_owned(), wanted, source })
}

/// Writes that fail, for tests: no tree of files refuses like a kernel does.
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::RefCell;
    use std::io;
    use std::path::Path;

    /// The end of paths, how many writes still pass, and what the kernel says then.
    type Fault = (&'static str, usize, i32);

    thread_local! {
        static FAULTS: RefCell<Vec<Fault>> = const { RefCell::new(Vec::new()) };
    }

    /// Makes writes to paths with this end fail on this thread, from the `nth` write on (0 is the
    /// next).
    pub(crate) fn refuse(end: &'static str, nth: usize, errno: i32) {
        FAULTS.with_borrow_mut(|faults| faults.push((end, nth, errno)));
    }

    pub(crate) fn clear() {
        FAULTS.with_borrow_mut(Vec::clear);
    }

    pub(super) fn next(path: &Path) -> Option<io::Error> {
        FAULTS.with_borrow_mut(|faults| {
            let at = |(end, _, _): &&mut (&str, usize, i32)| path.ends_with(*end);
            let (_, left, errno) = faults.iter_mut().find(at)?;
            if *left > 0 {
                *left -= 1;
                return None;
            }
            Some(io::Error::from_raw_os_error(*errno))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_text_is_written_over_a_longer_one_and_never_makes_a_file() {
        let tree = Tree::new();
        tree.write("sys/knob", "1200000\n");
        write(&tree.path("sys/knob"), "800000").unwrap();
        assert_eq!(read(&tree.path("sys/knob")).unwrap(), "800000");
        assert_eq!(read_number(&tree.path("sys/knob")).unwrap(), 800_000);
        let gone = write(&tree.path("sys/none"), "1").unwrap_err();
        assert!(gone.is_absent() && !tree.path("sys/none").exists());
        assert!(
            gone.to_string().contains("cannot write `1` to") && gone.to_string().contains("none")
        );
    }

    #[test]
    fn every_answer_of_the_kernel_names_the_file_and_a_remedy() {
        let text = |code| {
            let source = io::Error::from_raw_os_error(code);
            let path = PathBuf::from("/sys/a/b");
            FileError { path, wanted: Some("7".to_owned()), source }.to_string()
        };
        for (code, hint) in [
            (libc::EINVAL, "does not take this value"),
            (libc::ERANGE, "does not take this value"),
            (libc::EBUSY, "offline"),
            (libc::EACCES, "run as root"),
            (libc::EROFS, "read-only"),
            (libc::ENODEV, "device is gone"),
            (libc::ENOENT, "driver is gone"),
        ] {
            assert!(text(code).starts_with("cannot write `7` to /sys/a/b: "), "{}", text(code));
            assert!(text(code).contains(hint), "{}", text(code));
        }
        assert!(
            read_number(Path::new("/proc/version"))
                .unwrap_err()
                .to_string()
                .contains("not a number")
        );
    }

    #[test]
    fn a_write_that_the_kernel_refuses_is_an_error() {
        // /dev/full fails every write with ENOSPC.
        let error = write(Path::new("/dev/full"), "1").unwrap_err();
        assert_eq!(error.source.raw_os_error(), Some(libc::ENOSPC));
    }
}
