//! The table and the picture of `lull demo database`.

use super::super::figure::{Figure, Panel, axis_top};
use super::super::result::{Quantity, Row, paired_rows, text};
use super::measured::Block;
use super::{Compared, PAIRS};
use crate::cli::DatabaseDemoArgs;
use anyhow::Context;
use lull_measure::{Nanos, Percentile};
use lull_oncall::Settings;
use lull_workload::client::LoadReport;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The limit that is compared with the open gate.
pub(super) struct Limit {
    pub(super) settings: Settings,
    /// The decision of `auto` with its evidence.
    pub(super) decision: Option<String>,
    /// Whether the limit is not that of `auto`.
    pub(super) is_fixed: bool,
}

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    /// The database, and its version.
    engine: &'static str,
    version: String,
    connections: u16,
    seed: u64,
    /// Transactions at a time in the limited blocks.
    limit: u32,
    /// Whether `auto` chose that limit.
    limit_is_autos: bool,
    /// The decision of `auto` with its evidence.
    decision: Option<String>,
    pairs: u32,
    block_seconds: f64,
    /// Transactions that failed in the whole run, and tries that were repeated.
    failed_transactions: u64,
    repeated_tries: u64,
    rows: Vec<Row>,
    figure: PathBuf,
}

impl Limit {
    pub(super) fn title(&self) -> String {
        match self.is_fixed {
            true => format!("limit {}", self.settings.cap),
            false => format!("auto: {}", self.settings.cap),
        }
    }
}

fn rows(pairs: &[(Block, Block)]) -> Vec<Row> {
    let quantities: Vec<Quantity<'_, Block>> = vec![
        ("transactions, 1/s".to_owned(), 1.0, Box::new(Block::throughput)),
        ("p50 latency, ms".to_owned(), 1e3, Box::new(|block| block.tail_s(Percentile::P50))),
        ("p99 latency, ms".to_owned(), 1e3, Box::new(|block| block.tail_s(Percentile::P99))),
    ];
    paired_rows(quantities, pairs)
}

impl Findings {
    /// Summarises a comparison and writes its picture.
    ///
    /// # Errors
    /// If the picture cannot be written.
    pub(super) fn new(
        args: &DatabaseDemoArgs,
        engine: &'static str,
        version: String,
        report: &LoadReport,
        compared: Compared,
        begun: Nanos,
    ) -> anyhow::Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = format!("database-{}-{since}.svg", engine.to_lowercase());
        let figure = args.record.join(name);
        draw(&figure, &compared, begun)?;
        let Compared { limit, pairs, block, .. } = compared;
        Ok(Self {
            engine,
            version,
            connections: args.connections,
            seed: args.seed,
            limit: limit.settings.cap,
            limit_is_autos: !limit.is_fixed,
            decision: limit.decision,
            pairs: PAIRS,
            block_seconds: block.as_secs_f64(),
            failed_transactions: report.failed_requests,
            repeated_tries: report.retried_requests,
            rows: rows(&pairs),
            figure,
        })
    }

    /// Prints the result as text.
    pub(super) fn print(&self) {
        println!("{}", self.version);
        println!(
            "{} connections over a unix socket, each sending transactions that contend for twelve \
             rows\n",
            self.connections
        );
        println!("{}\n", self.explain_limit());
        println!("{}\n", text(&self.rows, "open", &format!("limit {}", self.limit)));
        println!(
            "Means over {} pairs of blocks of {:.1} s in random order (seed {}), on one server \
             process, with 95 % intervals (Student's t over pairs). A difference is claimed only \
             if, over all these figures together, chance alone would show one in at most 5 of 100 \
             such demos. The server does not wait for its disk at a commit. Server and clients \
             share this machine's cores.",
            self.pairs, self.block_seconds, self.seed
        );
        if self.failed_transactions > 0 {
            println!("{} transactions failed.", self.failed_transactions);
        }
        println!("Figure: {}", self.figure.display());
    }

    fn explain_limit(&self) -> String {
        match (&self.decision, self.limit_is_autos) {
            (Some(decision), true) => format!("auto decided: {decision}"),
            (Some(decision), false) => format!(
                "auto keeps the gate open ({decision}); a fixed limit of {} is compared instead",
                self.limit
            ),
            (None, _) => format!(
                "auto had no result in its half of the time, of which --seconds gives more; a \
                 fixed limit of {} is compared instead",
                self.limit
            ),
        }
    }
}

fn draw(file: &Path, compared: &Compared, begun: Nanos) -> anyhow::Result<()> {
    let at = |time: Nanos| time.saturating_sub(begun).as_secs_f64();
    let windows = || compared.windows.iter().filter(|window| window.end > begun);
    let p99s: Vec<(f64, f64)> = windows()
        .filter_map(|window| Some((at(window.end), window.p99?.as_millis_f64())))
        .collect();
    let rates: Vec<(f64, f64)> = windows().map(|window| (at(window.end), window.per_s)).collect();
    let shaded: Vec<_> = compared.shaded.iter().map(|span| at(span.start)..at(span.end)).collect();
    let panel = |caption, axis, points: Vec<(f64, f64)>| Panel {
        caption,
        axis,
        top: axis_top(&points, 0.0),
        points,
        mark: None,
    };
    let caption = format!(
        "p99 of each 250 ms; grey: auto tries limits, blue: {} transactions at a time",
        compared.limit.settings.cap
    );
    let trials = Some(at(compared.trials.start)..at(compared.trials.end));
    let end_s = rates.last().map_or(1.0, |(time, _)| *time);
    let panels =
        [panel(caption, "ms", p99s), panel("Transactions per second".to_owned(), "1/s", rates)];
    let drawn = Figure { shaded: &shaded, trials, end_s, panels }.write(file);
    drawn
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("the figure {} cannot be written", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::measured::testing::block;
    use super::*;

    #[test]
    fn a_gain_in_every_pair_is_claimed_and_a_mixed_one_is_not() {
        let ms = Nanos::from_millis;
        let pairs: Vec<(Block, Block)> = (0..6)
            .map(|pair| (block(1_000 + pair, ms(100 + pair % 2)), block(1_500 + pair, ms(100))))
            .collect();
        let rows = serde_json::to_value(rows(&pairs)).unwrap();
        assert_eq!(rows[0]["clear"], true, "{rows}");
        assert_eq!(rows[0]["difference"]["mean"], 500.0);
        assert_eq!(rows[1]["clear"], false, "{rows}");
    }

    #[test]
    fn the_limit_is_explained_by_who_chose_it() {
        let findings = |decision: Option<&str>, limit_is_autos| Findings {
            engine: "MariaDB",
            version: String::new(),
            connections: 256,
            seed: 1,
            limit: 16,
            limit_is_autos,
            decision: decision.map(str::to_owned),
            pairs: 6,
            block_seconds: 3.0,
            failed_transactions: 0,
            repeated_tries: 0,
            rows: Vec::new(),
            figure: PathBuf::new(),
        };
        let cases = [
            (Some("16 at a time: gain"), true, "auto decided: 16 at a time: gain"),
            (Some("open: no gain"), false, "auto keeps the gate open (open: no gain); a fixed"),
            (None, false, "auto had no result"),
        ];
        for (decision, is_autos, wanted) in cases {
            let text = findings(decision, is_autos).explain_limit();
            assert!(text.starts_with(wanted), "{text}");
        }
    }
}
