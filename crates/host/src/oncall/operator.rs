//! An operator's hold on a server's gate, whether or not an agent is attached.
//!
//! The page of a server is found by its directory, or by a process of the server: its
//! environment names the file, and the file is opened only if the process has mapped it.
//! [`OperatorPage`] takes no lock, so that it works beside an agent, and it needs none: the
//! bypass is one bit of the page, which agents keep.

use super::accounts::{self, AccountWaits};
use super::class_cores::{self, ClassCores};
use super::classes::{self, is_under_way};
use super::unmapped::{Environment, Maps};
use super::{ClassSeen, PAGE_VARIABLE, PageDirectory, now, pump};
use crate::Roots;
use crate::apps::{AppHandle, Facts, ProcessTable, Target};
use crate::sys::page::SharedPage;
use lull_measure::Nanos;
use lull_oncall::protocol::Protocol;
use lull_oncall::{GateEntry, NOTE_BYTES, Settings};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Age of the heartbeat from which on no agent counts as attached; an agent of an open gate
/// beats once a second.
const SILENCE: Nanos = Nanos::from_secs(3);

/// The page of a server, as an operator opens it.
#[derive(Debug)]
pub struct OperatorPage {
    page: SharedPage,
    path: PathBuf,
    /// The process by which the page was found.
    server: Option<i32>,
}

/// The connections of a gate; each has a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// All of them.
    pub all: usize,
    /// Connections that run a query or have a transaction open, and do not wait.
    pub under_way: usize,
    /// Connections that wait for a slot.
    pub waiting: usize,
}

impl WorkerCounts {
    /// Counts the connections of a page.
    pub(super) fn read(page: &SharedPage) -> Self {
        let (gate, mut counts) = (page.gate(), Self::default());
        for (id, record) in page.records().filter(|(_, record)| record.pid() != 0) {
            counts.all += 1;
            if gate.entry(id).is_some_and(GateEntry::is_waiting) {
                counts.waiting += 1;
            } else if is_under_way(record) {
                counts.under_way += 1;
            }
        }
        counts
    }
}

/// The state of a server's gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateStatus {
    /// The page.
    pub page: PathBuf,
    /// The protocol of the server; `None` if no server is connected and the page names none.
    pub protocol: Option<Protocol>,
    /// Connections, each with a worker.
    pub workers: usize,
    /// Workers that wait for a slot.
    pub waiting: usize,
    /// Workers that run a query or have a transaction open, and do not wait.
    pub under_way: usize,
    /// The agent's settings, whether or not they apply.
    pub settings: Settings,
    /// Whether workers may be made to wait now.
    pub is_closed: bool,
    /// The time since which an operator bypasses the gate, in seconds since 1970.
    pub bypassed_since_s: Option<u64>,
    /// The process of the agent, if one is attached.
    pub agent: Option<u32>,
    /// The last decision of the admission controller; empty without one.
    pub decision: String,
    /// Its classes of clients, whose counts are since the page was made; empty without any.
    pub classes: Vec<ClassSeen>,
    /// Where the threads of its classes may run, while an agent moves threads.
    pub class_cores: Vec<ClassCores>,
    /// How long turns have waited by user and database since the page was made, for accounts of
    /// which any did.
    pub accounts: Vec<AccountWaits>,
}

/// The reason why a server has no page that an operator can open.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// A file of the process cannot be read.
    #[error(
        "cannot read {path}: {source}; run as root or as the user of the server",
        path = .path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The server does not run.
    #[error("no process of {server} runs: start it, or name the directory of its page")]
    NotRunning {
        /// The server.
        server: String,
    },
    /// No process of the server uses a page.
    #[error("{server} has no gate: it was started without `lull exec` or `lull attach`")]
    NoGate {
        /// The server.
        server: String,
    },
    /// The page is in the memory of an agent that has ended.
    #[error(
        "the gate of {server} is open for good: the agent that made its page has ended, and no \
         other can attach to it"
    )]
    Orphaned {
        /// The server.
        server: String,
    },
    /// The page cannot be opened.
    #[error("cannot open the page of {server}: {source}")]
    Page {
        /// The server.
        server: String,
        /// The reason.
        source: io::Error,
    },
}

/// Describes a bypass; `since_s` is in seconds since 1970.
pub fn describe_bypass(since_s: u64) -> String {
    let seconds = i64::try_from(since_s).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX);
    let time = time.strftime("%Y-%m-%d %H:%M:%S UTC");
    format!("bypassed by the operator since {time}; `lull gate on` ends that")
}

impl OperatorPage {
    /// Opens the page of a directory that exists.
    ///
    /// # Errors
    /// As [`PageDirectory::open`]; a directory without a page.
    pub fn in_directory(path: &Path) -> io::Result<Self> {
        let directory = PageDirectory::existing(path).map_err(io::Error::other)?;
        let page = directory.page().map_err(io::Error::other)?;
        Ok(Self { page, path: directory.page_path(), server: None })
    }

