//! The guard: a process of its own that outlives a killed agent.
//!
//! It sleeps in `poll` on a handle of the agent and wakes once a second to count
//! beats ([`heartbeat`](super::heartbeat)) and to follow what steered processes make, so that
//! no descendant is lost with the agent. An agent that does not beat is killed through
//! that handle, so that a number that another process has by now is never hit. When the agent
//! is gone and the ledger is not closed, the guard restores what the
//! ledger holds: first the safe state, then the saved one, then it ends the
//! apps that the agent started, and closes the ledger.
//!
//! It has a session of its own and ignores the signals that a terminal or a
//! service manager sends to a whole group, as its work only begins when the
//! agent has ended. It takes the highest real-time priority it can get: the
//! agent may have left real-time threads on every core with the kernel's
//! throttle off.
//!
//! Verified on Linux 6.18 by `tests/processes`.

use super::entry::{Entry, Lines};
use super::heartbeat::{self, Pulse, WAKE};
use super::held::Held;
use super::ledger::LedgerError;
use super::ledger_file::{Clock, LedgerFile, Tail};
use super::lock::{Lock, Role};
use super::recovery::{self, Recovery};
use super::restore;
use super::state_dir::StateDir;
use crate::Roots;
use crate::apps::{Facts, Forks, ProcessId, handle};
use crate::sys::memory::{self, ProgramPages};
use crate::sys::sched::{self, SchedState};
use lull_control::CoreSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The line that the guard prints once it is ready: from then on nothing can be lost.
pub(super) const ARMED: &str = "armed";
/// How long to wait for another agent that has the lock to put things back itself.
const LOCK_TIMEOUT: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(2);
/// How long a killed agent may take to exit before the guard restores beside it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The arguments of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardArgs {
    /// The ledger file of the agent.
    pub ledger: PathBuf,
    /// The agent.
    pub agent: ProcessId,
}

/// Why a guard cannot do its work.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The guard was not started by an agent.
    #[error(
        "`guard` is started by the agent and takes --ledger PATH --agent-pid N --start-time T; \
         to restore old values by hand use `lull restore`"
    )]
    Arguments,
    /// The ledger cannot be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The kernel refused what a guard needs.
    #[error("the guard cannot {doing}: {source}")]
    Failed {
        /// The attempted action.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The guard was started and did not print that it is ready.
    #[error("the guard did not get ready within {} s: {output}", .waited.as_secs())]
    NotReady {
        /// How long it had.
        waited: Duration,
        /// Its output, or how it ended.
        output: String,
    },
}

/// How a guard's work ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardEnd {
    /// The agent had restored everything itself, or changed nothing.
    NothingToDo,
    /// The agent died; holds the outcome of restoring.
    PutBack(Recovery),
    /// The agent was stopped or stuck and was killed; holds the outcome of restoring, if there
    /// was anything to restore.
    Stuck(Option<Recovery>),
}

/// Why a guard has ended its wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The agent has ended, or has closed its ledger.
    Ended,
    /// The agent does not beat.
    Stuck,
}

impl GuardArgs {
    /// The arguments after the subcommand.
    ///
    /// # Errors
    /// [`GuardError::Arguments`] unless they are what an agent writes.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, GuardError> {
        let args: Vec<OsString> = args.into_iter().collect();
        let [ledger_key, ledger, pid_key, pid, start_key, start] = args.as_slice() else {
            return Err(GuardError::Arguments);
        };
        let keys = [ledger_key, pid_key, start_key];
        if keys.map(|key| key.to_str()) != GUARD_KEYS.map(Some) {
            return Err(GuardError::Arguments);
        }
        let number = |text: &OsString| text.to_str()?.parse().ok();
        let pid = number(pid).and_then(|pid| i32::try_from(pid).ok());
        match (pid, number(start)) {
            (Some(pid), Some(start_ticks)) => {
                Ok(Self { ledger: ledger.into(), agent: ProcessId { pid, start_ticks } })
            }
            _ => Err(GuardError::Arguments),
        }
    }

    /// The arguments as an agent writes them.
    pub fn to_args(&self) -> [OsString; 6] {
        let [ledger, pid, start] = GUARD_KEYS.map(OsString::from);
        let ProcessId { pid: agent, start_ticks } = self.agent;
        let path = self.ledger.clone().into_os_string();
        [ledger, path, pid, agent.to_string().into(), start, start_ticks.to_string().into()]
    }
}

const GUARD_KEYS: [&str; 3] = ["--ledger", "--agent-pid", "--start-time"];

