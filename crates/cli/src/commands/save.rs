//! Writes result files so that each is complete or absent.

use super::UsageError;
use crate::signals::stop_flag;
use anyhow::Context;
use lull_agent::scratch::temporary_file;
use rustix::fs::{Access, access};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt, fchown};
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
        let named = Self::at(path);
        if !named.folder.is_dir() {
            return Err(refuse("cannot be written: there is no such directory"));
        }
        if path.is_dir() || path.file_name().is_none() {
            return Err(refuse("cannot be written: is a directory; name a file"));
        }
        named
            .check_access()
            .map_err(|why| refuse(&format!("cannot be written: {why}; name a file elsewhere")))?;
        Ok(named.behind_links())
    }

    /// Checks the rights to it. A file in a directory that takes none is overwritten.
    fn check_access(&self) -> io::Result<()> {
        if self.is_stream() {
            return Ok(());
        }
        let can_write = |path: &Path| access(path, Access::WRITE_OK);
        Ok(can_write(&self.path).or_else(|_| can_write(&self.folder))?)
    }

    fn at(path: &Path) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).to_owned();
        Self { path: path.to_owned(), folder }
    }

    /// The file that a link leads to, so that a link stays one. `is_file` lets the kernel follow it
    /// first, which refuses links that another user has put into `/tmp`.
    fn behind_links(self) -> Self {
        let is_link_to_file = self.path.is_symlink() && self.path.is_file() && !self.is_stream();
        match self.path.canonicalize() {
            Ok(path) if is_link_to_file => Self::at(&path),
            _ => self,
        }
    }

    /// Refuses to replace a file that the command reads. A terminal or a pipe is not replaced.
    pub(super) fn apart_from(self, read: &[&Path]) -> Result<Self, UsageError> {
        let id = |path: &Path| {
            let found = path.metadata().ok().filter(Metadata::is_file)?;
            Some((found.dev(), found.ino()))
        };
        let own = id(&self.path);
        if own.is_some() && read.iter().any(|other| id(other) == own) {
            let path = self.path.display();
            return Err(UsageError(format!(
                "{path}: is read by this command, which would replace it: name another file"
            )));
        }
        Ok(self)
    }

    /// Replaces the file, or writes into it where it cannot be replaced.
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        if self.is_stream() {
            return self.write_stream(bytes);
        }
        let old = self.path.symlink_metadata().ok().filter(Metadata::is_file);
        match self.replace(old.as_ref(), bytes) {
            Err(error) if old.is_some() && is_lasting(error.kind()) => self.overwrite(bytes),
            other => other,
        }
    }

    /// Writes into the file. The former content is restored if there is no room for the new bytes.
    fn overwrite(&self, bytes: &[u8]) -> io::Result<()> {
        let before = std::fs::read(&self.path);
        // Opened without O_CREAT, which the kernel refuses for files of other users in `/tmp`.
        let mut file = OpenOptions::new().write(true).open(&self.path)?;
        // The file is not truncated first, so that it keeps the blocks of the old text.
        let written = file.write_all(bytes).and_then(|()| file.set_len(bytes.len() as u64));
        if let (Err(_), Ok(before)) = (&written, before) {
            file.write_all_at(&before, 0)?;
            file.set_len(before.len() as u64)?;
        }
        written
    }

    /// Writes to a device, a pipe or a descriptor. Bytes for the file of this process's own output
    /// are written through the existing descriptor: a second one has an offset of its own, and
    /// later output would overwrite them.
    fn write_stream(&self, bytes: &[u8]) -> io::Result<()> {
        let id = |found: Metadata| (found.dev(), found.ino());
        let own = id(self.path.metadata()?);
        let is_own = |output: BorrowedFd<'_>| -> io::Result<bool> {
            Ok(id(File::from(output.try_clone_to_owned()?).metadata()?) == own)
        };
        let (mut out, mut err) = (io::stdout(), io::stderr());
        if is_own(out.as_fd())? {
            out.write_all(bytes)?;
            return out.flush();
        }
        if is_own(err.as_fd())? {
            return err.write_all(bytes);
        }
        OpenOptions::new().append(true).open(&self.path)?.write_all(bytes)
    }

    /// Writes a temporary file in the same directory and renames it, so that a process that
    /// has the old file open keeps it, and no process reads half of the new one. Owner and mode of
    /// the old file stay.
    fn replace(&self, old: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
        // No other user may open the new file before it has the owner and mode of the old one.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let mut file = temporary_file(&self.folder, mode, b"")?;
        if let Some(old) = old {
            let new = file.as_file().metadata()?;
            if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
                fchown(file.as_file(), Some(old.uid()), Some(old.gid()))?;
            }
            // The mode is set after the owner, whose change clears bits of the mode.
            file.as_file().set_permissions(old.permissions())?;
        }
        file.write_all(bytes)?;
        file.persist(&self.path)?;
        Ok(())
    }

    /// Whether it is a device, a pipe or a descriptor such as `/dev/stdout`. A rename would
    /// replace it by a file; root could so replace even `/dev/null`.
    fn is_stream(&self) -> bool {
        let folder = self.folder.canonicalize().unwrap_or_default();
        folder == Path::new("/dev")
            || folder.starts_with("/proc")
            || self.path.metadata().is_ok_and(|found| !found.is_file())
    }
}