    /// Opens the page of a server: of the first of its processes that has mapped one.
    ///
    /// # Errors
    /// Without such a process, with the reason.
    pub fn of_server(target: &Target, roots: &Roots) -> io::Result<Self> {
        let server = match target {
            Target::Pid(pid) => format!("process {pid}"),
            Target::Unit(unit) => format!("unit {unit}"),
            Target::Cgroup(path) => format!("cgroup {}", path.display()),
            Target::Pattern(_) => "the server".to_owned(),
        };
        let mut app = AppHandle::attach(&server, target, roots).map_err(io::Error::other)?;
        app.refresh(&ProcessTable::new(roots)?).map_err(io::Error::other)?;
        let mut error = OperatorError::NotRunning { server: server.clone() };
        for process in app.processes() {
            error = OperatorError::NoGate { server: server.clone() };
            if let Some(page) = of_process(process.pid, &server, roots).map_err(io::Error::other)? {
                return Ok(page);
            }
        }
        Err(io::Error::other(error))
    }

    /// Opens the gate until [`OperatorPage::end_bypass`] and releases the workers that wait.
    /// Returns `false` if it was bypassed before.
    pub fn bypass(&self) -> bool {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let is_new = self.page.control().bypass(since.map_or(0, |since| since.as_secs()));
        // Pump even if the bypass is not new: the command that set it may have been killed here.
        pump(&self.page);
        is_new
    }

    /// Ends the bypass: the settings of the agent hold again. Returns `false` without a bypass.
    pub fn end_bypass(&self) -> bool {
        self.page.control().end_bypass()
    }

    /// Reads the state of the gate.
    pub fn status(&self, roots: &Roots) -> GateStatus {
        let (control, header) = (self.page.control(), self.page.header());
        let counts = WorkerCounts::read(&self.page);
        let mut pids = self.page.records().map(|(_, record)| record.pid());
        let of_connection = || pids.find(|pid| *pid != 0).map(u32::cast_signed);
        let server = self.server.or_else(of_connection);
        let named = Protocol::from_code(header.protocol_code());
        let beat = Nanos(control.heartbeat_ns());
        let is_attached = now().saturating_sub(beat) < SILENCE && header.agent() != 0;
        GateStatus {
            page: self.path.clone(),
            protocol: named.or_else(|| protocol_of(server?, roots)),
            workers: counts.all,
            waiting: counts.waiting,
            under_way: counts.under_way,
            settings: control.settings(),
            is_closed: control.is_closed(now().0),
            bypassed_since_s: control.bypassed_since_s(),
            agent: is_attached.then(|| header.agent()),
            decision: self.page.note().read(&mut [0; NOTE_BYTES]).to_owned(),
            classes: classes::read(&self.page),
            class_cores: class_cores::read(&self.page, roots),
            accounts: accounts::since(accounts::read(&self.page), &[]),
        }
    }
}

fn protocol_of(pid: i32, roots: &Roots) -> Option<Protocol> {
    let program = std::fs::read_link(roots.proc.join(pid.to_string()).join("exe")).ok()?;
    Some(Protocol::from_program(program.file_name()?.as_bytes()))
}

/// Opens the page of a process; `None` if the process has none, or has ended.
fn of_process(
    pid: i32,
    server: &str,
    roots: &Roots,
) -> Result<Option<OperatorPage>, OperatorError> {
    let place = roots.proc.join(pid.to_string());
    let read = |name: &str| {
        let path = place.join(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) if !is_running(pid, roots) => Ok(None),
            Err(source) => Err(OperatorError::Unreadable { path, source }),
        }
    };
    let (Some(environment), Some(maps)) = (read("environ")?, read("maps")?) else {
        return Ok(None);
    };
    let environment = Environment(environment);
    let maps = Maps(String::from_utf8_lossy(&maps).into_owned());
    let Some(path) = environment.get(PAGE_VARIABLE) else { return Ok(None) };
    let server = || server.to_owned();
    // The path is in the mount namespace of the process.
    let inside = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
    match open_mapped(&place.join("root").join(inside), &maps) {
        Ok(Some(page)) => {
            Ok(Some(OperatorPage { page, path: PathBuf::from(path), server: Some(pid) }))
        }
        Ok(None) => Ok(None),
        Err(error)
            if error.kind() == io::ErrorKind::NotFound
                && path.as_bytes().starts_with(b"/proc/") =>
        {
            Err(OperatorError::Orphaned { server: server() })
        }
        Err(source) => Err(OperatorError::Page { server: server(), source }),
    }
}

/// Opens a page, if the process with these mappings has mapped it. The process chose the path:
/// no other file may be opened for writing.
fn open_mapped(path: &Path, maps: &Maps) -> io::Result<Option<SharedPage>> {
    let handle = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&handle)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || !maps.has_inode(found.st_ino) {
        return Ok(None);
    }
    let again = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let file = File::options().read(true).write(true).open(again)?;
    SharedPage::of_file(file, path).map(Some)
}

