//! The operators' token: a new random secret for every run, in a file that only
//! the agent's user can read.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const BYTES: usize = 16;

/// The secret of one run; its file is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Token {
    text: String,
    file: PathBuf,
}

impl Token {
    /// Draws one and writes it.
    pub(crate) fn make(file: &Path) -> io::Result<Self> {
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

    /// Returns what recognises the token and does not reveal it.
    pub(super) fn digest(&self) -> TokenDigest {
        TokenDigest::from_token(&self.text)
    }

    /// Returns whether a text is the token, in time that does not depend on how much of it matches.
    pub(crate) fn is(&self, shown: &str) -> bool {
        is_same(self.text.as_bytes(), shown.as_bytes())
    }
}

/// The digest of a token, for the process that receives what operators present. The token has
/// 128 random bits, so that its digest gives no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// Returns the digest of a token.
    pub(crate) fn from_token(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    /// Returns whether a text is the token.
    pub(crate) fn is(&self, shown: &str) -> bool {
        is_same(&self.0, &Sha256::digest(shown))
    }
}

fn is_same(ours: &[u8], theirs: &[u8]) -> bool {
    let differs = ours.iter().zip(theirs).fold(0, |all, (a, b)| all | (a ^ b));
    ours.len() == theirs.len() && differs == 0
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
        assert!(first.digest().is(written.trim()));
        let second = Token::make(&place.path().join("other")).unwrap();
        assert!(!second.is(written.trim()));
        for wrong in ["", &written.trim()[1..], &format!("{}0", written.trim())] {
            assert!(!first.is(wrong) && !first.digest().is(wrong), "{wrong}");
        }
        drop(first);
        assert!(!file.exists(), "left behind");
    }
}
