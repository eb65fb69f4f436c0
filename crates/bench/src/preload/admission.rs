//! Settings of the gate of one running server, in random blocks.
//!
//! One server process, whose library shares a page with agents, and one client with all its
//! connections live through a series. A round has one block of every setting, in random order. A
//! block begins with the start of an agent that sets the gate, or with none: then the gate is open.
//! Whole intervals of the client pass until the transactions that were admitted before have ended
//! and the controller has found its limit (`auto`: until it has decided, 40 s at most). Then one
//! interval counts. A ratio is that of two blocks of a round, so that it compares the same process,
//! the same connections and the same data, minutes apart at most. The long form has a series on
//! each of several processes.
//!
//! Before that, `lull advise` watches the bare server under the same load.

mod advice;
mod client;
mod page;
mod picture;
mod printing;
mod series;
mod setting;
mod table;

use super::super::process::Running;
use super::super::server::{free_address, served};
use super::database::{self, DISK, GROWING, MEMORY};
use super::postgres;
use super::product::Product;
use super::{Context, Report};
use advice::{Advice, advise};
use anyhow::{Context as _, Result};
use client::{Outcome, Site, Transaction, Transactions};
use page::Page;
use series::{Block, Pace, Series};
use setting::{Setting, settings};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use table::Table;

/// Where the picture is kept.
const PICTURE: &str = "docs/contended.svg";
/// Time of all series of the form of ten minutes; the server and its data come before.
const SHORT: Duration = Duration::from_secs(510);
const SHORT_INTERVAL_S: u32 = 4;
const LONG_INTERVAL_S: u32 = 6;
/// The long form has rounds on several processes of a server, one after the other.
const LONG_PROCESSES: u64 = 4;
/// Blocks of each setting on a process.
const ROUNDS: usize = 5;
/// Options of PostgreSQL beside those of [`postgres::server_options`]: a series writes for minutes.
const LASTING: [&str; 4] = ["-c", "synchronous_commit=off", "-c", "max_wal_size=2GB"];

/// The server of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    MariaDb,
    /// The same with tables that do not fit its memory.
    OnDisk,
    MySql,
    /// PostgreSQL with this many branches.
    Postgres(u32),
}

/// One load.
#[derive(Debug, Clone, Copy)]
struct Workload {
    transactions: Transactions,
    connections: u32,
    /// Whether a limit gains there. If not, the question is what a controller loses.
    gains: bool,
    /// Time to the decision of `auto`: the median must not exceed it.
    decides_s: f64,
}

/// A server and the loads that it bears in turn.
pub(super) struct Comparison {
    engine: Engine,
    workloads: &'static [Workload],
    /// How many of them, from the first on, take part in the form of ten minutes.
    short: usize,
    /// Whether the long form draws [`PICTURE`].
    has_picture: bool,
}

const fn contended(transactions: Transactions, connections: u32) -> Workload {
    Workload { transactions, connections, gains: true, decides_s: 20.0 }
}

/// A load of sysbench whose transactions hardly contend.
const fn light(script: &'static str, connections: u32) -> Workload {
    let decides_s = if connections <= 64 { 10.0 } else { 20.0 };
    let transactions = Transactions::Sysbench(script);
    Workload { transactions, connections, gains: false, decides_s }
}

const READ_WRITE: Transactions = Transactions::Sysbench("oltp_read_write");

/// PostgreSQL whose clients contend for twelve rows.
pub(super) const HOT_ROWS: Comparison = Comparison {
    engine: Engine::Postgres(4),
    workloads: &[contended(Transactions::HotRows, 256)],
    short: 1,
    has_picture: true,
};

/// PostgreSQL with pgbench's own transaction.
pub(super) const TPC_B: Comparison = Comparison {
    engine: Engine::Postgres(16),
    workloads: &[contended(Transactions::TpcB, 256)],
    short: 1,
    has_picture: false,
};

/// TPC-C on MariaDB.
pub(super) const TPC_C: Comparison = Comparison {
    engine: Engine::MariaDb,
    workloads: &[contended(Transactions::TpcC, 128), contended(Transactions::TpcC, 400)],
    short: 1,
    has_picture: false,
};

/// Transactions of reads and writes on MariaDB.
pub(super) const MARIADB: Comparison = Comparison {
    engine: Engine::MariaDb,
    workloads: &[contended(READ_WRITE, 512), contended(READ_WRITE, 256)],
    short: 1,
    has_picture: false,
};

