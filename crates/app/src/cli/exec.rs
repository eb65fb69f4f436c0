//! The arguments of `lull exec`.

use clap::{Args, ValueEnum};
use lull_measure::Nanos;
use std::ffi::OsString;

/// `lull exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// What the server is called in what is printed; default: its program
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// stats watches, post makes workers wait that have a query, epoll lets workers
    /// rest that have none, and calls them in rounds; with --cap post
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ExecMode>,
    /// C: transactions under way at most (modes post and epoll)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) cap: Option<u32>,
    /// N: transactions that a worker may run a turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batch: u32,
    /// How a waiting worker is woken: by futex, or by a signal as in the paper, to
    /// compare (a server that is one process)
    #[arg(long, value_enum, default_value_t = ExecWake::Futex)]
    pub(crate) wake: ExecWake,
    /// D: pause between rounds, at most 100ms; by default none, which hands slots on at
    /// once, and 1ms in mode epoll, the least there
    #[arg(long)]
    pub(crate) delay: Option<Nanos>,
    /// Lets a regulator decide on cap, batch and pause while the server runs: auto closes
    /// the gate only where that helps (`lull policies` lists them all); with --mode epoll
    /// it decides on those of that mode
    #[arg(long, value_name = "NAME", conflicts_with_all = ["cap", "batch", "delay"])]
    pub(crate) regulator: Option<String>,
    /// A key of that regulator, as in a config: goal="tail"
    #[arg(long = "key", value_name = "KEY=VALUE", requires = "regulator")]
    pub(crate) keys: Vec<String>,
    /// How long one transaction counts against the cap, 1ms to 1s; it runs on after
    #[arg(long, default_value = "50ms")]
    pub(crate) slot_lease: Nanos,
    /// The server's protocol; by default by the name of its program
    #[arg(long, value_enum)]
    pub(crate) protocol: Option<ExecProtocol>,
    /// Make workers of unix-socket connections wait, too
    #[arg(long)]
    pub(crate) gate_unix: bool,
    /// A port of the server whose connections never wait (up to four)
    #[arg(long = "exempt-port", value_name = "PORT")]
    pub(crate) exempt_ports: Vec<u16>,
    /// Print what was seen as JSON; the server's output then goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// The server and its arguments
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

/// What the gate of `lull exec` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecMode {
    /// Statistics only
    Stats,
    /// Workers with a query wait until they are admitted
    Post,
    /// Workers without a query rest; one thread calls those that have one, in rounds
    Epoll,
}

/// How the gate of `lull exec` wakes a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecWake {
    /// By the word of memory that it sleeps on
    Futex,
    /// By a real-time signal to its thread that the server does not use
    Signal,
}

/// A protocol that the on-call runtime reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExecProtocol {
    /// None: statistics only
    Generic,
    /// MySQL and MariaDB
    Mysql,
    /// PostgreSQL
    Postgres,
}
