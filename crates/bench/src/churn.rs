//! The cost of the agent while apps start and end all the time.
//!
//! A hundred apps, each a process that sleeps, are found by a template; ten times a second one of
//! them ends or another one begins. Further processes sleep and are not apps. No app does any
//! work, so that what is measured is the cost of finding apps, of observing them, of setting new
//! ones to their class, and of the record.

use super::process::{Memory, Running, children_with, count, memory, processes_named};
use super::server;
use super::stats::{self, Summary};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail};
use lull_host::sys::clock::process_cpu_time;
use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const BENCH: Bench = Bench {
    name: "churn",
    about: "The agent with 100 apps of which ten a second begin or end, among 500 sleeping \
            processes: share of a core and memory",
    run,
};

const ROUNDS: usize = 3;
const APPS: usize = 100;
/// Processes that are not apps.
const SLEEPERS: usize = 400;
/// The length of the measurement, after the agent has settled.
const MEASURED: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(5);
/// Time between two changes.
const CHANGE: Duration = Duration::from_millis(100);
const EPOCH_MS: u64 = 1000;
/// Reads of a file by the benchmark itself after each change.
const REFERENCE_READS: usize = 20;
/// The share of a core that all processes of the agent may use, in percent.
const CPU_MOST: f64 = 0.5;
const RESIDENT_MAX_MB: f64 = 25.0;
/// The first argument of every app.
const NAME: &str = "lull-churn-app";

/// The processes of an agent.
const PROCESSES: [&str; 3] = ["lull", "frontend", "guard"];

/// The usage of a process of the agent.
#[derive(Debug, Clone, Copy)]
struct Used {
    cpu_percent: f64,
    memory: Memory,
}

/// One round.
struct Round {
    /// By process as in [`PROCESSES`].
    used: [Used; PROCESSES.len()],
    reference: Reference,
}

/// The CPU time of opening, reading and closing a file of `/proc` in the benchmark itself: the
/// speed of the machine in a round.
#[derive(Debug, Clone, Copy)]
struct Reference {
    /// The first time after a sleep.
    first_us: f64,
    /// The mean over [`REFERENCE_READS`] that follow in a row.
    next_us: f64,
}

fn run(context: &Context) -> Result<Report> {
    let lull = context.build("lull-cli", "lull")?;
    refuse_leftovers(NAME)?;
    let _sleepers = (0..SLEEPERS).map(|_| sleeper("sleep")).collect::<Result<Vec<_>>>()?;
    let processes = count()?;
    let rounds = (0..ROUNDS).map(|_| measure(&lull)).collect::<Result<Vec<_>>>()?;
    let mut report = Report::default();
    let sum = |of: fn(&Used) -> f64| {
        Summary::new(rounds.iter().map(move |round| round.used.iter().map(of).sum()))
    };
    let (cpu, resident) = (sum(cpu_percent), sum(resident_mb));
    report.bounded("all processes of the agent: CPU", cpu, "% of a core", 0.0..=CPU_MOST);
    let what = "all processes of the agent: resident";
    report.bounded(what, resident, "MB", 0.0..=RESIDENT_MAX_MB);
    for (at, name) in PROCESSES.iter().enumerate() {
        let of =
            |of: fn(&Used) -> f64| Summary::new(rounds.iter().map(|round| of(&round.used[at])));
        report.reported(&format!("{name}: CPU"), of(cpu_percent), "% of a core");
        report.reported(&format!("{name}: resident"), of(resident_mb), "MB");
    }
    let unit = "us of CPU time";
    let reference = Summary::new(rounds.iter().map(|round| round.reference.next_us));
    report.reported("reference: one `/proc/self/stat` read", reference, unit);
    let reference = Summary::new(rounds.iter().map(|round| round.reference.first_us));
    report.reported("reference: the first such read after a sleep", reference, unit);
    report.note(note(processes));
    Ok(report)
}

fn cpu_percent(used: &Used) -> f64 {
    used.cpu_percent
}

fn resident_mb(used: &Used) -> f64 {
    used.memory.resident_mb
}

fn note(processes: usize) -> String {
    format!(
        "{ROUNDS} rounds, each with an agent of its own, epochs of {EPOCH_MS} ms and a record; \
         CPU time over {} s, to the nanosecond. The policy is `lc-first`. Memory that the \
         processes share counts in each. {APPS} apps and {SLEEPERS} other sleeping processes, \
         which are among the {processes} of the machine that ran before the apps. The references \
         are reads (open, read, close) by the benchmark itself after each change: the first after \
         its sleep of {} ms, and the mean over the next {REFERENCE_READS}. Compare two runs only \
         if their references agree.",
        MEASURED.as_secs(),
        CHANGE.as_millis()
    )
}

/// Refuses to run beside processes that the agent would find, too: a benchmark that is killed
/// leaves its own behind.
fn refuse_leftovers(name: &str) -> Result<()> {
    match processes_named(name)? {
        0 => Ok(()),
        count => bail!(
            "{count} processes {name} of a benchmark that was killed still run, and the agent \
             would find them: end them with `pkill -f ^{name}`"
        ),
    }
}

/// A process that sleeps under a name.
fn sleeper(name: &str) -> Result<Running> {
    Running::start(Command::new("sleep").arg0(name).arg("3600"))
}

