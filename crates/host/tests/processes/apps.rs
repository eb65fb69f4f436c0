//! Apps started, attached, paused and ended.

use crate::roles::argv;
use crate::scene::{Ends, runs, wait_for};
use lull_host::Roots;
use lull_host::apps::{
    AppHandle, AttachError, Ended, Endpoint, Launch, Output, PauseError, ProcessId, ProcessTable,
    Ready, StartError, Target, stop,
};
use lull_host::guard::{Ledger, StateDir};
use lull_host::plant::Stop;
use lull_testing::skip;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("every_thread_of_a_started_app_and_its_children_is_seen", threads_are_seen),
    ("a_child_of_a_parent_that_ended_still_belongs", orphan_belongs),
    ("threads_and_processes_that_end_are_seen_to_go", threads_go),
    ("an_app_that_exits_at_once_is_told_with_its_last_lines", exits_at_once),
    ("an_app_that_goes_into_the_background_is_ended_and_told", background),
    ("a_program_that_is_missing_is_told", missing_program),
    ("an_app_is_ready_when_it_accepts_connections", ready),
    ("an_app_that_never_accepts_connections_is_ended_and_told", never_ready),
    ("an_app_that_is_not_ready_when_the_run_stops_is_ended", stopped_before_ready),
    ("an_address_that_is_taken_is_told_before_the_start", taken),
    ("a_paused_app_stands_still_and_goes_on", pause),
    ("a_process_that_waits_for_a_stopped_child_stands_still_too", waiting_for_a_child),
    ("a_process_that_its_owner_stopped_stays_stopped", stopped_before),
    ("an_app_of_somebody_else_is_not_paused_or_ended", not_ours),
    ("an_app_that_ignores_sigterm_is_killed", ignores_sigterm),
    ("a_child_that_left_group_and_parent_ends_with_its_app", left_group),
    ("an_attached_process_brings_its_children", attached_tree),
    ("an_app_is_attached_by_cgroup", attached_cgroup),
];

/// A state directory, and apps that end with it.
struct Stage {
    place: tempfile::TempDir,
    roots: Roots,
    ledger: Ledger,
    table: ProcessTable,
    apps: Vec<AppHandle>,
}

impl Stage {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let roots = Roots::default();
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        let ledger = Ledger::open(dir, &roots).unwrap().ledger;
        let table = ProcessTable::new(&roots).unwrap();
        Self { place, roots, ledger, table, apps: Vec::new() }
    }

    /// A launch with a name of its own, as its mark must be.
    fn launch(&self, argv: Vec<String>) -> Launch {
        let name = self.place.path().file_name().unwrap().to_str().unwrap().to_owned();
        let output = Output::Log(self.place.path().join("log"));
        Launch { name, argv, env: Vec::new(), output, ready: None }
    }

    fn shell(&self, script: &str) -> Launch {
        self.launch(["sh", "-c", script].map(str::to_owned).to_vec())
    }

    fn start(&mut self, launch: &Launch) -> Result<(), StartError> {
        let app = AppHandle::start(launch, &self.roots, &mut self.ledger)?;
        self.apps.push(app);
        Ok(())
    }

    fn attach(&mut self, target: &Target) -> Result<(), AttachError> {
        self.apps.push(AppHandle::attach("attached", target, &self.roots)?);
        Ok(())
    }

    fn refresh(&mut self) -> (usize, usize) {
        self.table.refresh().unwrap();
        self.apps[0].refresh(&self.table).unwrap();
        (self.apps[0].processes().count(), self.apps[0].threads().len())
    }

    fn wait_for(&mut self, processes: usize, threads: usize) {
        wait_for(&format!("{processes} processes, {threads} threads"), || {
            self.refresh() == (processes, threads)
        });
    }

    fn states(&self) -> BTreeSet<char> {
        let state = |process: ProcessId| Some(process.facts(&self.roots)?.state);
        self.apps[0].processes().filter_map(state).collect()
    }

    fn stop(&mut self, grace: Duration) -> Ended {
        stop(&mut self.apps, &self.roots, grace)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.place.path().join("log")).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let ended = self.stop(Duration::ZERO);
        if !std::thread::panicking() {
            assert_eq!(ended.left, []);
        }
    }
}

