//! The agent's side of the on-call runtime: page, heartbeat, and the servers' statistics.
//!
//! Servers run with the library `lull-preload`. It finds the page by an environment variable
//! ([`Runtime::environment`]); all other communication goes through the page.

mod accounts;
mod areas;
mod binary;
mod bypass;
mod class_cores;
mod classes;
mod device;
mod directory;
mod heartbeat;
mod holders;
mod operator;
mod requests;
mod seen;
mod times;
mod unmapped;
mod watch;

pub use accounts::{AccountWaits, LongWaits};
pub use areas::{AreaTally, ThreadAreas};
pub use binary::{Linkage, linkage};
pub use bypass::{BYPASS_MAX, DEFAULT_BYPASS, DefaultBypass, default_bypass};
pub use class_cores::ClassCores;
pub use classes::{
    ClassSeen, ClientClass, ClientMatch, OTHER_CLIENTS, check_client_classes, client_class_names,
    user_number,
};
pub use device::DeviceClock;
pub use directory::{PageDirectory, PageDirectoryError, write_library};
pub use operator::{GateStatus, OperatorError, OperatorPage, WorkerCounts, describe_bypass};
pub use requests::{LiveRequests, RequestSeen};
pub use seen::{ConnectionSeen, Counts, Statistics};
pub use times::ServerClock;
pub use unmapped::{UnmappedServer, UnmappedServers};
pub use watch::Watch;

use crate::Roots;
use crate::apps::ProcessId;
use crate::monotonic as now;
use crate::sys::page::SharedPage;
use heartbeat::Heartbeat;
use holders::{Holder, Holders, maps_page};
use lull_control::{AppId, GateControl};
use lull_measure::Nanos;
use lull_oncall::protocol::Protocol;
use lull_oncall::{
    BATCH_MAX, CAP_MAX, Counters, GateEntry, ISR_DELAY_MAX_NS, Id, Mode, Settings, Wake, Waking,
};
use rustix::fs::fstat;
use rustix::thread::futex;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The environment variable with the path of the page, which the library reads.
const PAGE_VARIABLE: &str = "LULL_PAGE";

/// The connections that may be gated, and the protocol in which servers read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The servers' protocol; `None` to recognise it by the program's name.
    pub protocol: Option<Protocol>,
    /// Whether connections over unix sockets may be gated.
    pub gates_unix: bool,
    /// Local ports with connections that never wait; at most four.
    pub exempt_ports: Vec<u16>,
    /// Classes of clients, of which the first that fits has a client; none if slots go round.
    pub client_classes: Vec<ClientClass>,
    /// Clients that never wait, whatever their class; at most [`BYPASS_MAX`] besides the default
    /// ones.
    pub bypass: Vec<ClientMatch>,
    /// A wait at the gate that is longer is reported; 1 s without it.
    pub long_wait: Option<Nanos>,
}

impl Rules {
    /// Writes the rules into a page, for later connections and servers. Without a protocol the
    /// page keeps the one that it has.
    fn write_to(&self, page: &SharedPage) -> io::Result<()> {
        let header = page.header();
        if let Some(protocol) = self.protocol {
            header.set_protocol_code(protocol.code());
        }
        header.set_gates_unix(self.gates_unix);
        if !header.set_exempt_ports(&self.exempt_ports) {
            return Err(io::Error::other("at most four ports can be exempt"));
        }
        classes::write(page, &self.client_classes, &self.bypass)
    }
}

/// The settings of an open gate: no worker waits, and connections are tracked.
fn open() -> Settings {
    Settings { mode: Mode::Stats, ..Settings::default() }
}

/// The agent's side of one app's on-call runtime.
///
/// When it is dropped, or its process dies, servers continue with an open gate.
#[derive(Debug)]
pub struct Runtime {
    page: Arc<SharedPage>,
    heartbeat: Heartbeat,
    holders: Holders,
    /// The counters of the gate when this agent took it over.
    counters_before: Counters,
    /// Connections without a record when this agent took it over.
    turned_away_before: u64,
    /// The classes of clients when this agent took it over.
    classes_before: Vec<ClassSeen>,
    /// The waits of accounts when this agent took it over.
    accounts_before: Vec<AccountWaits>,
    /// A wait at the gate that is longer is reported.
    long_wait: Nanos,
}

