//! The directory that holds the ledger and the lock.
//!
//! `/run/lull` for root; for other users `$XDG_RUNTIME_DIR/lull`, else `$XDG_STATE_HOME/lull`
//! or `~/.local/state/lull`. `/tmp/lull-UID`, where another user could be first, is for users
//! without a home only. The choice depends on the environment alone, so that `lull restore`
//! looks where the agent wrote.
//!
//! Any user who can write there can make a later Lull write any knob, so it must be a real
//! directory (no symbolic link), owned by the user, and writable by no other user. Every file
//! in it is opened relative to the checked directory and never through a link.

use crate::own_directory::{DirectoryError, OwnDirectory, Owner};
use rustix::fs::{CWD, Mode, OFlags, fchmod, fsync, mkdirat, openat, renameat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A checked state directory.
#[derive(Debug)]
pub struct StateDir {
    directory: OwnDirectory,
}

impl StateDir {
    /// The given directory or the user's own, made if it is missing.
    ///
    /// # Errors
    /// [`DirectoryError`] if it cannot be had or could be written by others.
    pub fn locate(explicit: Option<&Path>) -> Result<Self, DirectoryError> {
        let path = Self::path_of(explicit)?;
        let above = path.parent().filter(|above| explicit.is_none() && !above.exists());
        if let Some(above) = above {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(above);
            made.map_err(failed("make", above))?;
        }
        match mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make", &path)(error.into())),
        }
        Ok(Self { directory: OwnDirectory::open(&path, Owner::User)? })
    }

    /// The absolute path of the given directory or of the user's own, which need not exist.
    ///
    /// # Errors
    /// [`DirectoryError`] if a relative path has no absolute one.
    pub fn path_of(explicit: Option<&Path>) -> Result<PathBuf, DirectoryError> {
        match explicit {
            Some(path) => std::path::absolute(path).map_err(failed("name", path)),
            None => {
                let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
                Ok(default_path(geteuid().as_raw(), variable))
            }
        }
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Opens a file in it, made with mode 0600 if it is missing.
    pub(super) fn open_file(&self, name: &str, empty: bool) -> io::Result<File> {
        let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if empty {
            flags |= OFlags::TRUNC;
        }
        let file = openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        if empty {
            fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        }
        Ok(file.into())
    }

    /// Opens a file in it, if there is one; only to read it on a file system that is read-only.
    pub(super) fn existing_file(&self, name: &str) -> io::Result<Option<File>> {
        let open = |access: OFlags| {
            let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&self.directory, name, flags, Mode::empty())
        };
        let opened = match open(OFlags::RDWR) {
            Err(Errno::ROFS) => open(OFlags::RDONLY),
            opened => opened,
        };
        match opened {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Renames a file in it over another, and makes the change durable.
    pub(super) fn replace(&self, from: &str, to: &str) -> io::Result<()> {
        renameat(&self.directory, from, &self.directory, to)?;
        Ok(fsync(&self.directory)?)
    }
}

fn failed<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> DirectoryError + use<'a> {
    move |source| DirectoryError::Failed { doing, path: path.to_owned(), source }
}

fn default_path(user: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    if user == 0 {
        return PathBuf::from("/run/lull");
    }
    let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
    let home = || absolute("HOME").filter(|home| home.is_dir());
    let place = absolute("XDG_RUNTIME_DIR")
        .or_else(|| absolute("XDG_STATE_HOME"))
        .or_else(|| home().map(|home| home.join(".local/state")));
    place.map_or_else(|| PathBuf::from(format!("/tmp/lull-{user}")), |place| place.join("lull"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn each_user_has_a_place() {
        let path = |user: u32, variables: &[(&str, &str)]| {
            default_path(user, |name| {
                let found = variables.iter().find(|(of, _)| *of == name);
                found.map(|(_, value)| PathBuf::from(value))
            })
        };
        let runtime = ("XDG_RUNTIME_DIR", "/run/user/7");
        assert_eq!(path(0, &[runtime]), Path::new("/run/lull"));
        assert_eq!(path(7, &[runtime, ("HOME", "/")]), Path::new("/run/user/7/lull"));
        let state = ("XDG_STATE_HOME", "/var/own");
        assert_eq!(path(7, &[state, ("HOME", "/")]), Path::new("/var/own/lull"));
        // A directory in /tmp could be another user's, so it is the last choice.
        let relative = ("XDG_RUNTIME_DIR", "relative");
        assert_eq!(path(7, &[relative, ("HOME", "/")]), Path::new("/.local/state/lull"));
        for nowhere in ["relative", "/no/such/home", "/proc/self/status"] {
            assert_eq!(path(7, &[("HOME", nowhere)]), Path::new("/tmp/lull-7"));
        }
    }

    #[test]
    fn a_new_directory_is_private_and_so_are_its_files() {
        let place = tempfile::tempdir().unwrap();
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(dir.path()), 0o700);
        dir.open_file("ledger", true).unwrap();
        assert_eq!(mode(&dir.path().join("ledger")), 0o600);
    }

    #[test]
    fn a_link_in_place_of_the_directory_or_a_file_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (target, link) = (place.path().join("target"), place.path().join("lull"));
        fs::create_dir(&target).unwrap();
        symlink(&target, &link).unwrap();
        assert!(matches!(StateDir::locate(Some(&link)), Err(DirectoryError::NoDirectory { .. })));

        let dir = StateDir::locate(Some(&place.path().join("own"))).unwrap();
        fs::write(target.join("victim"), "kept").unwrap();
        symlink(target.join("victim"), dir.path().join("ledger")).unwrap();
        assert!(dir.open_file("ledger", true).is_err());
        assert!(dir.existing_file("ledger").is_err());
        assert_eq!(fs::read_to_string(target.join("victim")).unwrap(), "kept");
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o777)).unwrap();
        let refused = StateDir::locate(Some(place.path())).unwrap_err();
        assert!(matches!(refused, DirectoryError::Writable { mode: 0o777, .. }));
        assert!(refused.to_string().contains("chmod go-w"));
    }

    /// Only root can create a directory that belongs to another user.
    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !geteuid().is_root() {
            return lull_testing::skip("changes the owner of a directory: run as root");
        }
        let place = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(place.path(), Some(65534), None).unwrap();
        let refused = StateDir::locate(Some(place.path())).unwrap_err();
        assert!(matches!(refused, DirectoryError::Foreign { owner: 65534, .. }));
    }
}
