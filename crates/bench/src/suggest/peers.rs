//! Six surfaces searched by ours, by Optuna's TPE, SMAC3 and Ax, and at random, with equally
//! many trials.

use super::surfaces::{BOUND_US, Surface};
use super::{Report, Summary, TRIALS};
use crate::python::Python;
use anyhow::{Context as _, Result};
use lull_control::Rng;
use lull_lab::server::ServerScenario;
use lull_measure::statistics::paired_difference;
use lull_policies::search::{Method, Place, Rules, Search};
use rand::SeedableRng;
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// Searches of each on each surface.
const SEEDS: u64 = 20;
/// Searches of Ax, which takes seconds for each trial.
const SEEDS_OF_AX: u64 = 3;
/// The names of the peers in `peer_search.py`.
const PEERS: [&str; 3] = ["optuna", "smac", AX];
const AX: &str = "ax";

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Outcome {
    /// Power over that of the best setting that meets the bound, less one.
    gap_pct: f64,
    /// Whether the choice misses the bound.
    misses: bool,
}

/// A line of a peer: a place to measure, or its choice at the end.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Message {
    Asked { place: Vec<u16> },
    Ended { chosen: Vec<u16> },
}

/// Searches all surfaces by all.
///
/// # Errors
/// If the server cannot be simulated, or a peer does not run.
pub(super) fn compare(python: &Python, server: &ServerScenario, report: &mut Report) -> Result<()> {
    for surface in &Surface::all(server)? {
        let ours = outcomes(surface, SEEDS, &|seed| search(surface, Method::Apart, seed))?;
        report_outcomes(&format!("{}, ours", surface.name), &ours, report);
        let random = outcomes(surface, SEEDS, &|seed| search(surface, Method::Random, seed))?;
        let mut others = vec![("random", random)];
        for name in PEERS {
            let seeds = if name == AX { SEEDS_OF_AX } else { SEEDS };
            others
                .push((name, outcomes(surface, seeds, &|seed| ask(python, name, surface, seed))?));
        }
        for (name, theirs) in others {
            let name = format!("{}, {name}", surface.name);
            report_outcomes(&name, &theirs, report);
            let gaps = |all: &[Outcome]| -> Vec<f64> {
                all.iter().take(theirs.len()).map(|it| it.gap_pct).collect()
            };
            if let Some(more) = paired_difference(&gaps(&theirs), &gaps(&ours)) {
                let ends = [-1.0, 0.0, 1.0].map(|side| more.mean + side * more.half_width);
                report.reported(&format!("{name}: gap less ours"), Summary::new(ends), "%");
            }
        }
    }
    report.note(format!(
        "Six surfaces: {TRIALS} trials a search, {SEEDS} seeds, {SEEDS_OF_AX} for Ax. A choice is \
         judged by the truth of the surface; one that misses the bound may take less than the \
         best that does not. TPE and Ax have the tail as a constraint, SMAC3 the paper's penalty; \
         they answer the least power of the trials that met the bound. Ours answers the fastest \
         setting where it shows none. The row of a difference has the mean and its 95 % interval \
         over seeds. {}",
        python.versions(&["ax-platform", "optuna", "smac"])?
    ));
    Ok(())
}

fn report_outcomes(name: &str, all: &[Outcome], report: &mut Report) {
    let gaps = Summary::new(all.iter().map(|it| it.gap_pct));
    report.reported(&format!("{name}: gap"), gaps, "%");
    let misses = all.iter().filter(|it| it.misses).count();
    let name = format!("{name}: choices of {} that miss", all.len());
    report.reported(&name, Summary::new([misses as f64]), "choices");
}

fn outcomes(
    surface: &Surface,
    seeds: u64,
    choose: &dyn Fn(u64) -> Result<Place>,
) -> Result<Vec<Outcome>> {
    let least = surface.least_watts();
    let outcome = |seed: u64| {
        let truth = surface.truth(&choose(seed)?);
        let gap_pct = 100.0 * (truth.watts / least - 1.0);
        Ok(Outcome { gap_pct, misses: truth.tail_us > BOUND_US })
    };
    (1..=seeds).map(outcome).collect()
}

/// One search of ours.
fn search(surface: &Surface, method: Method, seed: u64) -> Result<Place> {
    let mut search = Search::new(surface.space.clone(), Rules::new(method, BOUND_US, TRIALS));
    let mut rng = Rng::seed_from_u64(seed);
    while let Some(next) = search.ask(&mut rng) {
        let came = surface.trial(&next.place, &mut rng);
        search.tell(next.place, Ok(came));
    }
    Ok(search.choice().context("a search without a choice")?.place)
}

/// One search of a peer, whose trials have this seed.
fn ask(python: &Python, name: &str, surface: &Surface, seed: u64) -> Result<Place> {
    let mut command = python.script("peer_search.py");
    command.args([name, &TRIALS.to_string(), &seed.to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut to = child.stdin.take().context("no pipe to the peer")?;
    let from = BufReader::new(child.stdout.take().context("no pipe from the peer")?);
    let levels = |at: usize| -> Vec<f64> {
        surface.space.dimensions()[at].levels.iter().map(|level| level.value).collect()
    };
    let knobs: Vec<_> = (0..surface.space.dimensions().len()).map(levels).collect();
    writeln!(to, "{}", json!({"knobs": knobs, "bound_us": BOUND_US}))?;
    let mut rng = Rng::seed_from_u64(seed);
    let mut chosen = None;
    for line in from.lines() {
        let line = line?;
        let message = serde_json::from_str(&line);
        match message.with_context(|| format!("{name} answered {line:?}"))? {
            Message::Asked { place } => {
                let came = surface.trial(&Place(place), &mut rng);
                writeln!(to, "{}", json!({"tail_us": came.tail_us, "watts": came.watts}))?;
            }
            Message::Ended { chosen: place } => chosen = Some(Place(place)),
        }
    }
    child.wait()?;
    chosen.with_context(|| format!("{name} ended without a choice"))
}
