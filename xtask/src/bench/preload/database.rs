//! MariaDB under sysbench: watched, gated, and with its own pool of threads.

use super::super::process::{Running, usage};
use super::super::server::{free_address, served};
use super::super::stats::{BoxedContender, Summary, interleave_all, ratios};
use super::{Report, sysbench::Ran};
use anyhow::{Context as _, Result, bail};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const ROUNDS: usize = 3;
const RUN_S: u32 = 10;
/// Time that a search has under each load before it is measured.
const SEARCH_S: u32 = 75;
const TABLES: u32 = 8;
const ROWS: u32 = 20_000;

/// How a server is run.
#[derive(Debug, Clone, Copy)]
struct Setting {
    name: &'static str,
    /// Options of `lull exec`; `None` without.
    exec: Option<&'static [&'static str]>,
    /// Further options of the server.
    options: &'static [&'static str],
}

const BARE: Setting = Setting { name: "bare", exec: None, options: &[] };
const POOL: Setting = Setting {
    name: "own thread pool",
    exec: None,
    options: &["--thread-handling=pool-of-threads"],
};
const STATS: Setting = Setting { name: "watched", exec: Some(&[]), options: &[] };
const CAP_8: Setting = Setting { name: "cap 8", exec: Some(&["--cap", "8"]), options: &[] };
const CAP_16: Setting = Setting { name: "cap 16", exec: Some(&["--cap", "16"]), options: &[] };
const AUTO: Setting = Setting {
    name: "auto",
    exec: Some(&["--regulator", "auto", "--key", "goal=\"throughput\""]),
    options: &[],
};
const AUTO_TAIL: Setting = Setting {
    name: "auto for tails",
    exec: Some(&["--regulator", "auto", "--key", "goal=\"tail\""]),
    options: &[],
};
const SETTINGS: [Setting; 7] = [BARE, POOL, STATS, CAP_8, CAP_16, AUTO, AUTO_TAIL];

/// A figure of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Figure {
    Throughput,
    P99,
    P999,
}

/// One setting over another by one figure, and what it must keep.
struct Bound {
    setting: &'static str,
    over: &'static str,
    figure: Figure,
    range: RangeInclusive<f64>,
}

/// A load and who takes turns under it; the first is the bare server.
struct Case {
    title: &'static str,
    script: &'static str,
    connections: u32,
    settings: &'static [Setting],
    bounds: Vec<Bound>,
}

const fn at_least(setting: &'static str, over: &'static str, least: f64) -> Bound {
    Bound { setting, over, figure: Figure::Throughput, range: least..=f64::INFINITY }
}

const fn at_most(setting: &'static str, over: &'static str, figure: Figure, most: f64) -> Bound {
    Bound { setting, over, figure, range: 0.0..=most }
}

fn cases() -> Vec<Case> {
    use Figure::{P99, P999};
    let case = |title, script, connections, settings, bounds| Case {
        title,
        script,
        connections,
        settings,
        bounds,
    };
    vec![
        case(
            "read-write, 512 connections",
            "oltp_read_write",
            512,
            &[BARE, CAP_16, AUTO, POOL],
            vec![
                at_least("cap 16", "bare", 1.6),
                at_most("cap 16", "bare", P99, 0.3),
                at_most("cap 16", "bare", P999, 0.25),
                at_least("auto", "bare", 1.6),
                at_least("cap 16", "own thread pool", 1.0),
                at_most("cap 16", "own thread pool", P99, 1.0),
            ],
        ),
        case(
            "read-write, 256 connections",
            "oltp_read_write",
            256,
            &[BARE, CAP_16],
            vec![at_least("cap 16", "bare", 1.15), at_most("cap 16", "bare", P99, 0.5)],
        ),
        case(
            "read-write, 64 connections",
            "oltp_read_write",
            64,
            &[BARE, STATS, CAP_8, AUTO, AUTO_TAIL],
            vec![
                at_least("watched", "bare", 0.97),
                at_most("cap 8", "bare", P99, 0.7),
                at_least("auto", "bare", 0.97),
                at_most("auto for tails", "bare", P99, 0.7),
            ],
        ),
        case(
            "point select, 64 connections",
            "oltp_point_select",
            64,
            &[BARE, STATS, AUTO],
            vec![at_least("watched", "bare", 0.98), at_least("auto", "bare", 0.98)],
        ),
    ]
}