/// The wait at the gate that is reported where no objective defines a long one.
const LONG_WAIT: Nanos = Nanos::from_secs(1);

/// Wakes workers of other processes.
#[derive(Debug)]
struct Futexes;

impl Wake for Futexes {
    fn wake(&self, _id: Id, entry: &GateEntry) {
        let (word, _) = entry.word();
        // A worker that cannot be woken checks by itself at its deadline.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// Pumps the gate, unless workers are woken by signals only: they pump it themselves. The
/// agent trusts no thread's number in shared memory, so that it could not wake a worker to
/// which it gave a slot.
fn pump(page: &SharedPage) {
    if page.control().waking() == Waking::Futex {
        page.gate().pump(now().0, &Futexes);
    }
}

impl Runtime {
    /// Makes a page and starts the heartbeat.
    ///
    /// # Errors
    /// The kernel's error; more than four exempt ports.
    pub fn start(settings: &Settings, rules: &Rules) -> io::Result<Self> {
        Self::from_page(SharedPage::create()?, settings, rules)
    }

    /// Takes over the page of a directory and starts the heartbeat: servers that map it are
    /// gated again, and records of dead processes are freed first.
    ///
    /// # Errors
    /// [`PageDirectoryError`]: another agent holds it, it is of another version, or other
    /// users may write to it; as [`Runtime::start`].
    pub fn attach(
        directory: &PageDirectory,
        settings: &Settings,
        rules: &Rules,
        roots: &Roots,
    ) -> io::Result<Self> {
        let page = directory.take().map_err(io::Error::other)?;
        // Open the gate first, so that the settings of an agent that was killed do not apply
        // again,
        page.control().set(&open());
        page.gate().recount_waiters();
        let has_moved_threads = page.header().is_dispatched();
        let runtime = Self::from_page(page, &open(), rules)?;
        // and lift its limits of single connections, which this agent may never set.
        runtime.page.records().for_each(|(id, _)| runtime.allow(id, None, None, false));
        runtime.reap(roots);
        if has_moved_threads {
            areas::give_back(&runtime, roots);
            // Last: if this agent is killed meanwhile, the next one gives back the rest.
            runtime.set_dispatched(false);
        }
        runtime.set(settings);
        Ok(runtime)
    }

    fn from_page(page: SharedPage, settings: &Settings, rules: &Rules) -> io::Result<Self> {
        let page = Arc::new(page);
        rules.write_to(&page)?;
        let counters_before = page.control().counters();
        let turned_away_before = page.header().turned_away();
        page.note().write("");
        page.header().set_agent(std::process::id());
        page.control().beat(now().0);
        page.control().set(settings);
        let heartbeat = Heartbeat::start(Arc::clone(&page))?;
        let classes_before = classes::read(&page);
        let accounts_before = accounts::read(&page);
        Ok(Self {
            page,
            heartbeat,
            holders: Holders::default(),
            counters_before,
            turned_away_before,
            classes_before,
            accounts_before,
            long_wait: rules.long_wait.unwrap_or(LONG_WAIT),
        })
    }

    /// Returns the variables that a server's environment needs besides the agent's own;
    /// `library` is the path of the preloaded library.
    pub fn environment(&self, library: &Path) -> Vec<(String, String)> {
        let others = std::env::var("LD_PRELOAD").unwrap_or_default();
        let library = format!("{} {others}", library.display());
        vec![
            ("LD_PRELOAD".to_owned(), library.trim_end().to_owned()),
            (PAGE_VARIABLE.to_owned(), self.page.path().display().to_string()),
        ]
    }

    /// Sets how the gate treats workers, and lets those run that wait only by the former
    /// settings.
    pub fn set(&self, settings: &Settings) {
        // A worker that waits from now on must find the agent's lease valid.
        self.page.control().beat(now().0);
        self.page.control().set(settings);
        self.heartbeat.settings_changed();
        pump(&self.page);
    }

    /// Opens the gate after this time without another call, because an admission controller may
    /// come to a halt while it tries a setting. Without a time no setting expires.
    pub fn expire_after(&self, time: Option<Nanos>) {
        let at = time.map_or(Nanos::MAX, |time| now().saturating_add(time));
        self.heartbeat.expire_at(at.0);
    }

    /// Returns since when an operator bypasses the gate, in seconds since 1970; `None` without a
    /// bypass. While it lasts, the settings of the gate do not hold.
    pub fn bypassed_since_s(&self) -> Option<u64> {
        self.page.control().bypassed_since_s()
    }

    /// Leaves the last decision of an admission controller in the page, for commands that read
    /// it.
    pub fn note(&self, decision: &str) {
        self.page.note().write(decision);
    }

    /// Reads the settings of the gate.
    pub fn settings(&self) -> Settings {
        self.page.control().settings()
    }

    /// Sets the queries of one turn of a connection (`None`: [`Settings::batch`]), the queries
    /// of all turns until this is called again (`None`: no limit), and whether it is admitted
    /// before others, where [`Settings::ranks`] is set. The caller [pumps](Runtime::pump)
    /// after a series of these calls.
    ///
    /// If another connection has taken over the record since the caller read it, the limits
    /// apply to that connection until this is called again.
    pub fn allow(&self, id: Id, batch: Option<u32>, queries: Option<u32>, first: bool) {
        if let Some(entry) = self.page.gate().entry(id) {
            entry.set_first(first);
            entry.allow(batch, queries);
        }
    }

    /// Lets workers begin turns that the settings now allow. Workers that are woken by signals
    /// check by themselves within a second.
    pub fn pump(&self) {
        pump(&self.page);
    }

    /// Returns what the gate has counted since this agent took it over.
    pub fn counters(&self) -> Counters {
        self.page.control().counters().since(self.counters_before)
    }

    /// Returns the connections without a record since this agent took the page over.
    pub fn turned_away(&self) -> u64 {
        self.page.header().turned_away().wrapping_sub(self.turned_away_before)
    }

    /// Returns how the classes of clients have fared since this agent took the page over; none if
    /// it has none.
    pub fn client_classes(&self) -> Vec<ClassSeen> {
        let mut seen = classes::read(&self.page);
        seen.iter_mut().zip(&self.classes_before).for_each(|(now, before)| now.subtract(before));
        seen
    }

    /// Returns how long turns have waited by user and database since this agent took the page
    /// over, for accounts of which any did.
    pub fn account_waits(&self) -> Vec<AccountWaits> {
        accounts::since(accounts::read(&self.page), &self.accounts_before)
    }

    /// Returns the reports of turns that wait long from now on.
    pub fn long_waits(&self) -> LongWaits {
        LongWaits::new(self.long_wait, now(), Arc::clone(&self.page))
    }

    /// Returns the number of the class of clients with this name, if the gate has it.
    pub fn client_class(&self, name: &str) -> Option<usize> {
        classes::read(&self.page).iter().position(|class| class.name == name)
    }

    /// Returns the age of each transaction with a pending query, at the gate or in service. A query
    /// that waits unread, as in a pool of threads, is pending since it began to wait.
    pub fn transactions_under_way(&self) -> Vec<Nanos> {
        let (now_ns, gate) = (now().0, self.page.gate());
        let open = self.page.records().filter(|(_, record)| record.pid() != 0);
        let waits_since = |id| {
            let entry = gate.entry(id).filter(|entry| entry.is_waiting());
            entry.map(GateEntry::waiting_since_ns)
        };
        let begun = open
            .filter_map(|(id, record)| record.transaction_since_ns().or_else(|| waits_since(id)));
        begun.map(|since_ns| Nanos(now_ns.saturating_sub(since_ns))).collect()
    }

    /// Counts the connections, and those that wait.
    pub fn worker_counts(&self) -> WorkerCounts {
        WorkerCounts::read(&self.page)
    }

    /// Returns the number of connections that are open.
    pub fn connections(&self) -> u32 {
        let open = self.page.records().filter(|(_, record)| record.pid() != 0);
        u32::try_from(open.count()).unwrap_or(u32::MAX)
    }

    /// Returns a reader of the servers' statistics from now on.
    pub fn statistics(&self) -> Statistics {
        Statistics::new(Arc::clone(&self.page), now())
    }

    /// Returns a search for servers that were started with this page and do not use it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn unmapped_servers(&self, roots: &Roots) -> io::Result<UnmappedServers> {
        let found = fstat(self.page.file())?;
        Ok(UnmappedServers::new(roots, self.page.path(), found.st_ino, found.st_uid))
    }

    /// Sets whether this agent moves the threads of servers: when it is killed, they take their
    /// cores back.
    pub fn set_dispatched(&self, is_dispatched: bool) {
        self.page.header().set_dispatched(is_dispatched);
    }

    /// Returns whether the process of this agent's PID namespace with this number has mapped the
    /// page.
    fn is_mapped_by(&self, process: u32, roots: &Roots) -> bool {
        maps_page(process, &self.page, roots)
    }

    /// Returns a reader of the requests of all open connections.
    pub fn live_requests(&self) -> LiveRequests {
        LiveRequests::new(Arc::clone(&self.page))
    }

    /// Frees the records of connections of processes that were killed, and corrects the shared
    /// count of waiting workers. To be called once a second.
    pub fn reap(&self, roots: &Roots) {
        self.page.gate().recount_waiters();
        // One process may serve thousands of connections.
        let found = self.holders.find(&self.page, &self.numbers(), roots);
        for (id, record) in self.page.records().filter(|(_, record)| record.pid() != 0) {
            let pid = record.pid();
            if found.get(&pid) == Some(&Holder::Ended) {
                self.page.gate().close_connection(id, now().0, &Futexes);
                record.release(pid);
            }
        }
    }

    /// Returns the processes that serve connections now, as far as they can be seen.
    pub fn processes(&self, roots: &Roots) -> Vec<ProcessId> {
        let found = self.holders.find(&self.page, &self.numbers(), roots);
        let running = |holder| match holder {
            Holder::Runs(process) => Some(process),
            Holder::Ended | Holder::Hidden => None,
        };
        found.into_values().filter_map(running).collect()
    }

    /// Returns the numbers of the processes in the records, by which each knows itself.
    fn numbers(&self) -> BTreeSet<u32> {
        self.page.records().map(|(_, record)| record.pid()).filter(|pid| *pid != 0).collect()
    }
}

impl Drop for Runtime {
    /// Opens the gate, so that waiting workers need not wait for the lease to expire.
    fn drop(&mut self) {
        let settings = self.settings();
        if settings.mode.gates() {
            self.set(&Settings { mode: Mode::Stats, ..settings });
        }
        self.page.header().set_agent(0);
    }
}

/// Returns the bounds of an app's gate; `workers` is the number of its workers, if known.
pub const fn gate_control(app: AppId, workers: Option<u32>) -> GateControl {
    let delay_max = Nanos(ISR_DELAY_MAX_NS);
    GateControl { app, workers, cap_max: CAP_MAX, batch_max: BATCH_MAX, delay_max }
}

/// The means by which the parameters of a gate are set, for reports.
pub const GATE_MEANS: &str = "the control page of the app's on-call runtime";

#[cfg(test)]
mod tests {
    use super::*;
    use lull_oncall::Decision;
    use std::time::Duration;

