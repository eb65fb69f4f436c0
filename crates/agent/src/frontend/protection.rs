//! The files that protect the receiver of OTLP. The agent reads them, since the front end may read
//! none, and again when they change.

use crate::config::ReceiverSection;
use crate::live::{ServerIdentity, TokenDigest};
use crate::otlp::Protection;
use crate::outbound::read_token;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The interval at which the files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The files, and their contents when they were read last.
#[derive(Debug)]
pub(crate) struct ProtectionFiles {
    files: ReceiverSection,
    changed: Vec<Option<SystemTime>>,
    looked: Instant,
    pub(super) read: Protection,
}

impl ProtectionFiles {
    /// Reads them.
    ///
    /// # Errors
    /// The file that cannot be read, and why.
    pub(crate) fn open(files: ReceiverSection) -> Result<Self, String> {
        let changed = changes(&files);
        let read = read(&files)?;
        Ok(Self { files, changed, looked: Instant::now(), read })
    }

    /// Reads the files again if one of them has changed, and returns the differences.
    ///
    /// # Errors
    /// The file that cannot be read; the former contents apply until it changes again.
    pub(super) fn renew(&mut self, now: Instant) -> Result<Option<Protection>, String> {
        if now.saturating_duration_since(self.looked) < LOOK_EVERY {
            return Ok(None);
        }
        self.looked = now;
        let changed = changes(&self.files);
        if std::mem::replace(&mut self.changed, changed.clone()) == changed {
            return Ok(None);
        }
        let read = read(&self.files)?;
        let is_other = read != self.read;
        self.read.clone_from(&read);
        Ok(is_other.then_some(read))
    }
}

fn changes(files: &ReceiverSection) -> Vec<Option<SystemTime>> {
    let all = [&files.certificate, &files.key, &files.token].into_iter().flatten();
    all.map(|path| path.metadata().and_then(|file| file.modified()).ok()).collect()
}

fn read(files: &ReceiverSection) -> Result<Protection, String> {
    let bytes = |path: &Path| {
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let identity = |(certificate, key): (&PathBuf, &PathBuf)| {
        Ok::<_, String>(ServerIdentity { certificate: bytes(certificate)?, key: bytes(key)? })
    };
    let both = files.certificate.as_ref().zip(files.key.as_ref());
    let token = files.token.as_deref().map(read_token).transpose();
    let token = token.map_err(|error| error.to_string())?;
    Ok(Protection {
        identity: both.map(identity).transpose()?,
        token: token.as_deref().map(TokenDigest::from_token),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_change_are_read_again_and_what_was_read_holds_until_then() {
        let place = tempfile::tempdir().unwrap();
        let token = place.path().join("token");
        let files = ReceiverSection { token: Some(token.clone()), ..ReceiverSection::default() };
        assert!(ProtectionFiles::open(files.clone()).unwrap_err().contains("token"));
        std::fs::write(&token, "first").unwrap();
        let mut opened = ProtectionFiles::open(files).unwrap();
        assert!(opened.read.token.is_some_and(|token| token.is("first")));
        let mut now = Instant::now();
        let mut renew = |text: &str| {
            std::fs::write(&token, text).unwrap();
            let file = std::fs::File::options().write(true).open(&token).unwrap();
            now += LOOK_EVERY;
            file.set_modified(SystemTime::now() + (now - opened.looked)).unwrap();
            opened.renew(now).map(|renewed| renewed.and_then(|it| it.token))
        };
        assert!(renew("second").unwrap().is_some_and(|token| token.is("second")));
        assert!(renew("two words").is_err());
        assert!(renew("second").unwrap().is_none(), "it is the same again");
    }
}
