//! The operators' token: a new random secret for every run, in a file that only
//! the agent's user can read.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const BYTES: usize = 16;

/// The secret of one run; its file is removed when the value is dropped.
#[derive(Debug)]
pub(super) struct Token {
    text: String,
    file: PathBuf,
}

impl Token {
    /// Draws one and writes it.
    pub(super) fn make(file: &Path) -> io::Result<Self> {
        let mut bytes = [0_u8; BYTES];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // An old file may have other permissions, so it is replaced.
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        writeln!(to, "{text}")?;
        Ok(Self { text, file: file.to_owned() })
    }

    /// Returns the path of the token's file.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Returns whether a text is the token, in time that does not depend on how much of it matches.
    pub(super) fn is(&self, shown: &str) -> bool {
        let (ours, theirs) = (self.text.as_bytes(), shown.as_bytes());
        let differs = ours.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b));
        ours.len() == theirs.len() && differs == 0
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        // A file that remains is harmless, because the next run has another token.
        let _ = std::fs::remove_file(&self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_user_can_read_it_and_no_two_are_the_same() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("token");
        std::fs::write(&file, "old and readable").unwrap();
        let first = Token::make(&file).unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(first.is(written.trim()) && written.trim().len() == 32);
        let second = Token::make(&place.path().join("other")).unwrap();
        assert!(!second.is(written.trim()));
        for wrong in ["", &written.trim()[1..], &format!("{}0", written.trim())] {
            assert!(!first.is(wrong), "{wrong}");
        }
        drop(first);
        assert!(!file.exists(), "left behind");
    }
}