/// Whether a file with this error cannot be replaced and may still be written: its owner cannot be
/// kept, its directory takes no file, or it is mounted by itself.
fn is_lasting(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::ResourceBusy
    )
}

/// Writes all files. Before this call an interrupt ends the process and leaves no file;
/// during it an interrupt waits until the files are complete, which takes little time
/// compared with the simulation.
pub(super) fn all(files: &[(&Destination, Vec<u8>)]) -> anyhow::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let _interrupts_wait = stop_flag()?;
    files.iter().try_for_each(|(to, bytes)| one(to, bytes))
}

/// Writes one file; an interrupt still ends the process, because work follows.
pub(super) fn one(to: &Destination, bytes: &[u8]) -> anyhow::Result<()> {
    to.write(bytes).with_context(|| format!("cannot write {}", to.path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
    use std::process::Command;

    #[test]
    fn a_file_is_replaced_in_one_step_and_nothing_is_left_beside_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out.csv");
        std::fs::write(&path, "old").unwrap();
        let to = Destination::new(&path).unwrap();
        let mut reader = File::open(&path).unwrap();
        to.write(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        let mut seen = String::new();
        io::Read::read_to_string(&mut reader, &mut seen).unwrap();
        assert_eq!(seen, "old");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_a_pipe_stays_a_pipe() {
        let place = tempfile::tempdir().unwrap();
        let (path, pipe) = (place.path().join("out.csv"), place.path().join("pipe"));
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        Destination::new(&path).unwrap().write(b"new").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe)
        });
        Destination::new(&pipe).unwrap().write(b"text").unwrap();
        assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo(), "it was replaced");
        assert_eq!(reader.join().unwrap().unwrap(), "text");
    }

    #[test]
    fn a_replaced_file_keeps_its_owner() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("my.toml");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        if chown(&path, Some(65534), Some(65534)).is_err() {
            return lull_testing::skip("only root can give a file to another user");
        }
        let before = path.metadata().unwrap();
        Destination::new(&path).unwrap().write(b"new").unwrap();
        let after = path.metadata().unwrap();
        assert_ne!(before.ino(), after.ino(), "it was not replaced");
        assert_eq!((after.uid(), after.gid(), after.mode() & 0o777), (65534, 65534, 0o600));
    }

    #[test]
    fn a_link_to_a_file_stays_one() {
        let place = tempfile::tempdir().unwrap();
        let [folder, file, link] =
            ["results", "results/run.md", "latest.md"].map(|name| place.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("results/run.md", &link).unwrap();
        Destination::new(&link).unwrap().write(b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn descriptors_and_devices_are_not_renamed_over() {
        let is_stream = |path: &str| Destination::new(Path::new(path)).unwrap().is_stream();
        for path in ["/dev/stdout", "/dev/null", "/dev/fd/1", "/proc/self/fd/1"] {
            assert!(is_stream(path), "{path}");
        }
        assert!(!is_stream("out.csv") && !is_stream("/tmp/no-such-result.csv"));
    }

    #[test]
    fn a_file_that_the_command_reads_is_not_replaced() {
        let place = tempfile::tempdir().unwrap();
        let (read, link) = (place.path().join("run.db"), place.path().join("link"));
        std::fs::write(&read, "kept").unwrap();
        std::os::unix::fs::symlink(&read, &link).unwrap();
        let refused = |path: &Path| {
            Destination::new(path).unwrap().apart_from(&[&read]).err().map(|error| error.0)
        };
        for path in [&read, &link] {
            assert!(refused(path).unwrap().contains("would replace it"));
        }
        assert_eq!(refused(&place.path().join("run.html")), None);
        let device = Path::new("/dev/null");
        assert!(Destination::new(device).unwrap().apart_from(&[device]).is_ok());
    }

    #[test]
    fn what_cannot_be_a_file_is_refused_at_once() {
        let place = tempfile::tempdir().unwrap();
        assert!(Destination::new(&place.path().join("no/such/out.csv")).is_err());
        assert!(Destination::new(place.path()).is_err());
        assert!(Destination::new(Path::new("out.csv")).is_ok());
    }
}
