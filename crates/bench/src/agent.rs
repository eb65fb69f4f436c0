//! The cost of the agent to the machine that it manages.
//!
//! Three contenders for each epoch, in turn: the agent, the agent in a dry run
//! (same gauges, records and status; no knob is set), and the bare plant of
//! `plant_cost`, an example of `host` that observes and does nothing else.

use super::process::{Memory, Running, agent_cpu_percent, children_with, count, memory, printed};
use super::server::{self, free_port};
use super::stats::{BoxedContender, Summary, interleave_all};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const BENCH: Bench = Bench {
    name: "loop",
    about: "The agent under ARQ with 3 apps and 100 more processes, beside a dry run of it \
            and the bare plant: share of a core and memory",
    run,
};

const ROUNDS: usize = 3;
const SLEEPERS: usize = 100;
/// The length of the measurement, after the agent has settled.
const MEASURED: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(2);
/// Epoch, and the share of a core that the agent may use at it.
const EPOCHS: [(u64, f64); 2] = [(1000, 0.2), (100, 1.0)];
const RESIDENT_MAX_MB: f64 = 15.0;

/// How the machine is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchMode {
    Agent,
    DryRun,
    BarePlant,
}

/// Programs and places of this benchmark.
struct Setup {
    lull: PathBuf,
    plant_cost: PathBuf,
    directory: tempfile::TempDir,
}

/// The observations of one run of a contender.
#[derive(Debug, Clone, Copy)]
struct AgentRun {
    cpu_percent: f64,
    memory: Memory,
    /// The memory of the agent's guard, a process of its own.
    guard: Option<Memory>,
    /// The memory of its front end, another process.
    frontend: Option<Memory>,
}

fn run(context: &Context) -> Result<Report> {
    let setup = Setup {
        lull: context.build("lull-cli", "lull")?,
        plant_cost: context.build_example("lull-host", "plant_cost")?,
        directory: tempfile::tempdir()?,
    };
    let hows = [WatchMode::Agent, WatchMode::DryRun, WatchMode::BarePlant];
    let cases: Vec<(u64, f64, WatchMode)> =
        EPOCHS.into_iter().flat_map(|(epoch, bound)| hows.map(|how| (epoch, bound, how))).collect();
    let processes = count()?;
    let seen: Vec<_> = cases.iter().map(|_| RefCell::new(Vec::new())).collect();
    let contenders = cases.iter().zip(&seen).map(|((epoch_ms, _, how), seen)| {
        let setup = &setup;
        Box::new(move || {
            let now = setup.measure(*epoch_ms, *how)?;
            seen.borrow_mut().push(now);
            Ok(now.cpu_percent)
        }) as BoxedContender<'_>
    });
    let mut contenders: Vec<_> = contenders.collect();
    let shares = interleave_all(ROUNDS, &mut contenders)?;
    drop(contenders);
    let mut report = Report::default();
    for (((epoch_ms, bound, how), shares), seen) in cases.iter().zip(&shares).zip(&seen) {
        rows(&mut report, (*epoch_ms, *bound, *how), shares, &seen.borrow()[1..]);
    }
    report.note(note(processes));
    Ok(report)
}

fn rows(
    report: &mut Report,
    (epoch_ms, bound, how): (u64, f64, WatchMode),
    shares: &[f64],
    seen: &[AgentRun],
) {
    let who = match how {
        WatchMode::Agent => "agent",
        WatchMode::DryRun => "dry run",
        WatchMode::BarePlant => "bare plant",
    };
    let what = |figure: &str| format!("{who}, {epoch_ms} ms epoch: {figure}");
    let share = Summary::new(shares.iter().copied());
    let memory = |of: fn(&AgentRun) -> f64| Summary::new(seen.iter().map(of));
    let peak = memory(|seen| seen.memory.peak_mb);
    if how == WatchMode::Agent {
        report.bounded(&what("CPU"), share, "% of a core", 0.0..=bound);
        report.bounded(&what("peak resident"), peak, "MB", 0.0..=RESIDENT_MAX_MB);
        let guard = seen.iter().filter_map(|seen| seen.guard).map(|guard| guard.resident_mb);
        report.reported(&what("its guard, resident"), Summary::new(guard), "MB");
        let frontend = seen.iter().filter_map(|seen| seen.frontend).map(|one| one.resident_mb);
        report.reported(&what("its front end, resident"), Summary::new(frontend), "MB");
    } else {
        report.reported(&what("CPU"), share, "% of a core");
        report.reported(&what("peak resident"), peak, "MB");
    }
}

fn note(processes: usize) -> String {
    format!(
        "{ROUNDS} rounds in turn; CPU time of the agent and its front end over {} s (its apps, \
         load and guard are not counted), to the nanosecond. The agent runs the built-in \
         options server under `lull load` at 1000 requests/s and two burners that keep every \
         core busy, and records. The bare plant watches three apps of eight threads that nap, \
         and two sources of latency. {SLEEPERS} sleeping processes were started in addition to \
         the {processes} of the machine.",
        MEASURED.as_secs()
    )
}

