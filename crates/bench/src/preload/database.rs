//! MariaDB under sysbench in servers of their own: bare, watched, gated, and with its own pool
//! of threads.

use super::super::process::Running;
use super::super::server::{free_address, served};
use super::Report;
use super::contest::{
    BARE, Bound, CAP_16, Case, Figure, Load, MANY_ROUNDS, ROUNDS, RUN_S, STATS, Served, Setting,
    at_least, at_most, how, measured,
};
use super::product::{Product, socket};
use super::ran::LoadRun;
use super::succeeded;
use super::tls::{self, Files, GAIN_ROUNDS, OverTls, gain_over_tls, in_both_ways};
use anyhow::{Context as _, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TABLES: u32 = 8;
/// How often a run over TLS is tried whose clients cannot connect, and what sysbench prints then.
const TLS_TRIES: u32 = 3;
const CANNOT_CONNECT: &str = "unable to connect";

const POOL: Setting = Setting {
    name: "own thread pool",
    exec: None,
    options: &["--thread-handling=pool-of-threads"],
};

/// Where the tables are when they are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Store {
    /// Rows of each table.
    rows: u32,
    /// Options of the server's.
    pub(super) options: &'static [&'static str],
}

pub(super) const MEMORY: Store =
    Store { rows: 20_000, options: &["--innodb-buffer-pool-size=512M"] };
/// The tables are about ten times its memory, and nothing of the kernel's holds them.
pub(super) const DISK: Store = Store {
    rows: 200_000,
    options: &["--innodb-buffer-pool-size=48M", "--innodb-flush-method=O_DIRECT"],
};

/// The tables of TPC-C grow while it runs.
pub(super) const GROWING: Store =
    Store { rows: 20_000, options: &["--innodb-buffer-pool-size=2G"] };

const IN_MEMORY: &[Setting] = &[BARE, POOL, STATS, CAP_16];

fn case(
    script: &'static str,
    connections: u32,
    settings: &'static [Setting],
    bounds: Vec<Bound>,
) -> Case {
    let name = script.trim_start_matches("oltp_").replace('_', "-");
    let title = format!("{name}, {connections} connections");
    Case { title, load: Load { script, connections }, settings, rounds: ROUNDS, bounds }
}

/// Returns the cases that need a server of their own: the bare one, and one with its own pool.
fn cases() -> Vec<Case> {
    let watched = |least| vec![at_least("watched", "bare", least)];
    let select = case("oltp_point_select", 64, &[BARE, STATS], watched(0.98));
    vec![
        case(
            "oltp_read_write",
            512,
            &[BARE, CAP_16, POOL],
            vec![
                at_least("cap 16", "bare", 1.6),
                at_most("cap 16", "bare", Figure::P99, 0.3),
                at_most("cap 16", "bare", Figure::P999, 0.25),
                at_least("cap 16", "own thread pool", 1.0),
                at_most("cap 16", "own thread pool", Figure::P99, 1.0),
            ],
        ),
        case("oltp_read_write", 64, &[BARE, STATS], watched(0.97)),
        Case { rounds: MANY_ROUNDS, ..select },
    ]
}

/// Returns the bounds of MariaDB when its clients connect over TLS.
fn tls_cases() -> Vec<Case> {
    let bounds = vec![
        at_least("cap 16 over TLS", "bare over TLS", 1.3),
        at_most("cap 16 over TLS", "bare over TLS", Figure::P99, 0.4),
        gain_over_tls(Figure::Throughput),
        gain_over_tls(Figure::P99),
    ];
    let case = case("oltp_read_write", 512, tls::WAYS, bounds);
    vec![Case { title: format!("MariaDB: {}", case.title), rounds: GAIN_ROUNDS, ..case }]
}

/// A server with its data.
pub(super) struct Database {
    setting: Setting,
    store: Store,
    address: SocketAddr,
    socket: PathBuf,
    /// The working directory of clients over TLS.
    tls: Option<PathBuf>,
    server: Running,
}

/// Where clients meet a server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meeting<'m> {
    Tcp(SocketAddr),
    /// Over TLS, with this working directory of the client's.
    Tls(SocketAddr, &'m Path),
    Unix(&'m Path),
}

/// Measures the cases of the design, in memory.
pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    let (product, cases) = (&Product::MariaDb, cases());
    let field = Field { lull, place: place.path(), product, store: MEMORY, tls: None };
    contest(&field, IN_MEMORY, &cases, report)?;
    report.note(format!(
        "{}: {} in memory, {TABLES} tables of {} rows, sysbench on the same cores, {}; latency is \
         that of a transaction, as its client sees it. Context switches are those of 5 s in the \
         middle of a run, over the queries of 5 s. Ratios are those of the runs of one round.",
        product.name(),
        super::version(&product.program()?)?,
        MEMORY.rows,
        how(&cases)
    ));
    Ok(())
}

