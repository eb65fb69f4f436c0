//! One PostgreSQL whose clients contend for twelve rows, with an open gate and under `auto`.
//!
//! One server process and one pgbench with all its connections live through the whole
//! series. Blocks come in pairs, one with no agent attached (the gate is open) and one
//! under `lull attach --concurrency auto`, in random order within a pair. The last part
//! of each block counts, when the transactions of the block before have ended and `auto`
//! has had time to decide. Intervals are Student's t over pairs, of the logarithm of the
//! ratio within a pair, so that drift of the machine cancels.

use super::super::process::Running;
use super::super::server::{free_address, served};
use super::super::stats::Summary;
use super::Report;
use super::postgres::{NOBODY, START_MAX, install, pgbench, server_options, unprivileged};
use anyhow::{Context as _, Result, bail};
use lull_control::Rng;
use lull_lab::figure::{Axis, Figure, Look, Point, svg};
use lull_sim::stats::Estimate;
use rand::{RngExt, SeedableRng};
use rustix::process::geteuid;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const PAIRS: usize = 6;
const BLOCK: Duration = Duration::from_secs(60);
/// The end of a block, which counts.
const COUNTED: Duration = Duration::from_secs(30);
/// Before the first block, for connections and caches.
const WARM_UP: Duration = Duration::from_secs(15);
const CLIENTS: u32 = 256;
const SCALE: u32 = 4;
const SEED: u64 = 1;
/// Where the picture is kept.
const PICTURE: &str = "docs/contended.svg";

/// Two reads, then three writes, one of which meets all other clients at one of twelve rows.
const SCRIPT: &str = "\
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

/// What the gate does in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Auto,
}

/// One block, in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Block {
    gate: Gate,
    begin_s: f64,
    end_s: f64,
}

/// One transaction of pgbench's log.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Transaction {
    /// Seconds since the Unix epoch.
    end_s: f64,
    latency_ms: f64,
}

/// What is compared between the blocks of a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Outcome {
    per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Runs the series, adds its rows, and writes the picture below `root`.
///
/// # Errors
/// If the server, pgbench or an agent cannot be run, or a log has another form.
pub(super) fn measure(lull: &Path, root: &Path, report: &mut Report) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    super::make_readable(scratch.path())?;
    let data = install(scratch.path(), SCALE)?;
    let page = Page::new(lull, scratch.path());
    let address = free_address()?;
    let mut server = unprivileged(Path::new("env"));
    server.args(page.environment()?).arg(super::found("postgres")?);
    server.args(server_options(&data, address)).args(["-c", "synchronous_commit=off"]);
    let _server = served(server.current_dir(&data).stderr(Stdio::null()), address)?;
    wait_until_it_answers(address)?;
    let script = scratch.path().join("contended.sql");
    std::fs::write(&script, SCRIPT)?;
    let blocks = series(&page, &script, address, scratch.path())?;
    let transactions = read_logs(scratch.path())?;
    let outcomes: Vec<Outcome> =
        blocks.iter().map(|block| outcome(&transactions, block)).collect::<Result<_>>()?;
    rows(&blocks, &outcomes, report);
    std::fs::write(root.join(PICTURE), picture(&blocks, &transactions)?)?;
    report.note(format!(
        "PostgreSQL {}, scale {SCALE}, synchronous_commit off, {CLIENTS} clients of one pgbench \
         (prepared statements) on the server's cores; {PAIRS} pairs of blocks of {} s on one \
         server process, in random order within a pair; the last {} s of a block count. The rows \
         with ± are 95 % intervals of the ratio within a pair (Student's t of its logarithm).",
        super::version(&super::found("postgres")?)?,
        BLOCK.as_secs(),
        COUNTED.as_secs(),
    ));
    Ok(())
}

/// The page that the server shares with agents, and how to run one.
struct Page<'a> {
    lull: &'a Path,
    directory: PathBuf,
    library: PathBuf,
}

impl<'a> Page<'a> {
    fn new(lull: &'a Path, scratch: &Path) -> Self {
        Self { lull, directory: scratch.join("page"), library: scratch.join("library") }
    }

    fn attach(&self) -> Command {
        let mut command = Command::new(self.lull);
        command.arg("attach").arg(&self.directory).arg("--library").arg(&self.library);
        command.args(["--protocol", "postgres"]);
        if geteuid().is_root() {
            command.arg("--owner").arg(NOBODY.to_string());
        }
        command
    }

