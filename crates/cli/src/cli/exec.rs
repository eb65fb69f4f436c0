//! The arguments of `lull exec`, `lull attach` and `lull gate`.

use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use clap::{Args, ValueEnum};
use lull_agent::config::Concurrency;
use lull_measure::Nanos;
use lull_oncall::protocol::Protocol;
use std::ffi::OsString;
use std::path::PathBuf;

/// `lull exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(crate) gate: GateArgs,
    /// How a waiting worker is woken: by futex, or by a signal as in the paper, to
    /// compare (a server that is one process)
    #[arg(long, value_enum, default_value_t = ExecWake::Futex)]
    pub(crate) wake: ExecWake,
    /// Move the threads of its requests between slow and fast cores: a file that names the
    /// cores and the dispatcher (docs/dispatch.md), or a dispatcher, such as eetl, with an
    /// --objective, on a machine whose kernel knows its core types. The server needs a
    /// thread, or a process, for each connection
    #[arg(long, value_name = "FILE.toml|NAME", conflicts_with_all = ["ebpf", "areas"])]
    pub(crate) dispatch: Option<String>,
    /// Observe its sockets in the kernel (eBPF) instead of with a library, as for programs
    /// that a library cannot observe: latency, and no gate
    #[arg(long, conflicts_with_all = ["mode", "concurrency", "wake", "areas"])]
    pub(crate) ebpf: bool,
    /// The server and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// `lull attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// Directory of the page that servers share, made if it is missing; best in memory (tmpfs)
    pub(crate) directory: PathBuf,
    /// Make the files, print what a server's environment must have, and end
    #[arg(long, conflicts_with_all = ["duration", "json"])]
    pub(crate) environment: bool,
    #[command(flatten)]
    pub(crate) gate: GateArgs,
    /// User that runs the servers, by name or number, and gets the page (root only)
    #[arg(long, value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// Directory of the library, made if it is missing; by default that of the page
    #[arg(long, value_name = "DIR")]
    pub(crate) library: Option<PathBuf>,
    /// Stop after this long; by default when interrupted
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) duration: Option<Nanos>,
}

/// `lull gate`.
#[derive(Debug, Args)]
pub(crate) struct GateCommandArgs {
    /// The action; off and on need no agent, and agents that attach later keep a bypass
    #[arg(value_enum)]
    pub(crate) action: GateAction,
    /// The server: the directory of its page, a process number, or a systemd unit
    pub(crate) server: String,
    /// Print the state as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The actions of `lull gate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GateAction {
    /// Let every worker run until `lull gate on`; workers that wait run immediately
    Off,
    /// End the bypass: the agent's settings hold again
    On,
    /// Show protocol, workers, limit, decision and bypass
    Status,
}

