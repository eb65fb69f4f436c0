//! `lull lab`: the papers' tables, theirs and ours side by side.

use super::UsageError;
use super::save::{self, Destination};
use crate::cli::{LabRunArgs, ListArgs};
use crate::progress::{lab_setup, parts};
use crate::say::notice;
use crate::text::table;
use anyhow::Context;
use lull_agent::cells::LabCells;
use lull_lab::claims::results::{self, Length, NewRun};
use lull_lab::experiment::{Experiment, LabError, Setup};
use lull_lab::registry::{ALL, find};
use lull_lab::report::{Report, Verdict};
use lull_lab::seeds;
use std::path::Path;

/// Prints the experiments.
pub(crate) fn list(args: &ListArgs) -> anyhow::Result<()> {
    if args.json {
        return super::print_json(&ALL);
    }
    let row =
        |it: &&Experiment| vec![it.name.to_owned(), it.summary.to_owned(), it.paper.to_owned()];
    println!("{}", table(&["experiment", "what it shows", "from"], ALL.iter().map(row)));
    Ok(())
}

/// The largest number of seeds, if the user states none.
const SEEDS: u64 = 5;

/// The counts and errors of all experiments of a command.
#[derive(Default)]
struct Summary {
    run: usize,
    misses: usize,
    verdicts: [usize; Verdict::ALL.len()],
    /// Why experiments have no report, or no saved rows.
    errors: Vec<String>,
}

/// Runs one experiment or all of them, and prints their tables.
pub(crate) fn run(args: &LabRunArgs) -> anyhow::Result<()> {
    let experiments = match &args.name {
        Some(name) => vec![find(name).map_err(|error| UsageError(error.to_string()))?],
        None => ALL.to_vec(),
    };
    // Check the file of results first, so that a path that cannot be written fails early.
    args.save.as_deref().map(Destination::new).transpose()?;
    if let Some(directory) = &args.figures {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let mut summary = Summary::default();
    for experiment in experiments {
        match run_one(experiment, args, &mut summary) {
            // A run of hours continues with the other experiments, and reports the error at its
            // end.
            Err(error) if args.all => {
                summary.errors.push(format!("{}: {error:#}", experiment.name));
            }
            result => result?,
        }
    }
    if args.all {
        println!("\n{}", summary.text());
    }
    let Summary { misses, errors, .. } = summary;
    anyhow::ensure!(
        errors.is_empty(),
        "{} experiments failed:\n{}",
        errors.len(),
        errors.join("\n")
    );
    anyhow::ensure!(misses == 0 || args.quick, "{misses} of the held rows miss their tolerance");
    Ok(())
}

impl Summary {
    fn add(&mut self, report: &Report) {
        self.run += 1;
        self.misses += report.misses();
        self.verdicts.iter_mut().zip(report.tally()).for_each(|(all, count)| *all += count);
    }

    fn text(&self) -> String {
        format!("{} of {} experiments: {}", self.run, ALL.len(), counts_text(self.verdicts))
    }
}

/// Runs one experiment, prints its table and saves its rows.
fn run_one(
    experiment: &'static Experiment,
    args: &LabRunArgs,
    summary: &mut Summary,
) -> anyhow::Result<()> {
    if let Some(path) = &args.save {
        check_rows_kept(experiment, args, usize::try_from(most_seeds(args))?, path)?;
    }
    let Some(report) = measure(experiment, args)? else { return Ok(()) };
    if args.json {
        super::print_json(&report)?;
    } else {
        print(&report);
    }
    summary.add(&report);
    if let Some(directory) = &args.figures {
        write_figures(&report, directory)?;
    }
    if let Some(path) = &args.save {
        if let Err(refused) = check_rows_kept(experiment, args, report.seeds.len(), path) {
            let aside = path.with_extension("refused.csv");
            save_rows(&report, &aside)?;
            return Err(refused.context(format!("the rows are in {}", aside.display())));
        }
        save_rows(&report, path)?;
    }
    Ok(())
}

fn most_seeds(args: &LabRunArgs) -> u64 {
    args.seeds.unwrap_or(if args.quick { 1 } else { SEEDS })
}

/// Runs an experiment with a bar; `None` if only some of its cells are to be run. With `--all` a
/// first seed that a parameter was found on is passed over.
fn measure(experiment: &'static Experiment, args: &LabRunArgs) -> anyhow::Result<Option<Report>> {
    let mut seed = args.seed;
    loop {
        match measure_from(seed, experiment, args) {
            Err(error) if args.all && is_known_seed(&error) => seed += 1,
            Err(error) if is_known_seed(&error) => return Err(UsageError(error.to_string()).into()),
            result => return result,
        }
    }
}

fn is_known_seed(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(LabError::Known { .. }))
}

