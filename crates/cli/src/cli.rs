//! The command line as clap parses it. This is the only place that documents the flags.

/// Refuses a Parquet file where this program cannot write one.
fn parquet_file(path: &str) -> Result<PathBuf, ParquetError> {
    lull_lab::parquet_table::check_built().map(|()| path.into())
}

/// Reads the address of a listener.
fn listen_at(text: &str) -> Result<SocketAddr, String> {
    let advice = "is not an IP address with a port: write 127.0.0.1:7077";
    text.parse().map_err(|_| advice.to_owned())
}

mod advise;
#[cfg(test)]
mod book;
mod calibrate;
mod cells;
mod demo;
mod dispatch;
mod exec;
mod lab;
mod lists;
mod load;
mod records;
mod register;
mod state;
mod tuning;

pub(crate) use advise::AdviseArgs;
pub(crate) use calibrate::{
    CalibrateApps, CalibrateArgs, CalibrateIdleArgs, CalibrateMachine, CalibratePowerArgs,
    MeasureArgs,
};
pub(crate) use cells::CellArgs;
pub(crate) use demo::{DatabaseDemoArgs, DemoArgs, DemoSubject, PolicyDemoArgs};
pub(crate) use dispatch::{BuiltinServer, CpufreqArgs, EmulateArgs, PlaceArgs, ServeArgs};
pub(crate) use exec::{
    AttachArgs, ExecArgs, ExecMode, ExecWake, GateAction, GateArgs, GateCommandArgs,
};
pub(crate) use lab::LabRunArgs;
pub(crate) use lists::{KeysArgs, ListArgs, MetricsArgs};
pub(crate) use load::LoadArgs;
pub(crate) use records::{
    CompareArgs, Days, EntropyArgs, ExportArgs, ExportFormat, ReplayArgs, ReportArgs, TiersArgs,
    TopArgs,
};
pub(crate) use register::RegisterArgs;
pub(crate) use state::{ReloadArgs, RestoreArgs};
pub(crate) use tuning::{IntlogArgs, SweepArgs, TraceArgs, TuneArgs};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use lull_host::knobs::hold::HoldRequest;
use lull_lab::parquet_table::ParquetError;
use lull_measure::Nanos;
use lull_workload::apps::burner::Work;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Keeps latency-critical servers within their latency objectives, and gives the capacity that
/// they do not need to throughput, best-effort work or saved energy.
#[derive(Debug, Parser)]
#[command(name = "lull", version = lull_agent::VERSION, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands by purpose, as `lull --help` lists them.
const GROUPS: [(&str, &[&str]); 3] = [
    (
        "Operate",
        &[
            "demo",
            "exec",
            "attach",
            "gate",
            "run",
            "check",
            "calibrate",
            "tune",
            "hold",
            "restore",
            "reload",
            "register",
            "completions",
            "man",
        ],
    ),
    (
        "Understand",
        &[
            "advise", "top", "report", "compare", "entropy", "export", "replay", "policies",
            "metrics", "keys",
        ],
    ),
    ("Research", &["sim", "sweep", "lab", "load", "serve", "burn"]),
];

