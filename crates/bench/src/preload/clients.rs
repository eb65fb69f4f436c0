//! `lull load` beside clients that are widely used, on one server at the same rate: do both see
//! the same latency?
//!
//! Each pair sends the same statements to the same tables. pgbench at a rate counts from when a
//! transaction was due, as Lull does; sysbench in a closed loop, and h2load, count from when a
//! request was sent, with which Lull's *service* is compared.
//!
//! sysbench at a rate counts from when a thread has taken an event from its queue: before its
//! script has built the statement and bound its parameters, and after the thread has woken.
//! Lull's service begins later, at the write, and its latency earlier, when the request was due.
//! So sysbench's figure must lie between both.
//!
//! oha waits by tokio's timer, which fires each millisecond, and counts from then. At 3,000
//! requests a second it sends three at once, where Lull's own arrivals are at random times: with
//! these Lull saw .637 of oha's median. Beside oha Lull therefore replays such arrivals.

mod oha;

use super::super::process::{Printed, Running, printed};
use super::super::server::{free_address, served};
use super::super::stats::{BoxedContender, Summary, interleave_all, ratios};
use super::postgres::{install, server_options, unprivileged};
use super::product::{Product, socket};
use super::ran::LoadRun;
use super::{Report, found, pgbench, succeeded, sysbench};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use xtask::packages::on_path;

const ROUNDS: usize = 6;
const SECONDS: u32 = 10;
const CONNECTIONS: u32 = 8;
/// Rows of sysbench's only table.
const ROWS: u32 = 20_000;
const SCALE: u32 = 16;
/// Within this of the other client's figure, a median is the same latency.
const SAME: std::ops::RangeInclusive<f64> = 0.8..=1.25;

/// pgbench's transaction on its own tables.
const TPCB: &str = "\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
  VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
";
/// sysbench's point select on its only table.
const POINT: &str = "\\set id random(1, 20000)\nSELECT c FROM sbtest1 WHERE id = :id;\n";

/// The observations of a client in one run.
#[derive(Debug, Clone, Copy)]
struct ClientRun {
    p50_ms: f64,
    /// p50 from the due time of a request; of another client the same as above.
    p50_since_due_ms: f64,
    p99_ms: f64,
    per_s: f64,
    /// CPU time of the client for each request.
    cpu_us: f64,
}

/// How many requests fall due each second; `None` in a closed loop.
type Rate = Option<u32>;

/// When Lull's requests are due.
enum Arrivals<'a> {
    /// Requests at random times (Poisson).
    Rate(u32),
    /// Requests at the times of a recording.
    Replay(&'a Path),
    /// When the reply to the one before is there.
    Closed,
}

impl From<Rate> for Arrivals<'_> {
    fn from(rate: Rate) -> Self {
        rate.map_or(Self::Closed, Self::Rate)
    }
}

/// One figure of a run.
type Figure = fn(&ClientRun) -> f64;

/// One load that two clients send.
struct Case<'c> {
    title: String,
    peer: &'static str,
    /// Whether the other client's latencies begin between Lull's due time and its sending.
    begins_between: bool,
    ours: Box<dyn Fn() -> Result<ClientRun> + 'c>,
    theirs: Box<dyn Fn() -> Result<ClientRun> + 'c>,
}

/// The parts of `lull load --json` that are read.
#[derive(Debug, Deserialize)]
struct Loaded {
    measured_seconds: f64,
    completed_requests: u64,
    failed_requests: u64,
    latency: Spread,
    service: Spread,
}