impl Setup {
    fn measure(&self, epoch_ms: u64, how: WatchMode) -> Result<AgentRun> {
        match how {
            WatchMode::Agent => self.agent(epoch_ms, &[]),
            WatchMode::DryRun => self.agent(epoch_ms, &["--dry-run"]),
            WatchMode::BarePlant => self.bare_plant(epoch_ms),
        }
    }

    fn agent(&self, epoch_ms: u64, options: &[&str]) -> Result<AgentRun> {
        let sleep = || Running::start(Command::new("sleep").arg("3600"));
        let _sleepers = (0..SLEEPERS).map(|_| sleep()).collect::<Result<Vec<_>>>()?;
        // Each run has a directory of its own, so that none finds the files of another.
        let place = tempfile::tempdir_in(self.directory.path())?;
        let config = place.path().join("agent.toml");
        std::fs::write(&config, config_text(epoch_ms, place.path(), free_port()?))?;
        let log = place.path().join("agent.log");
        let mut command = Command::new(&self.lull);
        command.arg("run").arg(&config).args(options);
        let mut agent = server::agent(&mut command, &log)?;
        std::thread::sleep(SETTLE);
        let seen = watch(&agent)?;
        if agent.has_ended() {
            bail!("the agent ended early: {}", std::fs::read_to_string(&log)?.trim());
        }
        Ok(seen)
    }

    fn bare_plant(&self, epoch_ms: u64) -> Result<AgentRun> {
        let epochs = MEASURED.as_millis() as u64 / epoch_ms;
        let mut command = Command::new(&self.plant_cost);
        // Its clients complain when it ends before them.
        command.stderr(Stdio::null());
        let arguments = [epoch_ms, epochs].map(|number| number.to_string());
        let text = printed(command.args(arguments))?.text;
        bare_plant_seen(&text).with_context(|| format!("plant_cost printed {text}"))
    }
}

/// Reads the output of `plant_cost`.
fn bare_plant_seen(text: &str) -> Option<AgentRun> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let kib: f64 = json["rss"].as_str()?.strip_suffix(" kB")?.parse().ok()?;
    let resident_mb = kib * 1024.0 / 1e6;
    let memory = Memory { resident_mb, peak_mb: resident_mb };
    Some(AgentRun {
        cpu_percent: json["cpu_percent"].as_f64()?,
        memory,
        guard: None,
        frontend: None,
    })
}

/// The share of a core that a process uses from now on, and its memory then.
fn watch(agent: &Running) -> Result<AgentRun> {
    let pid = agent.pid();
    let cpu_percent = agent_cpu_percent(pid, MEASURED)?;
    let of = |word| children_with(pid, word)?.first().map(|child| memory(*child)).transpose();
    Ok(AgentRun {
        cpu_percent,
        memory: memory(pid)?,
        guard: of("guard")?,
        frontend: of("frontend")?,
    })
}

/// The config of the agent that is measured.
fn config_text(epoch_ms: u64, place: &Path, port: u16) -> String {
    let place = place.display();
    format!(
        r#"[agent]
epoch = "{epoch_ms}ms"
record = "{place}/runs"
state = "{place}/state"

[policy]
name = "arq"

[[app]]
name = "options"
class = "latency-critical"
objectives = [{{ p95 = "20ms" }}]
ideal = "1ms"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}"]
ready = "127.0.0.1:{port}"

[[app]]
name = "compute"
class = "best-effort"
progress = "push"
start = ["lull", "burn", "compute"]

[[app]]
name = "memory"
class = "best-effort"
progress = "push"
start = ["lull", "burn", "memory"]

[[load]]
app = "options"
target = "options://127.0.0.1:{port}"
rate = "1000/s"
extra = ["--base-paths", "10"]
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_bare_plant_prints_is_understood() {
        let text = r#"{"cpu_percent": 0.25, "rss": "8000 kB", "epochs": 10}"#;
        let seen = bare_plant_seen(text).unwrap();
        assert_eq!((seen.cpu_percent, seen.memory.resident_mb), (0.25, 8.192));
        assert!(bare_plant_seen(r#"{"cpu_percent": 0.25, "rss": "unknown"}"#).is_none());
        assert!(bare_plant_seen("nothing").is_none());
    }

    #[test]
    fn the_config_is_toml_with_three_apps() {
        let text = config_text(100, Path::new("/tmp/x"), 7300);
        let config: toml::Table = text.parse().unwrap();
        assert_eq!(config["agent"]["epoch"].as_str(), Some("100ms"));
        assert_eq!(config["app"].as_array().unwrap().len(), 3);
        assert_eq!(config["load"][0]["target"].as_str(), Some("options://127.0.0.1:7300"));
    }
}
