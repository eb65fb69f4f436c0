//! The cost of serving the agent's page, and of its records.
//!
//! Three contenders in turn: the agent without a page, with a page and one
//! viewer (the stream of epochs, `/api/epoch` and `/metrics` once a second), and
//! with a hundred viewers. First paint and weight are those of a real browser;
//! the size of records is what a longer run has more than a shorter one.

mod browser;
mod viewer;

use super::process::{Running, agent_cpu_percent};
use super::server::{self, free_port};
use super::stats::{BoxedContender, Summary, interleave_all};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use viewer::Viewers;

pub(super) const BENCH: Bench = Bench {
    name: "page",
    about: "The agent with 6 apps at 1 s epochs without a page, with one viewer and with 100: \
            share of a core and length of epochs; first paint, weight, and size of records",
    run,
};

const ROUNDS: usize = 3;
const EPOCH_S: f64 = 1.0;
const APPS: usize = 6;
const SETTLE: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(15);
/// How long apps may take to start.
const START_MAX: Duration = Duration::from_secs(60);
/// Two lengths of a recorded run: the difference has no head.
const RECORDED_S: [u64; 2] = [20, 80];
const CROWD: usize = 100;
const LOADS: usize = 5;

const COST_MAX_PERCENT: f64 = 0.5;
const PAINT_MAX_MS: f64 = 300.0;
const WEIGHT_MAX_KB: f64 = 200.0;
const RECORD_MAX_MB: f64 = 2.0;
/// The longest epoch that a hundred viewers may cause, over the configured length.
const STRETCH_MAX: f64 = 1.02;

/// Programs and places.
struct Setup {
    lull: PathBuf,
    directory: tempfile::TempDir,
}

/// An agent that runs, with the address of its page if it has one.
struct Agent {
    process: Running,
    address: Option<String>,
    /// Removed when the agent has ended: fields go in this order.
    _place: tempfile::TempDir,
}

fn run(context: &Context) -> Result<Report> {
    let setup = Setup { lull: context.build("lull-cli", "lull")?, directory: tempfile::tempdir()? };
    let mut report = Report::default();
    cost(&setup, &mut report)?;
    browsed(&setup, &mut report)?;
    recorded(&setup, &mut report)?;
    report.note(format!(
        "{ROUNDS} rounds in turn; CPU time of the agent's process over {} s (apps, loads, guard \
         and viewers are processes of their own). Two options servers under 1000 and 500 \
         requests/s, four burners that keep every core busy, ARQ. A viewer takes the stream of \
         epochs, and once a second /api/epoch and /metrics; the {CROWD} only the stream. Sizes \
         are of the closed record: that of {} s less that of {} s.",
        MEASURED.as_secs(),
        RECORDED_S[1],
        RECORDED_S[0]
    ));
    Ok(report)
}

fn cost(setup: &Setup, report: &mut Report) -> Result<()> {
    let seen: [RefCell<Vec<f64>>; 3] = Default::default();
    let viewers = [None, Some(1), Some(CROWD)];
    let contenders = viewers.iter().zip(&seen).map(|(viewers, stretches)| {
        Box::new(move || {
            let (percent, stretch) = setup.watched(*viewers)?;
            stretches.borrow_mut().extend(stretch);
            Ok(percent)
        }) as BoxedContender<'_>
    });
    let mut contenders: Vec<_> = contenders.collect();
    let shares = interleave_all(ROUNDS, &mut contenders)?;
    drop(contenders);
    let names = ["no page", "one viewer", "100 viewers"];
    for (name, shares) in names.iter().zip(&shares) {
        let share = Summary::new(shares.iter().copied());
        report.reported(&format!("{name}: CPU"), share, "% of a core");
    }
    let more = shares[1].iter().zip(&shares[0]).map(|(with, without)| with - without);
    let bound = f64::NEG_INFINITY..=COST_MAX_PERCENT;
    report.bounded("page, API and metrics: CPU more", Summary::new(more), "% of a core", bound);
    let stretch = |which: usize| Summary::new(seen[which].borrow().iter().copied());
    report.reported("one viewer: longest epoch / configured", stretch(1), "ratio");
    report.bounded(
        "100 viewers: longest epoch / configured",
        stretch(2),
        "ratio",
        0.0..=STRETCH_MAX,
    );
    Ok(())
}

fn browsed(setup: &Setup, report: &mut Report) -> Result<()> {
    if !browser::is_here() {
        report.note("First paint and weight: no chromedriver; apt-get install chromium-driver.");
        return Ok(());
    }
    let agent = setup.agent(true, None)?;
    let address = agent.address.as_deref().context("the agent has no page")?;
    std::thread::sleep(SETTLE);
    let driver = browser::Driver::start()?;
    let loads = (0..=LOADS).map(|_| driver.load(&format!("http://{address}/")));
    // The first load warms the browser up, not the page's cache, which is off.
    let loads = loads.skip(1).collect::<Result<Vec<_>>>()?;
    let paint = Summary::new(loads.iter().map(|load| load.first_paint_ms));
    report.bounded("first paint on loopback", paint, "ms", 0.0..=PAINT_MAX_MS);
    let weight = Summary::new(loads.iter().map(|load| load.bytes / 1e3));
    report.bounded("weight of the page, all files", weight, "kB", 0.0..=WEIGHT_MAX_KB);
    Ok(())
}

