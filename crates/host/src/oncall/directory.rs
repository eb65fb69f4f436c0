//! A directory with a page that servers find by their environment and that outlives its
//! agent.
//!
//! Servers and agent map the page. Any user who can truncate the file can crash both with
//! SIGBUS, and any user who can replace the library runs code in the server. So directory and
//! library belong to the user who made them, usually root, and no other user may write there.
//! The page belongs to root or to the server's user, to whom only the directory's owner can
//! have given it.

use super::{Rules, open};
use crate::own_directory::{DirectoryError, OwnDirectory, Owner};
use crate::sys::page::SharedPage;
use lull_oncall::PageError;
use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, Stat, StatVfsMountFlags, flock, fstat, fstatfs,
    fstatvfs, openat, stat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

const PAGE: &str = "page";
const LIBRARY: &str = "liblull_preload.so";
/// The type of tmpfs in `statfs`.
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// A checked page directory.
#[derive(Debug)]
pub struct PageDirectory {
    path: PathBuf,
    handle: OwnDirectory,
    /// The owner of a new page.
    owner: Option<u32>,
}

/// The reason why a page directory, or a file in it, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PageDirectoryError {
    /// A system call failed.
    #[error("cannot {doing} {path}: {source}", path = .path.display())]
    Failed {
        /// `make`, `open` and the like.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The directory belongs to another user or can be written by one.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The page is not a file.
    #[error("{path} is not a file: name another directory, or remove it", path = .path.display())]
    Kind {
        /// The path.
        path: PathBuf,
    },
    /// The file belongs to another user.
    #[error(
        "{path} belongs to user {owner}, who could crash a server through it: name a directory \
         that belongs to user {user}, or remove it",
        path = .path.display()
    )]
    Foreign {
        /// The path.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The required owner.
        user: u32,
    },
    /// Other users may write to it.
    #[error(
        "{path} can be written by other users (mode {mode:03o}), who could crash a server \
         through it: run `chmod go-w {path}` if its content is yours",
        path = .path.display()
    )]
    Writable {
        /// The path.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The server's user cannot reach it.
    #[error(
        "user {owner} cannot pass through {path} (mode {mode:03o}): name a directory that all \
         users can reach",
        path = .path.display()
    )]
    Closed {
        /// A directory above, or the directory itself.
        path: PathBuf,
        /// The server's user.
        owner: u32,
        /// The permission bits.
        mode: u32,
    },
    /// The page is of another version.
    #[error(
        "{path} is not a page of this version: {source}. Servers that map it run with another \
         library: stop them, remove it, attach and start them again; or name another directory",
        path = .path.display()
    )]
    Version {
        /// The page.
        path: PathBuf,
        /// The difference.
        source: PageError,
    },
    /// Another agent is attached.
    #[error("{path} has an agent already{}: stop it first", holder(.pid), path = .path.display())]
    Taken {
        /// The page.
        path: PathBuf,
        /// Its process, if known.
        pid: Option<u32>,
    },
    /// No library can be loaded from there.
    #[error(
        "{path} is mounted noexec, as Debian mounts /run, so that no library can be loaded from \
         it: name another directory for the library (--library)",
        path = .path.display()
    )]
    NoExec {
        /// The directory.
        path: PathBuf,
    },
}

fn holder(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(", process {pid}")).unwrap_or_default()
}

type Checked<T> = Result<T, PageDirectoryError>;

impl PageDirectory {
    /// Opens the directory and its page, and makes them if they are missing. A new page belongs
    /// to the user `owner`; only root can give it to another user.
    ///
    /// # Errors
    /// If other users may write there, or it cannot be made or opened.
    pub fn open(path: &Path, owner: Option<u32>) -> Checked<Self> {
        let (path, handle) = checked_directory(path)?;
        let directory = Self { path, handle, owner };
        if let Some(owner) = owner {
            directory.check_reachable(owner)?;
        }
        if !directory.page_path().try_exists().unwrap_or(false) {
            let path = directory.page_path();
            directory.make_page().map_err(failed("make", &path))?;
        }
        drop(directory.page()?);
        Ok(directory)
    }