    /// A gate with one slot, which is taken, and one worker that waits for it.
    fn one_waits(waking: Waking) -> (Runtime, Settings) {
        let usual = Settings::default();
        let (slot_lease_ns, agent_lease_ns) = (1_000_000_000, 1_000_000_000);
        let settings =
            Settings { mode: Mode::Post, cap: 1, waking, slot_lease_ns, agent_lease_ns, ..usual };
        let runtime = Runtime::start(&settings, &Rules::default()).unwrap();
        let gate = runtime.page.gate();
        let arrive = |id| gate.arrive(Id(id), false, now().0, &Futexes);
        assert_eq!([arrive(0), arrive(1)], [Decision::Run, Decision::Park]);
        (runtime, settings)
    }

    #[test]
    fn the_heartbeat_is_frequent_as_soon_as_a_worker_may_wait() {
        let open = Settings { mode: Mode::Stats, ..Settings::default() };
        let runtime = Runtime::start(&open, &Rules::default()).unwrap();
        runtime.set(&Settings { mode: Mode::Post, ..open });
        let begun = now();
        let (mut beats, mut last_ns) = (0, runtime.page.control().heartbeat_ns());
        while beats < 30 {
            std::thread::sleep(Duration::from_millis(1));
            let heartbeat_ns = runtime.page.control().heartbeat_ns();
            beats += u32::from(heartbeat_ns != last_ns);
            last_ns = heartbeat_ns;
        }
        // At the rate of an open gate it would take 29 s.
        assert!(now().saturating_sub(begun) < Nanos::from_secs(15));
    }

