//! The page's part on the recorded runs: seeds, open rows, and commits.

use super::super::results::{Length, MeasuredRow};
use super::super::{Claim, PaperClaims, SEED_BUDGET, VALUES};
use crate::report::Verdict;
use lull_sim::stats::Estimate;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The recorded rows of one experiment.
struct RecordedRun<'r> {
    name: &'r str,
    rows: Vec<&'r MeasuredRow>,
}

impl RecordedRun<'_> {
    fn seeds(&self) -> usize {
        self.rows.first().map_or(0, |row| seeds_of(row))
    }

    /// Seeds from which each row has [`VALUES`] values.
    fn needed_seeds(&self) -> usize {
        let needed = |row: &&MeasuredRow| match row.values {
            0 => 1,
            values => (VALUES * self.seeds()).div_ceil(values),
        };
        self.rows.iter().map(needed).max().unwrap_or(1)
    }
}

fn seeds_of(row: &MeasuredRow) -> usize {
    row.seeds.split_whitespace().count()
}

/// The recorded runs in the order of the file.
fn runs(results: &[MeasuredRow]) -> Vec<RecordedRun<'_>> {
    let mut all: Vec<RecordedRun> = Vec::new();
    for row in results.iter().filter(|row| row.mean.is_some()) {
        match all.iter_mut().find(|run| run.name == row.experiment) {
            Some(run) => run.rows.push(row),
            None => all.push(RecordedRun { name: &row.experiment, rows: vec![row] }),
        }
    }
    all
}

/// How many seeds experiments had and what that does to verdicts, and which rows or commits are
/// missing.
pub(super) fn seeds_text(papers: &[PaperClaims], results: &[MeasuredRow]) -> String {
    let runs = runs(results);
    let claims = papers.iter().flat_map(|paper| &paper.claim);
    let open = claims.filter(|claim| claim.judge(results).verdict() == Some(Verdict::Open));
    let open: BTreeSet<&str> =
        open.filter_map(|claim| Some(claim.row.as_ref()?.experiment.as_str())).collect();
    let named = |wanted: &dyn Fn(&RecordedRun) -> bool| {
        let found = runs.iter().filter(|run| wanted(run));
        let found: Vec<_> = found.map(|run| format!("{} ({})", run.name, run.seeds())).collect();
        if found.is_empty() { "none".to_owned() } else { found.join(", ") }
    };
    let more = named(&|run| run.seeds() > run.needed_seeds());
    let spent = named(&|run| open.contains(run.name) && run.seeds() >= SEED_BUDGET);
    let left = named(&|run| open.contains(run.name) && run.seeds() < SEED_BUDGET);
    let without = runs.iter().filter(|run| run.rows.iter().all(|row| row.commit.is_empty()));
    let without: Vec<_> = without.map(|run| run.name).collect();
    let unmeasured = results.iter().filter(|row| row.mean.is_none()).count();
    format!(
        "\
`lull lab run` adds seeds until each compared row has {VALUES} independent values and a verdict
that is not open, and runs `--seeds` at most (5 unless it is given); the budget of a recorded run
is {SEED_BUDGET}. Rows that were recorded before this was the rule were given further seeds by hand,
for the same reason. To stop by the outcome widens the chance of a wrong verdict beyond that of a
95 % interval: verdicts of experiments with more seeds than {VALUES} values need are weaker than
those of the others.

- More seeds than {VALUES} values of each row need (number of seeds): {more}.
- A claim is open and the budget is spent: {spent}.
- A claim is open and the budget is not spent: {left}.
- Recorded before their program was committed, so that the commit is unknown: {}.
- Rows that a claim names and that have no figure yet: {unmeasured}.
",
        if without.is_empty() { "none".to_owned() } else { without.join(", ") }
    )
}

/// Describes the further runs that an open row needs for a verdict.
pub(super) fn open_text(claim: &Claim, ours: &Estimate, results: &[MeasuredRow]) -> String {
    let needed = claim.comparison().and_then(|it| it.values_to_decide(ours));
    let Some(needed) = needed else {
        return "Open: the mean is on the bound, and no number of values would decide it."
            .to_owned();
    };
    let seeds = claim.measured(results).map_or(1, seeds_of);
    let seeds = (needed * seeds).div_ceil(ours.values.max(1));
    let budget = if seeds > SEED_BUDGET { ", beyond the budget" } else { "" };
    format!(
        "Open: with this mean and spread about {needed} values would decide it, which are {seeds} \
         seeds{budget}."
    )
}

/// Length, seeds and commit of every recorded experiment, a line for each commit.
pub(super) fn table(results: &[MeasuredRow]) -> String {
    let note = "A run without a commit was made before its program was committed.";
    let header = "| experiment | length | seeds | commit |\n|---|---|---|---|";
    let mut table = format!("\n## Runs\n\n{note}\n\n{header}\n");
    let mut last: Option<(&str, Length, &str, &str)> = None;
    for row in results.iter().filter(|row| row.mean.is_some()) {
        let MeasuredRow { experiment, length, seeds, commit, .. } = row;
        let key = (experiment.as_str(), *length, seeds.as_str(), commit.as_str());
        if last != Some(key) {
            let commit = if commit.is_empty() { "-" } else { commit };
            // Writing to a string cannot fail.
            let _ = writeln!(table, "| {experiment} | {length} | {seeds} | {commit} |");
        }
        last = Some(key);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::super::{check, results};
    use super::*;

    const HEADER: &str = "experiment,row,unit,paper,mean,half_width,values,length,seeds,commit\n";

    fn paper(rows: &[MeasuredRow]) -> PaperClaims {
        let text = "paper = \"A\"\n[systems]\nx = \"ours\"\n[[claim]]\ntext = \"x is fast\"\n\
                    place = \"abstract\"\nunit = \"%\"\nsystems = [\"x\"]\n\
                    tolerance = { at-least = 10.0 }\nwhy = \"its sign\"\n\
                    row = { experiment = \"ahq-cores\", name = \"speed\" }\n";
        check::read("claims.toml", text, rows).unwrap()
    }

    #[test]
    fn seeds_open_rows_and_missing_commits_are_read_from_the_results() {
        let rows = format!(
            "{HEADER}ahq-cores,speed,%,,11,2,10,full,1 2,abc\nahq-cores,named,%,,,,0,full,,\n\
             ahq-ways,speed,%,,11,2,5,full,1 2 3 4 5,\n"
        );
        let rows = results::parse(&rows).unwrap();
        let text = seeds_text(&[paper(&rows)], &rows);
        let wanted = [
            "of each row need (number of seeds): ahq-cores (2).",
            "the budget is spent: none.",
            "the budget is not spent: ahq-cores (2).",
            "the commit is unknown: ahq-ways.",
            "have no figure yet: 1.",
        ];
        for line in wanted {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn an_open_claim_states_the_values_and_seeds_that_would_decide_it() {
        let text = |mean: f64| {
            let rows = format!("{HEADER}ahq-cores,speed,%,,{mean},2,10,full,1 2,abc\n");
            let rows = results::parse(&rows).unwrap();
            super::super::remark(&paper(&rows).claim[0], &rows).unwrap()
        };
        assert!(text(11.0).contains("about 40 values would decide it, which are 8 seeds."));
        assert!(text(10.5).contains("which are 32 seeds, beyond the budget."));
        assert!(text(10.0).contains("no number of values would decide it"));
    }
}
