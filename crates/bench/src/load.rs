//! The open-loop client: does it keep its own schedule, and how exact is it?
//!
//! Accuracy is measured against a server of known service time
//! (`lull_workload::selfcheck`), beside the least that a client can do: one
//! blocking connection that writes, reads and looks at the clock. What that one
//! sees beyond the known time is the kernel's path; what ours sees beyond that
//! is ours.

pub(super) mod caches;

use super::process::{Running, printed};
use super::server::{free_address, served};
use super::stats::{BoxedContender, Summary, interleave, interleave_all};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail};
use lull_measure::Nanos;
use lull_workload::selfcheck::{self, ReferenceServer, SelfCheck};
use serde::Deserialize;
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use xtask::packages::on_path;

pub(super) const BENCH: Bench = Bench {
    name: "load",
    about: "`lull load` at 20,000 requests/s from one thread: its lag and CPU; and its error \
            at a known service time beside a bare blocking client",
    run,
};

const ROUNDS: usize = 5;
const RATE_PER_S: u32 = 20_000;
const CONNECTIONS: u32 = 64;
/// The length of the measurement.
const MEASURED_S: u64 = 10;
const WARMUP_S: u64 = 1;
/// Achieved over requested rate, at least.
const ACHIEVED_MIN: f64 = 0.999;
/// Requests of the bare client in a round, and the time between them.
const BARE_REQUESTS: usize = 2_000;
const BARE_GAP: Duration = Duration::from_millis(1);
/// Clients of this kind that could be compared with, were they here.
const PEERS: [&str; 4] = ["wrk2", "mutilate", "mcperf", "memtier_benchmark"];

/// A server that is loaded at the full rate.
struct Server {
    what: &'static str,
    target: String,
    /// Further arguments of `lull load`.
    options: &'static [&'static str],
    process: Running,
}

/// The output of `lull load --json`.
#[derive(Debug, Clone, Deserialize)]
struct Loaded {
    measured_seconds: f64,
    due_requests: u64,
    sent_requests: u64,
    completed_requests: u64,
    failed_requests: u64,
    timed_out_requests: u64,
    latency: Spread,
    lag: Spread,
    /// CPU time of the client over the time it ran, which is not in the report.
    #[serde(default)]
    cores: f64,
}

/// Quantiles; there are none without requests.
#[derive(Debug, Clone, Deserialize)]
struct Spread {
    p50_seconds: Option<f64>,
    p99_seconds: Option<f64>,
    max_seconds: Option<f64>,
}

fn run(context: &Context) -> Result<Report> {
    let lull = context.build("lull-cli", "lull")?;
    let mut report = Report::default();
    full_rate(&lull, &mut report)?;
    accuracy(&mut report)?;
    report.note(format!(
        "{ROUNDS} rounds in turn. Full rate: {RATE_PER_S} requests/s, Poisson, {CONNECTIONS} \
         connections on one thread, {MEASURED_S} s after {WARMUP_S} s, the server on the same \
         machine. Lag is how late the client was in sending; the achieved rate is that of all \
         requests over the measured time and the lag's p99, which a client that falls behind \
         stretches. Accuracy: 1000 requests/s at even \
         gaps, each 300 us at work on a thread of its own; the figures are the median beyond \
         that. The bare client has one blocking connection and sends once a millisecond."
    ));
    let there: Vec<&str> = PEERS.into_iter().filter(|peer| on_path(peer).is_some()).collect();
    report.note(match there.as_slice() {
        [] => format!("No second open-loop client is on this machine: {}.", PEERS.join(", ")),
        there => format!("Not compared with, though it is here: {}.", there.join(", ")),
    });
    Ok(report)
}

fn full_rate(lull: &Path, report: &mut Report) -> Result<()> {
    let mut servers = vec![options_server(lull)?];
    match on_path("memcached") {
        Some(program) => servers.push(memcached(lull, &program)?),
        None => report.note("memcached is not installed: apt-get install memcached."),
    }
    let seen: Vec<_> = servers.iter().map(|_| RefCell::new(Vec::new())).collect();
    let contenders = servers.iter().zip(&seen).map(|(server, seen)| {
        Box::new(move || {
            let loaded = load(lull, server, RATE_PER_S, MEASURED_S, server.options)?;
            let achieved = loaded.achieved();
            seen.borrow_mut().push(loaded);
            Ok(achieved)
        }) as BoxedContender<'_>
    });
    let mut contenders: Vec<_> = contenders.collect();
    interleave_all(ROUNDS, &mut contenders)?;
    drop(contenders);
    for (server, seen) in servers.iter().zip(seen) {
        rate_rows(report, server.what, &seen.into_inner()[1..]);
    }
    Ok(())
}

