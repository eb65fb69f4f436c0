//! The record of fuzzing: a line of `crates/fuzz/runs.jsonl` for each run of a target, and the
//! table of their sums in `docs/fuzzing.md`.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

const RUNS: &str = "crates/fuzz/runs.jsonl";
const PAGE: &str = "docs/fuzzing.md";
/// The lines of the page that the table is between.
const BEGIN: &str = "<!-- sums of crates/fuzz/runs.jsonl: cargo xtask fuzz --record -->";
const END: &str = "<!-- end of the sums -->";
const HEAD: &str =
    "| target | runs | hours | inputs | slowest input | memory after loading, at most | failed |";
const SECONDS_PER_HOUR: f64 = 3600.0;

/// One run of one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) date: String,
    /// The commit, with `-dirty` where the tree had other changes.
    pub(super) commit: String,
    pub(super) target: String,
    pub(super) seconds: u64,
    pub(super) inputs: u64,
    /// The time in whole seconds, as libFuzzer reports it.
    pub(super) slowest_input_s: u64,
    /// Resident memory once the corpus was loaded.
    pub(super) first_mib: u64,
    pub(super) peak_mib: u64,
    /// Whether an input crashed the target, took too long or took too much memory.
    pub(super) has_failed: bool,
}

/// All runs of the file, in its order.
///
/// # Errors
/// If the file cannot be read, or a line is not a run.
pub(super) fn read(root: &Path) -> Result<Vec<Run>> {
    let file = root.join(RUNS);
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let run = |(line, number): (&str, usize)| {
        serde_json::from_str(line).with_context(|| format!("{RUNS}:{number}"))
    };
    text.lines().zip(1..).map(run).collect()
}

/// Adds a run to the file, and writes the page's table again.
///
/// # Errors
/// If one of them cannot be written, or the page has no place for the table.
pub(super) fn record(root: &Path, run: &Run, targets: &[&str]) -> Result<()> {
    let file = std::fs::OpenOptions::new().append(true).create(true).open(root.join(RUNS));
    let mut file = file.with_context(|| format!("cannot open {RUNS}"))?;
    writeln!(file, "{}", serde_json::to_string(run)?)?;
    let page = root.join(PAGE);
    let text = std::fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
    let text = with_table(&text, &table(&read(root)?, targets))?;
    std::fs::write(&page, text).with_context(|| format!("cannot write {PAGE}"))
}

/// The page with another table.
fn with_table(page: &str, table: &str) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).unwrap_or((page, ""));
    let (_, after) = rest.split_once(END).unwrap_or_default();
    ensure!(before.len() < page.len() && !after.is_empty(), "{PAGE} has no `{BEGIN}` and `{END}`");
    Ok(format!("{before}{BEGIN}\n\n{table}\n{END}{after}"))
}

/// The sums of each target, and of all.
fn table(runs: &[Run], targets: &[&str]) -> String {
    let mut table = format!("{HEAD}\n|---|---:|---:|---:|---:|---:|---:|\n");
    for target in targets {
        let own: Vec<&Run> = runs.iter().filter(|run| run.target == *target).collect();
        table += &row(&format!("`{target}`"), &own);
    }
    table + &row("all", &runs.iter().collect::<Vec<_>>())
}

fn row(name: &str, runs: &[&Run]) -> String {
    let mut row = format!("| {name} | {} |", runs.len());
    if runs.is_empty() {
        return row + " 0 | 0 | – | – | 0 |\n";
    }
    let hours = runs.iter().map(|run| run.seconds).sum::<u64>() as f64 / SECONDS_PER_HOUR;
    let inputs = runs.iter().map(|run| run.inputs).sum::<u64>();
    let most = |of: fn(&Run) -> u64| runs.iter().map(|run| of(run)).max().unwrap_or_default();
    let slowest = match most(|run| run.slowest_input_s) {
        0 => "under 1 s".to_owned(),
        seconds => format!("{seconds} s"),
    };
    let (first, peak) = (most(|run| run.first_mib), most(|run| run.peak_mib));
    let failed = runs.iter().filter(|run| run.has_failed).count();
    // Writing into a String cannot fail.
    let _ = writeln!(
        row,
        " {hours:.2} | {} | {slowest} | {first}, {peak} MiB | {failed} |",
        grouped(inputs)
    );
    row
}

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(target: &str, seconds: u64) -> Run {
        Run {
            date: "2026-11-26".to_owned(),
            commit: "0123456789ab".to_owned(),
            target: target.to_owned(),
            seconds,
            inputs: 1_234_567,
            slowest_input_s: 0,
            first_mib: 40,
            peak_mib: 42,
            has_failed: false,
        }
    }

    #[test]
    fn runs_of_a_target_add_up_and_one_that_never_ran_is_in_the_table() {
        let runs = [run("page", 1800), Run { has_failed: true, peak_mib: 90, ..run("page", 900) }];
        let table = table(&runs, &["page", "push"]);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| `page` | 2 | 0.75 | 2,469,134 | under 1 s | 40, 90 MiB | 1 |",
                "| `push` | 0 | 0 | 0 | – | – | 0 |",
                "| all | 2 | 0.75 | 2,469,134 | under 1 s | 40, 90 MiB | 1 |",
            ]
        );
    }

    #[test]
    fn a_table_takes_the_place_of_the_former_one_and_of_nothing_else() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let expected = format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n");
        assert_eq!(with_table(&page, "new\n").unwrap(), expected);
        assert_eq!(with_table(&expected, "new\n").unwrap(), expected);
        assert!(with_table("no marks\n", "new\n").is_err());
    }

    #[test]
    fn a_recorded_run_is_read_again_and_is_in_the_page() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["crates/fuzz", "docs"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let page = root.path().join(PAGE);
        std::fs::write(&page, format!("{BEGIN}\n{END}\n")).unwrap();
        let (first, second) = (run("page", 60), run("push", 60));
        for run in [&first, &second] {
            record(root.path(), run, &["page", "push"]).unwrap();
        }
        assert_eq!(read(root.path()).unwrap(), [first, second]);
        assert!(std::fs::read_to_string(page).unwrap().contains("| all | 2 | 0.03 |"));
    }

    #[test]
    fn the_page_has_the_sums_of_the_file() {
        let root = xtask::root();
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        let targets = super::super::read_targets(&root).unwrap();
        let names: Vec<&str> = targets.keys().map(String::as_str).collect();
        let expected = with_table(&page, &table(&read(&root).unwrap(), &names)).unwrap();
        assert!(page == expected, "the table of docs/fuzzing.md should be as here:\n{expected}");
    }
}