/// Parses the arguments of this process; ends it where they are wrong or ask for help.
pub(crate) fn parse() -> Cli {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The command line, whose help lists commands under headings.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let mut help = String::from("{about-with-newline}\n{usage-heading} {usage}\n\n");
    for (heading, names) in GROUPS {
        help.push_str(&format!("{heading}:\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            help.push_str(&format!("  {name:<12} {about}\n"));
        }
        help.push('\n');
    }
    help.push_str("Options:\n{options}{after-help}");
    command.help_template(help)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Report what this machine can measure and set, and which policies can run here
    Check(CheckArgs),
    /// See the effect of a policy on this machine: built-in server and load, policy off and on
    Demo(DemoArgs),
    /// Run the agent: start or find the apps of a config, control and record them
    Run(RunArgs),
    /// Start a server and measure its queries, or limit how many transactions run at once
    Exec(Box<ExecArgs>),
    /// Measure or limit servers that another program starts, such as systemd
    Attach(Box<AttachArgs>),
    /// Watch a running server and report whether a concurrency limit is likely to help
    Advise(AdviseArgs),
    /// Switch the limit of a running server off or on, or show its state
    Gate(GateCommandArgs),
    /// Send load to a server, in open or closed loop, and report its latency
    Load(Box<LoadArgs>),
    /// Run a built-in latency-critical server, to try Lull without one of your own
    Serve(ServeArgs),
    /// Run a built-in best-effort app, to try Lull without one of your own
    Burn(BurnArgs),
    /// List the policies with their sources, requirements and defaults
    Policies(ListArgs),
    /// List the metrics with unit, meaning and source
    Metrics(MetricsArgs),
    /// List every key of a config with type, unit, default and meaning
    Keys(KeysArgs),
    /// Simulate apps on a described machine under several policies, and compare them
    Sim(Box<SimArgs>),
    /// Reproduce the papers' tables, check their claims, and run models of single parts
    Lab(LabArgs),
    /// Run a command under fixed settings (governor, idle states, limits), then restore them
    Hold(HoldArgs),
    /// Measure each app alone, or this machine's power, and write the results to a file
    Calibrate(CalibrateArgs),
    /// Run several policies on a config in turn, and report how they differ
    Compare(CompareArgs),
    /// Report how much recorded apps hurt each other (entropy), and the cores that a policy saves
    Entropy(EntropyArgs),
    /// Write a record as tables (CSV, Parquet) for DuckDB, pandas, polars
    Export(ExportArgs),
    /// Predict the results of other policies for a recorded run
    Replay(ReplayArgs),
    /// Write one page with figures and tables of recorded runs, side by side
    Report(ReportArgs),
    /// Try every setting of a running server in random blocks, or of a simulated one at every load
    Sweep(SweepArgs),
    /// Find a server's settings of least power within its latency bound, live or simulated
    Tune(TuneArgs),
    /// Show a running agent in the terminal
    Top(TopArgs),
    /// Restore the knobs that a killed agent left changed
    Restore(RestoreArgs),
    /// Make a running agent apply its changed config
    Reload(ReloadArgs),
    /// Run a program as an app of a running agent, until the program ends
    Register(RegisterArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a manual page for each command
    Man {
        /// Directory to write them to, made if it is missing
        directory: PathBuf,
    },
    /// Restores knobs when its agent dies; started by the agent
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Serves the page and the push socket of its agent, without rights; started by the agent
    #[command(hide = true)]
    Frontend,
    /// Watches the pods of a Kubernetes node, without rights; started by the agent
    #[cfg(feature = "fleet")]
    #[command(hide = true)]
    Pods,
}

/// `lull check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Check that this config can run here: its keys, its policy and its limits
    #[arg(conflicts_with = "machine")]
    pub(crate) config: Option<PathBuf>,
    /// Print this machine as the section `machine` of a config, for lull sim --machine
    #[arg(long, conflicts_with = "json")]
    pub(crate) machine: bool,
    /// File of lull calibrate power, whose model is printed with the machine
    #[arg(long, value_name = "FILE", requires = "machine")]
    pub(crate) power: Option<PathBuf>,
    /// Report which abilities the apps of this recorded run need together: isolation, priority
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "machine"])]
    pub(crate) record: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The config
    pub(crate) config: PathBuf,
    /// Print plans and touch nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Let this policy decide beside the acting one, and touch nothing, as agent.shadow
    #[arg(long, value_name = "POLICY")]
    pub(crate) shadow: Option<String>,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) duration: Option<Nanos>,
    /// Stop when this app has ended
    #[arg(long, value_name = "APP")]
    pub(crate) exit_with: Option<String>,
    /// Alternate the policy with doing nothing for this long, in blocks in random order, and
    /// report what the policy changes
    #[arg(long, value_name = "TIME", conflicts_with_all = ["dry_run", "duration", "control"])]
    pub(crate) prove: Option<Nanos>,
    /// Length of a block of --prove; its first quarter is left out of the figures
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "prove")]
    pub(crate) block: Nanos,
    /// Serve the page, its JSON and /metrics here, as agent.http
    #[arg(long, value_name = "ADDRESS", value_parser = listen_at)]
    pub(crate) http: Option<SocketAddr>,
    /// Accept orders over HTTP from clients that have the token, as agent.control
    #[arg(long)]
    pub(crate) control: bool,
    /// Print one JSON object an epoch instead of the status line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull burn`.
