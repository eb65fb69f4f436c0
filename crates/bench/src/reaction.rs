//! How soon an agent steers an app that is back, and how soon its knobs are back without it.
//!
//! The app is a process that sleeps, and the policy makes it real-time, so that what the agent
//! has set shows in the class of the process. It is found by a search of its own or by a template.

use super::process::{Running, children_with, cost};
use super::server;
use super::stats::Summary;
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail};
use procfs::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(super) const BENCH: Bench = Bench {
    name: "reaction",
    about: "How soon an agent steers an app that was restarted, and how soon knobs are back after \
            the agent was killed or stopped",
    run,
};

const RESTARTS: u32 = 20;
const KILLS: u32 = 10;
const STOPS: u32 = 3;
/// Times by which an app is away longer in each restart.
const AWAY: Duration = Duration::from_millis(15);
/// Two whole epochs and more: at most every other epoch is ended early by an arrival.
const BETWEEN: Duration = Duration::from_millis(2_300);
/// Times by which the agent is longer left alone before each kill of its guard.
const BETWEEN_KILLS: Duration = Duration::from_millis(70);
const STEERED_MAX_MS: f64 = 250.0;
const KILLED_MAX_MS: f64 = 1_000.0;
/// The time that `docs/operating.md` promises.
const REPLACED_MAX_MS: f64 = 600.0;
const STOPPED_MAX_MS: f64 = 8_000.0;
/// The interval between two checks of the app.
const LOOK: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);
/// `SCHED_RR`, which the policy sets.
const ROUND_ROBIN: u32 = 2;
/// The first argument of the app.
const NAME: &str = "lull-reaction-app";
/// The app with a search of its own.
const BY_ITSELF: &str = r#"
[[app]]
name = "server"
class = "latency-critical"
objectives = [{ p95 = "10ms" }]
ideal = "1ms"
match = { args = "lull-reaction-app *" }
"#;
/// The app as a match of a template.
const BY_TEMPLATE: &str = r#"
[[match]]
name = "server"
class = "latency-critical"
objectives = [{ run_queue_p95 = "10ms" }]
ideal = "1ms"
args = "lull-reaction-app *"
most = 4
"#;

fn run(context: &Context) -> Result<Report> {
    let lull = context.build("lull-cli", "lull")?;
    let mut report = Report::default();
    let mut add = |what: &str, took_ms: &[f64], bound_ms: f64| {
        report.reported(what, Summary::new(took_ms.iter().copied()), "ms");
        let longest = took_ms.iter().copied().fold(0.0, f64::max);
        let what = format!("{what}: the longest of {}", took_ms.len());
        report.bounded(&what, Summary::new([longest]), "ms", 0.0..=bound_ms);
    };
    let restarted = restarts(&lull, BY_ITSELF)?;
    let what = "from the start of an app that is back until it is steered";
    add(what, &restarted, STEERED_MAX_MS);
    let restarted = restarts(&lull, BY_TEMPLATE)?;
    let what = "from the start of a match of a template that is back until it is steered";
    add(what, &restarted, STEERED_MAX_MS);
    let killed = ended_by(&lull, Signal::KILL, KILLS)?;
    add("from SIGKILL of the agent until the app is as before", &killed, KILLED_MAX_MS);
    let stopped = ended_by(&lull, Signal::STOP, STOPS)?;
    add("from SIGSTOP of the agent until the app is as before", &stopped, STOPPED_MAX_MS);
    let replaced = guards_replaced(&lull)?;
    add("from SIGKILL of the guard until there is a new one", &replaced, REPLACED_MAX_MS);
    let by_hand = (0..KILLS).map(|_| restored_by_hand(&lull)).collect::<Result<Vec<_>>>()?;
    let what = "`lull restore` after SIGKILL of agent and guard";
    report.reported(what, Summary::new(by_hand), "ms");
    report.note(format!(
        "Epochs of 1 s under `lc-first`. An app is away for 0 to {} ms, of one agent, and looked \
         at every {} ms. Each kill and stop is of an agent of its own.",
        (AWAY * (RESTARTS - 1)).as_millis(),
        LOOK.as_millis()
    ));
    Ok(report)
}

/// An app, and what an agent of it needs.
struct Stage<'a> {
    lull: &'a Path,
    /// The apps of the config.
    apps: &'static str,
    place: TempDir,
    app: Running,
}

impl<'a> Stage<'a> {
    fn new(lull: &'a Path, apps: &'static str) -> Result<Self> {
        Ok(Self { lull, apps, place: tempfile::tempdir()?, app: app()? })
    }

    fn state(&self) -> PathBuf {
        self.place.path().join("state")
    }

    /// Starts an agent and waits until it steers the app.
    fn agent(&self) -> Result<Running> {
        let config = self.place.path().join("agent.toml");
        std::fs::write(&config, config_text(self.place.path(), self.apps))?;
        let log = self.place.path().join("agent.log");
        let agent = server::agent(Command::new(self.lull).arg("run").arg(&config), &log)?;
        self.wait_until(true, Instant::now())?;
        Ok(agent)
    }

