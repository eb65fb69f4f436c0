//! Directories into which only trusted users can write, and new files in them.
//!
//! A user who can write into a directory of an agent of root's can put a symbolic link in the
//! place of a file, and so make root overwrite any file. So a directory belongs to the user of
//! this process, or to root, and no other user may write to it. It is opened without following a
//! link in its last component. Files are new (`O_EXCL`), not links, and readable by their owner
//! only. The directories above are not checked: name a path whose parents belong to you or root.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The mode bit of directories in which users can remove their own files only.
const STICKY: u32 = 0o1000;

/// A checked directory.
#[derive(Debug)]
pub struct OwnDirectory {
    path: PathBuf,
    handle: OwnedFd,
}

/// The users to whom a directory may belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The user of this process.
    User,
    /// The user of this process, or root.
    UserOrRoot,
}

/// The reason why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The kernel refused to make, open or check it.
    #[error("cannot {doing} directory {path}: {source}", path = .path.display())]
    Failed {
        /// `make`, `open` or `check`.
        doing: &'static str,
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The path is of another kind.
    #[error(
        "{path} is a symbolic link or is not a directory: remove it, or name a directory of your \
         own",
        path = .path.display()
    )]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// The directory belongs to another user.
    #[error(
        "directory {path} belongs to user {owner}, and that user could replace the files of Lull \
         there: name a directory that belongs to user {user}",
        path = .path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Other users may write to it.
    #[error(
        "directory {path} can be written by other users (mode {mode:03o}), and another user could \
         replace the files of Lull there: {advice}",
        path = .path.display(), advice = advice(.path, *.mode)
    )]
    Writable {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Returns what to do about a directory that others can write to. One that all users share, such
/// as `/tmp`, must stay as it is.
fn advice(path: &Path, mode: u32) -> String {
    let path = path.display();
    match mode & STICKY {
        0 => format!("run `chmod go-w {path}` if its content is yours"),
        _ => format!("it is shared by all users, so name a directory in it: {path}/lull"),
    }
}

impl OwnDirectory {
    /// Opens a directory and checks it.
    ///
    /// # Errors
    /// If it does not exist or is not a directory, belongs to another user, or could be written by
    /// one.
    pub fn open(path: &Path, owner: Owner) -> Result<Self, DirectoryError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match openat(CWD, path, flags, Mode::empty()) {
            Ok(handle) => handle,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(DirectoryError::NoDirectory { path: path.to_owned() });
            }
            Err(error) => return Err(failed("open", path)(error)),
        };
        let found = fstat(&handle).map_err(failed("check", path))?;
        check(path, &found, owner)?;
        Ok(Self { path: path.to_owned(), handle })
    }

    /// Opens a directory that belongs to this user or root, and makes it, and those above it, if
    /// it is missing; a new one can be read by its owner only.
    ///
    /// # Errors
    /// As [`OwnDirectory::open`]; if it cannot be made.
    pub fn make(path: &Path) -> Result<Self, DirectoryError> {
        let path = absolute(path)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|source| DirectoryError::Failed {
            doing: "make",
            path: path.clone(),
            source,
        })?;
        Self::open(&path, Owner::UserOrRoot)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a file that only its owner can read. A file or link of this name is an error.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Makes a file in the place of one of this name. A link is removed and not followed.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn replace_file(&self, name: &str) -> io::Result<File> {
        match unlinkat(&self.handle, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.create_file(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a path names the file that is open.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn is_at(file: impl AsFd, path: &Path) -> io::Result<bool> {
        let (open, named) = (fstat(file)?, statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?);
        Ok((open.st_dev, open.st_ino) == (named.st_dev, named.st_ino))
    }
}

impl AsFd for OwnDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Makes a file in the place of another one, in a directory that must exist and must belong to
/// this user or root.
///
/// # Errors
/// As [`OwnDirectory::open`] and [`OwnDirectory::replace_file`].
pub fn replace_file(path: &Path) -> io::Result<File> {
    let path = std::path::absolute(path)?;
    let (Some(directory), Some(name)) =
        (path.parent(), path.file_name().and_then(|it| it.to_str()))
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let directory = OwnDirectory::open(directory, Owner::UserOrRoot).map_err(io::Error::other)?;
    directory.replace_file(name)
}

fn absolute(path: &Path) -> Result<PathBuf, DirectoryError> {
    std::path::absolute(path).map_err(|source| DirectoryError::Failed {
        doing: "name",
        path: path.to_owned(),
        source,
    })
}

fn check(path: &Path, found: &Stat, owner: Owner) -> Result<(), DirectoryError> {
    let user = geteuid().as_raw();
    let is_trusted = found.st_uid == user || (owner == Owner::UserOrRoot && found.st_uid == 0);
    if !is_trusted {
        return Err(DirectoryError::Foreign { path: path.to_owned(), owner: found.st_uid, user });
    }
    if found.st_mode & 0o022 != 0 {
        let mode = found.st_mode & 0o7777;
        return Err(DirectoryError::Writable { path: path.to_owned(), mode });
    }
    Ok(())
}

fn failed<'a>(doing: &'static str, path: &'a Path) -> impl Fn(Errno) -> DirectoryError + use<'a> {
    move |error| DirectoryError::Failed { doing, path: path.to_owned(), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn new_directories_and_files_are_their_owners_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a/b");
        let directory = OwnDirectory::make(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        directory.create_file("one").unwrap();
        assert_eq!(mode(&path.join("one")), 0o600);
        let again = directory.create_file("one").unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        fs::set_permissions(path.join("one"), Permissions::from_mode(0o644)).unwrap();
        let replaced = directory.replace_file("one").unwrap();
        assert_eq!(mode(&path.join("one")), 0o600);
        assert!(OwnDirectory::is_at(&replaced, &path.join("one")).unwrap());
        let other = directory.replace_file("one").unwrap();
        assert!(!OwnDirectory::is_at(&replaced, &path.join("one")).unwrap());
        assert!(OwnDirectory::is_at(&other, &path.join("one")).unwrap());
    }

    #[test]
    fn a_link_in_place_of_a_file_or_the_directory_is_never_written_through() {
        let place = tempfile::tempdir().unwrap();
        let victim = place.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let directory = OwnDirectory::make(&place.path().join("own")).unwrap();
        symlink(&victim, directory.path().join("log")).unwrap();
        assert!(directory.create_file("log").is_err());
        drop(directory.replace_file("log").unwrap());
        assert!(fs::symlink_metadata(directory.path().join("log")).unwrap().is_file());
        let link = place.path().join("link");
        symlink(directory.path(), &link).unwrap();
        let refused = OwnDirectory::make(&link).unwrap_err();
        assert!(matches!(refused, DirectoryError::NoDirectory { .. }), "{refused}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let place = tempfile::tempdir().unwrap();
        for bits in [0o777, 0o775, 0o1777] {
            fs::set_permissions(place.path(), Permissions::from_mode(bits)).unwrap();
            let refused = OwnDirectory::make(place.path()).unwrap_err();
            assert!(matches!(refused, DirectoryError::Writable { .. }), "{bits:o}: {refused}");
            let is_shared = bits & STICKY != 0;
            let advice = if is_shared { "name a directory in it" } else { "chmod go-w" };
            let text = refused.to_string();
            assert!(text.contains(advice), "{text}");
            assert_eq!(text.contains("chmod"), !is_shared, "{text}");
        }
    }

    /// Only root can create a directory that belongs to another user.
    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !geteuid().is_root() {
            return lull_testing::skip("changes the owner of a directory: run as root");
        }
        let place = tempfile::tempdir().unwrap();
        chown(place.path(), Some(65534), None).unwrap();
        let refused = OwnDirectory::make(place.path()).unwrap_err();
        assert!(matches!(refused, DirectoryError::Foreign { owner: 65534, .. }), "{refused}");
    }
}
