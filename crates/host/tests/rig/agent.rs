//! Policies end to end: the program itself, started as a user starts it, steers
//! real drivers for real apps and leaves everything as it was.
//!
//! What is shown is that what a policy decides becomes what the kernel does. In an
//! emulator frequency has no effect on speed, and four cores share one thread of
//! the machine outside: what settings save or cost is no matter of these tests.

use crate::Tests;
use crate::frequency::hardware;
use crate::kills::Knobs;
use crate::roles;
use crate::scene::{read, wait_for};
use lull_control::CoreSet;
use lull_host::sys::sched::{SchedState, affinity_of, scheduling_of};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

pub(crate) const TESTS: Tests = &[
    ("agent::step_dvfs_follows_a_load_up_and_down_twice", step_dvfs),
    ("agent::arq_keeps_best_effort_threads_off_a_core_of_the_app_that_suffers", arq),
];

/// Values of the "hardware" at the lowest and at the highest frequency.
const SLOWEST: u8 = 0x08;
const FASTEST: u8 = 0x18;
/// Between two requests of a thread, where most of its time shall be idle.
const EASY_US: u32 = 200_000;

/// The program, a config, and where it keeps things.
pub(crate) struct Lull {
    dir: TempDir,
    agent: Option<Child>,
}

impl Lull {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), agent: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where apps push to.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path("push.sock")
    }

    /// Writes a config: `agent` has further keys of `[agent]`, `rest` the other sections.
    pub(crate) fn configure(&self, agent: &str, rest: &str) {
        let dir = self.dir.path().display();
        // On a busy machine an emulator may stand still for longer than a server
        // may be silent.
        let text = format!(
            "[agent]\nsilence = \"60s\"\nstate = \"{dir}/state\"\nrecord = \"{dir}/runs\"\n\
             socket = \"{dir}/push.sock\"\n{agent}\n{rest}"
        );
        std::fs::write(self.path("lull.toml"), text).unwrap();
    }

    /// Starts `lull COMMAND lull.toml ...`.
    pub(crate) fn start(&mut self, command: &str, further: &[&str]) {
        let file = |name: &str| File::create(self.path(name)).unwrap();
        let mut lull = Command::new("/bin/lull");
        lull.arg(command).arg(self.path("lull.toml")).args(further).current_dir(self.dir.path());
        lull.stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        self.agent = Some(lull.spawn().unwrap());
    }

    /// Its output so far.
    pub(crate) fn stderr_text(&self) -> String {
        read(self.path("err"))
    }

    /// Returns its output so far.
    pub(crate) fn printed(&self) -> String {
        read(self.path("out"))
    }

    /// Waits for something that it must do; if it ends before, that is why not.
    pub(crate) fn wait_for(&mut self, what: &str, mut has_come: impl FnMut() -> bool) {
        let (agent, mut has_ended) = (self.agent.as_mut().unwrap(), false);
        wait_for(what, || {
            has_ended = agent.try_wait().unwrap().is_some();
            has_come() || has_ended
        });
        assert!(!has_ended, "{what}: lull has ended: {}", self.stderr_text());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.agent.as_ref().unwrap().id().cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Waits for its end; whether it went well.
    pub(crate) fn ended(&mut self) -> bool {
        let (agent, mut status) = (self.agent.as_mut().unwrap(), None);
        wait_for("the end of lull", || {
            status = agent.try_wait().unwrap();
            status.is_some()
        });
        self.agent = None;
        status.is_some_and(|status| status.success())
    }

    /// Asks it to end, which it does well.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert!(self.ended(), "{}", self.stderr_text());
        assert!(self.stderr_text().contains("knobs are as they were"), "{}", self.stderr_text());
    }
}

impl Drop for Lull {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            println!("lull said:\n{}", self.stderr_text());
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

/// A process that ends with its test.
pub(crate) struct App(pub(crate) Child);

impl App {
    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// The cores and the scheduling class of each of its threads.
    fn threads(&self) -> Vec<(CoreSet, SchedState)> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let tid = |task: std::fs::DirEntry| task.file_name().to_string_lossy().parse().unwrap();
        let state = |tid: i32| (affinity_of(tid).unwrap(), scheduling_of(tid).unwrap());
        tasks.map(|task| state(tid(task.unwrap()))).collect()
    }

    fn cores(&self) -> Vec<CoreSet> {
        self.threads().into_iter().map(|(cores, _)| cores).collect()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn all_at(byte: u8) -> bool {
    (0..4).all(|cpu| hardware(cpu) == byte)
}

fn set_pause(file: &Path, pause_us: u32) {
    // Whole at once: the server reads it all the time.
    let new = file.with_extension("new");
    std::fs::write(&new, pause_us.to_string()).unwrap();
    std::fs::rename(&new, file).unwrap();
}

fn step_dvfs() {
    let (before, mut lull) = (Knobs::now(), Lull::new());
    let pause = lull.path("pause");
    set_pause(&pause, EASY_US);
    let start = format!("[\"/init\", \"serve\", \"4\", \"{}\"]", pause.display());
    lull.configure(
        "epoch = \"200ms\"",
        &format!(
            "[policy]\nname = \"step-dvfs\"\nperiod = \"400ms\"\nwindow = \"200ms\"\n\
             [[app]]\nname = \"served\"\nclass = \"latency-critical\"\n\
             objectives = [{{ p95 = \"50ms\" }}]\nstart = {start}\n"
        ),
    );
    lull.start("run", &[]);
    for _ in 0..2 {
        set_pause(&pause, EASY_US);
        lull.wait_for("all cores slow under little load", || all_at(SLOWEST));
        set_pause(&pause, 0);
        lull.wait_for("all cores fast under load", || all_at(FASTEST));
    }
    set_pause(&pause, EASY_US);
    lull.wait_for("all cores slow at the end", || all_at(SLOWEST));
    assert_ne!(Knobs::now(), before);
    lull.stop();
    assert_eq!(Knobs::now(), before);
}

fn arq() {
    let mut lull = Lull::new();
    let pause = lull.path("pause");
    set_pause(&pause, 5000);
    let socket = lull.socket();
    let args = ["1", pause.to_str().unwrap(), socket.to_str().unwrap(), "served"];
    let served = App(roles::start("serve", &args));
    let burn = ["burn", "compute", "--threads", "4"];
    let burning = App(Command::new("/bin/lull").args(burn).stdout(Stdio::null()).spawn().unwrap());
    wait_for("four burning threads", || burning.cores().len() >= 5);
    let before = [served.threads(), burning.threads()];
    lull.configure(
        "epoch = \"200ms\"",
        &format!(
            "[policy]\nname = \"arq\"\nperiod = \"400ms\"\n\
             [[app]]\nname = \"served\"\nclass = \"latency-critical\"\nthreads = 1\n\
             objectives = [{{ p95 = \"3ms\" }}]\nideal = \"1ms\"\npid = {}\n\
             [[app]]\nname = \"burning\"\nclass = \"best-effort\"\nsolo = 4.0\n\
             progress = \"cpu-time\"\npid = {}\n",
            served.pid(),
            burning.pid()
        ),
    );
    lull.start("run", &[]);
    // Four busy cores take turns on one thread outside: this bound is never met, and
    // the app is to have a core to itself.
    lull.wait_for("a core for the app that suffers", || {
        let all = burning.cores();
        let shared = &all[0];
        shared.len() < 4
            && all.iter().all(|cores| cores == shared)
            && served.cores().iter().all(|cores| !cores.is_subset(shared))
    });
    lull.stop();
    assert_eq!([served.threads(), burning.threads()], before);
}