fn recorded(setup: &Setup, report: &mut Report) -> Result<()> {
    let sizes = RECORDED_S.map(|seconds| setup.record_bytes(seconds));
    let [short, long] = sizes;
    let hours = (RECORDED_S[1] - RECORDED_S[0]) as f64 / 3600.0;
    let mb = (long? - short?) / 1e6 / hours / APPS as f64;
    let size = Summary::new([mb]);
    report.bounded("record", size, "MB per app-hour", 0.0..=RECORD_MAX_MB);
    Ok(())
}

impl Setup {
    /// The share of a core that the agent uses, and its longest epoch if a viewer is connected.
    fn watched(&self, viewers: Option<usize>) -> Result<(f64, Option<f64>)> {
        let mut agent = self.agent(viewers.is_some(), None)?;
        let viewers = viewers
            .zip(agent.address.as_deref())
            .map(|(count, address)| Viewers::open(address, count));
        let viewers = viewers.transpose()?;
        std::thread::sleep(SETTLE);
        let percent = agent_cpu_percent(agent.process.pid(), MEASURED)?;
        if agent.process.has_ended() {
            bail!("the agent ended early");
        }
        let longest = viewers.map(|viewers| viewers.close(agent)).transpose()?;
        Ok((percent, longest.map(|seconds| seconds / EPOCH_S)))
    }

    /// The size of the record of a run of this length.
    fn record_bytes(&self, seconds: u64) -> Result<f64> {
        let mut agent = self.agent(false, Some(seconds))?;
        let started = Instant::now();
        while !agent.process.has_ended() {
            if started.elapsed() > START_MAX + Duration::from_secs(2 * seconds) {
                bail!("the agent does not end after {seconds} s");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let mut bytes = 0;
        for file in std::fs::read_dir(agent._place.path().join("runs"))? {
            let file = file?;
            if file.path().extension().is_some_and(|end| end == "db") {
                bytes += file.metadata()?.len();
            }
        }
        if bytes == 0 {
            bail!("the agent has left no record");
        }
        Ok(bytes as f64)
    }

    fn agent(&self, page: bool, seconds: Option<u64>) -> Result<Agent> {
        let place = tempfile::tempdir_in(self.directory.path())?;
        let (config, log) = (place.path().join("agent.toml"), place.path().join("agent.log"));
        std::fs::write(&config, config_text(place.path(), [free_port()?, free_port()?]))?;
        let mut command = Command::new(&self.lull);
        command.arg("run").arg(&config);
        let address = page.then(free_port).transpose()?.map(|port| format!("127.0.0.1:{port}"));
        command.args(address.iter().flat_map(|address| ["--http", address]));
        command.args(seconds.iter().flat_map(|it| ["--for".to_owned(), format!("{it}s")]));
        let process = server::agent(&mut command, &log)?;
        Ok(Agent { process, address, _place: place })
    }
}

/// Two servers under load and four burners.
fn config_text(place: &Path, ports: [u16; 2]) -> String {
    let place = place.display();
    let mut text = format!(
        "[agent]\nepoch = \"{EPOCH_S}s\"\nrecord = \"{place}/runs\"\nstate = \"{place}/state\"\n\n\
         [policy]\nname = \"arq\"\n"
    );
    for (number, (port, rate)) in ports.iter().zip([1000, 500]).enumerate() {
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            r#"
[[app]]
name = "options-{number}"
class = "latency-critical"
objectives = [{{ p95 = "20ms" }}]
ideal = "1ms"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}", "--workers", "1"]
ready = "127.0.0.1:{port}"

[[load]]
app = "options-{number}"
target = "options://127.0.0.1:{port}"
rate = "{rate}/s"
extra = ["--base-paths", "10"]
"#
        );
    }
    for number in 0..APPS - ports.len() {
        let work = if number % 2 == 0 { "compute" } else { "memory" };
        let _ = write!(
            text,
            "\n[[app]]\nname = \"burner-{number}\"\nclass = \"best-effort\"\nprogress = \"push\"\n\
             start = [\"lull\", \"burn\", \"{work}\"]\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_config_is_toml_with_so_many_apps() {
        let text = config_text(Path::new("/tmp/x"), [7300, 7301]);
        let config: toml::Table = text.parse().unwrap();
        assert_eq!(config["app"].as_array().unwrap().len(), APPS);
        assert_eq!(config["load"].as_array().unwrap().len(), 2);
        assert_eq!(config["agent"]["epoch"].as_str(), Some("1s"));
    }
}
