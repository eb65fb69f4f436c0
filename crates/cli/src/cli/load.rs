//! The arguments of `lull load`.

use clap::{ArgGroup, Args};
use lull_control::CoreSet;
use lull_measure::Nanos;
use lull_workload::apps::options::Demand;
use lull_workload::arrivals::{Process, Rate};
use lull_workload::etc::EtcConfig;
use lull_workload::target::{Address, ScriptSource};
use std::path::PathBuf;

/// `lull load`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("loop").required(true).args(["rate", "replay", "closed"])))]
pub(crate) struct LoadArgs {
    /// memcached://HOST:PORT, redis://HOST:PORT, http://HOST:PORT/PATH, h2c:// for HTTP/2,
    /// options://HOST:PORT, mysql://USER@HOST:PORT/DATABASE or
    /// postgres://USER@HOST:PORT/DATABASE; a database on a unix socket is
    /// mysql://USER@/DATABASE?socket=PATH. Under TLS: memcacheds://, rediss://, https://, h2://,
    /// and ?tls behind a database. A password is read from MYSQL_PWD, PGPASSWORD or
    /// REDISCLI_AUTH
    pub(crate) target: Address,
    /// Requests per second: 2000/s, burst:12000,4000,2s or trace:FILE.csv
    #[arg(long)]
    pub(crate) rate: Option<Rate>,
    /// Requests at the times of a recording: a file with a line for each, which begins with its
    /// time in seconds
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// Closed loop: each connection sends its next request when the last one is answered
    #[arg(long)]
    pub(crate) closed: bool,
    /// The distribution of gaps with --rate: poisson, constant or gpareto:SHAPE
    #[arg(long, default_value = "poisson", conflicts_with_all = ["closed", "replay"])]
    pub(crate) arrivals: Process,
    /// Threads that send; the connections and the requests are divided among them
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Cores on which its threads run, such as 3 or 2-3
    #[arg(long)]
    pub(crate) cores: Option<CoreSet>,
    /// Connections held open
    #[arg(long, short, default_value_t = 16)]
    pub(crate) connections: usize,
    /// Most requests under way on one connection; with HTTP/2 each is a stream
    #[arg(long, default_value_t = 1)]
    pub(crate) depth: usize,
    /// How long to send; by default until interrupted
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) duration: Option<Nanos>,
    /// Leave requests that are due before this time out of the report
    #[arg(long, default_value = "0s")]
    pub(crate) warmup: Nanos,
    /// Age at which a request counts as timed out
    #[arg(long, default_value = "10s")]
    pub(crate) timeout: Nanos,
    /// Stay awake for this long before a request is due (more accurate, costs CPU time)
    #[arg(long, default_value = "0us")]
    pub(crate) spin: Nanos,
    /// Seed: the same seed sends the same requests at the same times
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Unix socket of an agent to push to
    #[arg(long, env = "LULL_SOCKET", requires = "app")]
    pub(crate) push: Option<PathBuf>,
    /// The app's name in the agent's config
    #[arg(long, env = "LULL_APP", requires = "push")]
    pub(crate) app: Option<String>,
    /// Skip storing memcached's keys, or creating the tables of a built-in script
    #[arg(long)]
    pub(crate) no_preload: bool,
    /// Databases: the statements of one request: tpcb-like, tpcc-like (five transactions in TPC-C's
    /// mix), hot-rows (transactions that contend for twelve rows), or a file of statements with
    /// \set and \sleep as in pgbench, and \transaction between several
    #[arg(long, default_value = "tpcb-like")]
    pub(crate) script: ScriptSource,
    /// Databases: size of the built-in tables in 100,000 accounts or in warehouses, and :scale in
    /// scripts
    #[arg(long, default_value_t = 1)]
    pub(crate) scale: u32,
    /// Databases: send statements as text instead of preparing them
    #[arg(long)]
    pub(crate) simple: bool,
    /// Databases: attempts at a transaction that a deadlock or serialization failure ends
    #[arg(long, default_value_t = 1)]
    pub(crate) tries: u32,
    /// Length of an options request: paths at volatility 0.2 and value 1
    #[arg(long, default_value_t = Demand::default().base_paths)]
    pub(crate) base_paths: f64,
    /// memcached, Redis: number of different keys
    #[arg(long, default_value_t = EtcConfig::default().records)]
    pub(crate) records: u32,
    /// memcached, Redis: share of requests that store, 0 to 1
    #[arg(long, default_value_t = EtcConfig::default().set_share)]
    pub(crate) set_share: f64,
    /// TLS: certificates of the authorities that are trusted (PEM), instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// TLS: accept any certificate
    #[arg(long, conflicts_with = "tls_ca")]
    pub(crate) tls_insecure: bool,
    /// Write the latencies as an HDR histogram (V2, base64) to this file
    #[arg(long)]
    pub(crate) hdr: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
