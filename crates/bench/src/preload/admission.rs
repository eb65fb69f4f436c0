//! Settings of the gate of one running server, in random blocks.
//!
//! One server process, whose library shares a page with agents, and one client with all its
//! connections live through a series. A round has one block of every setting, in random order. A
//! block begins with the start of an agent that sets the gate, or with none: then the gate is open.
//! Whole intervals of the client pass until the transactions that were admitted before have ended
//! and the controller has found its limit (`auto`: until it has decided, 40 s at most). Then one
//! interval counts. A ratio is that of two blocks of a round, so that it compares the same process,
//! the same connections and the same data, minutes apart at most.
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
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use table::Table;

/// Where the picture is kept.
const PICTURE: &str = "docs/contended.svg";
/// Time of all series of the form of ten minutes; the server and its data come before.
const SHORT: Duration = Duration::from_secs(8 * 60);
const SHORT_INTERVAL_S: u32 = 4;
const LONG_INTERVAL_S: u32 = 6;
/// Blocks of each setting in the long form.
const LONG_ROUNDS: usize = 20;
/// Options of PostgreSQL beside those of [`postgres::server_options`]: a series writes for minutes.
const LASTING: [&str; 4] = ["-c", "synchronous_commit=off", "-c", "max_wal_size=2GB"];

/// The server of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    MariaDb,
    /// The same with tables that do not fit its memory.
    OnDisk,
    MySql,
    /// With so many branches.
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

/// A server with its data, and the page that it shares.
struct Gated {
    page: Page,
    site: Site,
    version: String,
    _server: Running,
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
    let (gated, advices) = Gated::start(comparison.engine, workloads, lull, scratch.path())?;
    for (workload, advice) in workloads.iter().zip(&advices) {
        let title = workload.title();
        eprintln!("  {title}");
        let rounds = gated.run(workload, pace, context.is_full).with_context(|| title.clone())?;
        let drawn = rounds.rows(workload, advice, report).with_context(|| title.clone())?;
        if let Some(picture) = drawn.filter(|_| comparison.has_picture) {
            std::fs::write(context.root.join(PICTURE), picture)?;
        }
    }
    report.note(note(comparison, &gated.version, pace));
    Ok(())
}

/// The length of each of `count` series.
fn pace(is_full: bool, count: usize) -> Pace {
    if is_full {
        let (interval_s, rounds_max) = (LONG_INTERVAL_S, LONG_ROUNDS);
        return Pace { interval_s, rounds_max, budget: Duration::MAX };
    }
    let budget = SHORT / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    Pace { interval_s: SHORT_INTERVAL_S, rounds_max: LONG_ROUNDS, budget }
}

fn note(comparison: &Comparison, version: &str, pace: Pace) -> String {
    let mut clients: Vec<&str> =
        comparison.workloads.iter().map(|one| one.transactions.client()).collect();
    clients.dedup();
    let server = match comparison.engine {
        Engine::MariaDb => "MariaDB in memory",
        Engine::OnDisk => "MariaDB from disk",
        Engine::MySql => "MySQL in memory",
        Engine::Postgres(_) => "PostgreSQL without fsync and autovacuum, synchronous_commit off",
    };
    format!(
        "{server}, {version}, one process for all blocks; {} on the same cores, one with all its \
         connections through a series. A round has a block of each setting in random order, with \
         an agent of its own. A block counts the client's last interval of {} s, after one that \
         passes, two for a controller, and until the interval after its first decision for auto, \
         40 s at most (undecided counts as 60 s). Transactions are those of the client, new orders \
         for TPC-C, and latency is theirs. The rows with ± are geometric means of ratios within a \
         round with their 95 % intervals (Student's t of the logarithm). A lead is the ratio of \
         throughput where p99 is at most 1.1 of the other's, or the inverse ratio of p99 where \
         throughput is at least 0.97 of it.",
        clients.join(", "),
        pace.interval_s
    )
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
    /// Fills the data of a server, watches it bare under each load, and starts it with a page.
    fn start(
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
                return Self::start_postgres(scale, workloads, lull, scratch);
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
        let (program, address) = (product.program()?, free_address()?);
        let mut server = Command::new("env");
        server.args(page.environment()?).arg(&program);
        server.args(product.options(&data, address)).args(store.options);
        let server = served(server.stderr(Stdio::null()), address)?;
        let (version, site) = (super::version(&program)?, Site { address, ..site });
        Ok((Self { page, site, version, _server: server }, advices))
    }

    fn start_postgres(
        scale: u32,
        workloads: &[Workload],
        lull: &Path,
        scratch: &Path,
    ) -> Result<(Self, Vec<Advice>)> {
        let data = postgres::install(scratch, scale)?;
        let page = Page::new(lull, scratch, "postgres")?;
        let (program, address) = (super::found("postgres")?, free_address()?);
        let start = |mut server: Command| {
            server.args(postgres::server_options(&data, address)).args(LASTING);
            let server = served(server.current_dir(&data).stderr(Stdio::null()), address)?;
            postgres::wait_until_it_answers(address)?;
            anyhow::Ok(server)
        };
        let site = Site { address, scratch: scratch.to_owned(), store: MEMORY };
        let bare = start(postgres::unprivileged(&program))?;
        let advices = advices(lull, bare, workloads, &site)?;
        let mut gated = postgres::unprivileged(Path::new("env"));
        gated.args(page.environment()?).arg(&program);
        let (server, version) = (start(gated)?, super::version(&program)?);
        Ok((Self { page, site, version, _server: server }, advices))
    }

    /// Runs the series of a load.
    fn run(&self, workload: &Workload, pace: Pace, is_full: bool) -> Result<Rounds> {
        let Workload { transactions, connections, gains, .. } = *workload;
        let settings = settings(gains, is_full);
        let (page, site) = (&self.page, &self.site);
        let series = Series { transactions, connections, settings: &settings, page, site, pace };
        let blocks = series.run()?;
        let log = transactions.has_log().then(|| client::take_log(&site.scratch, connections));
        Ok(Rounds { settings, blocks, log: log.transpose()? })
    }
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
}

impl Rounds {
    /// Adds the rows; returns a picture where the client logs transactions.
    fn rows(
        &self,
        workload: &Workload,
        advice: &Advice,
        report: &mut Report,
    ) -> Result<Option<String>> {
        let Self { settings, blocks, log } = self;
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
        let table = Table { title, settings, outcomes, decided_s: &decided_s, decides_s };
        table.rows(report)?;
        advice.rows(title, table.gain()?, report);
        let drawn = log.as_ref().map(|log| picture::draw(title, settings, blocks, log));
        drawn.transpose()
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
    fn short_series_share_their_time() {
        assert_eq!(pace(false, 3).budget * 3, SHORT);
        assert_eq!(pace(true, 3).rounds_max, LONG_ROUNDS);
    }
}