/// Guards an agent until it ends; what a binary's `guard` subcommand calls.
///
/// Changes the whole process (session, signals, directory, priority), so
/// nothing else belongs in it.
///
/// # Errors
/// [`GuardError`] if the ledger cannot be read or closed.
pub fn run(args: &GuardArgs) -> Result<GuardEnd, GuardError> {
    let roots = Roots::default();
    stand_apart().map_err(|source| GuardError::Failed { doing: "ignore signals", source })?;
    let place = args.ledger.parent().ok_or(GuardError::Arguments)?;
    let dir = StateDir::locate(Some(place)).map_err(LedgerError::from)?;
    let clock = Clock::read(&roots)?;
    let kept = LedgerFile::existing(&dir)?;
    let agent = match handle(&roots, args.agent) {
        Ok(agent) => agent,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            let left = Left { kept, forks: Forks::default() };
            return put_back(&dir, &roots, &clock, args.agent, left);
        }
        Err(source) => return Err(GuardError::Failed { doing: "watch the agent", source }),
    };
    let mut kin = ForkFollower::new(&dir, args.agent.pid);
    say_armed().map_err(|source| GuardError::Failed { doing: "say it is ready", source })?;
    // From here on the guard sleeps for months, and needs little of the memory that its start has
    // mapped.
    memory::return_freed();
    ProgramPages::find().release();
    let is_stopped =
        || Facts::of_process(&roots, args.agent.pid).is_ok_and(|facts| facts.is_stopped());
    let cause = wait_for_end(&mut kin, agent.as_fd(), is_stopped)?;
    kin.read();
    if cause == Cause::Ended {
        return put_back(&dir, &roots, &clock, args.agent, Left { kept, forks: kin.forks });
    }
    end_stuck(&kin, &roots, &clock, agent.as_fd())?;
    match put_back(&dir, &roots, &clock, args.agent, Left { kept, forks: kin.forks })? {
        GuardEnd::PutBack(recovery) => Ok(GuardEnd::Stuck(Some(recovery))),
        _ => Ok(GuardEnd::Stuck(None)),
    }
}

/// Kills an agent that does not beat, and returns once it has exited.
///
/// A killed agent writes nothing more, so the guard waits for its exit before it writes. An exit
/// can be delayed, for example by a disk that does not answer. The guard then restores beside
/// the agent, and the caller restores and verifies once more after the exit.
fn end_stuck(
    kin: &ForkFollower<'_>,
    roots: &Roots,
    clock: &Clock,
    agent: BorrowedFd<'_>,
) -> Result<(), GuardError> {
    match pidfd_send_signal(agent, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => {
            return Err(GuardError::Failed { doing: "end the agent", source: error.into() });
        }
    }
    if has_ended(agent, Some(EXIT_TIMEOUT))? {
        return Ok(());
    }
    if let Some((_, lines)) = LedgerFile::existing(kin.dir)? {
        let held = Held::from_lines(&lines, clock.boot());
        let _ = restore::boost_and_put_back(roots, &held, &kin.forks);
    }
    has_ended(agent, None).map(|_| ())
}

/// Waits for the end of a process; returns `false` if it has not ended in time.
fn has_ended(process: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool, GuardError> {
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    loop {
        if let Some(has_ended) = poll_for(&mut watched, timeout)? {
            return Ok(has_ended);
        }
    }
}

/// Polls; returns whether anything happened, or `None` after a signal.
fn poll_for(
    watched: &mut [PollFd<'_>],
    timeout: Option<Duration>,
) -> Result<Option<bool>, GuardError> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(watched, timeout.as_ref()) {
        Ok(ready) => Ok(Some(ready > 0)),
        Err(Errno::INTR) => Ok(None),
        Err(error) => Err(GuardError::Failed { doing: "wait", source: error.into() }),
    }
}

/// The state that a guard has when its agent has ended.
struct Left {
    /// The ledger as it was found first, which is used if the file has been removed.
    kept: Option<(LedgerFile, Lines)>,
    /// The processes that those of the ledger made.
    forks: Forks,
}

/// Follows what the processes of a ledger make while its agent runs.
struct ForkFollower<'a> {
    dir: &'a StateDir,
    forks: Forks,
    tail: Tail,
}

impl<'a> ForkFollower<'a> {
    fn new(dir: &'a StateDir, agent: i32) -> Self {
        let forks = Forks::default();
        forks.expect_children_of(agent);
        forks.subscribe();
        Self { dir, forks, tail: Tail::default() }
    }

