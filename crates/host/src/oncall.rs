//! The agent's side of the on-call runtime: page, heartbeat, and what servers report.
//!
//! The library that servers run with is `lull-preload`. It finds the page by
//! the environment of [`Runtime::environment`]; everything else goes through it.

mod binary;
mod directory;
mod heartbeat;
mod seen;
mod watch;

pub use binary::{Linkage, linkage};
pub use directory::{PageDirectory, PageDirectoryError, write_library};
pub use seen::{ConnectionSeen, Counts, Statistics};
pub use watch::Watch;

use crate::Roots;
use crate::apps::{Facts, ProcessId};
use crate::monotonic as now;
use crate::sys::page::SharedPage;
use heartbeat::Heartbeat;
use lull_control::{AppId, GateControl};
use lull_measure::Nanos;
use lull_oncall::protocol::Protocol;
use lull_oncall::{
    BATCH_MAX, CAP_MAX, Counters, ISR_DELAY_MAX_NS, Id, Mode, Seat, Settings, Wake, Waking,
};
use rustix::thread::futex;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The environment's name for the page, read by the preloaded library.
const PAGE_VARIABLE: &str = "LULL_PAGE";

/// What connections may be gated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The servers' protocol; `None` to tell it by the program's name.
    pub protocol: Option<Protocol>,
    /// Whether connections over unix sockets may wait, too.
    pub gates_unix: bool,
    /// Local ports whose connections never wait; at most four.
    pub exempt_ports: Vec<u16>,
}

impl Rules {
    /// Writes them into a page, for connections and servers to come. A protocol that
    /// is not named stays what it was there.
    fn tell(&self, page: &SharedPage) -> io::Result<()> {
        let header = page.header();
        if let Some(protocol) = self.protocol {
            header.set_protocol_code(protocol.code());
        }
        header.set_gates_unix(self.gates_unix);
        if !header.set_exempt_ports(&self.exempt_ports) {
            return Err(io::Error::other("at most four ports can be exempt"));
        }
        Ok(())
    }
}

/// Nobody waits, and what comes is counted, whether or not an agent looks.
fn open() -> Settings {
    Settings { mode: Mode::Stats, ..Settings::default() }
}

/// One app's on-call runtime, as its agent holds it.
///
/// When it is dropped, or its process dies, servers run on without it.
#[derive(Debug)]
pub struct Runtime {
    page: Arc<SharedPage>,
    heartbeat: Heartbeat,
    /// What the gate had done, and how many had found no room, before it began.
    before: (Counters, u64),
}

/// Wakes workers of other processes.
#[derive(Debug)]
struct Futexes;