/// A server with its data.
struct Database {
    setting: Setting,
    address: SocketAddr,
    server: Running,
}

/// A run and the server's CPU time.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    ran: Ran,
    cpu_us: f64,
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    let model = place.path().join("model");
    install(&model, place.path())?;
    let databases: Result<Vec<Database>> = SETTINGS
        .iter()
        .enumerate()
        .map(|(at, setting)| Database::start(lull, *setting, &model, &place, at))
        .collect();
    let databases = databases?;
    for case in cases() {
        measured(&case, &databases, report)?;
    }
    report.note(format!(
        "MariaDB: {} in memory, {TABLES} tables of {ROWS} rows, sysbench on the same cores, \
         {RUN_S} s a run (auto has had {SEARCH_S} s of each load to decide), {ROUNDS} rounds in \
         turn after one to warm up; latency is that of a transaction, as its client sees it. \
         Ratios are those of the runs of one round.",
        version()?
    ));
    Ok(())
}

fn measured(case: &Case, databases: &[Database], report: &mut Report) -> Result<()> {
    let seen: Vec<_> = case.settings.iter().map(|_| RefCell::new(Vec::new())).collect();
    let contenders = case.settings.iter().zip(&seen).map(|(setting, seen)| {
        let database = databases.iter().find(|one| one.setting.name == setting.name);
        Box::new(move || {
            let one = database.context("there is no such setting")?.run(case)?;
            let rate = one.ran.queries_per_s;
            seen.borrow_mut().push(one);
            Ok(rate)
        }) as BoxedContender<'_>
    });
    let mut contenders: Vec<_> = contenders.collect();
    // What finds its setting while it runs has found it before it is measured.
    for setting in case.settings.iter().filter(|setting| setting.name.starts_with("auto")) {
        let database = databases.iter().find(|one| one.setting.name == setting.name);
        database.context("there is no such setting")?.load(case, SEARCH_S)?;
    }
    interleave_all(ROUNDS, &mut contenders)?;
    drop(contenders);
    let seen: Vec<Vec<Seen>> =
        seen.into_iter().map(|seen| seen.into_inner().split_off(1)).collect();
    for (setting, seen) in case.settings.iter().zip(&seen) {
        figures(report, &format!("{}: {}", case.title, setting.name), seen);
    }
    for bound in &case.bounds {
        let of = |name| case.settings.iter().position(|setting| setting.name == name);
        let both = of(bound.setting).zip(of(bound.over)).context("a bound on no setting")?;
        bound.row(report, case.title, &seen[both.0], &seen[both.1]);
    }
    Ok(())
}

fn figures(report: &mut Report, what: &str, seen: &[Seen]) {
    let of = |figure: &dyn Fn(&Seen) -> f64| Summary::of(seen.iter().map(figure));
    report.reported(&format!("{what}, queries/s"), of(&|one| one.ran.queries_per_s), "1/s");
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)] {
        let quantile = of(&|one| one.ran.quantile_ms(share));
        report.reported(&format!("{what}, {name}"), quantile, "ms");
    }
    report.reported(&format!("{what}, CPU a query"), of(&|one| one.cpu_us), "us");
}

impl Figure {
    fn of(self, seen: &Seen) -> f64 {
        match self {
            Self::Throughput => seen.ran.queries_per_s,
            Self::P99 => seen.ran.quantile_ms(0.99),
            Self::P999 => seen.ran.quantile_ms(0.999),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "queries/s",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
        }
    }
}

impl Bound {
    fn row(&self, report: &mut Report, title: &str, ours: &[Seen], theirs: &[Seen]) {
        let all =
            |seen: &[Seen]| -> Vec<f64> { seen.iter().map(|one| self.figure.of(one)).collect() };
        let what = format!("{title}: {}, {} / {}", self.figure.name(), self.setting, self.over);
        report.bounded(&what, ratios(&all(ours), &all(theirs)), "ratio", self.range.clone());
    }
}