    /// Reads the processes in the ledger and then their descendants. A process is in the ledger
    /// before it gets a setting that a process made by it can inherit. A started app is in it a
    /// moment after its start; processes that it makes before are expected.
    ///
    /// If the ledger cannot be read, the reports of the kernel wait for the next call: without the
    /// ledger, those of its processes would be dropped.
    fn read(&mut self) {
        let Ok(entries) = self.tail.read(self.dir) else { return };
        let started: Vec<ProcessId> = entries.iter().filter_map(Entry::started).collect();
        started.iter().for_each(|process| self.forks.follow(*process, *process));
        let mut new: Vec<ProcessId> = entries.iter().filter_map(Entry::main_process).collect();
        new.iter().for_each(|process| self.forks.distinguish(*process));
        new.extend(started);
        self.forks.read_following(&new, &Roots::default());
    }
}

/// Leaves the agent's session, and makes itself hard to stop and starve.
fn stand_apart() -> io::Result<()> {
    // Refused only to the leader of a group, which has left its agent's already.
    let _ = rustix::process::setsid();
    let ignored = Arc::new(AtomicBool::new(false));
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    std::env::set_current_dir("/")?;
    // The rest helps where it is allowed, and a guard without it still works.
    let _ = rustix::thread::set_name(c"lull-guard");
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let _ = sched::set_affinity(me, &CoreSet::first(1024));
    let policy = libc::SCHED_RR.cast_unsigned();
    let _ = sched::set_scheduling(me, SchedState { policy, rt_priority: 99, nice: 0 });
    Ok(())
}

fn say_armed() -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{ARMED}")?;
    out.flush()
}

/// Returns when the agent has ended, or has closed its ledger, which it signals by
/// closing the guard's standard input, or does not beat.
fn wait_for_end(
    kin: &mut ForkFollower<'_>,
    agent: BorrowedFd<'_>,
    is_stopped: impl Fn() -> bool,
) -> Result<Cause, GuardError> {
    let input = io::stdin();
    heartbeat::never_block(&input)
        .map_err(|source| GuardError::Failed { doing: "read beats", source })?;
    let mut pulse = Pulse::default();
    let mut watched = vec![
        PollFd::new(&agent, PollFlags::IN),
        PollFd::from_borrowed_fd(input.as_fd(), PollFlags::empty()),
    ];
    loop {
        let is_wake_up = poll_for(&mut watched, Some(WAKE))? == Some(false);
        if is_wake_up {
            kin.read();
        }
        let is_dead = !watched[0].revents().is_empty();
        let is_closed = watched.get(1).is_some_and(|input| !input.revents().is_empty());
        if is_dead || (is_closed && is_ledger_closed(kin.dir)) {
            return Ok(Cause::Ended);
        }
        if is_closed {
            // No beat can come any more; only the end of the agent counts from here on.
            watched.truncate(1);
        } else if is_wake_up
            && watched.len() > 1
            && pulse.is_stuck_at_wake_up(&heartbeat::take(&input), is_stopped())
        {
            return Ok(Cause::Stuck);
        }
    }
}

fn is_ledger_closed(dir: &StateDir) -> bool {
    let lines = LedgerFile::existing(dir).ok().flatten().map(|(_, lines)| lines);
    lines.is_some_and(|lines| lines.is_closed())
}