/// How a server is observed and gated.
#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    /// Name of the server in the output; default: its program, or its directory
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: Option<String>,
    /// stats observes, post makes workers with a query wait, epoll lets workers without one
    /// rest and wakes them in rounds; with --concurrency post
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ExecMode>,
    /// How many transactions run at once (C; modes post and epoll): a number from 1 to 256,
    /// or the admission controller that decides on it while the server runs. auto limits
    /// only where that helps; `lull policies` lists them all
    #[arg(long, value_name = "auto|N|NAME")]
    pub(crate) concurrency: Option<Concurrency>,
    /// N: transactions that a worker may run a turn [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batch: Option<u32>,
    /// D: pause between rounds, at most 100ms; by default none, which hands slots on
    /// immediately, and 1ms in mode epoll, the least there
    #[arg(long)]
    pub(crate) delay: Option<Nanos>,
    /// A key of that admission controller, as in a config: goal="tail"
    #[arg(long = "key", value_name = "KEY=VALUE", requires = "concurrency")]
    pub(crate) keys: Vec<String>,
    /// Objective of the server, for an admission controller that uses one: p99=50ms,
    /// throughput=1000. With a bound and without --mode, auto lets workers rest where
    /// nothing else helps
    #[arg(long = "objective", value_name = "WHAT=HOW MUCH")]
    pub(crate) objectives: Vec<String>,
    /// Objective of each of some clients, which pslo, utslo, or one of them behind reef
    /// keeps: 'from = "10.0.0.7", port = 3307, connections = 4, objective = { p95 = "20ms" }'
    #[arg(long = "promise", value_name = "KEYS", requires = "concurrency")]
    pub(crate) promises: Vec<String>,
    /// A class of clients, which waits at the gate by its weight and order, with the keys of
    /// `client_class` in a config: 'name = "web", weight = 4, match = [{ user = "web" }]'
    #[arg(long = "client-class", value_name = "KEYS")]
    pub(crate) client_classes: Vec<String>,
    /// Cores of the threads that serve a class of clients: fixed, 'client_class = "web",
    /// cores = "0-3"', or by qos-wc, which moves cores to strict classes as long as lax ones
    /// keep theirs: 'client_class = "web", connections = 16, objective = { p99 = "20ms" }'.
    /// The server needs a thread, or a process, for each connection
    #[arg(long = "area", value_name = "KEYS", requires = "client_classes")]
    pub(crate) areas: Vec<String>,
    /// A key of qos-wc, as in a config: period="100ms"
    #[arg(long = "area-key", value_name = "KEY=VALUE", requires = "areas")]
    pub(crate) area_keys: Vec<String>,
    /// How long one transaction counts as running, 1ms to 1s; it then runs on without a slot
    #[arg(long, default_value = "50ms")]
    pub(crate) slot_lease: Nanos,
    /// The server's protocol; by default by the name of its program
    #[arg(long, value_parser = protocol_parser())]
    pub(crate) protocol: Option<Protocol>,
    /// Make workers of unix-socket connections wait, too
    #[arg(long)]
    pub(crate) gate_unix: bool,
    /// A port of the server whose connections never wait (up to four)
    #[arg(long = "exempt-port", value_name = "PORT")]
    pub(crate) exempt_ports: Vec<u16>,
    /// Clients that never wait besides the default ones, with the keys of `match` of a class:
    /// 'user = "ops"'
    #[arg(long = "bypass", value_name = "KEYS")]
    pub(crate) bypass: Vec<String>,
    /// Make monitors, replication accounts and local administrators wait, too
    #[arg(long)]
    pub(crate) no_default_bypass: bool,
    /// The longest wait of a transaction, 10ms to 5s: then it runs without a slot [default:
    /// four times the tightest bound of --objective, at most 5s]
    #[arg(long)]
    pub(crate) longest_wait: Option<Nanos>,
    /// Print the result as JSON; the output of a server that is started then goes to
    /// standard error
    #[arg(long)]
    pub(crate) json: bool,
}

impl GateArgs {
    /// The admission controller that decides on the concurrency, if one does.
    pub(crate) fn controller(&self) -> Option<&str> {
        match &self.concurrency {
            Some(Concurrency::Controlled(controller)) => Some(&controller.name),
            Some(Concurrency::Limit(_)) | None => None,
        }
    }

    /// The concurrency, if it is a number.
    pub(crate) fn limit(&self) -> Option<u32> {
        match self.concurrency {
            Some(Concurrency::Limit(limit)) => Some(limit),
            Some(Concurrency::Controlled(_)) | None => None,
        }
    }
}

/// The mode of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecMode {
    /// Statistics only
    Stats,
    /// Workers with a query wait until they are admitted
    Post,
    /// Workers without a query rest; one thread wakes those that have one, in rounds
    Epoll,
}

/// How the gate of `lull exec` wakes a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecWake {
    /// By futex, on the word of memory that it sleeps on
    Futex,
    /// By a real-time signal to its thread that the server does not use
    Signal,
}

/// Parses the name of a wire protocol; its help and its errors list them all.
pub(super) fn protocol_parser() -> impl TypedValueParser<Value = Protocol> {
    let values = Protocol::ALL
        .iter()
        .map(|protocol| PossibleValue::new(protocol.name()).help(protocol.title()));
    PossibleValuesParser::new(values).try_map(|name| {
        Protocol::from_name(&name).ok_or_else(|| format!("`{name}` is not a protocol"))
    })
}