/// Short transactions on MariaDB, where a limit can only lose.
pub(super) const SCRIPTS: Comparison = Comparison {
    engine: Engine::MariaDb,
    workloads: &[
        light("oltp_read_only", 64),
        light("oltp_point_select", 64),
        light("oltp_update_index", 64),
        light("oltp_read_only", 8),
        light("oltp_point_select", 8),
        light("oltp_update_index", 8),
        light("oltp_read_only", 256),
        light("oltp_point_select", 256),
        light("oltp_update_index", 256),
        light("oltp_read_only", 512),
        light("oltp_point_select", 512),
        light("oltp_update_index", 512),
        light("oltp_read_write", 8),
        light("oltp_read_write", 64),
    ],
    short: 3,
    has_picture: false,
};

/// MySQL under the same client.
pub(super) const MYSQL: Comparison = Comparison {
    engine: Engine::MySql,
    workloads: &[
        contended(READ_WRITE, 512),
        light("oltp_point_select", 64),
        light("oltp_read_write", 64),
    ],
    short: 1,
    has_picture: false,
};

/// MariaDB with tables that do not fit its memory.
pub(super) const ON_DISK: Comparison = Comparison {
    engine: Engine::OnDisk,
    workloads: &[
        contended(READ_WRITE, 512),
        contended(READ_WRITE, 256),
        light("oltp_point_select", 512),
    ],
    short: 1,
    has_picture: false,
};

/// A server that shares a page, with its data; it runs while a series does.
struct Gated {
    page: Page,
    site: Site,
    version: String,
    data: PathBuf,
    /// The server and its options.
    command: Vec<String>,
}

/// Starts the server of a comparison, runs a series for each load, and adds their rows.
///
/// # Errors
/// If the server, its client or an agent cannot be run.
pub(super) fn measure(
    context: &Context,
    lull: &Path,
    comparison: &Comparison,
    report: &mut Report,
) -> Result<()> {
    let scratch = match comparison.engine {
        Engine::OnDisk => tempfile::tempdir_in(context.target())?,
        Engine::MariaDb | Engine::MySql | Engine::Postgres(_) => tempfile::tempdir()?,
    };
    super::make_readable(scratch.path())?;
    let count = if context.is_full { comparison.workloads.len() } else { comparison.short };
    let (workloads, pace) = (&comparison.workloads[..count], pace(context.is_full, count));
    let (gated, advices) = Gated::new(comparison.engine, workloads, lull, scratch.path())?;
    let mut counts = Vec::new();
    for (workload, advice) in workloads.iter().zip(&advices) {
        let title = workload.title();
        eprintln!("  {title}");
        let rounds = gated.run(workload, pace, context.is_full).with_context(|| title.clone())?;
        counts.push(rounds.blocks.len());
        rounds.rows(workload, advice, report).with_context(|| title.clone())?;
        if comparison.draws(context.is_full)
            && let Some(picture) = rounds.picture(&title)?
        {
            std::fs::write(context.root.join(PICTURE), picture)?;
        }
    }
    let processes = processes(context.is_full);
    report.note(note(comparison, &gated.version, pace, processes, &counts));
    Ok(())
}

/// The length of each of `count` series.
fn pace(is_full: bool, count: usize) -> Pace {
    if is_full {
        return Pace { interval_s: LONG_INTERVAL_S, rounds_max: ROUNDS, budget: Duration::MAX };
    }
    let budget = SHORT / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    Pace { interval_s: SHORT_INTERVAL_S, rounds_max: usize::MAX, budget }
}

/// How a comparison was measured; `counts` has the rounds of each load on all processes.
fn note(
    comparison: &Comparison,
    version: &str,
    pace: Pace,
    processes: u64,
    counts: &[usize],
) -> String {
    let mut clients: Vec<&str> =
        comparison.workloads.iter().map(|one| one.transactions.client()).collect();
    clients.dedup();
    let server = match comparison.engine {
        Engine::MariaDb => "MariaDB in memory",
        Engine::OnDisk => "MariaDB from disk",
        Engine::MySql => "MySQL in memory",
        Engine::Postgres(_) => "PostgreSQL without fsync and autovacuum, synchronous_commit off",
    };
    let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
    format!(
        "{server}, {version}, processes: {processes}, rounds of each load: {}; {} on the same \
         cores, one with all its connections on each process. A round has a block of each setting \
         in random order, with an agent of its own. A block counts the client's last interval of \
         {} s, after one that passes, two for a controller, and until the interval after its first \
         decision for auto, 40 s at most (undecided counts as 60 s). Transactions are those of the \
         client, new orders for TPC-C, and latency is theirs. The rows with ± are geometric means \
         of ratios within a round with their 95 % intervals (Student's t of the logarithm). A lead \
         is the ratio of throughput where p99 is at most 1.1 of the other's, or the inverse ratio \
         of p99 where throughput is at least 0.97 of it.",
        counts.join(", "),
        clients.join(", "),
        pace.interval_s
    )
}

