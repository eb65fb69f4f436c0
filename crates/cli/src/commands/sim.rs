//! `lull sim`: a scenario under several policies, compared.

mod cells;
pub(super) mod show;

use super::UsageError;
use super::save::{self, Destination};
use crate::cli::SimArgs;
use crate::progress::parts;
use crate::say::notice;
use cells::SimParts;
use indicatif::ProgressBar;
use lull_agent::located::{InputError, Located};
use lull_agent::scenario_file::read_with;
use lull_agent::simulated::DescriptionFiles;
use lull_lab::figure::{Figure, svg};
use lull_lab::progress::Progress;
use lull_lab::scenario::{AnyScenario, Choice, RecordError, Scenario, Search};
use serde::Serialize;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<()> {
    let source = Located::read(&args.scenario)?;
    let beside = descriptions(args)?;
    let scenario = read(&source, &beside, args)?;
    let bursty = match search(args) {
        None => None,
        Some(search) => Some(bursty(&source, &scenario, search)?),
    };
    if args.check {
        return checked(&scenario, args.json);
    }
    let destinations = Destinations::from_args(args)?;
    let texts = [Some(&source), beside.machine.as_ref(), beside.load.as_ref()];
    let parts = SimParts::from_args(&texts, &scenario, args)?;
    scenario.notices().iter().for_each(notice);
    match bursty {
        None => compare(&scenario, args, &destinations, parts.as_ref()),
        Some((tiers, app, search)) => find_worst(tiers, (app, search), args, &destinations),
    }
}

/// The tiers, and the app whose bursts are varied.
fn bursty<'s>(
    source: &Located,
    scenario: &'s AnyScenario,
    search: Search,
) -> anyhow::Result<(&'s Scenario, usize, Search)> {
    let AnyScenario::Tiers(tiers) = scenario else {
        let message = "--find-worst-cycle varies the bursts of an app on tiers, and this scenario \
                       has none";
        return Err(UsageError(message.to_owned()).into());
    };
    let app =
        tiers.bursty_app(&search).map_err(|wrong| source.error(&wrong.key, &wrong.message))?;
    Ok((tiers, app, search))
}

/// The files beside the config of an agent.
fn descriptions(args: &SimArgs) -> Result<DescriptionFiles, InputError> {
    let read = |path: &Option<PathBuf>| path.as_deref().map(Located::read).transpose();
    Ok(DescriptionFiles { machine: read(&args.machine)?, load: read(&args.load)? })
}

fn read(
    source: &Located,
    beside: &DescriptionFiles,
    args: &SimArgs,
) -> anyhow::Result<AnyScenario> {
    let base = args.scenario.parent().unwrap_or(Path::new("."));
    let choice = Choice {
        policies: args.policy.clone(),
        replications: args.seeds,
        seed: args.seed,
        custom: Vec::new(),
    };
    Ok(read_with(source, beside, base, &choice)?)
}

/// Returns the search that the arguments request, if any.
fn search(args: &SimArgs) -> Option<Search> {
    let good = Search::default();
    args.find_worst_cycle.then(|| Search {
        shortest: args.shortest.unwrap_or(good.shortest),
        longest: args.longest.unwrap_or(good.longest),
        grid: args.grid.unwrap_or(good.grid),
        refine: args.refine.unwrap_or(good.refine),
    })
}

/// Prints the parts of a run (`--check`).
fn checked(scenario: &AnyScenario, json: bool) -> anyhow::Result<()> {
    let (policies, notices) = (scenario.labels(), scenario.notices());
    if json {
        #[derive(Serialize)]
        struct Checked<'a> {
            scenario: &'a str,
            policies: &'a [&'a str],
            notices: &'a [String],
        }
        let all = Checked { scenario: scenario.title(), policies: &policies, notices };
        return super::print_json(&all);
    }
    // A label such as "reef, qos-wc" has a comma of its own.
    let quoted = |label: &&str| match label.contains(',') {
        true => format!("\"{label}\""),
        false => (*label).to_owned(),
    };
    let listed: Vec<String> = policies.iter().map(quoted).collect();
    println!("{}: can be run; policies: {}", scenario.title(), listed.join(", "));
    notices.iter().for_each(|notice| println!("- {notice}"));
    Ok(())
}

/// The destinations of results besides standard output.
struct Destinations {
    csv: Option<Destination>,
    parquet: Option<Destination>,
    plot: Option<Destination>,
}

impl Destinations {
    /// Checks the destinations, so that a path that cannot be written fails before the
    /// simulation.
    fn from_args(args: &SimArgs) -> Result<Self, UsageError> {
        let read = [Some(&args.scenario), args.machine.as_ref(), args.load.as_ref()];
        let read: Vec<&Path> = read.into_iter().flatten().map(PathBuf::as_path).collect();
        let one = |path: &Path| Destination::new(path).and_then(|to| to.apart_from(&read));
        let to = |path: &Option<PathBuf>| path.as_deref().map(one).transpose();
        Ok(Self { csv: to(&args.csv)?, parquet: to(&args.parquet)?, plot: to(&args.plot)? })
    }

    /// Writes the requested files; each is complete or absent.
    fn fill(
        &self,
        csv: impl FnOnce(&mut Vec<u8>) -> Result<(), RecordError>,
        parquet: impl FnOnce(&mut Vec<u8>) -> Result<(), RecordError>,
        panels: impl FnOnce() -> Vec<Figure>,
    ) -> anyhow::Result<()> {
        let mut files = Vec::new();
        if let Some(to) = &self.csv {
            let mut bytes = Vec::new();
            csv(&mut bytes)?;
            files.push((to, bytes));
        }
        if let Some(to) = &self.parquet {
            let mut bytes = Vec::new();
            parquet(&mut bytes)?;
            files.push((to, bytes));
        }
        if let Some(to) = &self.plot {
            files.push((to, svg(&panels())?.into_bytes()));
        }
        save::all(&files)
    }
}

/// A bar that the laboratory's progress moves.
fn watched(bar: &ProgressBar) -> Progress<'_> {
    Progress::new(|done, expected| {
        bar.set_length(expected);
        bar.set_position(done);
    })
}

fn compare(
    scenario: &AnyScenario,
    args: &SimArgs,
    destinations: &Destinations,
    kept: Option<&SimParts>,
) -> anyhow::Result<()> {
    let bar = parts().with_message(scenario.title().to_owned());
    let progress = watched(&bar);
    let progress = match kept {
        Some(store) => progress.keeping(store),
        None => progress,
    };
    let outcome = scenario.run(&progress)?;
    bar.finish_and_clear();
    if let Some(kept) = kept {
        notice(kept.parts.summary());
    }
    if args.cells.cells.is_some() {
        return Ok(());
    }
    destinations.fill(
        |to| outcome.write_csv(to),
        |to| outcome.write_parquet(to),
        || outcome.panels(),
    )?;
    if args.json {
        return super::print_json(&outcome);
    }
    show::outcome(&outcome);
    Ok(())
}

fn find_worst(
    scenario: &Scenario,
    (app, search): (usize, Search),
    args: &SimArgs,
    destinations: &Destinations,
) -> anyhow::Result<()> {
    let bar = parts().with_message(scenario.title.clone());
    let found = scenario.find_worst_cycle(app, &search, &watched(&bar))?;
    bar.finish_and_clear();
    destinations.fill(|to| found.write_csv(to), |to| found.write_parquet(to), || found.panels())?;
    if args.json {
        return super::print_json(&found);
    }
    show::worst_cycles(&found);
    Ok(())
}