/// Starts an agent and apps that come and go, and measures it.
fn measure(lull: &Path) -> Result<Round> {
    let place = tempfile::tempdir()?;
    let config = place.path().join("agent.toml");
    std::fs::write(&config, config_text(place.path()))?;
    let log = place.path().join("agent.log");
    let mut apps: VecDeque<Running> = (0..APPS).map(|_| sleeper(NAME)).collect::<Result<_>>()?;
    let mut agent = server::agent(Command::new(lull).arg("run").arg(&config), &log)?;
    let mut next = Instant::now();
    churn(&mut apps, &mut next, SETTLE)?;
    let pids = processes_of(&agent)?;
    let before = pids.map(cpu_s);
    let begun = Instant::now();
    let reference = churn(&mut apps, &mut next, MEASURED)?;
    let span_s = begun.elapsed().as_secs_f64();
    if agent.has_ended() {
        bail!("the agent ended early: {}", std::fs::read_to_string(&log)?.trim());
    }
    let mut used = Vec::new();
    for (pid, before) in pids.into_iter().zip(before) {
        let cpu_percent = 100.0 * (cpu_s(pid)? - before?) / span_s;
        used.push(Used { cpu_percent, memory: memory(pid)? });
    }
    let used = used.try_into().map_err(|_| anyhow::anyhow!("one figure a process"))?;
    Ok(Round { used, reference })
}

/// Changes the apps for a span; `next` is when the next change is due.
fn churn(apps: &mut VecDeque<Running>, next: &mut Instant, span: Duration) -> Result<Reference> {
    let end = Instant::now() + span;
    let mut references = Vec::new();
    while Instant::now() < end {
        change(apps, APPS)?;
        *next += CHANGE;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        references.push(reference()?);
    }
    let mean = |of: fn(&Reference) -> f64| {
        references.iter().map(of).sum::<f64>() / references.len().max(1) as f64
    };
    let (first_us, next_us) = (mean(|one| one.first_us), mean(|one| one.next_us));
    Ok(Reference { first_us, next_us })
}

fn reference() -> Result<Reference> {
    let read_us = |count: usize| {
        let mut outcome = Ok(());
        let read_all = || (0..count).try_for_each(|_| std::fs::read("/proc/self/stat").map(drop));
        let each_ns = stats::ns_each(count, || outcome = read_all());
        outcome.map(|()| each_ns / 1e3)
    };
    Ok(Reference { first_us: read_us(1)?, next_us: read_us(REFERENCE_READS)? })
}

/// Ends the oldest app if there are as many as there may be, else starts another one.
fn change(apps: &mut VecDeque<Running>, most: usize) -> Result<()> {
    match apps.len() < most {
        true => apps.push_back(sleeper(NAME)?),
        false => drop(apps.pop_front()),
    }
    Ok(())
}

/// The processes of an agent, as in [`PROCESSES`].
fn processes_of(agent: &Running) -> Result<[u32; PROCESSES.len()]> {
    let [_, frontend, guard] = PROCESSES;
    let child = |word: &str| {
        let found = children_with(agent.pid(), word)?.first().copied();
        found.with_context(|| format!("the agent has no {word}"))
    };
    Ok([agent.pid(), child(frontend)?, child(guard)?])
}

fn cpu_s(pid: u32) -> Result<f64> {
    Ok(process_cpu_time(pid.cast_signed())?.as_secs_f64())
}

/// The config of the agent that is measured. Its latency-critical app sends nothing, and is not
/// regarded as silent.
fn config_text(place: &Path) -> String {
    let place = place.display();
    format!(
        r#"[agent]
epoch = "{EPOCH_MS}ms"
silence = "1h"
record = "{place}/runs"
state = "{place}/state"

[policy]
name = "lc-first"

[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "10ms" }}]
ideal = "1ms"
start = ["sleep", "3600"]

[[match]]
name = "batch"
class = "best-effort"
solo = 1.0
args = "{NAME} *"
most = {APPS}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_has_room_for_every_app() {
        let config: toml::Table = config_text(Path::new("/tmp/churn")).parse().unwrap();
        let template = &config["match"][0];
        assert_eq!(template["most"].as_integer(), Some(APPS as i64));
        let args = template["args"].as_str().unwrap();
        assert_eq!(args.strip_suffix(" *"), Some(NAME), "no other process matches");
    }

    #[test]
    fn processes_of_a_killed_benchmark_are_refused() {
        let name = format!("lull-churn-{}", std::process::id());
        refuse_leftovers(&name).unwrap();
        let left = sleeper(&name).unwrap();
        while processes_named(&name).unwrap() == 0 {
            std::thread::yield_now();
        }
        let refused = refuse_leftovers(&name).unwrap_err().to_string();
        assert!(refused.starts_with("1 processes") && refused.contains(&name), "{refused}");
        drop(left);
        refuse_leftovers(&name).unwrap();
    }

    #[test]
    fn apps_end_and_begin_in_turn() {
        let mut apps = VecDeque::from([sleeper(NAME).unwrap()]);
        let first = apps[0].pid();
        let mut counts = Vec::new();
        for _ in 0..3 {
            change(&mut apps, 2).unwrap();
            counts.push(apps.len());
        }
        assert_eq!(counts, [2, 1, 2]);
        assert!(apps.iter().all(|app| app.pid() != first), "the oldest has ended");
    }
}
