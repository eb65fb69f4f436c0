//! PostgreSQL under pgbench in servers of their own: bare and watched.

use super::super::process::Running;
use super::super::server::{free_address, served};
use super::Report;
use super::contest::{
    BARE, Case, Figure, Load, MANY_ROUNDS, RUN_S, STATS, Served, Setting, at_least, at_most, how,
    measured,
};
use super::pgbench::read;
use super::ran::LoadRun;
use super::succeeded;
use super::tls::{self, Files, GAIN_ROUNDS, OverTls, gain_over_tls, in_both_ways};
use anyhow::{Context as _, Result, bail};
use rustix::process::geteuid;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Branches: what all clients update one of.
const SCALE: u32 = 16;
const CLIENTS: u32 = 256;
/// The user that PostgreSQL runs as if this program is root, which it refuses.
pub(super) const NOBODY: u32 = 65_534;
/// How long it may take from listening to answering.
pub(super) const START_MAX: Duration = Duration::from_secs(60);

const SETTINGS: [Setting; 2] = [BARE, STATS];

/// A server with its data, and where its clients log.
struct Database {
    setting: Setting,
    address: SocketAddr,
    server: Running,
    logs: TempDir,
}

fn cases() -> Vec<Case> {
    vec![Case {
        title: format!("PostgreSQL, TPC-B-like, {CLIENTS} clients"),
        load: Load { script: "tpcb-like", connections: CLIENTS },
        settings: &SETTINGS,
        rounds: MANY_ROUNDS,
        bounds: vec![at_least("watched", "bare", 0.97)],
    }]
}

/// Returns the bounds when its clients connect over TLS.
fn tls_cases() -> Vec<Case> {
    vec![Case {
        title: format!("PostgreSQL: TPC-B-like, {CLIENTS} clients"),
        load: Load { script: "tpcb-like", connections: CLIENTS },
        settings: tls::WAYS,
        rounds: GAIN_ROUNDS,
        bounds: vec![
            at_most("cap 16 over TLS", "bare over TLS", Figure::P95, 0.8),
            gain_over_tls(Figure::Throughput),
            gain_over_tls(Figure::P95),
        ],
    }]
}

/// Measures what the gate gains where clients connect over TLS, and where they do not.
pub(super) fn measure_tls(lull: &Path, report: &mut Report) -> Result<()> {
    let (place, keys) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let files = Files::create(keys.path())?;
    let databases = started(lull, place.path(), tls::SERVERS, Some(&files))?;
    for case in tls_cases() {
        measured(&case, &in_both_ways(&databases), report)?;
    }
    report.note(format!(
        "PostgreSQL {}, as in `bench postgres`, {RUN_S} s a run, {GAIN_ROUNDS} rounds in turn \
         after one to warm up; all connections of a run are over TLS, or none.",
        super::version(&super::found("postgres")?)?
    ));
    Ok(())
}

/// Starts a server of each setting on the same data in the directory `place`; clients may then
/// connect over TLS if it has `files` for that.
fn started(
    lull: &Path,
    place: &Path,
    settings: &[Setting],
    files: Option<&Files>,
) -> Result<Vec<Database>> {
    super::make_readable(place)?;
    // User 65534 may execute this copy, wherever the original was built.
    let own = place.join("lull");
    succeeded(Command::new("install").arg("--mode=755").arg(lull).arg(&own))?;
    let model = install(place, SCALE)?;
    if let Some(files) = files {
        files.copy_into(&model)?;
    }
    let start = |setting: &Setting| Database::start(&own, *setting, &model, files.is_some());
    settings.iter().map(start).collect()
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    let databases = started(lull, place.path(), &SETTINGS, None)?;
    for case in cases() {
        measured(&case, &databases, report)?;
    }
    report.note(format!(
        "PostgreSQL: {}, scale {SCALE}, without fsync, autovacuum and checkpoints, pgbench on the \
         same cores, which vacuums before each run, {}; latency is that of a transaction, from \
         pgbench's log of each; a transaction is 7 queries.",
        super::version(&super::found("postgres")?)?,
        how(&cases())
    ));
    Ok(())
}

impl Database {
    fn start(lull: &Path, setting: Setting, model: &Path, has_tls: bool) -> Result<Self> {
        let own = model.with_file_name(setting.name.replace(' ', "-"));
        succeeded(Command::new("cp").arg("-a").arg(model).arg(&own))?;
        let address = free_address()?;
        let mut command = command(lull, setting.exec, &super::found("postgres")?);
        command.args(server_options(&own, address)).args(setting.options).current_dir(&own);
        command.args(["-c", if has_tls { "ssl=on" } else { "ssl=off" }]);
        let server = served(command.stderr(Stdio::null()), address)?;
        let database = Self { setting, address, server, logs: tempfile::tempdir()? };
        wait_until_it_answers(address)?;
        Ok(database)
    }

