//! The table of a comparison: a row a policy, intervals over rounds.

use crate::text::{estimate, markdown_table, table};
use lull_agent::blocks::Paired;
use lull_agent::recorded::{Part, Phase, Run};
use lull_control::AppSpec;
use lull_measure::statistics::{Estimate, holm};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Probability of claiming a difference where there is none, over all policies together.
const LEVEL: f64 = 0.05;

/// A policy that could not run here.
#[derive(Debug, Serialize)]
pub(super) struct Refused {
    pub(super) policy: String,
    pub(super) why: String,
}

/// One policy.
#[derive(Debug, Serialize)]
struct Row {
    policy: String,
    /// Indexed by column of [`Report::columns`].
    values: Vec<Option<Estimate>>,
    /// E_S less that of the first policy, within rounds.
    difference: Option<Estimate>,
    /// Whether a difference is claimed, with all policies taken together.
    clear: bool,
}

/// The result of a comparison.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    rounds: usize,
    /// The objectives as text.
    objectives: Vec<String>,
    /// E_S, its parts, epochs missed, then the figure of each app.
    columns: Vec<String>,
    rows: Vec<Row>,
    refused: Vec<Refused>,
    record: PathBuf,
}

impl Report {
    /// Builds the report from the parts of a record, in the order of the policies.
    pub(super) fn from_parts(
        run: &Run,
        policies: &[String],
        parts: &[Part<'_>],
        refused: Vec<Refused>,
        record: PathBuf,
    ) -> Self {
        let part = |policy: &String| parts.iter().find(|part| part.name == *policy);
        let blocks =
            |policy: &String| part(policy).map(|part| part.phases(run)).unwrap_or_default();
        let all: Vec<(&String, Vec<Phase>)> =
            policies.iter().map(|policy| (policy, blocks(policy))).collect();
        let first = all.first().map(|(_, blocks)| blocks.as_slice()).unwrap_or_default();
        let mut rows: Vec<Row> = all
            .iter()
            .map(|(policy, blocks)| Row::from_blocks(policy, blocks, first, run.apps.len()))
            .collect();
        claim(&mut rows);
        let columns = ["E_S", "E_LC", "E_BE", "epochs missed, %"].map(str::to_owned);
        let columns = columns.into_iter().chain(run.apps.iter().map(column)).collect();
        Self {
            rounds: first.len(),
            objectives: run.apps.iter().filter_map(objective).collect(),
            rows,
            columns,
            refused,
            record,
        }
    }

    fn header(&self) -> Vec<&str> {
        let names = self.columns.iter().map(String::as_str);
        ["policy"]
            .into_iter()
            .chain(names)
            .chain(["E_S against the first", "a difference?"])
            .collect()
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let row = |(index, row): (usize, &Row)| {
            let verdict = match (index, row.clear) {
                (0, _) => "-",
                (_, true) => "yes",
                (_, false) => "not shown",
            };
            let difference = if index == 0 { None } else { row.difference };
            let values = row.values.iter().copied().map(estimate);
            [row.policy.clone()]
                .into_iter()
                .chain(values)
                .chain([estimate(difference), verdict.to_owned()])
                .collect()
        };
        self.rows.iter().enumerate().map(row).collect()
    }

    /// Prints the report as text.
    pub(super) fn print(&self) {
        println!("Objectives: {}\n", self.objectives.join("; "));
        println!("{}\n", table(&self.header(), self.cells()));
        println!("{}", self.footer());
        println!("Record: {}", self.record.display());
    }

    fn footer(&self) -> String {
        let mut text = format!(
            "Means over {} blocks a policy with 95 % intervals (Student's t over blocks); \
             differences within rounds. A difference is claimed only if, over all policies \
             together, chance alone would show one in at most 5 of 100 such comparisons.",
            self.rounds
        );
        for one in &self.refused {
            let _ = write!(text, "\nNot run: {}: {}.", one.policy, one.why);
        }
        text
    }

    /// Returns the report as Markdown.
    pub(super) fn markdown(&self) -> String {
        let table = markdown_table(&self.header(), self.cells());
        let footer = self.footer().replace('\n', "\n\n");
        format!("Objectives: {}\n\n{table}\n{footer}\n", self.objectives.join("; "))
    }
}

impl Row {
    fn from_blocks(policy: &str, blocks: &[Phase], first: &[Phase], apps: usize) -> Self {
        let mean = |of: &dyn Fn(&Phase) -> Option<f64>| {
            Estimate::from_values(&blocks.iter().filter_map(of).collect::<Vec<_>>())
        };
        let mut values = vec![
            mean(&system),
            mean(&|block| block.entropy.lc),
            mean(&|block| block.entropy.be),
            mean(&|block| block.missed.map(|share| 100.0 * share)),
        ];
        values.extend((0..apps).map(|app| mean(&|block: &Phase| block.apps[app])));
        let mut paired = Paired::default();
        first.iter().zip(blocks).for_each(|(off, on)| paired.push(system(off), system(on)));
        let difference = paired.difference();
        Self { policy: policy.to_owned(), values, difference, clear: false }
    }
}

/// Claims the differences that may be claimed together (Holm). The first row is what the others
/// are compared with.
fn claim(rows: &mut [Row]) {
    let Some((_, others)) = rows.split_first_mut() else { return };
    let chance = |row: &Row| row.difference.map_or(1.0, |difference| difference.chance());
    let chances: Vec<f64> = others.iter().map(chance).collect();
    for (row, clear) in others.iter_mut().zip(holm(&chances, LEVEL)) {
        row.clear = clear;
    }
}

fn system(block: &Phase) -> Option<f64> {
    let entropy = block.entropy;
    (entropy.lc.is_some() || entropy.be.is_some()).then_some(entropy.system)
}

fn column(spec: &AppSpec) -> String {
    match spec.tail().filter(|_| spec.is_latency_critical()) {
        Some((percentile, _)) => format!("{} {percentile}, ms", spec.name),
        None => format!("{}, % of alone", spec.name),
    }
}

fn objective(spec: &AppSpec) -> Option<String> {
    let (percentile, bound) = spec.tail().filter(|_| spec.is_latency_critical())?;
    let ideal = spec.ideal.map(|ideal| format!(", {ideal:.2} alone")).unwrap_or_default();
    Some(format!("{percentile} of {} within {bound:.2}{ideal}", spec.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::entropy::SystemEntropy;

    fn block(system: f64) -> Phase {
        let entropy = SystemEntropy { lc: Some(system), be: None, system };
        Phase { entropy, missed: Some(0.5), apps: vec![Some(3.0)] }
    }

    #[test]
    fn differences_are_within_rounds_so_that_drift_cancels() {
        let first: Vec<_> = [0.2, 0.4, 0.6].map(block).to_vec();
        let better: Vec<_> = [0.1, 0.3, 0.5].map(block).to_vec();
        let row = Row::from_blocks("tide", &better, &first, 1);
        let difference = row.difference.unwrap();
        assert!((difference.mean + 0.1).abs() < 1e-12);
        assert!(difference.half_width < 1e-9);
        let alone = row.values[0].unwrap();
        assert!(alone.half_width > 0.1, "the means themselves drift");
        assert_eq!(row.values[3].unwrap().mean, 50.0);
    }

    #[test]
    fn the_more_policies_are_compared_the_clearer_a_difference_must_be() {
        let first: Vec<_> = [0.5; 5].map(block).to_vec();
        // t = 3.1 with four degrees of freedom: a chance of 3.5 %.
        let perhaps: Vec<_> = [0.40, 0.45, 0.5, 0.42, 0.46].map(block).to_vec();
        let row = |blocks: &[Phase]| Row::from_blocks("one", blocks, &first, 1);
        let mut two = [row(&first), row(&perhaps)];
        claim(&mut two);
        assert!(two[1].clear, "{:?}", two[1].difference);
        let mut three = [row(&first), row(&perhaps), row(&first)];
        claim(&mut three);
        assert!(!three[1].clear && !three[2].clear, "{:?}", three[1].difference);
    }

    #[test]
    fn a_page_has_a_line_a_policy_and_says_who_was_refused() {
        let row = |policy: &str| Row::from_blocks(policy, &[block(0.3)], &[block(0.3)], 1);
        let report = Report {
            rounds: 1,
            objectives: vec!["p95 of lc within 4ms".to_owned()],
            columns: ["E_S", "E_LC", "E_BE", "epochs missed, %", "lc p95, ms"]
                .map(str::to_owned)
                .to_vec(),
            rows: vec![row("unmanaged"), row("tide")],
            refused: vec![Refused { policy: "even".to_owned(), why: "too few cores".to_owned() }],
            record: PathBuf::from("x.db"),
        };
        let page = report.markdown();
        assert!(page.contains("| unmanaged | 0.300 | 0.300 | - | 50.0 | 3.00 | - | - |"), "{page}");
        assert!(page.contains("| tide |") && page.contains("not shown"), "{page}");
        assert!(page.contains("Not run: even: too few cores."), "{page}");
    }
}