const PATIENT: Duration = Duration::from_secs(60);

fn threads_are_seen() {
    let mut stage = Stage::new();
    let many = argv("threads", &["5"]).join(" ");
    let launch = stage.shell(&format!("{many} & {many} & wait"));
    stage.start(&launch).unwrap();
    stage.wait_for(3, 11);
    let mains = stage.apps[0].threads().iter().filter(|thread| thread.pid == thread.tid);
    assert_eq!(mains.count(), 3);
    let ended = stage.stop(PATIENT);
    assert_eq!(ended, Ended { terminated: 3, ..Ended::default() });
    assert!(stage.apps[0].exit_status().unwrap().is_some());
    stage.wait_for(0, 0);
}

fn orphan_belongs() {
    let mut stage = Stage::new();
    let launch = stage.shell("sh -c 'sleep 3000 & sleep 3000 & kill $$' & wait; wait; sleep 3000");
    stage.start(&launch).unwrap();
    stage.wait_for(4, 4);
}

fn threads_go() {
    let mut stage = Stage::new();
    let go = stage.place.path().join("go");
    let script = format!(
        "sleep 3000 & while ! test -e {}; do sleep 0.1; done; kill $!; wait; sleep 3000",
        go.display()
    );
    let launch = stage.shell(&script);
    stage.start(&launch).unwrap();
    wait_for("a shell and two children", || stage.refresh().0 == 3);
    std::fs::write(go, "").unwrap();
    stage.wait_for(2, 2);
}

fn exits_at_once() {
    let mut stage = Stage::new();
    let launch = stage.shell("echo first; echo cannot bind 11211 >&2; exit 71");
    let refused = stage.start(&launch).unwrap_err();
    assert!(
        matches!(&refused, StartError::ExitedAtOnce { status, .. } if status.code() == Some(71))
    );
    let text = refused.to_string();
    assert!(text.contains("exit status: 71") && text.contains("cannot bind 11211"), "{text}");
}

fn background() {
    let mut stage = Stage::new();
    let pid = stage.place.path().join("pid");
    let launch = stage.shell(&format!("sleep 3000 & echo $! > {}", pid.display()));
    let refused = stage.start(&launch).unwrap_err();
    assert!(refused.to_string().contains("foreground"), "{refused}");
    let pid = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    assert!(!ProcessId::lookup(&stage.roots, pid).is_ok_and(runs));
}

fn missing_program() {
    let mut stage = Stage::new();
    let launch = stage.launch(vec!["no-such-program".to_owned()]);
    let refused = stage.start(&launch).unwrap_err().to_string();
    assert!(refused.contains("`no-such-program`") && refused.contains("$PATH"), "{refused}");
    let launch = stage.launch(Vec::new());
    assert!(matches!(stage.start(&launch), Err(StartError::Empty { .. })));
}

/// An address that nothing listens at now.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn ready() {
    for unix in [false, true] {
        let mut stage = Stage::new();
        let path = stage.place.path().join("socket");
        let (address, endpoint) = if unix {
            (path.to_str().unwrap().to_owned(), Endpoint::Unix(path))
        } else {
            let address = free_address();
            (address.clone(), Endpoint::Tcp(address))
        };
        let listener = argv("listener", &[&address]).join(" ");
        let mut launch = stage.shell(&format!("sleep 0.3; exec {listener}"));
        launch.ready = Some(Ready { endpoint: endpoint.clone(), timeout: PATIENT, stop: None });
        stage.start(&launch).unwrap();
        assert!(endpoint.accepts(), "{}", stage.log());
    }
}

fn never_ready() {
    let mut stage = Stage::new();
    let mut launch = stage.shell("echo $$; sleep 3000");
    let timeout = Duration::from_millis(300);
    launch.ready = Some(Ready { endpoint: Endpoint::Tcp(free_address()), timeout, stop: None });
    let refused = stage.start(&launch).unwrap_err();
    assert!(matches!(refused, StartError::NotReady { .. }));
    let pid = stage.log().trim().parse().unwrap();
    assert!(!ProcessId::lookup(&stage.roots, pid).is_ok_and(runs));
}

