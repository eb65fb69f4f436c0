//! Ideal batching: a server with little to do whose workers rest, and how long
//! the cores of this machine sleep then (REEF, section 3.3 and equation 2).

use super::super::pinned::{Pinned, PinnedServer, usable_core};
use super::super::process::usage;
use super::super::stats::Summary;
use super::Report;
use super::contest::{BARE, COUNTING, Load, Served, Setting, counting, in_turn};
use super::database::{self, Database};
use super::ran::LoadRun;
use anyhow::{Context as _, Result, anyhow};
use lull_host::bpf::{Division, Watch};
use lull_measure::Nanos;
use std::path::Path;
use std::time::Duration;

const ROUNDS: usize = 5;
const RUN_S: u32 = 10;
const QUERIES_PER_S: u32 = 2000;
const LOAD: Load = Load { script: "oltp_point_select", connections: 256 };
const BREAK_EVEN: Nanos = Nanos::from_millis(1);
/// A core is known once it has slept or woken.
const MEETING: Duration = Duration::from_millis(300);
/// The core of the clients, and the core of the server.
const CLIENTS: usize = 0;
const SERVER: usize = 1;

/// D is 1 ms, which is the default.
const RESTING: Setting = Setting {
    name: "workers rest",
    exec: Some(&["--mode", "epoll", "--gate-unix", "--no-default-bypass"]),
    options: &[],
};
/// Well beyond break-even, and as long as the latency leaves room for.
const RESTING_LONGER: Setting = Setting {
    name: "workers rest, D = 1.5 ms",
    exec: Some(&["--mode", "epoll", "--gate-unix", "--no-default-bypass", "--delay", "1500us"]),
    options: &[],
};

/// Finds D by itself, for a bound.
const AUTO: Setting = Setting {
    name: "auto, p99 of 10 ms",
    exec: Some(&[
        "--concurrency",
        "auto",
        "--mode",
        "epoll",
        "--objective",
        "p99=10ms",
        "--gate-unix",
        "--no-default-bypass",
    ]),
    options: &[],
};
const AUTO_BOUND_MS: f64 = 10.0;
/// Time that it has to find it, before it is measured.
const SEARCH_S: u32 = 40;

/// The bare server is the first.
pub(super) const SETTINGS: [Setting; 4] = [BARE, RESTING, RESTING_LONGER, AUTO];

const OPPORTUNITY_MIN: f64 = 0.75;
const ADDED_MAX_MS: f64 = 1.5;

/// A run, and the time that it left of the server's core.
#[derive(Debug, Clone, PartialEq)]
struct BatchRun {
    ran: LoadRun,
    cpu_us: f64,
    opportunity: f64,
}

/// All settings at the same rate, in turn.
///
/// # Errors
/// If a server or its clients fail, or the kernel runs no programs at tracepoints.
pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    let core = usable_core(SERVER)?;
    let _clients = Pinned::to_core(CLIENTS)?;
    // Parents of a server stay on the core of the clients.
    let servers = database::start_in_memory(lull, place.path(), &SETTINGS)?;
    if let Some(searching) = servers.iter().find(|server| server.setting().name == AUTO.name) {
        let _pinned = PinnedServer::to(searching.pid(), core)?;
        searching.load_at(LOAD, SEARCH_S, QUERIES_PER_S).context("auto searches")?;
    }
    let seen = in_turn(ROUNDS, &SETTINGS, &servers, |server| run(server, core))?;
    for (setting, seen) in SETTINGS.iter().zip(&seen) {
        figures(setting, seen, report);
    }
    bounds(&RESTING_LONGER, &seen[2], &seen[0], report);
    let tails = Summary::new(seen[3].iter().map(|one| one.ran.quantile_ms(0.99)));
    report.bounded(&what(&format!("p99, {}", AUTO.name)), tails, "ms", 0.0..=AUTO_BOUND_MS);
    let opportunity = Summary::new(seen[3].iter().map(|one| one.opportunity));
    let title = what(&format!("C6 opportunity, {}", AUTO.name));
    report.bounded(&title, opportunity, "share", OPPORTUNITY_MIN..=1.0);
    report.note(format!(
        "Ideal batching: {QUERIES_PER_S} point selects a second over {} connections, the server \
         on a core of its own and sysbench on another, over a unix socket (over TCP on one \
         machine the server's core has the clients' timers, too, which cut its sleeps), \
         {ROUNDS} rounds of {RUN_S} s in turn after one to warm up. C6 opportunity is the share \
         of the server's core's time in sleeps beyond 1 ms, by eBPF programs over 5 s in the \
         middle of a run, and CPU time is the server's and the agent's there, who has the \
         clients' core. Bounds are on `{}`, and on `{}`, which has had {SEARCH_S} s of the load \
         to find D.",
        LOAD.connections, RESTING_LONGER.name, AUTO.name
    ));
    Ok(())
}