    #[test]
    fn a_setting_that_expires_leaves_an_open_gate_and_another_one_stays() {
        let closed = Settings { mode: Mode::Post, cap: 3, ..Settings::default() };
        let runtime = Runtime::start(&closed, &Rules::default()).unwrap();
        runtime.expire_after(Some(Nanos::ZERO));
        let begun = now();
        while runtime.settings().mode != Mode::Stats {
            assert!(now().saturating_sub(begun) < Nanos::from_secs(60), "it did not expire");
            std::thread::yield_now();
        }
        runtime.expire_after(None);
        runtime.set(&closed);
        let control = runtime.page.control();
        for _ in 0..3 {
            let last_ns = control.heartbeat_ns();
            while control.heartbeat_ns() == last_ns {
                std::thread::yield_now();
            }
        }
        assert_eq!((runtime.settings().mode, runtime.settings().cap), (Mode::Post, 3));
    }

    #[test]
    fn a_connection_has_as_many_turns_as_it_has_queries() {
        let agent_lease_ns = 1_000_000_000;
        let settings = Settings { mode: Mode::Post, agent_lease_ns, ..Settings::default() };
        let runtime = Runtime::start(&settings, &Rules::default()).unwrap();
        let gate = runtime.page.gate();
        let entry = gate.entry(Id(0)).unwrap();
        runtime.allow(Id(0), Some(1), Some(2), true);
        assert!(entry.goes_first());
        for decision in [Decision::Run, Decision::Run, Decision::Park] {
            assert_eq!(gate.arrive(Id(0), false, now().0, &Futexes), decision);
            gate.answered(Id(0), false, now().0, &Futexes);
        }
        runtime.allow(Id(0), None, None, false);
        runtime.pump();
        assert!(entry.is_admitted() && !entry.goes_first());
        // Without such an entry, nothing happens.
        runtime.allow(Id(u32::MAX), None, Some(0), true);
    }