    /// Waits until the app is steered, or no longer; returns the time from `begun` on, in ms.
    fn wait_until(&self, is_steered: bool, begun: Instant) -> Result<f64> {
        loop {
            let app = Process::new(self.app.pid().cast_signed()).and_then(|app| app.stat());
            let class = app.context("the app has ended")?.policy;
            if (class == Some(ROUND_ROBIN)) == is_steered {
                return Ok(begun.elapsed().as_secs_f64() * 1e3);
            }
            if begun.elapsed() > PATIENCE {
                bail!("the class of the app is {class:?} after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn app() -> Result<Running> {
    Running::start(Command::new("sleep").arg0(NAME).arg("3600"))
}

/// How long it takes after each restart of the app until it is steered, in ms.
fn restarts(lull: &Path, apps: &'static str) -> Result<Vec<f64>> {
    let mut stage = Stage::new(lull, apps)?;
    let _agent = stage.agent()?;
    let mut took_ms = Vec::new();
    for round in 0..RESTARTS {
        std::thread::sleep(BETWEEN);
        send(stage.app.pid(), Signal::KILL)?;
        while !stage.app.has_ended() {
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(AWAY * round);
        stage.app = app()?;
        took_ms.push(stage.wait_until(true, Instant::now())?);
    }
    Ok(took_ms)
}

/// Returns the time from a signal to an agent until its app is as before, in ms.
fn ended_by(lull: &Path, signal: Signal, rounds: u32) -> Result<Vec<f64>> {
    let once = |_| {
        let stage = Stage::new(lull, BY_ITSELF)?;
        let agent = stage.agent()?;
        let sent = Instant::now();
        send(agent.pid(), signal)?;
        stage.wait_until(false, sent)
    };
    (0..rounds).map(once).collect()
}

/// How long it takes after each end of an agent's guard until there is another one, in ms.
fn guards_replaced(lull: &Path) -> Result<Vec<f64>> {
    let stage = Stage::new(lull, BY_ITSELF)?;
    let agent = stage.agent()?;
    let guard = || Ok::<_, anyhow::Error>(children_with(agent.pid(), "guard")?.first().copied());
    let once = |round| {
        // The kills fall at different times of the half second between two checks by the agent.
        std::thread::sleep(BETWEEN_KILLS * round);
        let former = guard()?.context("the agent has no guard")?;
        let sent = Instant::now();
        send(former, Signal::KILL)?;
        // An ended process that was not waited for has no command line.
        while guard()?.is_none_or(|now| now == former) {
            if sent.elapsed() > PATIENCE {
                bail!("there is no new guard after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(LOOK);
        }
        Ok(sent.elapsed().as_secs_f64() * 1e3)
    };
    (0..KILLS).map(once).collect()
}

/// How long `lull restore` takes after agent and guard were killed, in ms.
fn restored_by_hand(lull: &Path) -> Result<f64> {
    let stage = Stage::new(lull, BY_ITSELF)?;
    let agent = stage.agent()?;
    let guard = children_with(agent.pid(), "guard")?.first().copied();
    send(guard.context("the agent has no guard")?, Signal::KILL)?;
    send(agent.pid(), Signal::KILL)?;
    let mut restore = Command::new(lull);
    restore.arg("restore").arg("--state").arg(stage.state()).stdout(Stdio::null());
    let restored = cost(&mut restore)?;
    stage.wait_until(false, Instant::now())?;
    Ok(restored.wall_s * 1e3)
}

fn send(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).context("no process has the number 0")?;
    Ok(kill_process(pid, signal)?)
}

/// The config of the agent. The app sends nothing, and is not regarded as silent.
fn config_text(place: &Path, apps: &str) -> String {
    let place = place.display();
    format!(
        r#"[agent]
epoch = "1s"
silence = "1h"
record = "{place}/runs"
state = "{place}/state"

[policy]
name = "lc-first"

[[app]]
name = "batch"
class = "best-effort"
solo = 1.0
start = ["sleep", "3600"]
{apps}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_config_finds_the_app_by_its_name() {
        let config = |apps| -> toml::Table {
            config_text(Path::new("/tmp/reaction"), apps).parse().unwrap()
        };
        let (by_itself, by_template) = (config(BY_ITSELF), config(BY_TEMPLATE));
        for args in [&by_itself["app"][1]["match"]["args"], &by_template["match"][0]["args"]] {
            assert_eq!(args.as_str().unwrap().strip_suffix(" *"), Some(NAME));
        }
    }

    #[test]
    fn an_app_that_no_agent_steers_is_as_before() {
        let stage = Stage::new(Path::new("/no/such/program"), BY_ITSELF).unwrap();
        assert!(stage.wait_until(false, Instant::now()).unwrap() >= 0.0);
        assert!(stage.agent().is_err());
    }
}