fn stopped_before_ready() {
    let mut stage = Stage::new();
    let mut launch = stage.shell("echo $$; sleep 3000");
    let stop = Stop::new().unwrap();
    stop.request();
    let endpoint = Endpoint::Tcp(free_address());
    launch.ready = Some(Ready { endpoint, timeout: PATIENT, stop: Some(stop) });
    assert!(matches!(stage.start(&launch), Err(StartError::Stopped { .. })));
    for pid in stage.log().lines().map(|line| line.parse().unwrap()) {
        assert!(!ProcessId::lookup(&stage.roots, pid).is_ok_and(runs));
    }
}

fn taken() {
    let mut stage = Stage::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut launch = stage.shell("sleep 3000");
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap().to_string());
    launch.ready = Some(Ready { endpoint, timeout: PATIENT, stop: None });
    assert!(matches!(stage.start(&launch), Err(StartError::Taken { .. })));
    assert!(!stage.place.path().join("log").exists(), "it was started");
}

fn pause() {
    let mut stage = Stage::new();
    // It makes processes all the time, so that one pass cannot stop it.
    let launch = stage.shell("while true; do sleep 0.01 & sleep 0.01; done");
    stage.start(&launch).unwrap();
    let Stage { apps, table, ledger, roots, .. } = &mut stage;
    for _ in 0..3 {
        apps[0].pause(table, ledger).unwrap();
        assert!(apps[0].is_paused());
        let states: BTreeSet<char> =
            apps[0].processes().filter_map(|process| Some(process.facts(roots)?.state)).collect();
        // One may wait for a child that it has made by `vfork`.
        assert!(states.contains(&'T') && states.is_subset(&BTreeSet::from(['T', 'D'])));
        apps[0].resume(roots, ledger).unwrap();
        assert!(!apps[0].is_paused());
    }
    wait_for("an app that goes on", || {
        stage.refresh();
        !stage.states().contains(&'T')
    });
}

/// As `vfork`: the parent waits in the kernel until its child has executed another program.
fn waiting_for_a_child() {
    const CLONE_VFORK_AND_SIGCHLD: i32 = 0x4011;
    let clone = if cfg!(target_arch = "aarch64") { 220 } else { 56 };
    let script = format!("syscall({clone}, {CLONE_VFORK_AND_SIGCHLD}, 0, 0, 0, 0); sleep 3000");
    let mut stage = Stage::new();
    let launch = stage.launch(["perl".to_owned(), "-e".to_owned(), script].to_vec());
    stage.start(&launch).unwrap();
    stage.wait_for(2, 2);
    let Stage { apps, table, ledger, .. } = &mut stage;
    apps[0].pause(table, ledger).unwrap();
    assert_eq!(stage.states(), BTreeSet::from(['D', 'T']));
    let Stage { apps, ledger, roots, .. } = &mut stage;
    apps[0].resume(roots, ledger).unwrap();
    wait_for("an app that goes on", || !stage.states().contains(&'T'));
}

fn stopped_before() {
    let mut stage = Stage::new();
    let launch = stage.shell("sleep 3000 & sleep 3000");
    stage.start(&launch).unwrap();
    stage.wait_for(3, 3);
    let child = stage.apps[0].processes().last().unwrap();
    kill_process(Pid::from_raw(child.pid).unwrap(), Signal::STOP).unwrap();
    wait_for("a stopped child", || child.facts(&stage.roots).unwrap().state == 'T');
    let Stage { apps, table, ledger, roots, .. } = &mut stage;
    apps[0].pause(table, ledger).unwrap();
    apps[0].resume(roots, ledger).unwrap();
    assert_eq!(child.facts(roots).unwrap().state, 'T');
}

fn not_ours() {
    let mut stage = Stage::new();
    let theirs = Ends(Command::new("sleep").arg("3000").spawn().unwrap());
    stage.attach(&Target::Pid(theirs.0.id().cast_signed())).unwrap();
    stage.wait_for(1, 1);
    let Stage { apps, table, ledger, .. } = &mut stage;
    assert!(matches!(apps[0].pause(table, ledger), Err(PauseError::NotStarted { .. })));
    assert_eq!(stage.stop(Duration::ZERO), Ended::default());
    stage.wait_for(1, 1);
}