#[derive(Debug, Deserialize)]
struct Spread {
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    super::make_readable(place.path())?;
    let postgres = Postgres::start(place.path())?;
    let mariadb = MariaDb::start(place.path())?;
    let web = Web::start(place.path())?;
    let mut cases = Vec::new();
    for rate in [Some(300), None] {
        cases.push(postgres.case(lull, rate));
        cases.push(mariadb.case(lull, rate.map(|rate| 10 * rate)));
    }
    match &web {
        Some(web) => {
            cases.extend([web.case(lull, 1), web.case(lull, 8)]);
            match oha::provide() {
                Ok(oha) => {
                    for rate in [500, 3_000] {
                        cases.push(web.http1_case(lull, oha.clone(), rate)?);
                    }
                }
                Err(why) => report.note(format!("No oha: {why:#}.")),
            }
        }
        None => report.note("No h2load, or no nginx: apt-get install nghttp2-client nginx-light."),
    }
    for case in &cases {
        contest(case, report)?;
    }
    report.note(format!(
        "{ROUNDS} rounds of {SECONDS} s in turn after one to warm up, {CONNECTIONS} connections, \
         server and client on the same cores. Ratios are those of one round, Lull's figure over \
         the other client's; within {} and {} the median is the same. CPU is that of the client. \
         sysbench at a rate begins to count before it builds the statement and after it has woken: \
         its median must lie between Lull's service (from the write) and Lull's latency (since \
         due). Lull's arrivals at a rate are at random times, and beside oha those of oha's timer.",
        SAME.start(),
        SAME.end()
    ));
    Ok(())
}

fn contest(case: &Case<'_>, report: &mut Report) -> Result<()> {
    let mut contenders: Vec<BoxedContender<'_, ClientRun>> =
        vec![Box::new(|| (case.ours)()), Box::new(|| (case.theirs)())];
    let seen = interleave_all(ROUNDS, &mut contenders)?;
    let figures: [(&str, Figure); 4] = [
        ("p50", |seen| seen.p50_ms),
        ("p99", |seen| seen.p99_ms),
        ("throughput", |seen| seen.per_s),
        ("CPU for a request", |seen| seen.cpu_us),
    ];
    let ratio_of = |figure: Figure| {
        let [ours, theirs] = [0, 1].map(|at| seen[at].iter().map(figure).collect::<Vec<_>>());
        ratios(&ours, &theirs)
    };
    for (name, figure) in figures {
        let (what, ratio) = (case.ratio_row(name), ratio_of(figure));
        match name {
            "p50" if case.begins_between => {
                let (least, most) = SAME.into_inner();
                report.bounded(&what, ratio, "ratio", 0.0..=most);
                let what = case.ratio_row("p50 since due");
                let ratio = ratio_of(|seen| seen.p50_since_due_ms);
                report.bounded(&what, ratio, "ratio", least..=f64::INFINITY);
            }
            "p50" => report.bounded(&what, ratio, "ratio", SAME),
            _ => report.reported(&what, ratio, "ratio"),
        }
    }
    let p50 = |at: usize| Summary::new(seen[at].iter().map(|seen| seen.p50_ms));
    report.reported(&format!("{}: p50, lull", case.title), p50(0), "ms");
    report.reported(&format!("{}: p50, {}", case.title, case.peer), p50(1), "ms");
    Ok(())
}

impl Case<'_> {
    /// The name of the row of a figure's ratio.
    fn ratio_row(&self, figure: &str) -> String {
        format!("{}: {figure}, lull / {}", self.title, self.peer)
    }
}

fn title(what: &str, rate: Rate) -> String {
    match rate {
        Some(rate) => format!("{what}, {rate}/s"),
        None => format!("{what}, closed loop"),
    }
}