    /// Loads it by connections of this kind, one of libpq's `sslmode`.
    fn load_by(&self, ssl_mode: &str, load: Load, seconds: u32) -> Result<LoadRun> {
        let script = format!("--builtin={}", load.script);
        let clients = format!("--client={}", load.connections);
        let time = format!("--time={seconds}");
        let prefix = format!("--log-prefix={}", self.logs.path().join("log").display());
        // The tables are vacuumed first, as pgbench does by default.
        let arguments = ["--jobs=2", "--log", &prefix, &script, &clients, &time];
        let mut pgbench = pgbench_command(self.address, &arguments)?;
        let output = pgbench.env("PGSSLMODE", ssl_mode).output();
        let output = output.context("cannot start pgbench")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let logs = self.take_logs()?;
        if !output.status.success() {
            bail!("pgbench failed: {text}{}", String::from_utf8_lossy(&output.stderr));
        }
        read(&text, &logs)
    }

    /// The logs of the last run, which go.
    fn take_logs(&self) -> Result<Vec<String>> {
        let mut logs = Vec::new();
        for entry in std::fs::read_dir(self.logs.path())? {
            let path = entry?.path();
            logs.push(std::fs::read_to_string(&path)?);
            std::fs::remove_file(path)?;
        }
        Ok(logs)
    }
}

impl Served for Database {
    const CLIENT: &'static str = "pgbench";

    fn setting(&self) -> Setting {
        self.setting
    }

    fn pid(&self) -> u32 {
        self.server.pid()
    }

    fn load(&self, load: Load, seconds: u32) -> Result<LoadRun> {
        self.load_by("disable", load, seconds)
    }
}

impl OverTls for Database {
    fn load_over_tls(&self, load: Load, seconds: u32) -> Result<LoadRun> {
        self.load_by("require", load, seconds)
    }
}

pub(super) fn pgbench(address: SocketAddr, arguments: &[&str]) -> Result<Output> {
    pgbench_command(address, arguments)?.output().context("cannot start pgbench")
}

/// pgbench on the database of a server.
pub(super) fn pgbench_command(address: SocketAddr, arguments: &[&str]) -> Result<Command> {
    let mut pgbench = Command::new(super::found("pgbench")?);
    pgbench.args(["--host=127.0.0.1", "--username=postgres"]);
    pgbench.arg(format!("--port={}", address.port())).args(arguments).arg("postgres");
    Ok(pgbench)
}

/// Waits until a server that listens answers, which takes a little longer.
pub(super) fn wait_until_it_answers(address: SocketAddr) -> Result<()> {
    let begun = Instant::now();
    while !pgbench(address, &["--no-vacuum", "--transactions=1"])?.status.success() {
        if begun.elapsed() > START_MAX {
            bail!("PostgreSQL does not answer at {address}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A program as the user that the server is to run as.
pub(super) fn unprivileged(program: &Path) -> Command {
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    command.args(ids).args(["--clear-groups", "--"]).arg(program);
    command
}

/// A program of the server's, under `lull exec` with these options or bare.
fn command(lull: &Path, exec: Option<&[&str]>, program: &Path) -> Command {
    let Some(options) = exec else { return unprivileged(program) };
    let mut command = unprivileged(lull);
    command.arg("exec").args(options).arg("--").arg(program);
    command
}

pub(super) fn server_options(data: &Path, address: SocketAddr) -> Vec<String> {
    let settings = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "shared_buffers=256MB",
        "max_connections=300",
        // Work that one server puts off must not fall into another's run.
        "autovacuum=off",
        "checkpoint_timeout=1d",
        "max_wal_size=16GB",
    ];
    let settings = settings.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]);
    let own = ["-D".to_owned(), data.display().to_string()];
    let port = ["-p".to_owned(), address.port().to_string()];
    own.into_iter().chain(port).chain(settings).collect()
}

/// A data directory with the tables of pgbench in it.
pub(super) fn install(place: &Path, scale: u32) -> Result<PathBuf> {
    let data = place.join("model");
    std::fs::create_dir(&data)?;
    if geteuid().is_root() {
        chown(&data, Some(NOBODY), Some(NOBODY))?;
    }
    let mut install = unprivileged(&super::found("initdb")?);
    install.arg("-D").arg(&data).args(["--auth=trust", "--username=postgres", "--no-sync"]);
    succeeded(install.current_dir(&data).stdout(Stdio::null()))?;
    let address = free_address()?;
    let mut command = command(place, None, &super::found("postgres")?);
    command.args(server_options(&data, address)).current_dir(&data);
    let server = served(command.stderr(Stdio::null()), address)?;
    let begun = Instant::now();
    let scale = format!("--scale={scale}");
    while !pgbench(address, &["--initialize", "--quiet", &scale])?.status.success() {
        if begun.elapsed() > START_MAX {
            bail!("pgbench cannot fill its tables at {address}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    // A server that has ended has written all its output.
    drop(server);
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_is_on_settings_that_take_part_and_the_bare_server_is_the_first() {
        super::super::contest::testing::check(&cases());
        super::super::contest::testing::check(&tls_cases());
    }
}