fn measure_from(
    seed: u64,
    experiment: &'static Experiment,
    args: &LabRunArgs,
) -> anyhow::Result<Option<Report>> {
    let bar = parts().with_message(experiment.name);
    let report = report_of(experiment, lab_setup(&bar, seed, args.quick), args)?;
    bar.finish_and_clear();
    Ok(report)
}

/// The report of all seeds; `None` if only some cells are to be run.
fn report_of(
    experiment: &'static Experiment,
    setup: Setup<'_>,
    args: &LabRunArgs,
) -> anyhow::Result<Option<Report>> {
    let most = most_seeds(args);
    let Some(directory) = &args.cells.parts else {
        return Ok(Some(seeds::run_until_decided(experiment, setup, usize::try_from(most)?)?));
    };
    let wanted = args.cells.wanted(most)?;
    let cells = LabCells::open(directory, experiment, &setup, usize::try_from(most)?, wanted)?;
    let report = match &args.cells.cells {
        Some(_) => cells.run_wanted(setup).map(|()| None),
        None => cells.run_until_decided(setup).map(Some),
    }?;
    notice(cells.summary());
    Ok(report)
}

/// Refuses to replace recorded rows by those of a quicker run or of fewer seeds.
fn check_rows_kept(
    experiment: &Experiment,
    args: &LabRunArgs,
    seeds: usize,
    path: &Path,
) -> anyhow::Result<()> {
    let length = if args.quick { Length::Quick } else { Length::Full };
    let run = NewRun { experiment: experiment.name, length, seeds };
    let why = run.would_weaken(&read_results(path)?).with_context(|| no_results(path))?;
    match why.filter(|_| !args.force) {
        Some(why) => {
            let remedy = "write --force to replace its rows, or save to another file";
            Err(UsageError(format!("{}: {why}: {remedy}", path.display())).into())
        }
        None => Ok(()),
    }
}

fn read_results(path: &Path) -> anyhow::Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn no_results(path: &Path) -> String {
    format!("{} is not a file of results", path.display())
}

/// Puts the rows of a report into a file of results, in place of those of the same experiment.
fn save_rows(report: &Report, path: &Path) -> anyhow::Result<()> {
    let after = results::merge(&read_results(path)?, report).with_context(|| no_results(path))?;
    save::one(&Destination::new(path)?, after.as_bytes())
}

fn write_figures(report: &Report, directory: &Path) -> anyhow::Result<()> {
    for figure in &report.figures {
        let path = directory.join(&figure.file);
        let written = std::fs::write(&path, &figure.svg);
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn print(report: &Report) {
    println!("{}\n\n{}\n", report.title, table(&Report::HEADER, report.table()));
    for remark in report.remarks() {
        println!("- {remark}");
    }
    let quick = if report.quick { "; a quick run, tolerances need not hold" } else { "" };
    let found_on = match report.found_on.as_slice() {
        [] => String::new(),
        seeds => format!(", none of those on which numbers were fitted, {seeds:?}"),
    };
    let seeds: Vec<_> = report.seeds.iter().map(ToString::to_string).collect();
    let word = if seeds.len() == 1 { "seed" } else { "seeds" };
    let seeds = format!("{word} {}{found_on}, commit {}", seeds.join(", "), report.commit);
    println!("\n{} ({seeds}){quick}", counts_text(report.tally()));
}

/// How many rows have each verdict.
fn counts_text(tally: [usize; Verdict::ALL.len()]) -> String {
    let counts = tally.into_iter().zip(Verdict::ALL);
    let counts =
        counts.map(|(count, verdict)| format!("{count} {}", verdict.to_string().to_lowercase()));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Run {
        #[command(flatten)]
        args: LabRunArgs,
    }

    #[test]
    fn a_first_seed_that_a_parameter_was_found_on_is_refused_and_with_all_passed_over() {
        let experiment = find("eetl-spikes").unwrap();
        let args = |which: &str| Run::parse_from(["run", which, "--quick", "--seed", "5"]).args;
        let error = measure(experiment, &args("eetl-spikes")).unwrap_err();
        assert!(error.is::<UsageError>(), "{error}");
        let report = measure(experiment, &args("--all")).unwrap().unwrap();
        assert_eq!(report.seeds, [6]);
    }
}