    /// Opens the directory if it exists; makes nothing.
    ///
    /// # Errors
    /// As [`PageDirectory::open`]; a directory that does not exist.
    pub(super) fn existing(path: &Path) -> Checked<Self> {
        let path = path.canonicalize().map_err(failed("open", path))?;
        let handle = OwnDirectory::open(&path, Owner::UserOrRoot)?;
        Ok(Self { path, handle, owner: None })
    }

    /// Returns its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the page.
    pub fn page_path(&self) -> PathBuf {
        self.path.join(PAGE)
    }

    /// Whether the page is in memory. On a disk the kernel would write it out repeatedly, and
    /// it would survive a restart of the machine.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn is_in_memory(&self) -> io::Result<bool> {
        Ok(fstatfs(&self.handle)?.f_type as u64 == TMPFS_MAGIC)
    }

    /// Writes the rules for servers that are started before an agent attaches. If an agent is
    /// attached, its rules stay.
    ///
    /// # Errors
    /// As [`PageDirectory::open`]; more than four exempt ports.
    pub fn write_rules(&self, rules: &Rules) -> io::Result<()> {
        match self.take() {
            Ok(page) => rules.write_to(&page),
            Err(PageDirectoryError::Taken { .. }) => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Locks the page and returns it. No other agent can lock it while it exists.
    pub(super) fn take(&self) -> Checked<SharedPage> {
        let page = self.page()?;
        let path = self.page_path();
        match flock(page.file(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(page),
            Err(Errno::WOULDBLOCK) => {
                let pid = fstat(page.file()).ok().and_then(|found| holder_of(&found));
                Err(PageDirectoryError::Taken { path, pid })
            }
            Err(error) => Err(failed("lock", &path)(error.into())),
        }
    }

    /// Opens the page without its lock.
    pub(super) fn page(&self) -> Checked<SharedPage> {
        let path = self.page_path();
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match openat(&self.handle, PAGE, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::LOOP | Errno::ISDIR) => {
                return Err(PageDirectoryError::Kind { path });
            }
            Err(error) => return Err(failed("open", &path)(error.into())),
        };
        let found = fstat(&file).map_err(|error| failed("check", &path)(error.into()))?;
        check_page(&path, &found, geteuid().as_raw(), self.owner)?;
        let page = SharedPage::of_file(File::from(file), &path);
        page.map_err(|error| match error.downcast::<PageError>() {
            Ok(source) => PageDirectoryError::Version { path, source },
            Err(error) => failed("map", &path)(error),
        })
    }

    /// Makes a page that is complete before it has its name. A page that another process makes
    /// meanwhile stays.
    fn make_page(&self) -> io::Result<()> {
        let draft = self.path.join(format!(".{PAGE}-{}", std::process::id()));
        // A former process of this number may have been killed here.
        let _ = std::fs::remove_file(&draft);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
        let made =
            self.fill(file).and_then(|()| match std::fs::hard_link(&draft, self.page_path()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                linked => linked,
            });
        std::fs::remove_file(&draft)?;
        made
    }

    fn fill(&self, file: File) -> io::Result<()> {
        file.set_permissions(Permissions::from_mode(0o600))?;
        if let Some(owner) = self.owner {
            fchown(&file, Some(owner), None)?;
        }
        let page = SharedPage::fill(file, &self.page_path())?;
        page.control().set(&open());
        Ok(())
    }

    /// Checks that the server's user can reach the page.
    fn check_reachable(&self, owner: u32) -> Checked<()> {
        for path in self.path.ancestors() {
            let found = stat(path).map_err(|error| failed("check", path)(error.into()))?;
            let is_passed = found.st_mode & 0o001 != 0
                || (found.st_uid == owner && found.st_mode & 0o100 != 0)
                || owner == 0;
            if !is_passed {
                let (path, mode) = (path.to_owned(), found.st_mode & 0o777);
                return Err(PageDirectoryError::Closed { path, owner, mode });
            }
        }
        Ok(())
    }
}

/// Writes the library into a directory, which is made if it is missing, unless the same library
/// is there. Returns its path. Servers that run with another version keep that file, since the
/// new one replaces its name and not its content.
///
/// # Errors
/// As [`PageDirectory::open`]; a directory from which no library can be loaded.
pub fn write_library(directory: &Path, library: &[u8]) -> Checked<PathBuf> {
    let (directory, handle) = checked_directory(directory)?;
    let path = directory.join(LIBRARY);
    let flags = fstatvfs(&handle).map_err(|error| failed("check", &directory)(error.into()))?;
    if flags.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(PageDirectoryError::NoExec { path: directory });
    }
    let is_there = std::fs::read(&path).is_ok_and(|found| found == library);
    if !is_there {
        let draft = directory.join(format!(".{LIBRARY}-{}", std::process::id()));
        let written = replace(&draft, &path, library);
        written.map_err(failed("write", &path))?;
    }
    Ok(path)
}

