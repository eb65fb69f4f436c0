//! Small kernel files: read once, or repeatedly at little cost.

use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::LazyLock;

/// A file's text without surrounding white space.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}

/// A file that holds one value and nothing else.
pub(crate) fn read_value<T: FromStr>(path: &Path) -> io::Result<T> {
    let text = read_text(path)?;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("`{text}` makes no sense"));
    text.parse().map_err(|_| wrong())
}

/// Returns the value that was read, or `None` if its owner is gone. Other errors do not mean that:
/// without a free descriptor nothing can be read.
pub(crate) fn unless_gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The whitespace-separated numbers at the start of a line; stops at the first other word.
pub(crate) fn numbers(line: &[u8]) -> impl Iterator<Item = u64> + '_ {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map_while(number)
}

/// A word of decimal digits as a number.
pub(crate) fn number(word: &[u8]) -> Option<u64> {
    if word.is_empty() {
        return None;
    }
    let add = |sum: u64, digit: &u8| match digit {
        b'0'..=b'9' => sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    };
    word.iter().try_fold(0, add)
}

/// A file that is read every epoch: opened once, read from the start each time.
///
/// The kernel generates the content for every read at offset 0, so this
/// saves path look-up, open and close. Where descriptors get scarce the file
/// is opened for each read instead.
#[derive(Debug)]
pub(crate) struct HotFile {
    path: PathBuf,
    kept: Option<File>,
}

impl HotFile {
    /// A file to be opened at the first read.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, kept: None }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its content, as far as `buffer` has room.
    pub(crate) fn read<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        self.read_by(buffer, read_from)
    }

    fn read_by<'a>(
        &mut self,
        buffer: &'a mut [u8],
        read: fn(&File, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<&'a [u8]> {
        if let Some(file) = self.kept.take() {
            let length = read(&file, buffer);
            // The file of a thread or device that is gone; a later one may have its name.
            let gone = [Some(libc::ESRCH), Some(libc::ENODEV)];
            if !matches!(&length, Err(error) if gone.contains(&error.raw_os_error())) {
                self.kept = Some(file);
                return length.map(|length| &buffer[..length]);
            }
        }
        let file = File::open(&self.path)?;
        let length = read(&file, buffer);
        // Descriptors are handed out lowest first, so the number says how many are open.
        let affordable = u64::try_from(file.as_raw_fd()).is_ok_and(|fd| fd < *DESCRIPTORS / 2);
        self.kept = Some(file).filter(|_| affordable);
        length.map(|length| &buffer[..length])
    }

    /// Its content, as far as `buffer` has room, by one read. For files that the kernel generates
    /// as a single record, which it returns whole: a read at their end, which finds nothing more,
    /// would make it generate them once more.
    pub(crate) fn read_first<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        self.read_by(buffer, |file, buffer| file.read_at(buffer, 0))
    }

    /// The number that the file begins with.
    pub(crate) fn read_number(&mut self) -> io::Result<u64> {
        let mut buffer = [0; 32];
        let first = numbers(self.read_first(&mut buffer)?).next();
        first.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "does not begin with a number")
        })
    }
}

fn read_from(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// How many descriptors the process may have open. It is read once, because each new process of an
/// app has several files: a later change of the limit is not noticed.
static DESCRIPTORS: LazyLock<u64> =
    LazyLock::new(|| getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_file_shows_what_the_file_holds_now() {
        let tree = tempfile::tempdir().unwrap();
        let path = tree.path().join("value");
        let mut file = HotFile::new(path.clone());
        assert_eq!(file.read_number().unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "12\n").unwrap();
        assert_eq!(file.read_number().unwrap(), 12);
        std::fs::write(&path, "345 6\n").unwrap();
        assert_eq!(file.read_number().unwrap(), 345);
        assert_eq!(file.read_first(&mut [0; 8]).unwrap(), b"345 6\n");
        assert_eq!(file.read_first(&mut [0; 2]).unwrap(), b"34");
        std::fs::write(&path, "none").unwrap();
        assert_eq!(file.read_number().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn numbers_end_at_the_first_other_word() {
        let of = |line: &str| numbers(line.as_bytes()).collect::<Vec<_>>();
        assert_eq!(of("  1 22\t333 x 4\n"), [1, 22, 333]);
        assert!(of("").is_empty());
        assert!(of("18446744073709551616").is_empty());
        assert!(of("-1").is_empty());
    }
}