#[derive(Debug, Args)]
pub(crate) struct BurnArgs {
    /// compute, memory or memory:256MiB
    pub(crate) work: Work,
    /// Threads, at most 4096; by default one a core
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) threads: Option<u16>,
    /// Stop after this long; by default when interrupted
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) duration: Option<Nanos>,
    /// Unix socket of an agent to push progress to
    #[arg(long, env = "LULL_SOCKET", requires = "app")]
    pub(crate) push: Option<PathBuf>,
    /// The app's name in the agent's config
    #[arg(long, env = "LULL_APP", requires = "push")]
    pub(crate) app: Option<String>,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull sim`.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// The scenario (docs/scenario.md; examples in examples/sim/), or the config of an agent
    pub(crate) scenario: PathBuf,
    /// The machine to simulate a config on: a section `machine`, as lull check --machine writes it
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// File with the load of a config's apps: a `client` section of each, and `run`
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Option<PathBuf>,
    /// Policy to simulate: a label of the scenario, or a name in `lull policies`; the first of
    /// several is the reference. By default all of the scenario
    #[arg(long, value_name = "POLICY", num_args = 1..)]
    pub(crate) policy: Vec<String>,
    /// Number of replications of each policy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,
    /// Seed of all random numbers
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Check the scenario and simulate nothing
    #[arg(long, conflicts_with = "parts")]
    pub(crate) check: bool,
    /// Vary the length of bursts, and find the cycle at which each policy does worst
    #[arg(long, conflicts_with = "parts")]
    pub(crate) find_worst_cycle: bool,
    /// Shortest burst cycle to look at [default: 100ms]
    #[arg(long, value_name = "TIME", requires = "find_worst_cycle")]
    pub(crate) shortest: Option<Nanos>,
    /// Longest burst cycle to look at [default: 16s]
    #[arg(long, value_name = "TIME", requires = "find_worst_cycle")]
    pub(crate) longest: Option<Nanos>,
    /// Burst cycles at equal ratios from the shortest to the longest [default: 9]
    #[arg(long, value_name = "N", requires = "find_worst_cycle")]
    pub(crate) grid: Option<u32>,
    /// Further burst cycles around the worst [default: 6]
    #[arg(long, value_name = "N", requires = "find_worst_cycle")]
    pub(crate) refine: Option<u32>,
    /// Write the figures of every replication as CSV
    #[arg(long, value_name = "FILE", conflicts_with = "cells")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the figures of every replication as Parquet
    #[arg(long, value_name = "FILE", value_parser = parquet_file, conflicts_with = "cells")]
    pub(crate) parquet: Option<PathBuf>,
    /// Draw the figures with their intervals, as SVG
    #[arg(long, value_name = "FILE", conflicts_with = "cells")]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cells: CellArgs,
    /// Print JSON
    #[arg(long, conflicts_with = "cells")]
    pub(crate) json: bool,
}

/// `lull lab`.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) action: LabAction,
}

/// The commands of the lab.
#[derive(Debug, Subcommand)]
pub(crate) enum LabAction {
    /// List the experiments
    List(ListArgs),
    /// Run one experiment, or all, on several seeds; exit status 1 if a held row misses its
    /// tolerance
    Run(LabRunArgs),
    /// Print the papers' claims with our figures, verdicts and reasons
    Claims(LabClaimsArgs),
    /// Check claims files against the experiments and the recorded rows
    Check(LabCheckArgs),
    /// Run the options server under dispatchers in turn on slow and fast cores, and compare
    Dispatch(Box<PlaceArgs>),
    /// Make a core slower by a real-time thread that takes its share of it
    Emulate(EmulateArgs),
    /// Run a command that sees P-states on cores that have none: real-time threads emulate them
    Cpufreq(CpufreqArgs),
    /// Log every interrupt of a simulated or live network server, with its frames and sleeps
    Interrupts(IntlogArgs),
    /// Compare mixes of core types under EETL by power, for a target and load
    Mix(MixArgs),
    /// Show how two tiers of a recorded system share bottlenecks under frequency policies
    Tiers(TiersArgs),
    /// Make a trace of rates for loads from a recording of a cache's requests
    Trace(TraceArgs),
    /// Find gains of EETL's controller from step responses of the simulated plant
    TunePid(TunePidArgs),
}

/// `lull lab claims`.
#[derive(Debug, Args)]
pub(crate) struct LabClaimsArgs {
    /// Only claims of papers with this word in their name, such as REEF
    #[arg(long, value_name = "WORD")]
    pub(crate) paper: Option<String>,
    /// Print the experiment and row that answer each claim
    #[arg(long)]
    pub(crate) experiments: bool,
    /// Print docs/reproduction.md
    #[arg(long, conflicts_with_all = ["paper", "experiments"])]
    pub(crate) markdown: bool,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["markdown", "experiments"])]
    pub(crate) json: bool,
}

/// `lull lab check`.
#[derive(Debug, Args)]
pub(crate) struct LabCheckArgs {
    /// Claims files; without any those that are built in
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

/// `lull hold`.
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    /// governor=NAME, energy-preference=NAME, idle-latency=TIME, idle-state=NAME,
    /// wake-latency=TIME, resume-latency=CORES:TIME, power-limit=DOMAIN:WATTS, irq=NUMBER:CORES,
    /// cgroup=PATH:FILE:VALUE, unit=NAME:FILE:VALUE or coalescing=NIC:KEY:VALUE
    #[arg(required = true, value_name = "KNOB=VALUE")]
    pub(crate) requests: Vec<HoldRequest>,
    /// Command to run while the knobs are held; by default they are held until interrupted
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<std::ffi::OsString>,
    /// Directory of the agent's state
    #[arg(long)]
    pub(crate) state: Option<PathBuf>,
}

/// `lull lab mix`.
#[derive(Debug, Args)]
pub(crate) struct MixArgs {
    /// Target of the p99
    #[arg(long, default_value = "200ms")]
    pub(crate) target: Nanos,
    /// Requests per second; several give a table each
    #[arg(long, required = true, value_delimiter = ',')]
    pub(crate) rate: Vec<f64>,
    /// A mix such as slow:8,fast:1, slow types first; without any, the paper's six
    #[arg(long)]
    pub(crate) mix: Vec<String>,
    /// Work of requests alone on a slow core, one time a line (500 at least);
    /// without it the paper's Lucene
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Shorter runs, wider intervals
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull lab tune-pid`.
#[derive(Debug, Args)]
pub(crate) struct TunePidArgs {
    /// Target of the p99
    #[arg(long, default_value = "200ms")]
    pub(crate) target: Nanos,
    /// Requests per second, one for each band of gains
    #[arg(long, value_delimiter = ',', default_values_t = [25.0, 60.0, 80.0])]
    pub(crate) rate: Vec<f64>,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Fewer runs, a noisier response
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the measured and the expected step responses of the loop to this SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) figure: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `lull guard`: what the agent hands to its guard.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// Arguments of the guard
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn help_lists_every_command_under_one_heading() {
        let listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let unique: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), unique.len());
        let whole = command();
        let visible = whole.get_subcommands().filter(|it| !it.is_hide_set());
        assert_eq!(visible.map(clap::Command::get_name).collect::<BTreeSet<_>>(), unique);
        let help = command().render_help().to_string();
        for heading in ["Operate:", "Understand:", "Research:", "Options:"] {
            assert_eq!(help.matches(heading).count(), 1, "{help}");
        }
        assert!(help.contains("\n  exec         Start a server"), "{help}");
    }
}