impl Wake for Futexes {
    fn wake(&self, _id: Id, seat: &Seat) {
        let (word, _) = seat.word();
        // A worker that cannot be woken looks by itself before long.
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// Hands on what is free. Workers that only signals wake do that themselves:
/// the agent believes no thread's number that stands in shared memory, and one
/// whom it gave a slot would sleep on it.
fn pump(page: &SharedPage) {
    if page.control().waking() == Waking::Futex {
        page.gate().pump(now().0, &Futexes);
    }
}

impl Runtime {
    /// Makes a page, and begins to beat.
    ///
    /// # Errors
    /// What the kernel says; more than four exempt ports.
    pub fn start(settings: &Settings, rules: &Rules) -> io::Result<Self> {
        Self::of_page(SharedPage::create()?, settings, rules)
    }

    /// Takes over the page of a directory, and begins to beat: servers that have it
    /// open are watched again, and connections of dead processes are freed first.
    ///
    /// # Errors
    /// [`PageDirectoryError`]: another agent has it, it is of another version, or others
    /// may write to it; as [`Runtime::start`].
    pub fn attach(
        directory: &PageDirectory,
        settings: &Settings,
        rules: &Rules,
        roots: &Roots,
    ) -> io::Result<Self> {
        let page = directory.take().map_err(io::Error::other)?;
        // First open: what an agent that was killed has left is not to be in force again.
        page.control().set(&open());
        let runtime = Self::of_page(page, &open(), rules)?;
        // Nor what it allowed to single connections: nobody would ever allow them more.
        runtime.page.records().for_each(|(id, _)| runtime.allow(id, None, None, false));
        runtime.reap(roots);
        runtime.set(settings);
        Ok(runtime)
    }

    fn of_page(page: SharedPage, settings: &Settings, rules: &Rules) -> io::Result<Self> {
        let page = Arc::new(page);
        rules.tell(&page)?;
        let before = (page.control().counters(), page.header().turned_away());
        page.control().beat(now().0);
        page.control().set(settings);
        let heartbeat = Heartbeat::start(Arc::clone(&page))?;
        Ok(Self { page, heartbeat, before })
    }

    /// What a server's environment must have, besides the agent's; `library`
    /// is the path of the preloaded library.
    pub fn environment(&self, library: &Path) -> Vec<(String, String)> {
        let others = std::env::var("LD_PRELOAD").unwrap_or_default();
        let library = format!("{} {others}", library.display());
        vec![
            ("LD_PRELOAD".to_owned(), library.trim_end().to_owned()),
            (PAGE_VARIABLE.to_owned(), self.page.path().display().to_string()),
        ]
    }

    /// Sets what the gate does; nobody waits on for what was asked before.
    pub fn set(&self, settings: &Settings) {
        // Whoever is made to wait from now on is to see that the agent lives.
        self.page.control().beat(now().0);
        self.page.control().set(settings);
        self.heartbeat.settings_changed();
        pump(&self.page);
    }

    /// What the gate does.
    pub fn settings(&self) -> Settings {
        self.page.control().settings()
    }

    /// Sets how many queries a connection may run in one turn (`None`: as many as
    /// [`Settings::batch`] says), how many in all until this is called again
    /// (`None`: without limit), and whether it goes before those without, where
    /// [`Settings::ranks`] says so. After a series of these, [`Runtime::pump`].
    ///
    /// Where another connection has taken the place since the agent looked, that
    /// one has what was meant for the one before, until this is called again.
    pub fn allow(&self, id: Id, batch: Option<u32>, queries: Option<u32>, first: bool) {
        if let Some(seat) = self.page.gate().seat(id) {
            seat.set_first(first);
            seat.allow(batch, queries);
        }
    }

    /// Lets those begin their turns that may by what was set since. Workers that
    /// only signals wake look by themselves, within a second.
    pub fn pump(&self) {
        pump(&self.page);
    }

    /// What the gate did since this agent has it.
    pub fn counters(&self) -> Counters {
        self.page.control().counters().since(self.before.0)
    }

    /// Connections that found no room in the page since this agent has it.
    pub fn turned_away(&self) -> u64 {
        self.page.header().turned_away().wrapping_sub(self.before.1)
    }

    /// Reads what servers report from now on.
    pub fn statistics(&self) -> Statistics {
        Statistics::new(Arc::clone(&self.page), now())
    }

    /// Frees the places of connections whose process has died without a word.
    pub fn reap(&self, roots: &Roots) {
        // One process may serve thousands of connections.
        let mut gone: BTreeMap<u32, bool> = BTreeMap::new();
        for (id, record) in self.page.records().filter(|(_, record)| record.pid() != 0) {
            let pid = record.pid();
            if *gone.entry(pid).or_insert_with(|| is_gone(roots, pid)) {
                self.page.gate().close_seat(id, now().0, &Futexes);
                record.release(pid);
            }
        }
    }

    /// Processes that serve connections now.
    pub fn processes(&self, roots: &Roots) -> Vec<ProcessId> {
        let records = self.page.records().map(|(_, record)| record.pid());
        let mut pids: Vec<u32> = records.filter(|pid| *pid != 0).collect();
        pids.sort_unstable();
        pids.dedup();
        pids.into_iter()
            .filter_map(|pid| ProcessId::lookup(roots, pid.cast_signed()).ok())
            .collect()
    }
}

impl Drop for Runtime {
    /// Workers that wait need not find out that nobody beats any more.
    fn drop(&mut self) {
        let settings = self.settings();
        if settings.mode.gates() {
            self.set(&Settings { mode: Mode::Stats, ..settings });
        }
    }
}

fn is_gone(roots: &Roots, pid: u32) -> bool {
    match Facts::of_process(roots, pid.cast_signed()) {
        Ok(facts) => facts.is_ended(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// What can be set of an app's gate; `workers` is how many stand behind it, if
/// somebody knows.
pub const fn gate_control(app: AppId, workers: Option<u32>) -> GateControl {
    let delay_max = Nanos(ISR_DELAY_MAX_NS);
    GateControl { app, workers, cap_max: CAP_MAX, batch_max: BATCH_MAX, delay_max }
}

/// How the numbers of a gate are set, for those who ask by which means.
pub const GATE_MEANS: &str = "the control page of the app's on-call runtime";

#[cfg(test)]
mod tests {
    use super::*;
    use lull_oncall::Decision;
    use std::time::Duration;

    /// A gate of one whose slot is taken, and one that waits for it.
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
    fn it_beats_often_as_soon_as_somebody_may_wait() {
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
        // At the pace of an open gate it would have taken 29 s.
        assert!(now().saturating_sub(begun) < Nanos::from_secs(15));
    }

    #[test]
    fn a_connection_has_as_many_turns_as_it_was_given_queries() {
        let agent_lease_ns = 1_000_000_000;
        let settings = Settings { mode: Mode::Post, agent_lease_ns, ..Settings::default() };
        let runtime = Runtime::start(&settings, &Rules::default()).unwrap();
        let gate = runtime.page.gate();
        let seat = gate.seat(Id(0)).unwrap();
        runtime.allow(Id(0), Some(1), Some(2), true);
        assert!(seat.goes_first());
        for decision in [Decision::Run, Decision::Run, Decision::Park] {
            assert_eq!(gate.arrive(Id(0), false, now().0, &Futexes), decision);
            gate.answered(Id(0), false, now().0, &Futexes);
        }
        runtime.allow(Id(0), None, None, false);
        runtime.pump();
        assert!(seat.is_admitted() && !seat.goes_first());
        // Where there is no such place, nothing happens.
        runtime.allow(Id(u32::MAX), None, Some(0), true);
    }

    #[test]
    fn an_overdue_slot_is_handed_on_but_to_workers_that_only_signals_wake() {
        for (waking, is_handed_on) in [(Waking::Futex, true), (Waking::Signal, false)] {
            let (runtime, settings) = one_waits(waking);
            runtime.set(&Settings { slot_lease_ns: 1_000_000, ..settings });
            std::thread::sleep(Duration::from_millis(50));
            pump(&runtime.page);
            let seat = runtime.page.gate().seat(Id(1)).unwrap();
            assert_eq!(seat.is_admitted(), is_handed_on, "{waking:?}");
            assert_eq!(seat.is_waiting(), !is_handed_on, "{waking:?}");
        }
    }
}
