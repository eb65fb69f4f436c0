//! Agents and guards killed at any moment: the knobs come back.

use crate::Tests;
use crate::roles;
use crate::scene::{policy, read, wait_for, write};
use lull_host::Roots;
use lull_host::drivers::cpufreq::PolicyState;
use lull_host::guard::{StateDir, restore_stale};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const TESTS: Tests = &[
    ("kills::an_agent_killed_at_any_moment_is_cleaned_up_after", || agents(20)),
    ("kills::agent_and_guard_killed_in_any_order_leave_a_ledger_to_restore", || both(10)),
];

/// The same at a thousand moments, on a machine of their own.
pub(crate) const MANY: Tests = &[
    ("kills::an_agent_killed_at_any_of_600_moments_is_cleaned_up_after", || agents(600)),
    ("kills::agent_and_guard_killed_in_any_order_400_times", || both(400)),
];

const REQUESTS: [&str; 3] =
    ["idle-latency=10us", "resume-latency=1-3:50us", "coalescing=eth0:rx-usecs:200"];

/// All that an agent changes.
#[derive(Debug, PartialEq)]
pub(crate) struct Knobs {
    policies: Vec<PolicyState>,
    files: Vec<String>,
    coalescing: String,
}

impl Knobs {
    pub(crate) fn now() -> Self {
        let cpu = "/sys/devices/system/cpu/cpu1";
        let files = [
            format!("{cpu}/cpuidle/state2/disable"),
            format!("{cpu}/power/pm_qos_resume_latency_us"),
        ];
        let nic = lull_host::drivers::ethtool::get("eth0").unwrap();
        Self {
            policies: (0..4).map(policy).collect(),
            files: files.map(read).to_vec(),
            coalescing: nic.to_string(),
        }
    }
}

struct Agent {
    process: Child,
    printed: Arc<Mutex<Vec<String>>>,
}

impl Agent {
    fn start(dir: &TempDir) -> Self {
        let dir = dir.path().to_str().unwrap();
        let mut process = roles::start("agent", &[&[dir], &REQUESTS[..]].concat());
        let printed = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&printed);
        let output = BufReader::new(process.stdout.take().unwrap());
        thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| heard.lock().unwrap().push(line));
        });
        Self { process, printed }
    }

    fn has_changed(&self) -> bool {
        self.printed.lock().unwrap().iter().any(|line| line == "changed")
    }

    fn wait_until_changed(&self) {
        wait_for("an agent at work", || self.has_changed());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn kill_guard(&self) {
        let printed = self.printed.lock().unwrap();
        let guard = printed.iter().rev().find_map(|line| line.strip_prefix("guard ")?.parse().ok());
        if let Some(pid) = guard.and_then(Pid::from_raw) {
            // It may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn restore_by_hand(dir: &TempDir) {
    let state = StateDir::locate(Some(&dir.path().join("state"))).unwrap();
    let _ = restore_stale(&state, &Roots::default()).unwrap();
}

/// How long it took from `killed` until all was as before.
fn wait_until(before: &Knobs, killed: Instant) -> Duration {
    while Knobs::now() != *before && killed.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(5));
    }
    let took = killed.elapsed();
    assert_eq!(Knobs::now(), *before);
    took
}

/// A thousand rounds take a quarter of an hour, and more on a busy machine.
fn progress(round: usize, rounds: usize) {
    if round.is_multiple_of(50) {
        println!("{round} of {rounds}");
    }
}

/// Printed and not asserted: an emulator on a busy machine may pause.
fn tell(what: &str, mut took: Vec<Duration>) {
    took.sort();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_millis();
    let within = took.iter().filter(|one| **one <= Duration::from_secs(1)).count();
    println!(
        "{what}: knobs back in p50 {} ms, p99 {} ms, most {} ms; {within} of {} within 1 s",
        at(0.5),
        at(0.99),
        at(1.0),
        took.len()
    );
}

/// State 2 enabled, so that there is something to disable and enable again.
fn enable_deep_idle(is_on: bool) {
    for cpu in 0..4 {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle/state2/disable");
        write(file, if is_on { "0" } else { "1" });
    }
}

fn agents(rounds: usize) {
    enable_deep_idle(true);
    let before = Knobs::now();
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut at_work = 0;
    let mut took = Vec::new();
    for round in 0..rounds {
        let mut agent = Agent::start(&dir);
        if round % 2 == 0 {
            agent.wait_until_changed();
        }
        thread::sleep(Duration::from_micros(rng.random_range(0..200_000)));
        at_work += usize::from(agent.has_changed());
        let killed = Instant::now();
        agent.kill();
        took.push(wait_until(&before, killed));
        progress(round + 1, rounds);
    }
    assert!(at_work >= rounds / 2, "{at_work} of {rounds} were at work");
    tell("agents killed, by their guards", took);
    restore_by_hand(&dir);
    assert_eq!(Knobs::now(), before);
    enable_deep_idle(false);
}

fn both(rounds: usize) {
    enable_deep_idle(true);
    let before = Knobs::now();
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(8);
    let mut took = Vec::new();
    for round in 0..rounds {
        let mut agent = Agent::start(&dir);
        agent.wait_until_changed();
        let gap = Duration::from_micros(rng.random_range(0..20_000));
        if rng.random() {
            agent.kill_guard();
            thread::sleep(gap);
            agent.kill();
        } else {
            agent.kill();
            thread::sleep(gap);
            agent.kill_guard();
        }
        let killed = Instant::now();
        restore_by_hand(&dir);
        took.push(wait_until(&before, killed));
        progress(round + 1, rounds);
    }
    tell("agents and guards killed, by the next start", took);
    enable_deep_idle(false);
}