/// Runs `lull load`. `since_due` is whether latencies count from when a request was due.
fn load(
    lull: &Path,
    target: &str,
    arrivals: &Arrivals<'_>,
    since_due: bool,
    options: &[&str],
) -> Result<ClientRun> {
    let mut command = Command::new(lull);
    command.args(["load", target, "--json", "--no-preload"]);
    command.args(["--connections", &CONNECTIONS.to_string(), "--for", &format!("{SECONDS}s")]);
    match arrivals {
        Arrivals::Rate(rate) => command.args(["--rate", &format!("{rate}/s")]),
        Arrivals::Replay(file) => command.arg("--replay").arg(file),
        Arrivals::Closed => command.arg("--closed"),
    };
    let printed = printed(command.args(options))?;
    let loaded: Loaded = serde_json::from_str(&printed.text).context("lull load: other output")?;
    if loaded.failed_requests > 0 || loaded.completed_requests == 0 {
        bail!("{} requests failed: {target}", loaded.failed_requests);
    }
    let spread = if since_due { &loaded.latency } else { &loaded.service };
    let ms = |seconds: Option<f64>| seconds.unwrap_or(f64::NAN) * 1e3;
    let requests = loaded.completed_requests as f64;
    Ok(ClientRun {
        p50_ms: ms(spread.p50_seconds),
        p50_since_due_ms: ms(loaded.latency.p50_seconds),
        p99_ms: ms(spread.p99_seconds),
        per_s: requests / loaded.measured_seconds,
        cpu_us: printed.cpu_s * 1e6 / requests,
    })
}

impl ClientRun {
    /// Reads the output of a client whose transactions have this many queries.
    fn from_run(ran: &LoadRun, queries: f64, printed: &Printed) -> Self {
        let requests = ran.queries / queries;
        let p50_ms = ran.quantile_ms(0.5);
        Self {
            p50_ms,
            p50_since_due_ms: p50_ms,
            p99_ms: ran.quantile_ms(0.99),
            per_s: ran.queries_per_s / queries,
            cpu_us: printed.cpu_s * 1e6 / requests,
        }
    }
}

struct Postgres {
    address: SocketAddr,
    script: PathBuf,
    logs: PathBuf,
    _server: Running,
}