fn rate_rows(report: &mut Report, server: &str, seen: &[Loaded]) {
    let of = |figure: fn(&Loaded) -> f64| Summary::new(seen.iter().map(figure));
    let what = |figure: &str| format!("{server}: {figure}");
    let no_end = f64::INFINITY;
    let rate = what("achieved / requested rate");
    report.bounded(&rate, of(Loaded::achieved), "ratio", ACHIEVED_MIN..=no_end);
    report.bounded(&what("answered / due"), of(Loaded::answered), "ratio", ACHIEVED_MIN..=no_end);
    let us = |seconds: Option<f64>| seconds.unwrap_or(f64::NAN) * 1e6;
    for (name, quantile) in QUANTILES {
        let lag = Summary::new(seen.iter().map(|one| us(quantile(&one.lag))));
        report.reported(&what(&format!("lag {name}")), lag, "us");
    }
    for (name, quantile) in &QUANTILES[..2] {
        let latency = Summary::new(seen.iter().map(|one| us(quantile(&one.latency))));
        report.reported(&what(&format!("latency {name}")), latency, "us");
    }
    report.reported(&what("CPU of the client"), of(|one| one.cores), "cores");
}

/// A quantile of a spread.
type Quantile = fn(&Spread) -> Option<f64>;

const QUANTILES: [(&str, Quantile); 3] = [
    ("p50", |spread| spread.p50_seconds),
    ("p99", |spread| spread.p99_seconds),
    ("max", |spread| spread.max_seconds),
];

impl Loaded {
    /// Returns the rate of sending over the requested rate. A client that falls behind sends all
    /// requests, only later: those of the measured time took that time and its lag.
    fn achieved(&self) -> f64 {
        let lag_s = self.lag.p99_seconds.unwrap_or(f64::INFINITY);
        let stretched = self.measured_seconds / (self.measured_seconds + lag_s);
        self.sent_requests as f64 / self.due_requests as f64 * stretched
    }

    fn answered(&self) -> f64 {
        self.completed_requests as f64 / self.due_requests as f64
    }

    /// CPU time of the client for each request that it sent.
    fn cpu_us(&self) -> f64 {
        self.cores * 1e6 * self.measured_seconds / self.sent_requests as f64
    }
}

fn load(
    lull: &Path,
    server: &Server,
    rate_per_s: u32,
    seconds: u64,
    options: &[&str],
) -> Result<Loaded> {
    let mut command = Command::new(lull);
    command.args(["load", &server.target, "--json", "--rate", &format!("{rate_per_s}/s")]);
    command.args(["--connections", &CONNECTIONS.to_string()]);
    command.args(["--for", &format!("{}s", seconds + WARMUP_S)]);
    command.args(["--warmup", &format!("{WARMUP_S}s")]).args(options);
    let printed = printed(&mut command)?;
    let mut loaded = understood(&printed.text)?;
    loaded.cores = printed.cpu_s / (seconds + WARMUP_S) as f64;
    Ok(loaded)
}

fn understood(text: &str) -> Result<Loaded> {
    let loaded: Loaded = serde_json::from_str(text).context("lull load printed something else")?;
    let bad = loaded.failed_requests + loaded.timed_out_requests;
    if loaded.due_requests == 0 || bad > 0 {
        bail!("{bad} of {} requests failed or timed out", loaded.due_requests);
    }
    Ok(loaded)
}

fn options_server(lull: &Path) -> Result<Server> {
    let address = free_address()?;
    let mut command = Command::new(lull);
    command.args(["serve", "options", "--workers", "1", "--listen", &address.to_string()]);
    Ok(Server {
        what: "options",
        target: format!("options://{address}"),
        // The shortest requests there are: this is about the client.
        options: &["--base-paths", "0.01"],
        process: served(&mut command, address)?,
    })
}

