//! Two tiers on P-states: Tomcat in front of MariaDB under frequency policies; one command, one
//! page.
//!
//! Both servers run on a core each. `lull lab cpufreq` has these cores play the P-states of the
//! paper by duty cyclers, and runs `lull compare` once for each burst cycle where it sees them:
//! an agent that attaches to both servers, loads the front tier, and follows each policy in
//! blocks of random order. `lull lab tiers` computes the figures from the records and from
//! samples that Tomcat takes of its pool of connections.

mod servers;

use crate::command::{done, read_output};
use crate::{here, release};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use servers::{BACK, CONNECTIONS, Demands, FRONT, Servers};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The burst cycles, in an order that no trend follows.
const CYCLES: [&str; 5] = ["2s", "500ms", "8s", "1s", "4s"];
/// The compared policies, full speed first.
const POLICIES: [&str; 3] = ["linux-default", "step-dvfs", "adaptive-dvfs"];
/// P8, P4 and P0 (Wang et al., TRIOS'13, footnote 2; P4 is the middle).
const FREQUENCIES: &str = "1197MHz,1729MHz,2260MHz";
/// The high rate as a share of what the tiers answer at full speed, and the low one as a share of
/// the high one: 12,000 and 4,000 clients of the paper's section 4.2.
const HIGH_SHARE: f64 = 0.8;
const LOW_SHARE: f64 = 1.0 / 3.0;

/// Runs one comparison after the other: the program, policies, block and rounds, then the configs.
const COMPARISONS: &str = "lull=$1 policies=$2 block=$3 rounds=$4; shift 4
trap 'kill $!; wait $!; exit 1' TERM INT
for config do
    \"$lull\" compare \"$config\" --policies \"$policies\" --block \"$block\" \\
        --rounds \"$rounds\" --json > \"$config.json\" &
    wait $!
done";

const INTRO: &str = "# Two tiers on P-states

Written by `cargo xtask tiers`; do not edit. Tomcat runs in front of MariaDB, with 50 pooled
connections between them, on a core each. `lull lab cpufreq` has both cores play the P-states
P8, P4 and P0 of Wang et al. (TRIOS'13) by duty cyclers, so that the agent's frequency knob steers
them as on a machine that has them. The load is in bursts: a high and a low rate in turn, half of
the burst cycle each. Policies have blocks in random order; the first quarter of a block is left
out. `linux-default` leaves both cores at P0. `step-dvfs` has the paper's parameters (table 1,
equation 4), `adaptive-dvfs` those of section 5.2 with windows of 50 ms.
";

const LIMITS: &str = "## What this shows, and what not

- A tier has one core and the machine has few: the load client, the agent and the kernel's network
  stack run on the two cores of the tiers. Their time is in the utilisation that the policies see
  and in every response time.
- A duty cycler takes its share in periods of 250 us. A core at P8 is a core at full speed that
  is away for 47 % of each period; it wakes as fast and has the same caches as at P0.
- Response times count from when a request was due, so that requests that wait in the client
  for one of its connections are late, too. The paper's clients wait for an answer before they
  think again, which bounds their queue.
- Figures of P-states and utilisation are of epochs of 50 ms. An epoch has high load if the client,
  which reports every 100 ms, last had more requests due than midway between the two rates.
- Push-back is sampled every 50 ms by a thread of Tomcat, which runs on Tomcat's core.
- On a virtual machine the host's other guests are in every figure.
";

/// Blocks a policy under each burst cycle, and their length: twelve minutes in all, and two around
/// them.
const ROUNDS: u32 = 4;
const BLOCK_S: u32 = 12;

/// The arguments of `cargo xtask tiers`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Blocks a policy under each burst cycle
    #[arg(long, default_value_t = ROUNDS)]
    pub(crate) rounds: u32,
    /// Length of a block in seconds
    #[arg(long, default_value_t = BLOCK_S)]
    pub(crate) block_s: u32,
    /// Write the page here instead
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
}

impl Options {
    /// Returns the time of all blocks together.
    const fn blocks_s(&self) -> u32 {
        (CYCLES.len() * POLICIES.len()) as u32 * self.rounds * self.block_s
    }
}

/// Starts the servers, runs the comparisons and writes the page.
///
/// # Errors
/// If this is not root, a server cannot be had or started, Lull does not build, or a comparison
/// fails; the page is then left as it was.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "real-time threads and mounts take root: run it with sudo"
    );
    ensure!(here::cores() >= 2, "the two tiers need a core each, and this machine has one");
    servers::provide()?;
    let lull = release::binary(root, "lull-cli", "lull")?;
    let results = release::target(root).join("tiers");
    // The results of an earlier run must not pass for this one's.
    let _ = std::fs::remove_dir_all(&results);
    std::fs::create_dir_all(&results)
        .with_context(|| format!("cannot make {}", results.display()))?;
    let place = servers::directory()?;
    let files = place.path().join("emulated");
    println!("== {} s of blocks, and two minutes around them", options.blocks_s());
    let servers = Servers::start(place.path(), &files)?;
    let demands = servers.measure(&lull)?;
    println!("== {}", describe_demands(&demands));
    let configs = write_configs(&results, &servers, &demands)?;
    compare(&lull, &files, &configs, options)?;
    let samples = results.join("samples.csv");
    std::fs::copy(servers.samples(), &samples)
        .with_context(|| format!("Tomcat wrote no {}", servers.samples().display()))?;
    drop(servers);
    let tables = tables(&lull, &configs, &samples, options)?;
    let page = page(root, &demands, options, &tables)?;
    let file = options.page.clone().unwrap_or_else(|| root.join("docs/live-tiers.md"));
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    println!("written: {}; records and samples are in {}", file.display(), results.display());
    Ok(ExitCode::SUCCESS)
}