/// Restores what the agent left, unless it closed its ledger or another has
/// taken over.
fn put_back(
    dir: &StateDir,
    roots: &Roots,
    clock: &Clock,
    agent: ProcessId,
    left: Left,
) -> Result<GuardEnd, GuardError> {
    let Left { mut kept, forks } = left;
    let begun = Instant::now();
    loop {
        let lock = Lock::take(dir, Role::Restorer);
        let found = LedgerFile::existing(dir)?.or_else(|| kept.take());
        let Some((mut file, _)) = found else { return Ok(GuardEnd::NothingToDo) };
        let lines = file.read()?;
        if lines.is_closed() || lines.agent().is_some_and(|found| found != agent) {
            return Ok(GuardEnd::NothingToDo);
        }
        // A holder of the lock that makes no progress must not keep the machine from
        // its old state; restoring twice is harmless.
        let has_lock = matches!(lock, Ok(Ok(_)));
        if has_lock || begun.elapsed() > LOCK_TIMEOUT {
            // Without the lock, another agent may set the same limits meanwhile.
            let patience = if has_lock { recovery::UNIT_PATIENCE } else { Duration::ZERO };
            let recovery =
                recovery::put_all_back(&mut file, &lines, &forks, roots, clock, patience)?;
            return Ok(recovery.map_or(GuardEnd::NothingToDo, GuardEnd::PutBack));
        }
        kept = Some((file, lines));
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::EntryContent;
    use super::super::original::Original;
    use super::*;
    use crate::apps::threads_of;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    /// A started app and its daemon, which has lost its parent.
    struct Daemoniser {
        app: Child,
        daemon: i32,
    }

    impl Daemoniser {
        fn start() -> Self {
            let script = "(setsid sh -c 'echo $$; exec sleep 600' &); read line";
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut app = command.spawn().unwrap();
            let mut printed = String::new();
            BufReader::new(app.stdout.as_mut().unwrap()).read_line(&mut printed).unwrap();
            Self { app, daemon: printed.trim().parse().unwrap() }
        }
    }

    impl Drop for Daemoniser {
        fn drop(&mut self) {
            let _ = self.app.kill();
            let _ = self.app.wait();
            let daemon = rustix::process::Pid::from_raw(self.daemon).unwrap();
            let _ = rustix::process::kill_process(daemon, Signal::KILL);
        }
    }

    #[test]
    fn a_guard_that_wakes_before_the_line_of_an_app_knows_what_the_app_has_made() {
        if !Forks::default().subscribe() {
            return lull_testing::skip("the kernel does not report forks here");
        }
        let (roots, place) = (Roots::default(), tempfile::tempdir().unwrap());
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        let mut kin = ForkFollower::new(&dir, std::process::id().cast_signed());
        let started = Daemoniser::start();
        kin.read();
        let app = ProcessId::lookup(&roots, started.app.id().cast_signed()).unwrap();
        let ProcessId { pid, start_ticks: start_time_ticks } = app;
        let line = EntryContent::Old(Original::Started { pid, start_time_ticks });
        LedgerFile::create(&dir, &[Clock::read(&roots).unwrap().entry(line)]).unwrap();
        kin.read();
        assert_eq!(kin.forks.first(started.daemon), Some(app));
    }

    /// The agent may start an app between the guard's last look at the ledger and the agent's end.
    #[test]
    fn what_an_app_has_made_is_ended_if_the_guard_has_not_seen_the_line_of_the_app() {
        if !Forks::default().subscribe() {
            return lull_testing::skip("the kernel does not report forks here");
        }
        let (roots, place) = (Roots::default(), tempfile::tempdir().unwrap());
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        let kin = ForkFollower::new(&dir, std::process::id().cast_signed());
        let mut started = Daemoniser::start();
        let [app, daemon] = [started.app.id().cast_signed(), started.daemon]
            .map(|pid| ProcessId::lookup(&roots, pid).unwrap());
        started.app.kill().unwrap();
        started.app.wait().unwrap();
        let ProcessId { pid, start_ticks: start_time_ticks } = app;
        let clock = Clock::read(&roots).unwrap();
        let line = clock.entry(EntryContent::Old(Original::Started { pid, start_time_ticks }));
        let lines = Lines { entries: vec![line], ..Lines::default() };
        let mut file = LedgerFile::create(&dir, &lines.entries).unwrap();
        let patience = Duration::ZERO;
        recovery::put_all_back(&mut file, &lines, &kin.forks, &roots, &clock, patience).unwrap();
        assert_eq!(daemon.look(&roots).unwrap(), None);
    }

    #[test]
    fn what_a_process_makes_while_the_ledger_cannot_be_read_is_known_afterwards() {
        if !Forks::default().subscribe() {
            return lull_testing::skip("the kernel does not report forks here");
        }
        let (roots, place) = (Roots::default(), tempfile::tempdir().unwrap());
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        // No process has the number 0, so that this expects no started app.
        let mut kin = ForkFollower::new(&dir, 0);
        let started = Daemoniser::start();
        let unreadable = dir.path().join("ledger");
        std::fs::create_dir(&unreadable).unwrap();
        kin.read();
        std::fs::remove_dir(&unreadable).unwrap();
        let main = threads_of(&roots, started.app.id().cast_signed()).unwrap()[0];
        let line = EntryContent::Old(Original::of_thread(main).unwrap());
        LedgerFile::create(&dir, &[Clock::read(&roots).unwrap().entry(line)]).unwrap();
        kin.read();
        let creator = ProcessId { pid: main.pid, start_ticks: main.start_ticks };
        assert_eq!(kin.forks.creator(started.daemon), Some(creator));
    }

    #[test]
    fn arguments_are_read_as_they_are_written() {
        let agent = ProcessId { pid: 4711, start_ticks: 81_230 };
        let args = GuardArgs { ledger: "/run/lull/ledger".into(), agent };
        assert_eq!(GuardArgs::parse(args.to_args()).unwrap(), args);
    }

    #[test]
    fn a_guard_started_by_hand_says_what_to_use() {
        for args in
            [&["--help"][..], &[], &["--ledger", "a", "--agent-pid", "x", "--start-time", "1"]]
        {
            let refused = GuardArgs::parse(args.iter().map(OsString::from)).unwrap_err();
            assert!(refused.to_string().contains("lull restore"));
        }
    }
}