fn run(server: &Database, core: usize) -> Result<BatchRun> {
    let _pinned = PinnedServer::to(server.pid(), core)?;
    let counted = || counted(server.pid(), core);
    let load = || server.load_at(LOAD, RUN_S, QUERIES_PER_S);
    let (ran, (cpu_s, opportunity)) = counting(counted, load)?;
    let cpu_us = cpu_s * 1e6 / COUNTING.as_secs_f64() / ran.queries_per_s;
    Ok(BatchRun { ran, cpu_us, opportunity })
}

/// A server's CPU time, and the C6 opportunity of its core, for a while; without
/// what its connections cost to make.
fn counted(pid: u32, core: usize) -> Result<(f64, f64)> {
    let watch = Watch::begin(core + 1)?;
    let divided = || -> Result<Division> {
        let seen = watch.read().cores.into_iter().nth(core);
        let divided = seen.and_then(|core| core.time.divide(BREAK_EVEN));
        divided.context("the server's core has not slept")
    };
    std::thread::sleep(MEETING);
    let (before, before_s) = (divided()?, usage(pid)?.cpu_s);
    std::thread::sleep(COUNTING);
    let (after, after_s) = (divided()?, usage(pid)?.cpu_s);
    let found = after.since(&before).opportunity();
    let found = found.map_err(|missing| anyhow!("{missing}"))?;
    Ok((after_s - before_s, found.share))
}

fn what(figure: &str) -> String {
    format!("{QUERIES_PER_S} point selects/s, {} connections: {figure}", LOAD.connections)
}

fn p50(seen: &BatchRun) -> f64 {
    seen.ran.quantile_ms(0.5)
}

fn figures(setting: &Setting, seen: &[BatchRun], report: &mut Report) {
    let mut row = |figure: &str, unit: &'static str, of: &dyn Fn(&BatchRun) -> f64| {
        let what = what(&format!("{figure}, {}", setting.name));
        report.reported(&what, Summary::new(seen.iter().map(of)), unit);
    };
    row("C6 opportunity at 1 ms (eBPF)", "share", &|one| one.opportunity);
    row("queries/s (sysbench)", "1/s", &|one| one.ran.queries_per_s);
    row("p50 (sysbench)", "ms", &p50);
    row("p99 (sysbench)", "ms", &|one| one.ran.quantile_ms(0.99));
    row("CPU a query (/proc/PID/stat)", "us", &|one| one.cpu_us);
}

fn bounds(setting: &Setting, resting: &[BatchRun], bare: &[BatchRun], report: &mut Report) {
    let both = |change: &dyn Fn(&BatchRun, &BatchRun) -> f64| {
        Summary::new(resting.iter().zip(bare).map(|(resting, bare)| change(resting, bare)))
    };
    let what = |figure: &str| what(&format!("{figure}, {}", setting.name));
    let opportunity = Summary::new(resting.iter().map(|one| one.opportunity));
    report.bounded(&what("C6 opportunity"), opportunity, "share", OPPORTUNITY_MIN..=1.0);
    let added = both(&|resting, bare| p50(resting) - p50(bare));
    report.bounded(&what("added to p50"), added, "ms", f64::NEG_INFINITY..=ADDED_MAX_MS);
    let spent = both(&|resting, bare| resting.cpu_us / bare.cpu_us);
    report.bounded(&what("CPU a query over bare"), spent, "ratio", 0.0..=1.0);
}