fn is_running(pid: i32, roots: &Roots) -> bool {
    Facts::of_process(roots, pid).is_ok_and(|facts| !facts.is_ended())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oncall::{Futexes, Rules, Runtime};
    use lull_oncall::{Decision, Id, Peer};

    /// A temporary directory with a page, and the page as an operator opens it.
    fn operated() -> (tempfile::TempDir, PathBuf, OperatorPage) {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().canonicalize().unwrap().join("db");
        PageDirectory::open(&path, None).unwrap();
        let page = OperatorPage::in_directory(&path).unwrap();
        (temporary, path, page)
    }

    fn closed() -> Settings {
        let (mode, lease) = (lull_oncall::Mode::Post, 600_000_000_000);
        Settings {
            mode,
            cap: 1,
            slot_lease_ns: lease,
            agent_lease_ns: lease,
            ..Settings::default()
        }
    }

    #[test]
    fn a_bypass_needs_no_agent_and_outlives_those_that_attach() {
        let (_temporary, path, operator) = operated();
        let gate = operator.page.gate();
        let arrive = |id| gate.arrive(Id(id), false, now().0, &Futexes);
        assert!(operator.bypass() && !operator.bypass());
        for _ in 0..2 {
            let directory = PageDirectory::open(&path, None).unwrap();
            let runtime =
                Runtime::attach(&directory, &closed(), &Rules::default(), &Roots::default());
            let runtime = runtime.unwrap();
            runtime.set(&closed());
            assert!((0..9).all(|id| arrive(id) == Decision::Run));
            assert!(runtime.bypassed_since_s().is_some());
        }
        let directory = PageDirectory::open(&path, None).unwrap();
        let _runtime = Runtime::attach(&directory, &closed(), &Rules::default(), &Roots::default());
        assert!(operator.end_bypass() && !operator.end_bypass());
        operator.page.control().beat(now().0);
        assert_eq!([arrive(0), arrive(1)], [Decision::Run, Decision::Park]);
        assert!(operator.bypass(), "and the worker that waits runs immediately");
        assert_eq!(gate.check(Id(1), now().0, &Futexes), Decision::Run);
    }

    #[test]
    fn the_status_counts_workers_and_names_the_agent_only_while_it_lives() {
        let (_temporary, path, operator) = operated();
        let roots = Roots::default();
        assert_eq!((operator.status(&roots).agent, operator.status(&roots).protocol), (None, None));
        let directory = PageDirectory::open(&path, None).unwrap();
        let rules = Rules { protocol: Some(Protocol::Mysql), ..Rules::default() };
        let runtime = Runtime::attach(&directory, &closed(), &rules, &roots).unwrap();
        runtime.note("1 at a time: why");
        for id in 0..3 {
            assert_eq!(operator.page.header().offer_record(), Id(id));
            let record = operator.page.record(Id(id)).unwrap();
            record.claim(std::process::id(), 3, Peer::default(), 0);
            if id < 2 {
                record.query_arrived(1, now().0);
                operator.page.gate().arrive(Id(id), false, now().0, &Futexes);
            }
        }
        let status = operator.status(&roots);
        let counts = [status.workers, status.under_way, status.waiting];
        assert_eq!((counts, status.is_closed), ([3, 1, 1], true));
        assert_eq!(
            (status.agent, status.protocol),
            (Some(std::process::id()), Some(Protocol::Mysql))
        );
        assert_eq!(status.decision, "1 at a time: why");
        drop(runtime);
        assert_eq!(operator.status(&roots).agent, None);
    }

    #[test]
    fn a_process_without_a_page_has_no_gate() {
        let roots = Roots::default();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let target = Target::Pid(child.id().cast_signed());
        let error = OperatorPage::of_server(&target, &roots).unwrap_err().to_string();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(error.contains("has no gate"), "{error}");
        let temporary = tempfile::tempdir().unwrap();
        assert!(OperatorPage::in_directory(&temporary.path().join("none")).is_err());
        let error = OperatorPage::in_directory(temporary.path()).unwrap_err().to_string();
        assert!(error.contains("page"), "{error}");
        assert_eq!(temporary.path().read_dir().unwrap().count(), 0, "nothing is made");
    }

    #[test]
    fn a_file_that_the_process_has_not_mapped_is_never_opened() {
        let (_temporary, path, operator) = operated();
        let inode = fstat(operator.page.file()).unwrap().st_ino;
        let maps = |inode: u64| Maps(format!("7f-80 rw-s 0 00:01 {inode} /x\n"));
        assert!(open_mapped(&path.join("page"), &maps(inode)).unwrap().is_some());
        assert!(open_mapped(&path.join("page"), &maps(inode + 1)).unwrap().is_none());
        assert!(open_mapped(&path, &maps(inode)).unwrap().is_none(), "a directory");
    }

    #[test]
    fn a_bypass_is_described_with_its_time() {
        let text = describe_bypass(1_764_038_400);
        assert!(text.contains("by the operator since 2025-11-25 02:40:00 UTC"), "{text}");
    }
}