impl Database {
    fn start(
        lull: &Path,
        setting: Setting,
        model: &Path,
        place: &TempDir,
        at: usize,
    ) -> Result<Self> {
        let own = place.path().join(at.to_string());
        let mut copy = Command::new("cp");
        succeeded(copy.arg("-a").arg(model).arg(&own))?;
        let address = free_address()?;
        let mut command = super::command(lull, setting.exec, &super::found("mariadbd")?);
        command.args(server_options(&own, address)).args(setting.options);
        Ok(Self { setting, address, server: served(command.stderr(Stdio::null()), address)? })
    }

    fn run(&self, case: &Case) -> Result<Seen> {
        let before = usage(self.server.pid())?.cpu_s;
        let ran = Ran::of(&self.load(case, RUN_S)?)?;
        let cpu_s = usage(self.server.pid())?.cpu_s - before;
        let cpu_us = cpu_s * 1e6 / ran.queries;
        Ok(Seen { ran, cpu_us })
    }

    /// What sysbench printed of so many seconds.
    fn load(&self, case: &Case, seconds: u32) -> Result<String> {
        let time = format!("--time={seconds}");
        sysbench(self.address, case.script, case.connections, &["run", &time])
    }
}

fn server_options(data: &Path, address: SocketAddr) -> Vec<String> {
    let path = |option: &str, name: &str| format!("--{option}={}", data.join(name).display());
    let all = [
        "--no-defaults",
        "--user=root",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        "--max-connections=600",
        "--max-prepared-stmt-count=100000",
        "--innodb-buffer-pool-size=512M",
        "--innodb-flush-log-at-trx-commit=2",
    ];
    let own = [
        format!("--datadir={}", data.display()),
        format!("--tmpdir={}", data.display()),
        format!("--port={}", address.port()),
        path("socket", "socket"),
        path("pid-file", "pid"),
    ];
    all.map(str::to_owned).into_iter().chain(own).collect()
}

/// A data directory with the tables of sysbench in it.
fn install(data: &Path, place: &Path) -> Result<()> {
    let mut install = Command::new(super::found("mariadb-install-db")?);
    install.args(["--no-defaults", "--user=root", "--auth-root-authentication-method=normal"]);
    // A server that starts removes others' temporary tables where they share a directory.
    install.arg(format!("--datadir={}", data.display())).env("TMPDIR", place);
    succeeded(install.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let address = free_address()?;
    let mut command = Command::new(super::found("mariadbd")?);
    command.args(server_options(data, address));
    let _server = served(command.stderr(Stdio::null()), address)?;
    let port = format!("--port={}", address.port());
    let mut create = Command::new("mariadb");
    create.args(["-uroot", "--host=127.0.0.1", &port, "--skip-ssl"]);
    succeeded(create.args(["-e", "create database sbtest"]))?;
    sysbench(address, "oltp_read_write", 4, &["prepare"]).map(drop)
}

fn sysbench(address: SocketAddr, script: &str, threads: u32, action: &[&str]) -> Result<String> {
    let mut sysbench = Command::new(super::found("sysbench")?);
    sysbench.args([script, "--db-driver=mysql", "--mysql-host=127.0.0.1", "--mysql-user=root"]);
    sysbench.args(["--mysql-ssl=off", "--histogram=on"]);
    sysbench.arg(format!("--mysql-port={}", address.port()));
    sysbench.args([format!("--tables={TABLES}"), format!("--table-size={ROWS}")]);
    sysbench.arg(format!("--threads={threads}")).args(action);
    let output = sysbench.output().context("cannot start sysbench")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "sysbench {script} {action:?} failed: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(text)
}

fn succeeded(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed ({status})");
    }
    Ok(())
}

fn version() -> Result<String> {
    let output = Command::new(super::found("mariadbd")?).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().nth(2).unwrap_or("of unknown version").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_is_on_settings_that_take_part_and_the_bare_server_is_the_first() {
        for case in cases() {
            let names: Vec<&str> = case.settings.iter().map(|setting| setting.name).collect();
            assert_eq!(names[0], BARE.name, "{}", case.title);
            for bound in &case.bounds {
                assert!(names.contains(&bound.setting) && names.contains(&bound.over));
            }
        }
    }
}
