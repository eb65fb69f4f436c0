//! A victim, an agent that changes it, and what the victim was like before.

use crate::roles::argv;
use lull_host::apps::ProcessId;
use lull_host::guard::{Original, StateDir, restore_stale};
use lull_host::sys::sched;
use lull_host::{LiveThread, Roots};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for what must come; only a broken guard needs it all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that must come.
pub(crate) fn wait_for(what: &str, mut has_come: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !has_come() {
        assert!(begun.elapsed() < PATIENCE, "did not come: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Ends the child when dropped.
pub(crate) struct Ends(pub(crate) Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process runs; one that only waits for its parent does not.
pub(crate) fn runs(process: ProcessId) -> bool {
    process.facts(&Roots::default()).is_some()
}

/// A victim, a sleeper to stop, a file to write, and a state directory.
pub(crate) struct Scene {
    place: tempfile::TempDir,
    victim: Ends,
    _input: ChildStdin,
    sleeper: Ends,
    before: BTreeMap<i32, Original>,
    roots: Roots,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "950000\n").unwrap();
        let sleeper = Ends(Command::new("sleep").arg("3000").spawn().unwrap());
        let argv = argv("victim", &[]);
        let mut victim = Command::new(&argv[0]);
        victim.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut victim = Ends(victim.spawn().unwrap());
        let mut ready = String::new();
        BufReader::new(victim.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let mut input = victim.0.stdin.take().unwrap();
        let roots = Roots::default();
        let state = |thread: LiveThread| (thread.tid, Original::of_thread(thread).unwrap());
        let before = threads(&victim.0).into_iter().map(state).collect();
        writeln!(input).unwrap();
        Self { place, victim, _input: input, sleeper, before, roots }
    }

    pub(crate) fn dir(&self) -> StateDir {
        StateDir::locate(Some(&self.place.path().join("lull"))).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.place.path().join("file")
    }

    pub(crate) fn start_agent(&self, seed: u64) -> Agent {
        self.start_as("agent", seed)
    }

    /// Starts an agent that spins once its input has a line.
    pub(crate) fn start_spinner(&self, seed: u64) -> Agent {
        self.start_as("spinner", seed)
    }

    fn start_as(&self, role: &str, seed: u64) -> Agent {
        let dir = self.place.path().join("lull").display().to_string();
        let file = self.file().display().to_string();
        let [victim, sleeper] = [&self.victim, &self.sleeper].map(|one| one.0.id().to_string());
        let seed = seed.to_string();
        let args = [dir.as_str(), &victim, &sleeper, &file, &seed];
        Agent::start(&argv(role, &args))
    }

    /// Restores what a dead agent left, as the next start of an agent does first.
    pub(crate) fn restore_by_hand(&self) {
        let _ = restore_stale(&self.dir(), &self.roots).unwrap();
    }

    /// Returns the differences from before; empty if there are none.
    pub(crate) fn changed(&self) -> Vec<String> {
        let mut changed = Vec::new();
        let main = i32::try_from(self.victim.0.id()).unwrap();
        for thread in threads(&self.victim.0) {
            let Ok(now) = Original::of_thread(thread) else { continue };
            let usual = self.before.get(&thread.tid);
            // A short-lived thread is as the main thread was.
            if !usual.map_or_else(|| is_like(&now, &self.before[&main]), |usual| *usual == now) {
                changed.push(format!("{now:?}"));
            }
        }
        let file = std::fs::read_to_string(self.file()).unwrap();
        if file.trim() != "950000" {
            changed.push(format!("the file is {file}"));
        }
        let sleeper = ProcessId::lookup(&self.roots, self.sleeper.0.id().cast_signed()).unwrap();
        if sleeper.facts(&self.roots).unwrap().state == 'T' {
            changed.push("the sleeper is stopped".to_owned());
        }
        changed
    }

    pub(crate) fn wait_until_as_before(&self) {
        let begun = Instant::now();
        let mut changed = self.changed();
        while begun.elapsed() < PATIENCE && !changed.is_empty() {
            thread::sleep(Duration::from_millis(2));
            // A thread that was being made may come after all was as before; it is restored too.
            changed = self.changed();
        }
        assert_eq!(changed, Vec::<String>::new());
    }
}

fn is_like(one: &Original, other: &Original) -> bool {
    let state = |original: &Original| match original {
        Original::Thread { affinity, policy, nice, .. } => Some((affinity.clone(), *policy, *nice)),
        _ => None,
    };
    state(one) == state(other)
}

fn threads(process: &Child) -> Vec<LiveThread> {
    let pid = process.id().cast_signed();
    let task = PathBuf::from(format!("/proc/{pid}/task"));
    let tids = std::fs::read_dir(task).unwrap().flatten();
    let tids = tids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let thread = |tid| {
        sched::affinity_of(tid).ok()?;
        let stat = lull_host::apps::Facts::of_thread(&Roots::default(), pid, tid).ok()?;
        Some(LiveThread { pid, tid, start_ticks: stat.start_ticks })
    };
    tids.filter_map(thread).collect()
}

/// A running agent and its output.
pub(crate) struct Agent {
    pub(crate) process: Ends,
    printed: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    fn start(argv: &[String]) -> Self {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = Ends(command.spawn().unwrap());
        let printed = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&printed);
        let output = BufReader::new(process.0.stdout.take().unwrap());
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                heard.lock().unwrap().push(line);
            }
        });
        Self { process, printed }
    }

    fn numbers(&self, word: &str) -> Vec<i32> {
        let printed = self.printed.lock().unwrap();
        let number = |line: &String| line.strip_prefix(word)?.trim().parse().ok();
        printed.iter().filter_map(number).collect()
    }

    /// How many guards it has started and found ready.
    pub(crate) fn guards_announced(&self) -> usize {
        self.numbers("guard").len()
    }

    /// Returns its guards that have not been waited for yet.
    pub(crate) fn guards(&self) -> Vec<ProcessId> {
        let id = |pid| ProcessId::lookup(&Roots::default(), pid).ok();
        self.numbers("guard").into_iter().filter_map(id).collect()
    }

    /// The processes of the app that it has started.
    pub(crate) fn app(&self) -> Vec<ProcessId> {
        let id = |pid| ProcessId::lookup(&Roots::default(), pid).ok();
        self.numbers("app").into_iter().filter_map(id).collect()
    }

    pub(crate) fn has_changed(&self) -> bool {
        self.has_printed("changed")
    }

    pub(crate) fn has_printed(&self, wanted: &str) -> bool {
        self.printed.lock().unwrap().iter().any(|line| line == wanted)
    }

    pub(crate) fn wait_until_changed(&mut self) {
        wait_for("an agent at work", || {
            let ended = self.process.0.try_wait().unwrap();
            assert_eq!(ended, None, "the agent ended early: {:?}", self.printed.lock().unwrap());
            self.has_changed()
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.0.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// SIGKILL, and the kernel has taken notice.
    pub(crate) fn kill(&mut self) {
        self.process.0.kill().unwrap();
        self.process.0.wait().unwrap();
    }

    /// SIGKILL to its newest guard, if it has one.
    pub(crate) fn kill_guard(&self) {
        self.signal_guard(Signal::KILL);
    }

    /// A signal to its newest guard, if it has one.
    pub(crate) fn signal_guard(&self, signal: Signal) {
        if let Some(guard) = self.guards().last() {
            // It may have ended, or be ended already and not waited for.
            let _ = kill_process(Pid::from_raw(guard.pid).unwrap(), signal);
        }
    }
}