/// A config for each burst cycle.
fn write_configs(results: &Path, servers: &Servers, demands: &Demands) -> Result<Vec<PathBuf>> {
    let write = |cycle: &&str| {
        let file = results.join(format!("{cycle}.toml"));
        let text = config(results, servers, demands, cycle);
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    };
    CYCLES.iter().map(write).collect()
}

fn config(results: &Path, servers: &Servers, demands: &Demands, cycle: &str) -> String {
    let high_per_s = HIGH_SHARE * demands.capacity_per_s;
    let low_per_s = LOW_SHARE * high_per_s;
    let [tomcat, mariadb] = servers.pids();
    let results = results.display();
    let target = servers.page();
    format!(
        r#"# Written by cargo xtask tiers.
[agent]
epoch = "50ms"
record = "{results}/runs"
state = "{results}/state"
silence = "60s"
events = false

[policy]
name = "adaptive-dvfs"
windows = "fixed"

[limits]
dwell = "10ms"

[[app]]
name = "tomcat"
class = "latency-critical"
objectives = [{{ p95 = "100ms" }}]
ideal = "10ms"
pid = {tomcat}

[[app]]
name = "mariadb"
class = "best-effort"
solo = 1.0
progress = "cpu-time"
pid = {mariadb}

[[load]]
app = "tomcat"
target = "{target}"
rate = "burst:{high_per_s:.0},{low_per_s:.0},{cycle}"
connections = 200
"#
    )
}

/// Runs the comparisons on emulated P-states.
fn compare(lull: &Path, files: &Path, configs: &[PathBuf], options: &Options) -> Result<()> {
    let mut command = Command::new(lull);
    command.args(["lab", "cpufreq", "--cores", &format!("{FRONT},{BACK}")]);
    command.args(["--frequencies", FREQUENCIES, "--files"]).arg(files);
    command.args(["--", "sh", "-e", "-c", COMPARISONS, "sh"]).arg(lull);
    command.arg(POLICIES.join(",")).arg(format!("{}s", options.block_s));
    done(command.arg(options.rounds.to_string()).args(configs))
}

/// The tables of all comparisons, as Markdown.
fn tables(lull: &Path, configs: &[PathBuf], samples: &Path, options: &Options) -> Result<String> {
    let markdown = samples.with_file_name("tables.md");
    let mut command = Command::new(lull);
    command.args(["lab", "tiers", "--connections", &CONNECTIONS.to_string()]);
    command.args(["--front", &FRONT.to_string(), "--back", &BACK.to_string()]);
    command.args(["--skip", &format!("{}ms", options.block_s * 250)]);
    command.arg("--samples").arg(samples).arg("--markdown").arg(&markdown);
    for config in configs {
        command.arg(record_of(config)?);
    }
    done(&mut command)?;
    std::fs::read_to_string(&markdown)
        .with_context(|| format!("{} was not written", markdown.display()))
}

/// The record of a comparison, as its report names it.
fn record_of(config: &Path) -> Result<String> {
    let file = PathBuf::from(format!("{}.json", config.display()));
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let report: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is not a report of lull compare", file.display()))?;
    let record = report["record"].as_str();
    record.map(str::to_owned).with_context(|| format!("{} names no record", file.display()))
}

fn page(root: &Path, demands: &Demands, options: &Options, tables: &str) -> Result<String> {
    let read = |program: &str, arguments: &[&str]| -> Result<String> {
        let text = read_output(Command::new(program).current_dir(root).args(arguments))?;
        Ok(text.trim().to_owned())
    };
    let date = read("date", &["-u", "+%F"])?;
    let commit = read("git", &["rev-parse", "--short=12", "HEAD"])?;
    let Options { rounds, block_s, .. } = options;
    Ok(format!(
        "{INTRO}\n{} Measured on {date} at commit {commit}: {rounds} blocks of {block_s} s a \
         policy and burst cycle. {}\n\n{LIMITS}\n{}\n",
        here::describe_machine(),
        describe_demands(demands),
        tables.trim_end()
    ))
}

fn describe_demands(demands: &Demands) -> String {
    let Demands { capacity_per_s, tomcat_ms, mariadb_ms } = demands;
    format!(
        "At full speed the tiers answer {capacity_per_s:.0} requests/s; a request takes \
         {tomcat_ms:.2} ms of CPU time in Tomcat and {mariadb_ms:.2} ms in MariaDB."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_the_defaults_it_ends_within_a_quarter_of_an_hour() {
        let options = Options { rounds: ROUNDS, block_s: BLOCK_S, page: None };
        // Servers, warm-up and calibration take two minutes.
        assert!(options.blocks_s() + 2 * 60 <= 15 * 60, "{}", options.blocks_s());
    }

    #[test]
    fn a_comparisons_record_is_the_one_that_its_report_names() {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("2s.toml");
        let report = place.path().join("2s.toml.json");
        std::fs::write(&report, r#"{ "rounds": 4, "record": "runs/a.db" }"#).unwrap();
        assert_eq!(record_of(&config).unwrap(), "runs/a.db");
        std::fs::write(&report, "").unwrap();
        let error = record_of(&config).unwrap_err().to_string();
        assert!(error.contains("2s.toml.json"), "{error}");
    }
}
