//! The table of dispatchers: a row each, intervals over blocks.

use super::plan::Plan;
use crate::cli::PlaceArgs;
use crate::text::{estimate, markdown_table, number, table};
use lull_agent::blocks::Paired;
use lull_host::dispatch::Tally;
use lull_measure::statistics::Estimate;
use lull_measure::{Latency, Nanos, Percentile};
use serde::Serialize;
use std::fmt::Write;

/// The measurements of one dispatcher in one block.
pub(super) struct Block {
    pub(super) dispatcher: usize,
    pub(super) round: usize,
    pub(super) tally: Tally,
}

/// One dispatcher.
#[derive(Debug, Serialize)]
struct Row {
    dispatcher: String,
    requests: u64,
    /// The tail of each block.
    tail_ms: Option<Estimate>,
    /// The tail of all blocks together.
    pooled_tail_ms: Option<f64>,
    mean_ms: Option<Estimate>,
    late_percent: Option<Estimate>,
    /// Modelled: core time by type times power, in millijoules where the slow core takes 1 W.
    energy_mj: Option<Estimate>,
    /// Energy a request against the first dispatcher, within rounds.
    energy_change_percent: Option<Estimate>,
    moves: Option<Estimate>,
}

/// The result of the comparison.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    slowdown: f64,
    rate_per_s: f64,
    percentile: Percentile,
    target_ms: f64,
    rounds: u32,
    block: Nanos,
    rows: Vec<Row>,
    abandoned: u64,
}

impl Report {
    pub(super) fn from_blocks(args: &PlaceArgs, plan: &Plan, blocks: &[Block]) -> Self {
        let of = |dispatcher| {
            blocks.iter().filter(|block| block.dispatcher == dispatcher).collect::<Vec<_>>()
        };
        let first = of(0);
        let names = args.dispatchers.iter().enumerate();
        Self {
            slowdown: plan.slowdown,
            rate_per_s: plan.rate_per_s,
            percentile: plan.percentile,
            target_ms: plan.target.as_millis_f64(),
            rounds: args.rounds,
            block: args.block,
            rows: names
                .map(|(index, name)| Row::from_blocks(name, plan, &of(index), &first))
                .collect(),
            abandoned: blocks.iter().map(|block| block.tally.abandoned).sum(),
        }
    }

    fn header(&self) -> Vec<String> {
        let percentile = self.percentile;
        [
            "dispatcher".to_owned(),
            "requests".to_owned(),
            format!("{percentile} of a block, ms"),
            format!("{percentile} of all, ms"),
            "mean, ms".to_owned(),
            "late, %".to_owned(),
            "modelled energy a request, mJ".to_owned(),
            "against the first, %".to_owned(),
            "moves a request".to_owned(),
        ]
        .to_vec()
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let row = |(index, row): (usize, &Row)| {
            let change = if index == 0 { None } else { row.energy_change_percent };
            vec![
                row.dispatcher.clone(),
                row.requests.to_string(),
                estimate(row.tail_ms),
                row.pooled_tail_ms.map_or_else(|| "-".to_owned(), number),
                estimate(row.mean_ms),
                estimate(row.late_percent),
                estimate(row.energy_mj),
                estimate(change),
                estimate(row.moves),
            ]
        };
        self.rows.iter().enumerate().map(row).collect()
    }

    fn about(&self) -> String {
        format!(
            "{} requests/s; {} within {} ms; the slow core is {:.2} times slower",
            number(self.rate_per_s),
            self.percentile,
            number(self.target_ms),
            self.slowdown
        )
    }

    fn footer(&self) -> String {
        let mut text = format!(
            "Means over {} blocks of {:.0} a dispatcher, the first quarter of each left out, with \
             95 % intervals (Student's t over blocks); changes within rounds. Latency is \
             measured, from the arrival at the server to the end of the work. Energy is \
             modelled: core time of each type times its power, 1 W for the slow one.",
            self.rounds, self.block
        );
        if self.abandoned > 0 {
            let _ = write!(text, " {} requests lost their core for their age.", self.abandoned);
        }
        text
    }

    /// Prints the report as text.
    pub(super) fn print(&self) {
        println!("{}\n", self.about());
        let header = self.header();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        println!("{}\n\n{}", table(&header, self.cells()), self.footer());
    }

    /// Returns the report as Markdown.
    pub(super) fn markdown(&self) -> String {
        let header = self.header();
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        let table = markdown_table(&header, self.cells());
        format!("{}.\n\n{table}\n{}\n", self.about(), self.footer())
    }
}

impl Row {
    fn from_blocks(name: &str, plan: &Plan, blocks: &[&Block], first: &[&Block]) -> Self {
        let over = |of: &dyn Fn(&Tally) -> Option<f64>| {
            let values: Vec<f64> = blocks.iter().filter_map(|block| of(&block.tally)).collect();
            Estimate::from_values(&values)
        };
        let ms = |time: Nanos| time.as_millis_f64();
        let each = |part: f64, tally: &Tally| {
            let count = tally.latency.count();
            (count > 0).then(|| part / count as f64)
        };
        let energy = |tally: &Tally| each(1e3 * joules(plan, tally), tally);
        let mut all = Latency::default();
        blocks.iter().for_each(|block| all.merge(&block.tally.latency));
        let mut change = Paired::default();
        for block in blocks {
            let beside = first.iter().find(|other| other.round == block.round);
            let base = beside.and_then(|other| energy(&other.tally));
            let ours = energy(&block.tally);
            let percent = base.zip(ours).map(|(base, ours)| 100.0 * (ours / base - 1.0));
            change.push(Some(0.0), percent);
        }
        Self {
            dispatcher: name.to_owned(),
            requests: all.count(),
            tail_ms: over(&|tally| tally.latency.quantile(plan.percentile).map(ms)),
            pooled_tail_ms: all.quantile(plan.percentile).map(ms),
            mean_ms: over(&|tally| tally.latency.mean().map(ms)),
            late_percent: over(&|tally| {
                each(100.0 * tally.latency.count_above(plan.target) as f64, tally)
            }),
            energy_mj: over(&energy),
            energy_change_percent: change.difference(),
            moves: over(&|tally| each(tally.moves as f64, tally)),
        }
    }
}

/// Modelled energy of busy cores.
fn joules(plan: &Plan, tally: &Tally) -> f64 {
    tally.spent.busy_s.iter().zip(plan.watts()).map(|(busy_s, watts)| busy_s * watts).sum()
}