fn ignores_sigterm() {
    let mut stage = Stage::new();
    let launch = stage.shell("trap '' TERM; while true; do sleep 1; done");
    stage.start(&launch).unwrap();
    let shell = stage.apps[0].processes().next();
    let ended = stage.stop(Duration::from_millis(300));
    assert!(ended.killed >= 1 && ended.left.is_empty(), "{ended:?}");
    assert!(!shell.is_some_and(runs));
}

fn left_group() {
    let mut stage = Stage::new();
    let pid = stage.place.path().join("pid");
    let leave = format!("setsid sh -c 'echo $$ > {}; exec sleep 3000' &", pid.display());
    let launch =
        stage.shell(&format!("sh -c \"{leave}\"; sleep 3000", leave = leave.replace('$', "\\$")));
    stage.start(&launch).unwrap();
    let read = || std::fs::read_to_string(&pid).ok()?.trim().parse().ok();
    wait_for("a child on its own", || read().is_some());
    let child = ProcessId::lookup(&stage.roots, read().unwrap()).unwrap();
    wait_for("an orphan", || child.facts(&stage.roots).unwrap().group == child.pid);
    assert_eq!(stage.stop(PATIENT).left, []);
    assert!(!runs(child));
}

fn attached_tree() {
    let mut stage = Stage::new();
    let many = argv("threads", &["3"]).join(" ");
    let mut theirs = Command::new("sh");
    theirs.args(["-c", &format!("{many} & read line; kill $!")]).stdin(Stdio::piped());
    let mut theirs = Ends(theirs.spawn().unwrap());
    stage.attach(&Target::Pid(theirs.0.id().cast_signed())).unwrap();
    stage.wait_for(2, 4);
    drop(theirs.0.stdin.take());
    theirs.0.wait().unwrap();
    stage.wait_for(0, 0);
    let gone = stage.attach(&Target::Pid(theirs.0.id().cast_signed())).unwrap_err();
    assert!(matches!(gone, AttachError::Gone { .. }));
    assert!(gone.to_string().contains("pgrep"), "{gone}");
}

/// A cgroup that is removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// In the first hierarchy that lets us; only root may, and not everywhere.
    fn new() -> Option<Self> {
        let name = format!("lull-test-{}", std::process::id());
        let places = ["", "unified", "pids", "cpu", "freezer"];
        let path = |place: &str| PathBuf::from("/sys/fs/cgroup").join(place).join(&name);
        let made = |path: &PathBuf| {
            path.parent().is_some_and(|above| above.join("cgroup.procs").exists())
                && std::fs::create_dir(path).is_ok()
        };
        let found = places.map(path).into_iter().find(made).map(Self);
        if found.is_none() {
            skip("no cgroup can be created here");
        }
        found
    }

    fn add(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel refuses as long as a killed process is not quite gone.
        let _ = std::fs::remove_dir(self.0.join("below"));
        wait_for("an empty cgroup", || std::fs::remove_dir(&self.0).is_ok());
    }
}

fn attached_cgroup() {
    let Some(cgroup) = Cgroup::new() else { return };
    let mut stage = Stage::new();
    let target = Target::Cgroup(cgroup.0.clone());
    let sleeper = || Ends(Command::new("sleep").arg("3000").spawn().unwrap());
    let (first, second) = (sleeper(), sleeper());
    cgroup.add(first.0.id());
    stage.attach(&target).unwrap();
    stage.wait_for(1, 1);
    let below = Cgroup(cgroup.0.join("below"));
    std::fs::create_dir(&below.0).unwrap();
    below.add(second.0.id());
    stage.wait_for(2, 2);
    drop(first);
    stage.wait_for(1, 1);
    drop(second);
    stage.wait_for(0, 0);
    drop((below, cgroup));
    stage.table.refresh().unwrap();
    let Stage { apps, table, roots, .. } = &mut stage;
    apps[0].refresh(table).unwrap();
    assert!(!apps[0].is_running(roots) && apps[0].can_return());
}
