//! The tables of two tiers: one for each burst cycle, a column a policy, intervals over blocks.

use super::Bursts;
use crate::text::{estimate, markdown_table, number, table};
use lull_lab::tiers::{FIGURES, TierBlock, TierFigure, TierSystem};
use lull_measure::statistics::Estimate;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The figures of one policy.
#[derive(Debug, Serialize)]
pub(super) struct PolicyReport {
    policy: String,
    blocks: usize,
    /// Indexed by name; figures that no block defines are null.
    figures: BTreeMap<&'static str, Option<Estimate>>,
}

/// The policies under one burst cycle.
#[derive(Debug, Serialize)]
pub(super) struct CycleReport {
    pub(super) record: PathBuf,
    pub(super) bursts: Bursts,
    pub(super) policies: Vec<PolicyReport>,
}

impl PolicyReport {
    pub(super) fn new(policy: &str, blocks: &[TierBlock], system: &TierSystem) -> Self {
        let over_blocks = |figure: &TierFigure| {
            let values = blocks.iter().filter_map(|block| figure.value(block, system));
            (figure.name, Estimate::from_values(&values.collect::<Vec<_>>()))
        };
        let figures = FIGURES.iter().map(over_blocks).collect();
        Self { policy: policy.to_owned(), blocks: blocks.len(), figures }
    }
}

impl CycleReport {
    fn title(&self) -> String {
        let Bursts { cycle, high_per_s, low_per_s } = self.bursts;
        format!(
            "Burst cycle of {cycle}: {} and {} requests/s in turn, half of the cycle each",
            number(high_per_s),
            number(low_per_s)
        )
    }

    fn header(&self) -> Vec<&str> {
        let policies = self.policies.iter().map(|policy| policy.policy.as_str());
        [""].into_iter().chain(policies).collect()
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let row = |name: &'static str| {
            let values = self.policies.iter().map(|policy| policy.figures.get(name).copied());
            let cells = values.map(|value| estimate(value.flatten()));
            [name.to_owned()].into_iter().chain(cells).collect()
        };
        FIGURES.iter().map(|figure| row(figure.name)).collect()
    }

    fn footer(&self) -> String {
        let blocks: Vec<String> =
            self.policies.iter().map(|policy| policy.blocks.to_string()).collect();
        format!(
            "Means over {} blocks with 95 % intervals (Student's t over blocks).",
            blocks.join(", ")
        )
    }
}

/// Prints the tables as text.
pub(super) fn print(cycles: &[CycleReport]) {
    for cycle in cycles {
        let table = table(&cycle.header(), cycle.cells());
        println!("{}\n\n{table}\n\n{}\n", cycle.title(), cycle.footer());
    }
}

/// Returns the tables as Markdown.
pub(super) fn markdown(cycles: &[CycleReport]) -> String {
    let mut page = String::new();
    for cycle in cycles {
        let table = markdown_table(&cycle.header(), cycle.cells());
        page.push_str(&format!("## {}\n\n{table}\n{}\n\n", cycle.title(), cycle.footer()));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_lab::tiers::TierEpoch;
    use lull_measure::Nanos;

    fn block(back: usize) -> TierBlock {
        let epoch = TierEpoch {
            length: Nanos::from_millis(50),
            states: [2, back],
            busy: [Some(0.5), None],
            offered_per_s: Some(400.0),
        };
        TierBlock { epochs: vec![epoch; 10], ..TierBlock::default() }
    }

    #[test]
    fn a_row_has_each_policys_mean_over_blocks_and_a_dash_where_there_is_none() {
        let system = TierSystem { states: 3, connections: 50, high_per_s: 250.0 };
        let policies = vec![
            PolicyReport::new("linux-default", &[block(2), block(2)], &system),
            PolicyReport::new("step-dvfs", &[block(0), block(2)], &system),
        ];
        let cycle = Nanos::from_secs(2);
        let bursts = Bursts { cycle, high_per_s: 400.0, low_per_s: 100.0 };
        let report = CycleReport { record: PathBuf::from("run.db"), bursts, policies };
        let page = markdown(&[report]);
        assert!(page.contains("|  | linux-default | step-dvfs |"), "{page}");
        let row = page.lines().find(|line| line.contains("MariaDB at P8")).unwrap();
        assert!(row.contains("| 0.00 ± 0.00 | 50 ± 635 |"), "{row}");
        let row = page.lines().find(|line| line.contains("response time p99")).unwrap();
        assert!(row.ends_with("| - | - |"), "{row}");
    }
}