    #[test]
    fn a_page_has_threads_to_give_back_until_an_agent_has_done_so() {
        let page = SharedPage::create().unwrap();
        page.header().set_dispatched(true);
        let runtime = Runtime::from_page(page, &open(), &Rules::default()).unwrap();
        assert!(runtime.page.header().is_dispatched(), "this agent may be killed here");
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap().join("db");
        let directory = PageDirectory::open(&path, None).unwrap();
        directory.page().unwrap().header().set_dispatched(true);
        let (rules, roots) = (Rules::default(), Roots::default());
        let runtime = Runtime::attach(&directory, &open(), &rules, &roots).unwrap();
        assert!(!runtime.page.header().is_dispatched());
    }

    #[test]
    fn an_expired_slot_is_passed_on_except_to_workers_that_only_signals_wake() {
        for (waking, is_passed_on) in [(Waking::Futex, true), (Waking::Signal, false)] {
            let (runtime, settings) = one_waits(waking);
            runtime.set(&Settings { slot_lease_ns: 1_000_000, ..settings });
            std::thread::sleep(Duration::from_millis(50));
            pump(&runtime.page);
            let entry = runtime.page.gate().entry(Id(1)).unwrap();
            assert_eq!(entry.is_admitted(), is_passed_on, "{waking:?}");
            assert_eq!(entry.is_waiting(), !is_passed_on, "{waking:?}");
        }
    }
}