/// Measures what the gate gains where clients connect over TLS, and where they do not.
pub(super) fn measure_tls(lull: &Path, report: &mut Report) -> Result<()> {
    let (place, keys) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let files = Files::create(keys.path())?;
    let product = &Product::MariaDb;
    let field = Field { lull, place: place.path(), product, store: MEMORY, tls: Some(&files) };
    let databases = started(&field, tls::SERVERS)?;
    for case in tls_cases() {
        measured(&case, &in_both_ways(&databases), report)?;
    }
    report.note(format!(
        "MariaDB {} in memory under sysbench on the same cores, {RUN_S} s a run, {GAIN_ROUNDS} \
         rounds in turn after one to warm up; all connections of a run are over TLS, or none. A \
         run over TLS in which sysbench cannot connect is repeated, {TLS_TRIES} times at most, \
         and named on standard error.",
        super::version(&product.program()?)?
    ));
    Ok(())
}

/// Starts a server of each setting on the same data in memory, in the directory `place`.
pub(super) fn start_in_memory(
    lull: &Path,
    place: &Path,
    settings: &[Setting],
) -> Result<Vec<Database>> {
    let product = &Product::MariaDb;
    started(&Field { lull, place, product, store: MEMORY, tls: None }, settings)
}

/// The programs that are measured, and where they run.
struct Field<'f> {
    lull: &'f Path,
    place: &'f Path,
    product: &'f Product,
    store: Store,
    /// The certificates of servers whose clients may connect over TLS.
    tls: Option<&'f Files>,
}

/// Starts a server of each setting on the same data, and measures the cases.
fn contest(
    field: &Field<'_>,
    settings: &[Setting],
    cases: &[Case],
    report: &mut Report,
) -> Result<()> {
    let databases = started(field, settings)?;
    cases.iter().try_for_each(|case| measured(case, &databases, report))
}

/// Starts a server of each setting on the same data.
fn started(field: &Field<'_>, settings: &[Setting]) -> Result<Vec<Database>> {
    let model = field.place.join("model");
    install(field.product, &model, field.place, field.store)?;
    settings.iter().map(|setting| Database::start(field, *setting, &model)).collect()
}

impl Database {
    fn start(field: &Field<'_>, setting: Setting, model: &Path) -> Result<Self> {
        let Field { lull, product, store, tls, .. } = *field;
        let own = model.with_file_name(directory_name(&setting));
        succeeded(Command::new("cp").arg("-a").arg(model).arg(&own))?;
        let address = free_address()?;
        let mut command = super::command(lull, setting.exec, &product.program()?);
        command.args(product.options(&own, address)).args(store.options).args(setting.options);
        command.args(tls.into_iter().flat_map(Files::options));
        let server = served(command.stderr(Stdio::null()), address)?;
        let tls = tls.map(|files| files.directory().to_owned());
        Ok(Self { setting, store, address, socket: socket(&own), tls, server })
    }
}

impl Served for Database {
    const CLIENT: &'static str = "sysbench";

    fn setting(&self) -> Setting {
        self.setting
    }

    fn pid(&self) -> u32 {
        self.server.pid()
    }

    fn load(&self, load: Load, seconds: u32) -> Result<LoadRun> {
        self.sysbench(Meeting::Tcp(self.address), load, &["run", &format!("--time={seconds}")])
    }
}

impl OverTls for Database {
    fn load_over_tls(&self, load: Load, seconds: u32) -> Result<LoadRun> {
        let directory = self.tls.as_deref().context("a server without key and certificate")?;
        let (at, time) = (Meeting::Tls(self.address, directory), format!("--time={seconds}"));
        let run = || self.sysbench(at, load, &["run", &time]);
        for _ in 1..TLS_TRIES {
            match run() {
                Err(error) if error.to_string().contains(CANNOT_CONNECT) => {
                    eprintln!("{}: repeated: {error:#}", self.setting.name);
                }
                done => return done,
            }
        }
        run()
    }
}

impl Database {
    /// Loads it with this many queries a second at most, over its unix socket.
    pub(super) fn load_at(&self, load: Load, seconds: u32, queries_per_s: u32) -> Result<LoadRun> {
        let (time, rate) = (format!("--time={seconds}"), format!("--rate={queries_per_s}"));
        self.sysbench(Meeting::Unix(&self.socket), load, &["run", &time, &rate])
    }

