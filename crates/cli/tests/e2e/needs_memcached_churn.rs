//! A machine on which apps come, go and are restarted all the time, while its agent is reloaded
//! and killed: at the end everything is as its owner left it, and nothing has grown.
//!
//! `LULL_CHURN_MINUTES=10` is the whole of it: 500 short processes, 20 restarts of memcached, 50
//! reloads and 100 kills. CI runs a part.

use crate::support::agent::Agent;
use crate::support::scene::Scene;
use crate::support::threads::{ThreadState, threads};
use crate::support::{arguments, cores, free_port, send, skip, wait_for, wait_or};
use lull_workload::Generator;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use std::fmt::Display;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Length of the test unless the environment sets another.
const SECONDS: f64 = 14.0;
const SECONDS_OF_WHOLE: f64 = 600.0;
/// The events of ten minutes.
const PROCESSES: f64 = 500.0;
const RESTARTS: f64 = 20.0;
const RELOADS: f64 = 50.0;
const KILLS: f64 = 100.0;
/// The largest factor by which that happens more often in a shorter test.
const HASTE_MAX: f64 = 6.0;
/// The part of the time in which the agent is not killed, so that it can grow.
const WITHOUT_KILLS: f64 = 0.5;
/// The growth allowed to a process: its allocator keeps some of the memory that it used.
const GROWN_MAX_KIB: u64 = 4096;
/// A ledger is compacted when it is twice as long as what it holds, and longer than 1 MiB.
const LEDGER_MAX_BYTES: u64 = 2 << 20;
/// The share of the events that are due by the numbers above that must have happened: a busy
/// machine has fewer ticks, and each start of an agent takes time.
const MOST: f64 = 0.25;
const TICK: Duration = Duration::from_millis(50);
/// Policies that change something on two cores, one after the other.
const POLICIES: [&str; 3] = ["tide", "lc-first", "arq"];

/// The apps: memcached, and short processes.
struct Churn {
    scene: Scene,
    port: u16,
    /// The first argument of all short processes.
    name: String,
    server: Child,
    batch: Vec<Child>,
    random: Generator,
    /// The state of a thread that no agent has changed.
    usual: ThreadState,
    /// The factor by which events happen more often than in the whole test.
    haste: f64,
}

impl Churn {
    fn new(seed: u64, haste: f64) -> Self {
        let port = free_port();
        let own = std::process::id().cast_signed();
        let churn = Self {
            scene: Scene::new(),
            port,
            name: format!("lull-churn-{own}"),
            server: serve(port),
            batch: Vec::new(),
            random: Generator::seed_from_u64(seed),
            usual: threads(own).remove(&own).unwrap(),
            haste,
        };
        churn.write_config(0);
        churn
    }

    /// Writes the config of a number of reloads; they differ in policy and bound.
    fn write_config(&self, reloads: usize) -> PathBuf {
        let (policy, bound) = (POLICIES[reloads % POLICIES.len()], 5 + reloads % 7);
        let (port, name) = (self.port, &self.name);
        let body = format!(
            "[policy]\nname = \"{policy}\"\n\
             [[app]]\nname = \"memcached\"\nclass = \"latency-critical\"\nideal = \"100us\"\n\
             objectives = [{{ p95 = \"{bound}ms\" }}]\n\
             match = {{ args = \"memcached * -p {port} *\" }}\n\
             [[load]]\napp = \"memcached\"\ntarget = \"memcached://127.0.0.1:{port}\"\n\
             rate = \"300/s\"\nconnections = 4\n\
             [[match]]\nname = \"batch\"\nclass = \"best-effort\"\nsolo = 1.0\n\
             args = \"{name} *\"\nmost = 4\n"
        );
        self.scene.config("silence = \"1h\"", &body)
    }

    fn start(&self) -> Agent {
        let mut agent = self.scene.agent(&self.scene.path("lull.toml"));
        agent.wait_until_printed("recording to");
        agent
    }

    /// Starts a process of up to two seconds; at times one that leaves its parent.
    fn start_batch(&mut self) {
        let seconds = self.random.random_range(0.2..2.0);
        let once = format!("exec -a {} sleep {seconds:.2}", self.name);
        let script = if self.random.random_bool(0.2) { format!("({once} &)") } else { once };
        let mut command = Command::new("bash");
        self.batch.push(command.args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap());
        self.batch.retain_mut(|child| child.try_wait().unwrap().is_none());
    }

    /// Returns the present short processes.
    fn short_processes(&self) -> Vec<i32> {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let all = all.filter_map(|one| one.file_name().to_str()?.parse().ok());
        all.filter(|pid| arguments(*pid).first().is_some_and(|name| *name == self.name)).collect()
    }

    /// Returns whether an event that happens `often` times in ten minutes happens in this tick.
    fn is_due(&mut self, often: f64) -> bool {
        let chance = self.haste * often * TICK.as_secs_f64() / SECONDS_OF_WHOLE;
        self.random.random_bool(chance.min(1.0))
    }

    fn restart_server(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        self.server = serve(self.port);
    }

    /// Returns the threads of all apps that differ from the usual state, with their states.
    fn changed(&self) -> Vec<(i32, ThreadState)> {
        let server = self.server.id().cast_signed();
        let all = self.short_processes().into_iter().chain([server]).flat_map(threads);
        all.filter(|(_, state)| *state != self.usual).collect()
    }

