//! The clients of a series: sysbench, pgbench and go-tpc, each with all its connections through
//! the whole series. Each prints a line for each interval. sysbench and go-tpc report
//! throughput and p99 of the interval there; pgbench logs each transaction instead.

use super::super::contest::Load;
use super::super::database::{Meeting, Store, sysbench_command};
use super::super::postgres::pgbench_command;
use anyhow::{Context as _, Result, bail};
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::packages::on_path;

/// go-tpc's module, its version that is measured with, and the package of its program.
const GO_TPC: &str = "github.com/pingcap/go-tpc/cmd/go-tpc@v1.0.7";
const GO_TPC_CACHED: &str = "go-tpc-1.0.7";
const WAREHOUSES: u32 = 4;
/// Longer than any series: a client ends by a signal.
const FOREVER_S: u32 = 1_000_000;

/// Two reads, then three writes, one of which meets all other clients at one of twelve rows.
const HOT_ROWS: &str = "\
\\set account random(1, 100000 * :scale)
\\set other random(1, 100000 * :scale)
\\set teller random(1, 12)
\\set branch random(1, :scale)
\\set delta random(-5000, 5000)
BEGIN;
SELECT abalance FROM pgbench_accounts WHERE aid = :account;
SELECT abalance FROM pgbench_accounts WHERE aid = :other;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :account;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :teller;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
  VALUES (:teller, :branch, :account, :delta, CURRENT_TIMESTAMP);
END;
";

/// The transactions of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transactions {
    /// A script of sysbench.
    Sysbench(&'static str),
    /// TPC-C by go-tpc; a transaction is a new order.
    TpcC,
    /// pgbench's own.
    TpcB,
    /// pgbench with a script whose clients contend for twelve rows.
    HotRows,
}

/// Where a client finds its server, and where it may write.
pub(super) struct Site {
    pub(super) address: SocketAddr,
    pub(super) scratch: PathBuf,
    pub(super) store: Store,
}

/// Throughput and tail of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outcome {
    pub(super) per_s: f64,
    pub(super) p99_ms: f64,
}

/// A transaction of pgbench's log.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transaction {
    /// Seconds since the Unix epoch.
    pub(super) end_s: f64,
    pub(super) latency_ms: f64,
}

impl Transactions {
    /// The program that sends them.
    pub(super) const fn client(self) -> &'static str {
        match self {
            Self::Sysbench(_) => "sysbench",
            Self::TpcC => "go-tpc 1.0.7",
            Self::TpcB | Self::HotRows => "pgbench",
        }
    }

    /// The client with this many connections, which prints a line for each interval.
    ///
    /// # Errors
    /// If the program is missing.
    pub(super) fn command(self, connections: u32, interval_s: u32, site: &Site) -> Result<Command> {
        match self {
            Self::Sysbench(script) => {
                let time = [
                    format!("--time={FOREVER_S}"),
                    format!("--report-interval={interval_s}"),
                    "--percentile=99".to_owned(),
                ];
                let action = ["run", &time[0], &time[1], &time[2]];
                let load = Load { script, connections };
                sysbench_command(Meeting::Tcp(site.address), load, site.store, &action)
            }
            Self::TpcC => {
                let mut tpcc = go_tpc(site.address)?;
                // A deadlock is an error that a client of TPC-C retries.
                tpcc.args(["run", "--ignore-error", "--silence"]);
                tpcc.arg(format!("--interval={interval_s}s"));
                tpcc.arg(format!("--threads={connections}"));
                Ok(tpcc)
            }
            Self::TpcB | Self::HotRows => self.pgbench(connections, interval_s, site),
        }
    }

    fn pgbench(self, connections: u32, interval_s: u32, site: &Site) -> Result<Command> {
        let script = if self == Self::TpcB {
            "--builtin=tpcb-like".to_owned()
        } else {
            let file = site.scratch.join("hot-rows.sql");
            std::fs::write(&file, HOT_ROWS)?;
            format!("--file={}", file.display())
        };
        let logs = logs(&site.scratch, connections);
        std::fs::create_dir_all(&logs)?;
        let own = [
            script,
            format!("--client={connections}"),
            format!("--time={FOREVER_S}"),
            format!("--progress={interval_s}"),
            format!("--log-prefix={}", logs.join("log").display()),
        ];
        let fixed = ["--no-vacuum", "--protocol=prepared", "--jobs=2", "--log"];
        let all: Vec<&str> = own.iter().map(String::as_str).chain(fixed).collect();
        pgbench_command(site.address, &all)
    }

    /// Whether a line is the report of an interval.
    pub(super) fn is_interval(self, line: &str) -> bool {
        line.starts_with(match self {
            Self::Sysbench(_) => "[ ",
            Self::TpcC => "[Current] NEW_ORDER - ",
            Self::TpcB | Self::HotRows => "progress: ",
        })
    }

    /// Whether the client logs each transaction.
    pub(super) const fn has_log(self) -> bool {
        matches!(self, Self::TpcB | Self::HotRows)
    }

    /// Reads throughput and p99 from the report of an interval.
    ///
    /// # Errors
    /// If it has another form.
    pub(super) fn read(self, line: &str) -> Result<Outcome> {
        let number = |word: &str| {
            let rest = line.split_once(word)?.1.split_whitespace().next()?;
            rest.trim_end_matches(',').parse::<f64>().ok()
        };
        let figures = match self {
            Self::Sysbench(_) => number("tps:").zip(number("(ms,99%):")),
            Self::TpcC => {
                number("TPM:").map(|per_minute| per_minute / 60.0).zip(number("99th(ms):"))
            }
            Self::TpcB | Self::HotRows => None,
        };
        let (per_s, p99_ms) =
            figures.with_context(|| format!("{} reports another form: {line}", self.client()))?;
        Ok(Outcome { per_s, p99_ms })
    }
}