/// A memcached with the keys of the ETC mix in it.
fn memcached(lull: &Path, program: &Path) -> Result<Server> {
    let address = free_address()?;
    let mut command = Command::new(program);
    command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", &address.port().to_string()]);
    command.args(["-t", "1", "-m", "1024"]);
    let server = Server {
        what: "memcached, ETC",
        target: format!("memcached://{address}"),
        options: &["--no-preload"],
        process: served(&mut command, address)?,
    };
    load(lull, &server, RATE_PER_S, 1, &[])?;
    Ok(server)
}

/// A Redis with the same keys, which writes nothing to disk.
fn redis(lull: &Path, program: &Path) -> Result<Server> {
    let address = free_address()?;
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
    command.args(["--save", "", "--appendonly", "no"]);
    let server = Server {
        what: "Redis, ETC",
        target: format!("redis://{address}"),
        options: &["--no-preload"],
        process: served(&mut command, address)?,
    };
    load(lull, &server, RATE_PER_S, 1, &[])?;
    Ok(server)
}

/// The median beyond the known service time, in microseconds.
fn accuracy(report: &mut Report) -> Result<()> {
    let exact = SelfCheck::accuracy();
    let awake = SelfCheck { spin: Nanos::from_micros(50), ..exact.clone() };
    let [ours, spinning, bare] = interleave(
        ROUNDS,
        &mut [&mut || ours_beyond_us(&exact), &mut || ours_beyond_us(&awake), &mut || {
            bare_beyond_us(exact.delay)
        }],
    )?;
    let mut row = |what: &str, values: &[f64]| {
        let value = Summary::new(values.iter().copied());
        report.reported(&format!("beyond 300 us: {what}"), value, "us");
    };
    row("lull load", &ours);
    row("lull load --spin 50us", &spinning);
    row("bare blocking client", &bare);
    let error: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| ours - bare).collect();
    row("lull load less bare client", &error);
    Ok(())
}

fn ours_beyond_us(check: &SelfCheck) -> Result<f64> {
    let report = selfcheck::measure(check)?;
    let beyond_s = report.median_beyond_delay_seconds.context("no request was answered")?;
    Ok(beyond_s * 1e6)
}

/// The same from a client that does as little as possible.
fn bare_beyond_us(delay: Nanos) -> Result<f64> {
    let server = ReferenceServer::bind(delay, None)?;
    let (address, stop) = (server.address(), AtomicBool::new(false));
    let latencies = std::thread::scope(|scope| {
        scope.spawn(|| server.run(&stop));
        let latencies = bare_latencies_us(address);
        stop.store(true, Ordering::Relaxed);
        latencies
    })?;
    Ok(Summary::new(latencies).median - delay.as_micros_f64())
}

fn bare_latencies_us(address: SocketAddr) -> Result<Vec<f64>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut replies = BufReader::new(stream.try_clone()?);
    let (mut reply, mut latencies) = (String::new(), Vec::new());
    for _ in 0..BARE_REQUESTS {
        let sent = Instant::now();
        stream.write_all(b"PRICE\n")?;
        reply.clear();
        replies.read_line(&mut reply)?;
        let took = sent.elapsed();
        latencies.push(took.as_secs_f64() * 1e6);
        std::thread::sleep(BARE_GAP.saturating_sub(took));
    }
    Ok(latencies)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(failed: u64) -> String {
        let spread = r#"{"p50_seconds": 1e-5, "p99_seconds": 1e-4, "max_seconds": null}"#;
        format!(
            r#"{{"measured_seconds": 0.1, "due_requests": 1000, "sent_requests": 1000,
                "completed_requests": 999, "failed_requests": {failed}, "timed_out_requests": 0,
                "target": "other keys", "latency": {spread}, "lag": {spread}}}"#
        )
    }

    #[test]
    fn a_load_report_is_summed_up_and_failures_end_the_benchmark() {
        let loaded = understood(&report(0)).unwrap();
        assert_eq!(loaded.answered(), 0.999);
        assert!((loaded.achieved() - 0.1 / (0.1 + 1e-4)).abs() < 1e-12, "{loaded:?}");
        assert_eq!(QUANTILES.map(|(_, of)| of(&loaded.lag)), [Some(1e-5), Some(1e-4), None]);
        let error = understood(&report(2)).unwrap_err().to_string();
        assert!(error.contains("2 of 1000 requests failed"), "{error}");
        assert!(understood("{}").is_err());
    }

    #[test]
    fn the_bare_client_never_sees_less_than_the_known_service_time() {
        assert!(bare_beyond_us(Nanos::from_micros(20)).unwrap() > 0.0);
    }
}