    fn wait_until_as_before(&self, after: &str) {
        let left = || format!("after {after} not as before: {:?}", self.changed());
        wait_or(left, &mut || self.changed().is_empty());
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        for child in self.batch.iter_mut().chain([&mut self.server]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn serve(port: u16) -> Child {
    let mut command = Command::new("memcached");
    command.args([
        "-u",
        "nobody",
        "-l",
        "127.0.0.1",
        "-t",
        "2",
        "-p",
        &port.to_string(),
        "-m",
        "64",
    ]);
    let child = command.stdin(Stdio::null()).spawn().unwrap();
    wait_for("memcached", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    child
}

/// The private memory and the descriptors of a process. Pages of the program do not count: the
/// kernel reclaims those that only the start has used, and loads them again.
#[derive(Debug)]
struct ProcessHeld {
    own_kib: u64,
    descriptors: usize,
}

impl ProcessHeld {
    fn new(pid: impl Display) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        Self {
            own_kib: line.trim().trim_end_matches(" kB").parse().unwrap(),
            descriptors: descriptors.count(),
        }
    }
}

/// The memory of agent, guard and front end, and the size of the ledger.
#[derive(Debug)]
struct Held {
    processes: [ProcessHeld; 3],
    ledger_bytes: u64,
}

impl Held {
    fn new(churn: &Churn, agent: &Agent) -> Self {
        let helper = |name| ProcessHeld::new(churn.scene.process_with(&[name]).unwrap());
        let ledger = std::fs::metadata(churn.scene.path("state/ledger")).unwrap();
        Self {
            processes: [ProcessHeld::new(agent.pid()), helper("guard"), helper("frontend")],
            ledger_bytes: ledger.len(),
        }
    }

    fn assert_not_grown_since(&self, before: &Self) {
        for (now, then) in self.processes.iter().zip(&before.processes) {
            let grown = now.own_kib.saturating_sub(then.own_kib);
            assert!(grown <= GROWN_MAX_KIB, "{before:?} {self:?}");
            // A few descriptors are open for a moment only: of a process that is read, of a client
            // that connects.
            assert!(now.descriptors <= then.descriptors + 24, "{before:?} {self:?}");
        }
        assert!(self.ledger_bytes <= LEDGER_MAX_BYTES, "{before:?} {self:?}");
    }
}

/// Apps come and go and the config is reloaded, under one agent.
fn with_one_agent(churn: &mut Churn, seconds: f64) {
    let mut agent = churn.start();
    let (begun, mut reloads, mut restarts, mut early) = (Instant::now(), 0, 0, None);
    while begun.elapsed().as_secs_f64() < seconds {
        sleep(TICK);
        if churn.is_due(PROCESSES) {
            churn.start_batch();
        }
        if churn.is_due(RESTARTS / WITHOUT_KILLS) {
            restarts += 1;
            churn.restart_server();
        }
        if churn.is_due(RELOADS / WITHOUT_KILLS) {
            reloads += 1;
            churn.write_config(reloads);
            agent.signal(Signal::HUP);
        }
        if early.is_none() && begun.elapsed().as_secs_f64() > 0.4 * seconds {
            early = Some(Held::new(churn, &agent));
        }
        agent.wait_for("a tick", || true);
    }
    let late = Held::new(churn, &agent);
    eprintln!("{reloads} reloads, {restarts} restarts: {early:?}, at the end {late:?}");
    let wanted = churn.haste * seconds / SECONDS_OF_WHOLE / WITHOUT_KILLS;
    assert!(reloads as f64 >= MOST * wanted * RELOADS, "only {reloads} reloads");
    assert!(f64::from(restarts) >= MOST * wanted * RESTARTS, "only {restarts} restarts");
    late.assert_not_grown_since(&early.unwrap());
    agent.interrupt().well();
    churn.wait_until_as_before("an orderly end");
}

/// Apps come and go, and agent, guard or both are killed.
fn with_kills(churn: &mut Churn, seconds: f64) {
    let begun = Instant::now();
    let each = Duration::from_secs_f64(SECONDS_OF_WHOLE * (1.0 - WITHOUT_KILLS) / KILLS);
    let mut kills = 0;
    while begun.elapsed().as_secs_f64() < seconds {
        let agent = churn.start();
        let until = Instant::now() + each.mul_f64(churn.random.random_range(0.1..0.9));
        while Instant::now() < until {
            sleep(TICK);
            if churn.is_due(PROCESSES) {
                churn.start_batch();
            }
        }
        kills += 1;
        let guard = churn.scene.process_with(&["guard"]);
        if churn.random.random_bool(0.3) {
            guard.into_iter().for_each(|guard| send(guard, Signal::KILL));
        }
        agent.signal(Signal::KILL);
        drop(agent.wait());
        let state = churn.scene.path("state");
        let restore = ["restore".as_ref(), "--state".as_ref(), state.as_os_str()];
        churn.scene.run(&restore).well();
        churn.wait_until_as_before("a kill");
    }
    eprintln!("{kills} kills");
    let wanted = KILLS * seconds / ((1.0 - WITHOUT_KILLS) * SECONDS_OF_WHOLE);
    assert!(f64::from(kills) >= MOST * wanted, "only {kills} kills");
}

#[test]
#[ignore = "slow: apps that come and go for a while under an agent that is reloaded and killed"]
fn nothing_is_left_and_nothing_grows() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let seconds = std::env::var("LULL_CHURN_MINUTES").map_or(SECONDS, |minutes| {
        60.0 * minutes.parse::<f64>().expect("LULL_CHURN_MINUTES is a number")
    });
    let mut churn = Churn::new(1, (SECONDS_OF_WHOLE / seconds).clamp(1.0, HASTE_MAX));
    with_one_agent(&mut churn, WITHOUT_KILLS * seconds);
    with_kills(&mut churn, (1.0 - WITHOUT_KILLS) * seconds);
    churn.scene.wait_until_quiet();
}
