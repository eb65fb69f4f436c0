//! `lull lab`: the papers' tables, theirs and ours side by side.

use super::UsageError;
use crate::cli::{LabRunArgs, ListArgs};
use crate::progress::parts;
use crate::say::notice;
use crate::text::table;
use anyhow::Context;
use lull_agent::cells::LabCells;
use lull_lab::claims::results;
use lull_lab::experiment::{Experiment, LabError, Setup};
use lull_lab::progress::Progress;
use lull_lab::registry::{ALL, find};
use lull_lab::report::{Report, Verdict};
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

/// Independent values that a verdict needs, if the user states no number.
const VALUES: u64 = 5;

/// Runs one experiment or all of them, and prints their tables.
pub(crate) fn run(args: &LabRunArgs) -> anyhow::Result<()> {
    let experiments = match &args.name {
        Some(name) => vec![find(name).map_err(|error| UsageError(error.to_string()))?],
        None => ALL.to_vec(),
    };
    if let Some(directory) = &args.figures {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    }
    let (mut misses, mut all) = (0, [0; Verdict::ALL.len()]);
    for experiment in experiments {
        let Some(report) = measure(experiment, args)? else { continue };
        if let Some(path) = &args.save {
            save(&report, path)?;
        }
        if let Some(directory) = &args.figures {
            write_figures(&report, directory)?;
        }
        if args.json {
            super::print_json(&report)?;
        } else {
            print(&report);
        }
        misses += report.misses();
        all.iter_mut().zip(report.tally()).for_each(|(all, count)| *all += count);
    }
    if args.all {
        println!("\n{} experiments: {}", ALL.len(), counts_text(all));
    }
    anyhow::ensure!(misses == 0 || args.quick, "{misses} of the held rows miss their tolerance");
    Ok(())
}

/// Runs an experiment with a bar; `None` if only some of its cells are to be run.
fn measure(experiment: &'static Experiment, args: &LabRunArgs) -> anyhow::Result<Option<Report>> {
    let bar = parts().with_message(experiment.name);
    let progress = Progress::new(|done, expected| {
        bar.set_length(expected);
        bar.set_position(done);
    });
    let commit = lull_agent::COMMIT.to_owned();
    let setup = Setup { seed: args.seed, quick: args.quick, commit, progress };
    let values = args.seeds.unwrap_or(if args.quick { 1 } else { VALUES });
    let report = report_of(experiment, setup, args, usize::try_from(values)?)?;
    bar.finish_and_clear();
    Ok(report)
}

/// The report of all seeds; `None` if only some cells are to be run.
fn report_of(
    experiment: &'static Experiment,
    setup: Setup<'_>,
    args: &LabRunArgs,
    values: usize,
) -> anyhow::Result<Option<Report>> {
    let usage = |error: LabError| match error {
        LabError::Known { .. } => UsageError(error.to_string()).into(),
        error => anyhow::Error::from(error),
    };
    let Some(directory) = &args.cells.parts else {
        return experiment.run_until_decided(setup, values).map(Some).map_err(usage);
    };
    let wanted = args.cells.wanted(values as u64)?;
    let cells = LabCells::open(directory, experiment, &setup, values, wanted)?;
    let report = match &args.cells.cells {
        Some(_) => cells.run_wanted(setup).map(|()| None),
        None => cells.run_until_decided(setup).map(Some),
    };
    let report = report.map_err(|error| match error.downcast::<LabError>() {
        Ok(error) => usage(error),
        Err(error) => error,
    })?;
    notice(cells.summary());
    Ok(report)
}

/// Puts the rows of a report into a file of results, in place of those of the same experiment.
fn save(report: &Report, path: &Path) -> anyhow::Result<()> {
    let before = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display()))?,
    };
    let after = results::merge(&before, report)
        .with_context(|| format!("{} is no file of results", path.display()))?;
    std::fs::write(path, after).with_context(|| format!("cannot write {}", path.display()))
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
        seeds => format!(", none of those that numbers were found on, {seeds:?}"),
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