impl Postgres {
    fn start(place: &Path) -> Result<Self> {
        let data = install(place, SCALE)?;
        let address = free_address()?;
        let mut server = unprivileged(&found("postgres")?);
        server.args(server_options(&data, address)).current_dir(&data).stderr(Stdio::null());
        let server = served(&mut server, address)?;
        let (script, logs) = (place.join("tpcb.sql"), place.join("logs"));
        std::fs::write(&script, TPCB)?;
        std::fs::create_dir(&logs)?;
        let postgres = Self { address, script, logs, _server: server };
        let begun = Instant::now();
        while postgres.pgbench(&["--transactions=1"]).is_err() {
            if begun.elapsed() > super::postgres::START_MAX {
                bail!("PostgreSQL does not answer at {address}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(postgres)
    }

    fn pgbench(&self, options: &[&str]) -> Result<Printed> {
        let mut pgbench = Command::new(found("pgbench")?);
        pgbench.args(["--host=127.0.0.1", "--username=postgres", "--no-vacuum"]);
        pgbench.args(["--protocol=prepared", "--builtin=tpcb-like"]);
        pgbench.arg(format!("--port={}", self.address.port())).args(options).arg("postgres");
        printed(pgbench.stderr(Stdio::null()))
    }

    fn case<'c>(&'c self, lull: &'c Path, rate: Rate) -> Case<'c> {
        let target = format!("postgres://postgres@{}/postgres", self.address);
        let script = self.script.display().to_string();
        let ours = move || {
            let scale = SCALE.to_string();
            load(lull, &target, &rate.into(), true, &["--script", &script, "--scale", &scale])
        };
        let theirs = move || self.peer(rate);
        Case {
            title: title("PostgreSQL, TPC-B-like", rate),
            peer: "pgbench",
            begins_between: false,
            ours: Box::new(ours),
            theirs: Box::new(theirs),
        }
    }

    fn peer(&self, rate: Rate) -> Result<ClientRun> {
        let clients = [format!("--client={CONNECTIONS}"), format!("--time={SECONDS}")];
        let prefix = format!("--log-prefix={}", self.logs.join("log").display());
        let rate = rate.map(|rate| format!("--rate={rate}"));
        let own = ["--log", &prefix, &clients[0], &clients[1]];
        let all: Vec<&str> = own.into_iter().chain(rate.as_deref()).collect();
        let printed = self.pgbench(&all)?;
        let mut logs = Vec::new();
        for entry in std::fs::read_dir(&self.logs)? {
            let path = entry?.path();
            logs.push(std::fs::read_to_string(&path)?);
            std::fs::remove_file(path)?;
        }
        Ok(ClientRun::from_run(&pgbench::read(&printed.text, &logs)?, pgbench::QUERIES, &printed))
    }
}

struct MariaDb {
    address: SocketAddr,
    script: PathBuf,
    _server: Running,
}

impl MariaDb {
    fn start(place: &Path) -> Result<Self> {
        let (product, data) = (Product::MariaDb, place.join("mariadb"));
        product.initialise(&data, place)?;
        let address = free_address()?;
        let mut server = Command::new(product.program()?);
        server.args(product.options(&data, address)).stderr(Stdio::null());
        let server = served(&mut server, address)?;
        let mut create = Command::new("mariadb");
        create.args(["-uroot", &format!("--socket={}", socket(&data).display()), "--skip-ssl"]);
        succeeded(create.args(["-e", product.first_statements()]))?;
        let script = place.join("point.sql");
        std::fs::write(&script, POINT)?;
        let mariadb = Self { address, script, _server: server };
        mariadb.sysbench(&["prepare"])?;
        Ok(mariadb)
    }

    fn sysbench(&self, options: &[&str]) -> Result<Printed> {
        let mut sysbench = Command::new(found("sysbench")?);
        sysbench.args(["oltp_point_select", "--db-driver=mysql", "--mysql-user=root"]);
        sysbench.args(["--mysql-host=127.0.0.1", "--mysql-ssl=off", "--histogram=on"]);
        sysbench.args([format!("--mysql-port={}", self.address.port()), "--tables=1".to_owned()]);
        sysbench.arg(format!("--table-size={ROWS}"));
        printed(sysbench.arg(format!("--threads={CONNECTIONS}")).args(options))
    }

    fn case<'c>(&'c self, lull: &'c Path, rate: Rate) -> Case<'c> {
        let target = format!("mysql://root@{}/sbtest", self.address);
        let script = self.script.display().to_string();
        let ours = move || load(lull, &target, &rate.into(), false, &["--script", &script]);
        let theirs = move || {
            let time = format!("--time={SECONDS}");
            let rate = rate.map(|rate| format!("--rate={rate}"));
            let all: Vec<&str> = ["run", &time].into_iter().chain(rate.as_deref()).collect();
            let printed = self.sysbench(&all)?;
            Ok(ClientRun::from_run(&sysbench::read(&printed.text)?, 1.0, &printed))
        };
        Case {
            title: title("MariaDB, point select", rate),
            peer: "sysbench",
            begins_between: rate.is_some(),
            ours: Box::new(ours),
            theirs: Box::new(theirs),
        }
    }
}

struct Web {
    address: SocketAddr,
    /// Where it speaks HTTP/1.1.
    http1: SocketAddr,
    directory: PathBuf,
    _server: Running,
}

impl Web {
    /// An nginx that speaks HTTP/2 in the clear; `None` without it or h2load.
    fn start(place: &Path) -> Result<Option<Self>> {
        let (Some(nginx), Some(_)) = (on_path("nginx"), on_path("h2load")) else { return Ok(None) };
        let directory = place.join("web");
        std::fs::create_dir(&directory)?;
        super::make_readable(&directory)?;
        std::fs::write(directory.join("page"), "x".repeat(1_000))?;
        let (address, http1) = (free_address()?, free_address()?);
        let config = directory.join("nginx.conf");
        let at = directory.display();
        let text = format!(
            "daemon off; master_process off; pid {at}/pid; error_log {at}/error; events {{}}\n\
             http {{ access_log off; root {at}; keepalive_requests 1000000000;\n\
             client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;\n\
             uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;\n\
             server {{ listen {address} http2; }} server {{ listen {http1}; }} }}\n"
        );
        std::fs::write(&config, text)?;
        let mut server = Command::new(nginx);
        server.arg("-p").arg(format!("{at}/")).arg("-c").arg(&config).stderr(Stdio::null());
        let server = served(&mut server, address)?;
        Ok(Some(Self { address, http1, directory, _server: server }))
    }

    /// A closed loop with this many streams at a time on each connection.
    fn case<'c>(&'c self, lull: &'c Path, streams: u32) -> Case<'c> {
        let target = format!("h2c://{}/page", self.address);
        let ours = move || {
            load(lull, &target, &Arrivals::Closed, false, &["--depth", &streams.to_string()])
        };
        Case {
            title: format!("nginx, HTTP/2, {streams} streams a connection, closed loop"),
            peer: "h2load",
            begins_between: false,
            ours: Box::new(ours),
            theirs: Box::new(move || self.peer(streams)),
        }
    }

    /// HTTP/1.1 at oha's arrivals, with latencies from when a request was due.
    fn http1_case<'c>(&'c self, lull: &'c Path, oha: PathBuf, rate: u32) -> Result<Case<'c>> {
        let arrivals = self.directory.join(format!("arrivals-{rate}"));
        std::fs::write(&arrivals, oha::arrivals(rate))?;
        let target = format!("http://{}/page", self.http1);
        let url = target.clone();
        let ours = move || load(lull, &target, &Arrivals::Replay(&arrivals), true, &[]);
        let theirs = move || oha::load(&oha, &url, rate);
        Ok(Case {
            title: title("nginx, HTTP/1.1, arrivals of oha", Some(rate)),
            peer: "oha",
            begins_between: false,
            ours: Box::new(ours),
            theirs: Box::new(theirs),
        })
    }

    fn peer(&self, streams: u32) -> Result<ClientRun> {
        let mut h2load = Command::new(found("h2load")?);
        h2load.args([format!("--clients={CONNECTIONS}"), format!("--duration={SECONDS}")]);
        h2load.arg(format!("--max-concurrent-streams={streams}"));
        let file = self.directory.join("h2load.log");
        h2load.arg(format!("--log-file={}", file.display()));
        let printed = printed(h2load.arg(format!("http://{}/page", self.address)))?;
        let log = std::fs::read_to_string(&file)?;
        std::fs::remove_file(&file)?;
        Ok(ClientRun::from_run(&read_h2load(&log)?, 1.0, &printed))
    }
}

/// Reads h2load's log: `start_us status latency_us`, a line for each request.
fn read_h2load(log: &str) -> Result<LoadRun> {
    let mut by_latency = BTreeMap::new();
    for line in log.lines() {
        let mut words = line.split_whitespace().skip(1);
        let (status, latency_us) = (words.next(), words.next().and_then(|it| it.parse().ok()));
        let latency_us: u64 = latency_us.with_context(|| format!("h2load logged: {line}"))?;
        if status != Some("200") {
            bail!("a request of h2load failed: {line}");
        }
        *by_latency.entry(latency_us).or_insert(0) += 1;
    }
    let requests: u64 = by_latency.values().sum();
    if requests == 0 {
        bail!("h2load logged no request");
    }
    let in_ms = by_latency.into_iter().map(|(us, count)| (us as f64 / 1e3, count));
    let per_s = requests as f64 / f64::from(SECONDS);
    Ok(LoadRun::new(per_s, requests as f64, in_ms.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_h2load_is_read_and_failures_end_the_benchmark() {
        let ran = read_h2load("1 200 4000\n2 200 1000\n3\t200\t2000\n").unwrap();
        assert_eq!(ran.queries, 3.0);
        assert_eq!([0.3, 0.5, 0.99].map(|share| ran.quantile_ms(share)), [1.0, 2.0, 4.0]);
        for log in ["", "1 503 4000\n", "1 -1 4000\n", "1 200 soon\n"] {
            assert!(read_h2load(log).is_err(), "{log}");
        }
    }
}