fn replace(draft: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A former process of this number may have been killed here.
    let _ = std::fs::remove_file(draft);
    let mut file = File::options().write(true).create_new(true).mode(0o555).open(draft)?;
    file.set_permissions(Permissions::from_mode(0o555))?;
    let written = file.write_all(bytes).and_then(|()| std::fs::rename(draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(draft);
    }
    written
}

/// Opens a directory to which no other user may write, and makes it if it is missing. Returns
/// its real path.
fn checked_directory(path: &Path) -> Checked<(PathBuf, OwnDirectory)> {
    let path = std::path::absolute(path).map_err(failed("name", path))?;
    if !path.try_exists().unwrap_or(false) {
        make_directory(&path).map_err(failed("make", &path))?;
    }
    let path = path.canonicalize().map_err(failed("open", &path))?;
    let directory = OwnDirectory::open(&path, Owner::UserOrRoot)?;
    Ok((path, directory))
}

/// Makes a directory that all users can reach, whatever the process's umask is.
fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Checks that a page is a file to which only its owner may write: root, this process's user,
/// or for root any user, since only root can have made it in a directory of root's.
fn check_page(path: &Path, found: &Stat, user: u32, owner: Option<u32>) -> Checked<()> {
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(PageDirectoryError::Kind { path: path.to_owned() });
    }
    let is_fit = match owner {
        Some(owner) => found.st_uid == owner,
        None => found.st_uid == user || found.st_uid == 0 || user == 0,
    };
    if !is_fit {
        return Err(foreign(path, found, owner.unwrap_or(user)));
    }
    check_writers(path, found)
}

fn check_writers(path: &Path, found: &Stat) -> Checked<()> {
    if found.st_mode & 0o022 != 0 {
        let (path, mode) = (path.to_owned(), found.st_mode & 0o777);
        return Err(PageDirectoryError::Writable { path, mode });
    }
    Ok(())
}

fn foreign(path: &Path, found: &Stat, user: u32) -> PageDirectoryError {
    PageDirectoryError::Foreign { path: path.to_owned(), owner: found.st_uid, user }
}

fn failed<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl Fn(io::Error) -> PageDirectoryError + use<'a> {
    move |source| PageDirectoryError::Failed { doing, path: path.to_owned(), source }
}

/// Returns the process that has a file locked, if the kernel reports it.
fn holder_of(found: &Stat) -> Option<u32> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
    holder_in(&locks, &format!("{major:02x}:{minor:02x}:{}", found.st_ino))
}