/// go-tpc at a server, with the options of its data.
fn go_tpc(address: SocketAddr) -> Result<Command> {
    let mut tpcc = Command::new(provide_go_tpc()?);
    tpcc.args(["tpcc", "--host=127.0.0.1", "--user=root", "--db=tpcc"]);
    tpcc.arg(format!("--port={}", address.port())).arg(format!("--warehouses={WAREHOUSES}"));
    Ok(tpcc)
}

/// Fills the tables of TPC-C.
///
/// # Errors
/// If go-tpc cannot be had, or fails.
pub(super) fn prepare_tpcc(address: SocketAddr) -> Result<()> {
    let mut tpcc = go_tpc(address)?;
    let output = tpcc.args(["prepare", "--threads=4", "--no-check"]).output()?;
    if !output.status.success() {
        bail!("go-tpc prepare failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Returns go-tpc, which is built from the Go module proxy if it is not in the cache yet.
///
/// # Errors
/// If there is no Go, or the build fails.
fn provide_go_tpc() -> Result<PathBuf> {
    let directory = xtask::cache().join(GO_TPC_CACHED);
    let program = directory.join("go-tpc");
    if !program.exists() {
        let go = on_path("go").context("no Go on this machine, with which go-tpc is built")?;
        let mut go = Command::new(go);
        go.args(["install", "-trimpath", GO_TPC]);
        go.env("GOBIN", &directory).env("CGO_ENABLED", "0").current_dir(std::env::temp_dir());
        super::super::succeeded(&mut go)?;
    }
    Ok(program)
}

fn logs(scratch: &Path, connections: u32) -> PathBuf {
    scratch.join(format!("logs-{connections}"))
}

/// Reads the logs of a pgbench, and removes them.
///
/// # Errors
/// If there are none, or they have another form.
pub(super) fn take_log(scratch: &Path, connections: u32) -> Result<Vec<Transaction>> {
    let mut all = Vec::new();
    let directory = logs(scratch, connections);
    for entry in std::fs::read_dir(&directory)? {
        let lines = BufReader::new(std::fs::File::open(entry?.path())?).lines();
        let mut lines = lines.collect::<std::io::Result<Vec<String>>>()?;
        // A client that is stopped may have written half of its last line.
        lines.pop();
        let read: Result<Vec<Transaction>> = lines.iter().map(|line| transaction(line)).collect();
        all.extend(read?);
    }
    std::fs::remove_dir_all(directory)?;
    all.sort_by(|one, other| one.end_s.total_cmp(&other.end_s));
    Ok(all)
}

/// `client transaction latency_us script seconds microseconds`.
fn transaction(line: &str) -> Result<Transaction> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let read = || {
        let end_s = number(4)? + number(5)? / 1e6;
        Some(Transaction { end_s, latency_ms: number(2)? / 1e3 })
    };
    read().with_context(|| format!("pgbench logged another form: {line}"))
}

/// Sorted latencies of the transactions that ended between two times, of all in order.
pub(super) fn latencies(transactions: &[Transaction], [begin_s, end_s]: [f64; 2]) -> Vec<f64> {
    let at = |time_s: f64| transactions.partition_point(|one| one.end_s < time_s);
    let within = &transactions[at(begin_s)..at(end_s).max(at(begin_s))];
    let mut latencies: Vec<f64> = within.iter().map(|one| one.latency_ms).collect();
    latencies.sort_by(f64::total_cmp);
    latencies
}

/// The value at a rank of sorted values, which are not empty.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Throughput and p99 of the transactions that ended between two times.
///
/// # Errors
/// If there were none.
pub(super) fn outcome(transactions: &[Transaction], span_s: [f64; 2]) -> Result<Outcome> {
    let latencies = latencies(transactions, span_s);
    if latencies.is_empty() {
        bail!("no transaction ended within an interval");
    }
    let per_s = latencies.len() as f64 / (span_s[1] - span_s[0]);
    Ok(Outcome { per_s, p99_ms: quantile(&latencies, 0.99) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_an_interval_is_read() {
        let sysbench = Transactions::Sysbench("oltp_read_write");
        let line = "[ 8s ] thds: 512 tps: 1033.07 qps: 20730.24 (r/w/o: 14518.86/4138.26/2073.13) \
                    lat (ms,99%): 404.61 err/s: 0.00 reconn/s: 0.00";
        assert!(sysbench.is_interval(line));
        assert!(!sysbench.is_interval("Threads started!"));
        assert_eq!(sysbench.read(line).unwrap(), Outcome { per_s: 1033.07, p99_ms: 404.61 });
        let line = "[Current] NEW_ORDER - Takes(s): 3.9, Count: 1950, TPM: 30000.0, Sum(ms): 1.0, \
                    Avg(ms): 1.0, 50th(ms): 9.4, 90th(ms): 20.0, 95th(ms): 25.2, 99th(ms): 151.0, \
                    99.9th(ms): 209.7, Max(ms): 318.8";
        assert!(Transactions::TpcC.is_interval(line));
        assert!(!Transactions::TpcC.is_interval("[Current] NEW_ORDER_ERR - Takes(s): 3.9"));
        assert_eq!(Transactions::TpcC.read(line).unwrap(), Outcome { per_s: 500.0, p99_ms: 151.0 });
        assert!(Transactions::TpcC.read("[Current] NEW_ORDER - ").is_err());
    }

    #[test]
    fn a_line_of_the_log_is_read_and_another_form_is_refused() {
        let read = transaction("3 17 250500 0 1700000000 500000").unwrap();
        assert_eq!(read, Transaction { end_s: 1_700_000_000.5, latency_ms: 250.5 });
        assert!(transaction("3 17 soon 0 1700000000 1").is_err());
        assert!(transaction("").is_err());
    }

    #[test]
    fn the_logs_of_all_threads_are_read_without_the_line_that_was_cut() {
        let scratch = tempfile::tempdir().unwrap();
        let place = logs(scratch.path(), 8);
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("log.1"), "0 1 4000 0 20 1\n0 2 1000 0 3").unwrap();
        std::fs::write(place.join("log.1.1"), "1 1 2000 0 10 1\n1 2 9000 0 30 1\n").unwrap();
        let read = take_log(scratch.path(), 8).unwrap();
        let latencies: Vec<f64> = read.iter().map(|one| one.latency_ms).collect();
        assert_eq!(latencies, [2.0, 4.0]);
        assert!(take_log(scratch.path(), 8).is_err());
    }

    #[test]
    fn only_what_ended_within_an_interval_counts() {
        let at = |end_s, latency_ms| Transaction { end_s, latency_ms };
        let all = [at(1.0, 900.0), at(2.0, 10.0), at(3.0, 30.0), at(4.0, 900.0)];
        assert_eq!(outcome(&all, [2.0, 4.0]).unwrap(), Outcome { per_s: 1.0, p99_ms: 30.0 });
        assert!(outcome(&all, [5.0, 6.0]).is_err());
        assert!(outcome(&all, [3.0, 2.0]).is_err());
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [50.0, 99.0, 100.0]);
    }
}