    /// Loads it by clients with objectives, if the setting has any.
    pub(super) fn load_promised(&self, load: Load, seconds: u32) -> Result<LoadRun> {
        let port = self.setting.extra_port().unwrap_or(self.address.port());
        let address = SocketAddr::new(self.address.ip(), port);
        self.sysbench(Meeting::Tcp(address), load, &["run", &format!("--time={seconds}")])
    }

    fn sysbench(&self, at: Meeting<'_>, load: Load, action: &[&str]) -> Result<LoadRun> {
        super::sysbench::read(&sysbench(at, load, self.store, action)?)
    }
}

/// The name of a server's directory. sysbench takes a comma for the end of a socket's name, and
/// MariaDB a colon for the end of one directory for temporary files.
fn directory_name(setting: &Setting) -> String {
    setting.name.replace(|one: char| !one.is_ascii_alphanumeric(), "-")
}

/// A data directory with the tables of sysbench in it.
fn install(product: &Product, data: &Path, place: &Path, store: Store) -> Result<()> {
    let (_server, address) = create(product, data, place, store)?;
    prepare_sysbench(address, store)
}

/// Fills the tables of sysbench at a server that has none.
pub(super) fn prepare_sysbench(address: SocketAddr, store: Store) -> Result<()> {
    let load = Load { script: "oltp_read_write", connections: 4 };
    sysbench(Meeting::Tcp(address), load, store, &["prepare"]).map(drop)
}

/// Makes a data directory with an empty schema, and starts a server on it.
pub(super) fn create(
    product: &Product,
    data: &Path,
    place: &Path,
    store: Store,
) -> Result<(Running, SocketAddr)> {
    product.initialise(data, place)?;
    let address = free_address()?;
    let mut command = Command::new(product.program()?);
    command.args(product.options(data, address)).args(store.options);
    let server = served(command.stderr(Stdio::null()), address)?;
    let socket = format!("--socket={}", socket(data).display());
    let mut create = Command::new("mariadb");
    create.args(["-uroot", &socket, "--skip-ssl", "-e", product.first_statements()]);
    succeeded(&mut create)?;
    Ok((server, address))
}

fn sysbench(at: Meeting<'_>, load: Load, store: Store, action: &[&str]) -> Result<String> {
    let output = sysbench_command(at, load, store, action)?.output();
    let output = output.context("cannot start sysbench")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "sysbench {} {action:?} failed: {text}{}",
            load.script,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(text)
}

/// sysbench on the tables of a store, with a histogram at its end.
pub(super) fn sysbench_command(
    at: Meeting<'_>,
    load: Load,
    store: Store,
    action: &[&str],
) -> Result<Command> {
    let Load { script, connections } = load;
    let mut sysbench = Command::new(super::found("sysbench")?);
    sysbench.args([script, "--db-driver=mysql", "--mysql-user=root"]);
    let tls = if matches!(at, Meeting::Tls(..)) { "on" } else { "off" };
    sysbench.arg(format!("--mysql-ssl={tls}"));
    if let Meeting::Tls(_, directory) = at {
        sysbench.current_dir(directory);
    }
    match at {
        Meeting::Tcp(address) | Meeting::Tls(address, _) => {
            sysbench.arg("--mysql-host=127.0.0.1").arg(format!("--mysql-port={}", address.port()))
        }
        Meeting::Unix(socket) => sysbench
            .arg("--mysql-host=localhost")
            .arg(format!("--mysql-socket={}", socket.display())),
    };
    sysbench.arg("--histogram=on");
    sysbench.args([format!("--tables={TABLES}"), format!("--table-size={}", store.rows)]);
    sysbench.arg(format!("--threads={connections}")).args(action);
    Ok(sysbench)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_bound_is_on_settings_that_take_part_and_the_bare_server_is_the_first() {
        for cases in [cases(), tls_cases()] {
            super::super::contest::testing::check(&cases);
        }
    }

    #[test]
    fn directories_of_servers_have_names_that_no_option_takes_apart() {
        let setting = Setting { name: "classes 9:1, cap 16", ..BARE };
        assert_eq!(directory_name(&setting), "classes-9-1--cap-16");
    }

    #[test]
    fn every_case_has_a_title_and_servers_of_its_own() {
        for (cases, servers) in [(cases(), IN_MEMORY), (tls_cases(), tls::WAYS)] {
            let titles: BTreeSet<&str> = cases.iter().map(|case| case.title.as_str()).collect();
            assert_eq!(titles.len(), cases.len());
            let running: BTreeSet<&str> = servers.iter().map(|setting| setting.name).collect();
            for setting in cases.iter().flat_map(|case| case.settings) {
                assert!(running.contains(setting.name), "{}", setting.name);
            }
        }
    }
}