impl Comparison {
    /// Whether the picture of the documents is drawn: two rounds are too few for it.
    fn draws(&self, is_full: bool) -> bool {
        self.has_picture && is_full
    }
}

impl Workload {
    fn title(&self) -> String {
        let name = match self.transactions {
            Transactions::Sysbench(script) => script.trim_start_matches("oltp_").replace('_', "-"),
            Transactions::TpcC => "TPC-C".to_owned(),
            Transactions::TpcB => "TPC-B-like".to_owned(),
            Transactions::HotRows => "twelve hot rows".to_owned(),
        };
        format!("{name}, {} connections", self.connections)
    }
}

impl Gated {
    /// Fills the data of a server, and watches it bare under each load.
    fn new(
        engine: Engine,
        workloads: &[Workload],
        lull: &Path,
        scratch: &Path,
    ) -> Result<(Self, Vec<Advice>)> {
        let has_tpcc = workloads.iter().any(|one| one.transactions == Transactions::TpcC);
        let (product, store) = match engine {
            Engine::MariaDb if has_tpcc => (Product::MariaDb, GROWING),
            Engine::MariaDb => (Product::MariaDb, MEMORY),
            Engine::OnDisk => (Product::MariaDb, DISK),
            Engine::MySql => (Product::mysql()?, MEMORY),
            Engine::Postgres(scale) => {
                return Self::new_postgres(scale, workloads, lull, scratch);
            }
        };
        let data = scratch.join("model");
        let (bare, address) = database::create(&product, &data, scratch, store)?;
        if has_tpcc {
            client::prepare_tpcc(address)?;
        } else {
            database::prepare_sysbench(address, store)?;
        }
        let site = Site { address, scratch: scratch.to_owned(), store };
        let advices = advices(lull, bare, workloads, &site)?;
        let page = Page::new(lull, scratch, "mysql")?;
        let program = product.program()?;
        let version = super::version(&program)?;
        let mut command = vec![program.display().to_string()];
        command.extend(product.options(&data, address));
        command.extend(store.options.iter().map(|option| (*option).to_owned()));
        Ok((Self { page, site, version, data, command }, advices))
    }

    fn new_postgres(
        scale: u32,
        workloads: &[Workload],
        lull: &Path,
        scratch: &Path,
    ) -> Result<(Self, Vec<Advice>)> {
        let data = postgres::install(scratch, scale)?;
        let page = Page::new(lull, scratch, "postgres")?;
        let (program, address) = (super::found("postgres")?, free_address()?);
        let version = super::version(&program)?;
        let site = Site { address, scratch: scratch.to_owned(), store: MEMORY };
        let mut command = vec![program.display().to_string()];
        command.extend(postgres::server_options(&data, address));
        command.extend(LASTING.map(str::to_owned));
        let gated = Self { page, site, version, data, command };
        let bare = gated.serve(&[])?;
        let advices = advices(lull, bare, workloads, &gated.site)?;
        Ok((gated, advices))
    }

    /// Starts the server with these variables.
    fn serve(&self, environment: &[String]) -> Result<Running> {
        let is_postgres = self.page.is_of_postgres();
        let env = Path::new("env");
        let mut server = if is_postgres { postgres::unprivileged(env) } else { Command::new(env) };
        server.args(environment).args(&self.command);
        server.current_dir(&self.data).stderr(Stdio::null());
        let running = served(&mut server, self.site.address)?;
        if is_postgres {
            postgres::wait_until_it_answers(self.site.address)?;
        }
        Ok(running)
    }

