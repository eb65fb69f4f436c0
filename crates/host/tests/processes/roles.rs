//! What the test binary is when it is started with a role.

use lull_control::{CoreId, CoreSet};
use lull_host::apps::{AppHandle, AppProcesses, Launch, Output, ProcessId, ProcessTable};
use lull_host::guard::{
    self, FieldValue, GuardArgs, GuardCommand, GuardEnd, GuardHandle, GuardState, Ledger, Original,
    Patience, StateDir, ThreadWrite,
};
use lull_host::sys::sched::{self, SchedState};
use lull_host::{LiveThread, Roots};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::env;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Plays the role that the arguments name; `None` if they name none.
pub(crate) fn play() -> Option<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.first()?.as_str() {
        "guard" => Some(be_guard()),
        "agent" => Some(be_agent(&args[1..], false)),
        "spinner" => Some(be_agent(&args[1..], true)),
        "victim" => Some(be_victim()),
        "threads" => Some(be_threads(args[1].parse().unwrap())),
        "watcher" => Some(crate::bpf::be_watcher()),
        "confined" => Some(crate::sandbox::be_confined(&args[1..])),
        "listener" => Some(be_listener(&args[1])),
        _ => None,
    }
}

/// Starts this binary in a role.
pub(crate) fn argv(role: &str, args: &[&str]) -> Vec<String> {
    let me = env::current_exe().unwrap().to_str().unwrap().to_owned();
    let args = args.iter().map(|arg| (*arg).to_owned());
    [me, role.to_owned()].into_iter().chain(args).collect()
}

pub(crate) fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