    /// The variables that a server needs, as `NAME=VALUE`.
    fn environment(&self) -> Result<Vec<String>> {
        let output = self.attach().arg("--environment").output()?;
        if !output.status.success() {
            bail!("lull attach failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }

    /// An agent with `auto`, which leaves the gate open when it ends.
    fn auto(&self) -> Result<Running> {
        let mut agent = self.attach();
        agent.args(["--concurrency", "auto"]).stdout(Stdio::null()).stderr(Stdio::null());
        Running::start(&mut agent)
    }
}

fn wait_until_it_answers(address: SocketAddr) -> Result<()> {
    let begun = Instant::now();
    while !pgbench(address, &["--no-vacuum", "--transactions=1"])?.status.success() {
        if begun.elapsed() > START_MAX {
            bail!("PostgreSQL does not answer at {address}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// All blocks, beside one pgbench.
fn series(page: &Page<'_>, script: &Path, address: SocketAddr, logs: &Path) -> Result<Vec<Block>> {
    let total = WARM_UP + BLOCK * (2 * PAIRS as u32) + Duration::from_secs(5);
    let script = format!("--file={}", script.display());
    let clients = format!("--client={CLIENTS}");
    let time = format!("--time={}", total.as_secs());
    let prefix = format!("--log-prefix={}", logs.join("log").display());
    let arguments = [
        &script,
        &clients,
        &time,
        &prefix,
        "--no-vacuum",
        "--protocol=prepared",
        "--jobs=2",
        "--log",
    ];
    std::thread::scope(|scope| {
        let load = scope.spawn(|| pgbench(address, &arguments));
        std::thread::sleep(WARM_UP);
        let mut rng = Rng::seed_from_u64(SEED);
        let mut blocks = Vec::new();
        for _ in 0..PAIRS {
            let mut pair = [Gate::Open, Gate::Auto];
            if rng.random_bool(0.5) {
                pair.reverse();
            }
            for gate in pair {
                blocks.push(block(page, gate)?);
            }
        }
        let load = load.join().map_err(|_| anyhow::anyhow!("pgbench's thread panicked"))??;
        let text = String::from_utf8_lossy(&load.stdout);
        if !load.status.success() || !text.contains("number of failed transactions: 0 ") {
            bail!("pgbench failed: {text}{}", String::from_utf8_lossy(&load.stderr));
        }
        Ok(blocks)
    })
}

fn block(page: &Page<'_>, gate: Gate) -> Result<Block> {
    let begin_s = now_s()?;
    let agent = match gate {
        Gate::Open => None,
        Gate::Auto => Some(page.auto()?),
    };
    std::thread::sleep(BLOCK);
    let block = Block { gate, begin_s, end_s: now_s()? };
    if let Some(mut agent) = agent
        && agent.has_ended()
    {
        bail!("the agent ended within its block");
    }
    Ok(block)
}

fn now_s() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

fn read_logs(directory: &Path) -> Result<Vec<Transaction>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("log.") {
            for line in std::fs::read_to_string(entry.path())?.lines() {
                all.push(transaction(line)?);
            }
        }
    }
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

/// The figures of the part of a block that counts.
fn outcome(transactions: &[Transaction], block: &Block) -> Result<Outcome> {
    let begin_s = block.end_s - COUNTED.as_secs_f64();
    let latencies = latencies(transactions, begin_s, block.end_s);
    if latencies.is_empty() {
        bail!("no transaction ended within a block");
    }
    Ok(Outcome {
        per_s: latencies.len() as f64 / COUNTED.as_secs_f64(),
        p50_ms: quantile(&latencies, 0.5),
        p99_ms: quantile(&latencies, 0.99),
    })
}

/// Sorted latencies of the transactions that ended between two times.
fn latencies(transactions: &[Transaction], begin_s: f64, end_s: f64) -> Vec<f64> {
    let within = transactions.iter().filter(|one| begin_s <= one.end_s && one.end_s < end_s);
    let mut latencies: Vec<f64> = within.map(|one| one.latency_ms).collect();
    latencies.sort_by(f64::total_cmp);
    latencies
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

fn rows(blocks: &[Block], outcomes: &[Outcome], report: &mut Report) {
    type Figure = fn(&Outcome) -> f64;
    let figures: [(&str, &'static str, Figure); 3] = [
        ("transactions", "1/s", |one| one.per_s),
        ("p50", "ms", |one| one.p50_ms),
        ("p99", "ms", |one| one.p99_ms),
    ];
    for (name, unit, figure) in figures {
        let of = |gate: Gate| {
            let zip = blocks.iter().zip(outcomes).filter(move |(block, _)| block.gate == gate);
            zip.map(|(_, outcome)| figure(outcome)).collect::<Vec<f64>>()
        };
        let (open, auto) = (of(Gate::Open), of(Gate::Auto));
        report.reported(&format!("{name}, open"), Summary::new(open.iter().copied()), unit);
        report.reported(&format!("{name}, auto"), Summary::new(auto.iter().copied()), unit);
        let logs: Vec<f64> =
            auto.iter().zip(&open).map(|(auto, open)| (auto / open).ln()).collect();
        if let Some(Estimate { mean, half_width, .. }) = Estimate::from_values(&logs) {
            let [low, high] = [mean - half_width, mean + half_width].map(f64::exp);
            let what = format!("{name}, auto / open (± 95 %)");
            report.reported(&what, Summary { median: mean.exp(), low, high }, "ratio");
        }
    }
}

/// Throughput and p99 of every second, in one colour for each kind of block.
fn picture(blocks: &[Block], transactions: &[Transaction]) -> Result<String> {
    let drawn = |title: String, y: Axis, value: fn(&[f64]) -> f64| {
        Figure::new(title, Axis::linear("time (s)"), y)
            .with_curve("gate open", Look::Points, seconds(blocks, transactions, Gate::Open, value))
            .with_curve(
                "concurrency auto",
                Look::Points,
                seconds(blocks, transactions, Gate::Auto, value),
            )
    };
    let title = format!("{CLIENTS} clients that contend for twelve rows: p99 of each second");
    let p99 = drawn(title, Axis::log("p99 latency (ms)"), |sorted| quantile(sorted, 0.99));
    let title = "Transactions in each second".to_owned();
    let rate = drawn(title, Axis::linear("transactions/s"), |sorted| sorted.len() as f64);
    svg(&[p99, rate]).map_err(|error| anyhow::anyhow!("cannot draw: {error}"))
}

/// A value of the sorted latencies of every second of the blocks of one kind.
fn seconds(
    blocks: &[Block],
    transactions: &[Transaction],
    gate: Gate,
    value: fn(&[f64]) -> f64,
) -> Vec<Point> {
    let start_s = blocks.first().map_or(0.0, |block| block.begin_s);
    let mut points = Vec::new();
    for block in blocks.iter().filter(|block| block.gate == gate) {
        for second in 0..BLOCK.as_secs() {
            let at_s = block.begin_s + second as f64;
            let latencies = latencies(transactions, at_s, at_s + 1.0);
            if !latencies.is_empty() {
                points.push(Point::at(at_s - start_s, value(&latencies)));
            }
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_is_read_and_another_form_is_refused() {
        let read = transaction("3 17 250500 0 1700000000 500000").unwrap();
        assert_eq!(read, Transaction { end_s: 1_700_000_000.5, latency_ms: 250.5 });
        assert!(transaction("3 17 soon 0 1700000000 1").is_err());
        assert!(transaction("").is_err());
    }

    #[test]
    fn only_the_end_of_a_block_counts() {
        let end_s = 100.0;
        let block = Block { gate: Gate::Open, begin_s: 40.0, end_s };
        let counted = COUNTED.as_secs_f64();
        let at = |end_s, latency_ms| Transaction { end_s, latency_ms };
        let all = [at(end_s - counted - 1.0, 900.0), at(end_s - 1.0, 10.0), at(end_s + 1.0, 900.0)];
        let outcome = outcome(&all, &block).unwrap();
        assert_eq!(outcome, Outcome { per_s: 1.0 / counted, p50_ms: 10.0, p99_ms: 10.0 });
        assert!(super::outcome(&[], &block).is_err());
    }

    #[test]
    fn a_quantile_is_the_value_at_its_rank() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [50.0, 99.0, 100.0]);
        assert_eq!(quantile(&[7.0], 0.5), 7.0);
    }
}