/// Finds it among lines of the form `NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`.
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, pid, at, ..] if at == file => pid.parse().ok(),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Roots;
    use crate::oncall::Runtime;
    use lull_oncall::{Counters, Decision, Id, Mode, PAGE_BYTES, Peer, Settings};
    use std::os::unix::fs::{FileExt, MetadataExt, symlink};
    use tempfile::TempDir;

    fn attach(directory: &PageDirectory, settings: &Settings) -> io::Result<Runtime> {
        Runtime::attach(directory, settings, &Rules::default(), &Roots::default())
    }

    /// A temporary directory with a page directory `db` in it.
    fn page_directory() -> (TempDir, PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().canonicalize().unwrap().join("db");
        PageDirectory::open(&path, None).unwrap();
        (temporary, path)
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn refusal(path: &Path) -> String {
        PageDirectory::open(path, None).unwrap_err().to_string()
    }

    #[test]
    fn a_page_is_made_once_and_whole_and_only_its_owner_may_write_to_it() {
        let (_temporary, path) = page_directory();
        let page = path.join("page");
        assert_eq!((mode(&path), mode(&page)), (0o755, 0o600));
        let made = page.metadata().unwrap();
        assert_eq!(made.len(), PAGE_BYTES as u64);
        assert!(made.blocks() * 512 >= made.len(), "its memory is taken: {made:?}");
        PageDirectory::open(&path, None).unwrap();
        assert_eq!(page.metadata().unwrap().ino(), made.ino());
        assert_eq!(path.read_dir().unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn an_agents_limits_of_single_connections_end_with_it() {
        let (_temporary, path) = page_directory();
        let directory = PageDirectory::open(&path, None).unwrap();
        let settings = Settings { mode: Mode::Post, ..Settings::default() };
        let id = directory.take().unwrap().header().offer_record();
        let first = attach(&directory, &settings).unwrap();
        first.allow(id, Some(1), Some(0), true);
        drop(first);
        let _second = attach(&directory, &settings).unwrap();
        let page = directory.page().unwrap();
        let entry = page.gate().entry(id).unwrap();
        assert_eq!((entry.budget(), entry.left(), entry.goes_first()), (None, None, false));
    }

    #[test]
    fn a_path_to_which_others_may_write_is_refused() {
        let (_temporary, path) = page_directory();
        for (file, bits) in
            [(path.clone(), 0o775), (path.clone(), 0o757), (path.join("page"), 0o660)]
        {
            let before = mode(&file);
            set_mode(&file, bits);
            let printed = refusal(&path);
            assert!(
                printed.contains(&format!("(mode {bits:03o})")) && printed.contains("chmod"),
                "{printed}"
            );
            set_mode(&file, before);
        }
        PageDirectory::open(&path, None).unwrap();
    }

    #[test]
    fn a_page_of_another_version_is_refused_with_what_to_do() {
        let (_temporary, path) = page_directory();
        let page = path.join("page");
        let file = File::options().write(true).open(&page).unwrap();
        // The version follows the eight bytes of the magic number.
        file.write_all_at(&5_u32.to_ne_bytes(), 8).unwrap();
        let printed = refusal(&path);
        assert!(
            printed.contains("version 5, not") && printed.contains("stop them, remove it"),
            "{printed}"
        );
        file.set_len(100).unwrap();
        assert!(refusal(&path).contains("100 bytes"));
        std::fs::remove_file(&page).unwrap();
        symlink(path.join("elsewhere"), &page).unwrap();
        assert!(refusal(&path).contains("page is not a file"));
        std::fs::remove_file(&page).unwrap();
        std::fs::create_dir(&page).unwrap();
        assert!(refusal(&path).contains("page is not a file"));
        assert!(refusal(Path::new("/proc/self/status")).contains("is not a directory"));
    }

    #[test]
    fn the_error_of_a_second_agent_names_the_first() {
        let (_temporary, path) = page_directory();
        let directory = PageDirectory::open(&path, None).unwrap();
        let first = attach(&directory, &open()).unwrap();
        let other = PageDirectory::open(&path, None).unwrap();
        let printed = attach(&other, &open()).unwrap_err().to_string();
        let holder = format!("has an agent already, process {}", std::process::id());
        assert!(printed.contains(&holder), "{printed}");
        let rules = Rules { gates_unix: true, ..Rules::default() };
        other.write_rules(&rules).unwrap();
        drop(first);
        let second = attach(&other, &open()).unwrap();
        drop(second);
        assert!(!other.page().unwrap().header().gates_unix(), "the agent's rules stay");
        other.write_rules(&rules).unwrap();
        assert!(other.page().unwrap().header().gates_unix());
    }

    #[test]
    fn a_lock_is_found_among_others() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 fe:00:13 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 9 fe:00:12 0 EOF\n";
        assert_eq!(holder_in(locks, "fe:00:12"), Some(9));
        assert_eq!(holder_in(locks, "fe:01:12"), None);
    }

    #[test]
    fn an_agent_that_takes_a_page_over_frees_records_of_the_dead_and_counts_from_then() {
        let (_temporary, path) = page_directory();
        let directory = PageDirectory::open(&path, None).unwrap();
        let page = directory.page().unwrap();
        assert_eq!(page.control().mode(), Mode::Stats, "tracked before an agent attaches");
        // A connection of a process that does not exist, at a closed gate.
        let id = page.header().offer_record();
        assert!(page.record(id).unwrap().claim(u32::MAX >> 1, 3, Peer::default(), 0));
        page.control().set(&Settings { mode: Mode::Post, cap: 1, ..Settings::default() });
        page.control().beat(super::super::now().0);
        let now_ns = super::super::now().0;
        let gate = page.gate();
        assert_eq!(gate.arrive(id, false, now_ns, &super::super::Futexes), Decision::Run);
        assert_eq!(page.control().counters().admissions, 1);
        let runtime = attach(&directory, &open()).unwrap();
        assert_eq!(page.record(id).unwrap().pid(), 0);
        assert_eq!(page.control().mode(), Mode::Stats);
        assert_eq!(runtime.counters(), Counters::default());
        let cap = Settings { mode: Mode::Post, cap: 1, ..open() };
        runtime.set(&cap);
        assert_eq!(gate.arrive(Id(5), false, now_ns, &super::super::Futexes), Decision::Run);
        assert_eq!(runtime.counters().admissions, 1);
        drop(runtime);
        assert_eq!(page.control().mode(), Mode::Stats, "the gate is open afterwards");
    }

    #[test]
    fn the_library_is_written_only_if_it_differs_and_never_in_place() {
        let (_temporary, path) = page_directory();
        let write = |bytes: &[u8]| {
            let library = write_library(&path, bytes).unwrap();
            assert_eq!((std::fs::read(&library).unwrap(), mode(&library)), (bytes.to_vec(), 0o555));
            library.metadata().unwrap().ino()
        };
        let first = write(b"one");
        assert_eq!(write(b"one"), first);
        let mapped = File::open(path.join(LIBRARY)).unwrap();
        assert_ne!(write(b"two"), first);
        assert_eq!(mapped.metadata().unwrap().len(), 3, "an open file stays");
        assert_eq!(path.read_dir().unwrap().count(), 2, "no draft is left");
    }

    #[test]
    fn a_page_is_given_to_a_user_who_can_reach_it() {
        if !geteuid().is_root() {
            return lull_testing::skip("changes the owner of a directory: run as root");
        }
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("db");
        set_mode(temporary.path(), 0o700);
        let printed = PageDirectory::open(&path, Some(65534)).unwrap_err().to_string();
        assert!(printed.contains("user 65534 cannot pass through"), "{printed}");
        set_mode(temporary.path(), 0o755);
        let directory = PageDirectory::open(&path, Some(65534)).unwrap();
        let owners = [directory.path().to_owned(), directory.page_path()];
        assert_eq!(owners.map(|path| path.metadata().unwrap().uid()), [0, 65534]);
        // The directory's owner has given the page to that user.
        PageDirectory::open(&path, None).unwrap();
        let printed = PageDirectory::open(&path, Some(7)).unwrap_err().to_string();
        assert!(printed.contains("belongs to user 65534"), "{printed}");
        std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
        assert!(refusal(&path).contains("db belongs to user 65534"));
    }
}