fn be_guard() -> ExitCode {
    let args = GuardArgs::parse(env::args_os().skip(2)).unwrap();
    match guard::run(&args) {
        Ok(GuardEnd::NothingToDo | GuardEnd::PutBack(_) | GuardEnd::Stuck(_)) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The processes that an agent of the tests manages.
struct Agent {
    roots: Roots,
    ledger: Ledger,
    guard: GuardHandle,
    table: ProcessTable,
    victim: AppProcesses,
    rng: Xoshiro256PlusPlus,
    cores: Vec<CoreId>,
}

/// Changes everything it can of the victim, until it is killed or its input ends; it is stuck from
/// then on if `spins`.
fn be_agent(args: &[String], spins: bool) -> ExitCode {
    let [dir, victim, sleeper, file, seed] = args else { panic!("agent got {args:?}") };
    let roots = Roots::default();
    let dir = StateDir::locate(Some(Path::new(dir))).unwrap();
    let opened = Ledger::open(dir, &roots).unwrap();
    let program = env::current_exe().unwrap();
    let command = GuardCommand { program, args: vec!["guard".into()] };
    let guard = guard::spawn(command, &opened.ledger).unwrap();
    say(&format!("guard {}", guard.pid()));
    let root = ProcessId::lookup(&roots, victim.parse().unwrap()).unwrap();
    let mut agent = Agent {
        ledger: opened.ledger,
        guard,
        table: ProcessTable::new(&roots).unwrap(),
        victim: AppProcesses::of_tree(root),
        rng: Xoshiro256PlusPlus::seed_from_u64(seed.parse().unwrap()),
        cores: sched::affinity_of(root.pid).unwrap().iter().collect(),
        roots,
    };
    agent.change_once(sleeper.parse().unwrap(), Path::new(file));
    let mut app = agent.start_app();
    agent.change_until_stopped();
    if spins {
        agent.spin();
    }
    let ended = lull_host::apps::stop(std::slice::from_mut(&mut app), &agent.roots, Duration::ZERO);
    assert_eq!(ended.left, []);
    agent.end()
}

impl Agent {
    /// Stops a process, and writes a file as it would the kernel's throttle.
    fn change_once(&mut self, sleeper: i32, file: &Path) {
        let ProcessId { pid, start_ticks } = ProcessId::lookup(&self.roots, sleeper).unwrap();
        let ours = vec!["-1".to_owned()];
        let throttle =
            Original::RealTimeThrottle { path: file.to_owned(), runtime_us: 950_000, ours };
        let stopped = Original::Stopped { pid, start_time_ticks: start_ticks };
        self.ledger.record(&[throttle, stopped]).unwrap();
        // As long as the value before, in one call: a file of the kernel is never half written.
        let mut throttle = OpenOptions::new().write(true).open(file).unwrap();
        throttle.write_all(b"-1    \n").unwrap();
        let sleeper = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(sleeper, rustix::process::Signal::STOP).unwrap();
    }

    fn start_app(&mut self) -> AppHandle {
        let launch = Launch {
            name: "app".to_owned(),
            argv: ["sh", "-c", "sleep 3000 & sleep 3000"].map(str::to_owned).to_vec(),
            env: Vec::new(),
            output: Output::Inherit,
            ready: None,
        };
        let mut app = AppHandle::start(&launch, &self.roots, &mut self.ledger).unwrap();
        app.pause(&mut self.table, &mut self.ledger).unwrap();
        for process in app.processes() {
            say(&format!("app {}", process.pid));
        }
        app
    }

    fn change_until_stopped(&mut self) {
        let is_over = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&is_over);
        thread::spawn(move || {
            let _ = io::stdin().lock().read_line(&mut String::new());
            tell.store(true, Ordering::Relaxed);
        });
        let mut rounds = 0;
        while !is_over.load(Ordering::Relaxed) {
            self.change();
            rounds += 1;
            if rounds == 3 {
                say("changed");
            }
            // An agent beats in this way while it writes knobs; the guard finds it as soon if it is
            // stopped.
            self.guard.beat(Patience::Long).unwrap();
            if let GuardState::Respawned(_) = self.guard.poll().unwrap() {
                say(&format!("guard {}", self.guard.pid()));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Spins without a beat. A handler takes SIGTERM, as in an agent whose loop no longer checks
    /// whether it should end.
    fn spin(&mut self) -> ! {
        signal_hook::flag::register(libc::SIGTERM, Arc::default()).unwrap();
        self.guard.beat(Patience::Usual).unwrap();
        say("spins");
        loop {
            std::hint::spin_loop();
        }
    }

    /// Gives each thread one core and another class, by chance.
    fn change(&mut self) {
        self.table.refresh().unwrap();
        self.victim.refresh(&self.table).unwrap();
        let threads: Vec<LiveThread> = self.victim.threads().to_vec();
        let writes: Vec<ThreadWrite> = threads.iter().map(|thread| self.write(*thread)).collect();
        self.ledger.record_writes(&writes).unwrap();
        for ThreadWrite { thread, values } in writes {
            for value in values {
                // A short-lived thread may be gone by now.
                let _ = set_field(thread.tid, &value);
            }
        }
    }

    fn write(&mut self, thread: LiveThread) -> ThreadWrite {
        let core = self.cores[self.rng.random_range(0..self.cores.len())];
        let policy = if self.rng.random() { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
        let class = FieldValue::Class { policy: policy.cast_unsigned(), rt_priority: 0 };
        let mut values = vec![FieldValue::Cores(CoreSet::from_iter([core])), class];
        // Only root can take a nice value back.
        if rustix::process::geteuid().is_root() {
            values.push(FieldValue::Nice(self.rng.random_range(5..19)));
        }
        ThreadWrite { thread, values }
    }

    fn end(self) -> ExitCode {
        let restoration = self.ledger.restore();
        self.ledger.close().unwrap();
        let guard = self.guard.finish().unwrap();
        if restoration.failed.is_empty() && guard.success() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

fn set_field(tid: i32, value: &FieldValue) -> io::Result<()> {
    match value {
        FieldValue::Cores(cores) => sched::set_affinity(tid, cores),
        FieldValue::Class { policy, rt_priority } => sched::set_class(tid, *policy, *rt_priority),
        FieldValue::Nice(nice) => sched::set_nice(tid, *nice),
    }
}

/// Threads with settings of their own, and after a line of input one that
/// makes short-lived threads all the time.
fn be_victim() -> ExitCode {
    type Setting = fn(i32);
    let settings: [Setting; 5] = [
        |_| {},
        |tid| {
            let first = sched::affinity_of(tid).unwrap().iter().take(1).collect();
            sched::set_affinity(tid, &first).unwrap();
        },
        |tid| {
            let last = sched::affinity_of(tid).unwrap().iter().next_back();
            sched::set_affinity(tid, &last.into_iter().collect()).unwrap();
        },
        |tid| set(tid, libc::SCHED_OTHER, 3),
        |tid| set(tid, libc::SCHED_BATCH, 0),
    ];
    let start = Arc::new(std::sync::Barrier::new(settings.len() + 1));
    for setting in settings {
        let start = Arc::clone(&start);
        thread::spawn(move || {
            setting(rustix::thread::gettid().as_raw_nonzero().get());
            start.wait();
            thread::sleep(Duration::from_secs(3000));
        });
    }
    start.wait();
    say("ready");
    io::stdin().lock().read_line(&mut String::new()).unwrap();
    loop {
        thread::spawn(|| thread::sleep(Duration::from_millis(20)));
        thread::sleep(Duration::from_millis(3));
    }
}

fn set(tid: i32, policy: i32, nice: i32) {
    let state = SchedState { policy: policy.cast_unsigned(), rt_priority: 0, nice };
    sched::set_scheduling(tid, state).unwrap();
}

fn be_threads(count: usize) -> ExitCode {
    for _ in 1..count {
        thread::spawn(|| thread::sleep(Duration::from_secs(3000)));
    }
    thread::sleep(Duration::from_secs(3000));
    ExitCode::SUCCESS
}

/// Accepts connections at an address, or on a unix socket if it is a path.
fn be_listener(address: &str) -> ExitCode {
    // Kept to the end, since dropping one closes it.
    let (_tcp, _unix);
    if address.starts_with('/') {
        _unix = std::os::unix::net::UnixListener::bind(PathBuf::from(address)).unwrap();
    } else {
        _tcp = TcpListener::bind(address).unwrap();
    }
    thread::sleep(Duration::from_secs(3000));
    ExitCode::SUCCESS
}
