//! Ideal batching: a server with little to do whose workers rest, and how long
//! the cores of this machine sleep then (REEF, section 3.3 and equation 2).

use super::super::process::usage;
use super::super::stats::{BoxedContender, Summary, interleave_all};
use super::Report;
use super::contest::{BARE, Load, Served, Setting};
use super::database::Database;
use super::ran::Ran;
use anyhow::{Context as _, Result, anyhow};
use lull_host::bpf::{Division, Watch};
use lull_measure::Nanos;
use std::cell::RefCell;
use std::time::Duration;

const ROUNDS: usize = 5;
const RUN_S: u32 = 10;
const QUERIES_PER_S: u32 = 2000;
const LOAD: Load = Load { script: "oltp_point_select", connections: 256 };
/// Sleeps are counted in the middle of a run: connecting takes a while.
const SETTLING: Duration = Duration::from_secs(3);
const COUNTING: Duration = Duration::from_secs(5);
const BREAK_EVEN: Nanos = Nanos::from_millis(1);

/// D is 1 ms, which is the default.
pub(super) const RESTING: Setting =
    Setting { name: "workers rest", exec: Some(&["--mode", "epoll"]), options: &[] };

const OPPORTUNITY_MIN: f64 = 0.75;
const ADDED_MAX_MS: f64 = 1.5;

/// A run, and what it left of the cores.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    ran: Ran,
    cpu_us: f64,
    opportunity: f64,
}

/// Both settings at the same rate, in turn.
///
/// # Errors
/// If a server or its clients fail, or the kernel runs no programs at tracepoints.
pub(super) fn measure(servers: &[Database], report: &mut Report) -> Result<()> {
    let settings = [BARE, RESTING];
    let seen = settings.map(|_| RefCell::new(Vec::new()));
    let contenders = settings.iter().zip(&seen).map(|(setting, seen)| {
        Box::new(move || {
            let server = servers.iter().find(|one| one.setting().name == setting.name);
            let one = run(server.with_context(|| format!("no server runs {}", setting.name))?)?;
            let median_ms = one.ran.quantile_ms(0.5);
            seen.borrow_mut().push(one);
            Ok(median_ms)
        }) as BoxedContender<'_>
    });
    interleave_all(ROUNDS, &mut contenders.collect::<Vec<_>>())?;
    // The first round warms up.
    let [bare, resting] = seen.map(|seen| seen.into_inner().split_off(1));
    rows(&bare, &resting, report);
    report.note(format!(
        "Ideal batching: {QUERIES_PER_S} point selects a second over {} connections, {ROUNDS} \
         rounds of {RUN_S} s in turn after one to warm up. C6 opportunity is the share of all \
         cores' time in sleeps beyond 1 ms, by eBPF programs over 5 s in the middle of a run, \
         and everything on this machine wakes them, the clients too.",
        LOAD.connections
    ));
    Ok(())
}

fn run(server: &Database) -> Result<Seen> {
    let before_s = usage(server.pid())?.cpu_s;
    let counting = std::thread::spawn(opportunity);
    let ran = server.load_at(LOAD, RUN_S, QUERIES_PER_S);
    let counted = counting.join().map_err(|_| anyhow!("counting sleeps panicked"))?;
    let (ran, opportunity) = (ran?, counted?);
    let cpu_us = (usage(server.pid())?.cpu_s - before_s) * 1e6 / ran.queries;
    Ok(Seen { ran, cpu_us, opportunity })
}

/// C6 opportunity of all cores for a while.
fn opportunity() -> Result<f64> {
    std::thread::sleep(SETTLING);
    let watch = Watch::begin(crate::here::cores())?;
    let all = || -> Option<Division> {
        let cores = watch.read().cores.into_iter();
        cores.filter_map(|core| core.time.divide(BREAK_EVEN)).reduce(|a, b| a.and(&b))
    };
    // A core is known once it has slept or woken.
    std::thread::sleep(SETTLING / 10);
    let before = all().context("no core has slept")?;
    std::thread::sleep(COUNTING);
    let after = all().context("no core has slept")?;
    let found = after.since(&before).opportunity();
    Ok(found.map_err(|missing| anyhow!("{missing}"))?.share)
}

fn rows(bare: &[Seen], resting: &[Seen], report: &mut Report) {
    let what = |figure: &str| {
        format!("{QUERIES_PER_S} point selects/s, {} connections: {figure}", LOAD.connections)
    };
    let of = |seen: &[Seen], figure: &dyn Fn(&Seen) -> f64| Summary::of(seen.iter().map(figure));
    let both = |figure: &dyn Fn(&Seen) -> f64, change: &dyn Fn(f64, f64) -> f64| {
        let pairs = bare.iter().zip(resting);
        Summary::of(pairs.map(|(bare, resting)| change(figure(resting), figure(bare))))
    };
    let p50 = |seen: &Seen| seen.ran.quantile_ms(0.5);
    let sleeps = |seen: &Seen| seen.opportunity;
    let source = "C6 opportunity at 1 ms (eBPF)";
    report.reported(&what(&format!("{source}, bare")), of(bare, &sleeps), "share");
    report.bounded(
        &what(&format!("{source}, {}", RESTING.name)),
        of(resting, &sleeps),
        "share",
        OPPORTUNITY_MIN..=1.0,
    );
    for (name, seen) in [(BARE.name, bare), (RESTING.name, resting)] {
        let rate = of(seen, &|one| one.ran.queries_per_s);
        report.reported(&what(&format!("queries/s (sysbench), {name}")), rate, "1/s");
        for (quantile, share) in [("p50", 0.5), ("p99", 0.99)] {
            let figure = of(seen, &|one| one.ran.quantile_ms(share));
            report.reported(&what(&format!("{quantile} (sysbench), {name}")), figure, "ms");
        }
        let spent = what(&format!("CPU a query (/proc/PID/stat), {name}"));
        report.reported(&spent, of(seen, &|one| one.cpu_us), "us");
    }
    let added = both(&p50, &|resting, bare| resting - bare);
    report.bounded(&what("added to p50"), added, "ms", f64::NEG_INFINITY..=ADDED_MAX_MS);
    let spent = both(&|seen| seen.cpu_us, &|resting, bare| resting / bare);
    report.bounded(&what("CPU a query over bare"), spent, "ratio", 0.0..=1.0);
}