    /// Runs the series of a load, each on a process of its own.
    fn run(&self, workload: &Workload, pace: Pace, is_full: bool) -> Result<Rounds> {
        let Workload { transactions, connections, gains, .. } = *workload;
        let (page, site, settings) = (&self.page, &self.site, settings(gains, is_full));
        let series = Series { transactions, connections, settings: &settings, page, site, pace };
        let (mut blocks, mut log) = (Vec::new(), Vec::new());
        for process in 0..processes(is_full) {
            let _server = self.serve(&page.environment()?)?;
            blocks.extend(series.run(process)?);
            if transactions.has_log() {
                log.extend(client::take_log(&site.scratch, connections)?);
            }
        }
        let log = transactions.has_log().then_some(log);
        Ok(Rounds { settings, blocks, log, is_full })
    }
}

const fn processes(is_full: bool) -> u64 {
    if is_full { LONG_PROCESSES } else { 1 }
}

/// Watches a bare server under each load, and stops it.
fn advices(lull: &Path, bare: Running, workloads: &[Workload], site: &Site) -> Result<Vec<Advice>> {
    let all = workloads.iter().map(|workload| -> Result<Advice> {
        let Workload { transactions, connections, .. } = *workload;
        let advice = advise(lull, &bare, transactions, connections, site);
        let advice = advice.with_context(|| format!("{}: advice", workload.title()))?;
        if transactions.has_log() {
            client::take_log(&site.scratch, connections)?;
        }
        Ok(advice)
    });
    let all = all.collect();
    drop(bare);
    all
}

/// The blocks of a series, and the transactions that its client logged.
struct Rounds {
    settings: Vec<Setting>,
    blocks: Vec<Vec<Block>>,
    log: Option<Vec<Transaction>>,
    /// Whether the series is of the long form.
    is_full: bool,
}

impl Rounds {
    /// Adds the rows.
    fn rows(&self, workload: &Workload, advice: &Advice, report: &mut Report) -> Result<()> {
        let Self { settings, blocks, log, is_full } = self;
        let outcome = |block: &Block| match log {
            Some(log) => client::outcome(log, block.counted_s),
            None => workload.transactions.read(&block.report),
        };
        let of_round =
            |round: &Vec<Block>| -> Result<Vec<Outcome>> { round.iter().map(outcome).collect() };
        let outcomes: Result<Vec<Vec<Outcome>>> = blocks.iter().map(of_round).collect();
        let outcomes = &outcomes?;
        let decided_s: Vec<Option<f64>> = blocks.iter().map(|round| round[1].decided_s).collect();
        let (title, decides_s) = (&workload.title(), workload.decides_s);
        let (decided_s, is_full) = (&decided_s, *is_full);
        let table = Table { title, settings, outcomes, decided_s, decides_s, is_full };
        table.rows(report)?;
        advice.rows(title, table.gain()?, report);
        Ok(())
    }

    /// Draws them, if the client logs transactions.
    fn picture(&self, title: &str) -> Result<Option<String>> {
        let log = self.log.as_ref();
        log.map(|log| picture::draw(title, &self.settings, &self.blocks, log)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: [&Comparison; 7] = [&HOT_ROWS, &TPC_B, &TPC_C, &MARIADB, &SCRIPTS, &MYSQL, &ON_DISK];

    #[test]
    fn the_loads_of_a_server_have_distinct_titles_and_some_take_ten_minutes() {
        for one in ALL {
            let titles: BTreeSet<String> = one.workloads.iter().map(Workload::title).collect();
            assert_eq!(titles.len(), one.workloads.len());
            assert!((1..=one.workloads.len()).contains(&one.short));
        }
    }

    #[test]
    fn postgresql_is_loaded_by_pgbench_and_no_other_server_is() {
        for one in ALL {
            let is_postgres = matches!(one.engine, Engine::Postgres(_));
            assert!(one.workloads.iter().all(|load| load.transactions.has_log() == is_postgres));
        }
    }

    #[test]
    fn only_the_long_form_of_contended_rows_replaces_the_picture_of_the_documents() {
        assert!(HOT_ROWS.draws(true));
        assert_eq!(ALL.iter().filter(|one| one.draws(true)).count(), 1);
        assert!(ALL.iter().all(|one| !one.draws(false)));
    }

    #[test]
    fn the_note_has_the_rounds_of_each_load() {
        let note = note(&SCRIPTS, "10.11", pace(false, 3), 1, &[3, 2, 2]);
        assert!(note.contains("processes: 1, rounds of each load: 3, 2, 2; sysbench"), "{note}");
    }

    #[test]
    fn short_series_share_their_time() {
        assert_eq!(pace(false, 3).budget * 3, SHORT);
        assert_eq!(pace(true, 3).rounds_max, ROUNDS);
    }
}
