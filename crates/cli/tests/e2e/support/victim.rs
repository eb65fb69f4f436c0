//! Processes to which the agent attaches and which it must leave as it found them.

use super::threads::{ThreadState, threads};
use super::{LULL, arguments, wait_or};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// A process that the agent did not start, and the initial scheduling of its threads.
pub(crate) struct Victim {
    child: Child,
    before: BTreeMap<i32, ThreadState>,
    address: String,
    _output: Option<BufReader<ChildStdout>>,
}

impl Victim {
    /// An options server at a free port, with threads that wait for requests.
    pub(crate) fn server() -> Self {
        Self::server_at("127.0.0.1:0")
    }

    /// The same at an address.
    pub(crate) fn server_at(address: &str) -> Self {
        let mut command = Command::new(LULL);
        command.args(["serve", "options", "--listen", address, "--workers", "2"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        // The server listens before its workers have started.
        let pid = child.id().cast_signed();
        super::wait_for("the server's threads", || threads(pid).len() > 2);
        Self::new(child, address, Some(output))
    }

    /// A process that only sleeps.
    pub(crate) fn sleeper() -> Self {
        Self::sleeper_for("3000")
    }

    /// The same for this many seconds, by which it is known.
    pub(crate) fn sleeper_for(seconds: &str) -> Self {
        let child = Command::new("sleep").arg(seconds).stdin(Stdio::null()).spawn().unwrap();
        Self::new(child, String::new(), None)
    }

    /// A shell whose processes wake up and wait for a core a hundred times a second.
    pub(crate) fn ticker() -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do sleep 0.01; done"]).stdin(Stdio::null());
        Self::new(command.spawn().unwrap(), String::new(), None)
    }

    /// A shell that makes daemons all the time, each of which loses its parent at once. They
    /// have `mark` in their environment, and end by themselves.
    pub(crate) fn daemoniser(mark: &str) -> Self {
        let script = "while :; do (setsid sleep 20 &) ; sleep 0.1; done";
        let mut command = Command::new("sh");
        command.args(["-c", script]).env(DAEMON, mark).stdin(Stdio::null());
        Self::new(command.spawn().unwrap(), String::new(), None)
    }

    /// The same, where every other daemon pins itself to the first core.
    pub(crate) fn self_pinning_daemoniser(mark: &str) -> Self {
        let script = format!(
            "while :; do (setsid sleep 20 &) ; (setsid taskset -c 0 sleep {PINNED_S} &) ; \
             sleep 0.1; done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env(DAEMON, mark).stdin(Stdio::null());
        Self::new(command.spawn().unwrap(), String::new(), None)
    }

    /// Returns the daemons of [`Victim::daemoniser`] whose state differs from the victim's first
    /// state, with their states.
    pub(crate) fn changed_daemons(&self, mark: &str) -> BTreeMap<i32, ThreadState> {
        let usual = &self.before[&self.pid()];
        let of_daemon = |pid: i32| Some((pid, threads(pid).remove(&pid)?));
        let all = daemons(mark).into_iter().filter(|pid| *pid != self.pid()).filter_map(of_daemon);
        all.filter(|(_, state)| state != usual).collect()
    }

    fn new(child: Child, address: String, output: Option<BufReader<ChildStdout>>) -> Self {
        let before = threads(child.id().cast_signed());
        Self { child, before, address, _output: output }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// The address of a server.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the present state of the threads that existed at first.
    pub(crate) fn now(&self) -> BTreeMap<i32, ThreadState> {
        threads(self.pid())
    }

    /// Whether the scheduling of any thread has changed.
    pub(crate) fn is_changed(&self) -> bool {
        !self.changes().is_empty()
    }

    /// A thread that is not the main one.
    pub(crate) fn other_thread(&self) -> i32 {
        *self.before.keys().find(|tid| **tid != self.pid()).unwrap()
    }

    /// Returns the differences of the threads from their first state; a new thread must have the
    /// first state of the main one.
    fn changes(&self) -> Vec<String> {
        let usual = &self.before[&self.pid()];
        let differs = |(tid, state): (i32, ThreadState)| {
            let was = self.before.get(&tid).unwrap_or(usual);
            (state != *was).then(|| format!("thread {tid} is {state:?}, was {was:?}"))
        };
        self.now().into_iter().filter_map(differs).collect()
    }

    /// Asserts that it lives and that all its threads have their first state.
    pub(crate) fn assert_as_before(&self) {
        assert!(!self.now().is_empty(), "the victim has ended");
        assert_eq!(self.changes(), Vec::<String>::new());
    }

    /// Waits until all its threads have their first state.
    pub(crate) fn wait_until_as_before(&self) {
        wait_or(|| format!("{:?}", self.changes()), &mut || !self.is_changed());
        self.assert_as_before();
    }
}

/// The sleeping time of daemons that have pinned themselves, by which they are recognised.
const PINNED_S: &str = "21";

/// The daemons of [`Victim::self_pinning_daemoniser`] that have pinned themselves.
pub(crate) fn self_pinned(mark: &str) -> Vec<i32> {
    daemons(mark).into_iter().filter(|pid| arguments(*pid) == ["sleep", PINNED_S]).collect()
}

/// The variable that marks the environment of daemons.
const DAEMON: &str = "LULL_E2E_DAEMON";

/// The processes with a mark, their shell included.
pub(crate) fn daemons(mark: &str) -> Vec<i32> {
    let variable = format!("{DAEMON}={mark}").into_bytes();
    let is_marked = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == variable)
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|one| one.file_name().to_str()?.parse().ok()).filter(is_marked).collect()
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
