//! Surfaces searched by ours, by Optuna's TPE, SMAC3 and Ax, by Sobol points and at random, with
//! equally many trials.

use super::surfaces::{BOUND_US, Surface};
use super::{Report, Summary, TRIALS, ns_each};
use crate::Context;
use crate::python::Python;
use anyhow::{Context as _, Result, bail};
use lull_control::Rng;
use lull_measure::statistics::paired_difference;
use lull_policies::search::{Method, Rules, Search, SearchPoint};
use rand::SeedableRng;
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// Searches of each on each surface.
const SEEDS: u64 = 20;
/// Searches of Ax, which takes seconds for each trial, unless [`AX_SEEDS`] says otherwise.
const SEEDS_OF_AX: u64 = 3;
/// The environment variable with the number of Ax's searches on each surface.
const AX_SEEDS: &str = "LULL_AX_SEEDS";
/// The environment variable with the peers to search by, between commas; all if it is absent.
const ONLY: &str = "LULL_PEERS";
/// The names of the peers in `peer_search.py`, with the packages that each needs.
static PEERS: [(&str, &[&str]); 4] = [
    ("optuna", &["optuna"]),
    ("smac", &["smac", "scipy"]),
    ("sobol", &["scipy"]),
    (AX, &["ax-platform", "botorch"]),
];
pub(super) const AX: &str = "ax";
/// The name of a gap that does not depend on the definition of "meets" itself.
const SHOWABLE: &str = "gap to the best whose next trial meets the bound with 95 %";
/// Largest median gap, largest gap and largest share of wrong answers of ours over all surfaces.
const MEDIAN_MAX_PCT: f64 = 0.5;
const GAP_MAX_PCT: f64 = 5.0;
const WRONG_MAX_PCT: f64 = 1.0;

/// The result of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Outcome {
    /// Power over that of the best setting that meets the bound, less one.
    gap_pct: f64,
    /// The same over the best setting that a search can be expected to show, if there is one.
    showable_gap_pct: Option<f64>,
    /// Whether the choice misses the bound.
    misses: bool,
    /// Whether the search says that its trials show that it meets the bound.
    is_shown: bool,
    /// CPU time of all suggestions over their number.
    took_ms: f64,
}

/// The choice of a search.
struct Chosen {
    point: SearchPoint,
    is_shown: bool,
    took_ms: f64,
}

/// A line of a peer: a point to measure, or its choice at the end.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Message {
    Asked {
        #[serde(rename = "place")]
        point: Vec<u16>,
    },
    Ended {
        chosen: Vec<u16>,
        took_ms: f64,
    },
}

/// Returns the peers to search by.
///
/// # Errors
/// If the environment variable has another name than those of [`PEERS`].
pub(super) fn wanted() -> Result<Vec<&'static str>> {
    parse_peers(std::env::var(ONLY).ok().as_deref())
}

fn parse_peers(only: Option<&str>) -> Result<Vec<&'static str>> {
    let all = PEERS.map(|(name, _)| name);
    let Some(only) = only else { return Ok(all.to_vec()) };
    let names: Vec<&str> = only.split(',').map(str::trim).collect();
    if let Some(unknown) = names.iter().find(|name| !all.contains(*name)) {
        bail!("{ONLY} has `{unknown}`, which is not a peer: take some of {}", all.join(","));
    }
    Ok(all.into_iter().filter(|name| names.contains(name)).collect())
}

/// Installs what some peers take.
///
/// # Errors
/// If it cannot be installed.
pub(super) fn installed(context: &Context, peers: &[&str]) -> Result<Python> {
    let packages = |is_wanted: bool| {
        let of = PEERS.iter().filter(move |(name, _)| peers.contains(name) == is_wanted);
        of.flat_map(|(_, packages)| packages.iter().copied())
    };
    let left: Vec<&str> =
        packages(false).filter(|it| !packages(true).any(|one| one == *it)).collect();
    Python::install_without("suggest", &context.root, &left)
}

/// Searches all surfaces by ours and by these peers.
///
/// # Errors
/// If a peer does not run.
pub(super) fn compare(
    python: &Python,
    peers: &[&'static str],
    surfaces: &[Surface],
    report: &mut Report,
) -> Result<()> {
    let seeds_of_ax = std::env::var(AX_SEEDS).ok().and_then(|text| text.parse().ok());
    let seeds_of_ax = seeds_of_ax.unwrap_or(SEEDS_OF_AX).clamp(1, SEEDS);
    let mut all_ours = Vec::new();
    for surface in surfaces {
        let ours = outcomes(surface, SEEDS, &|seed| search(surface, Method::Apart, seed))?;
        report_outcomes(&format!("{}, ours", surface.name), &ours, report);
        report_showable(&surface.name, &ours, report);
        let random = outcomes(surface, SEEDS, &|seed| search(surface, Method::Random, seed))?;
        let mut others = vec![("random", random)];
        for &name in peers {
            let seeds = if name == AX { seeds_of_ax } else { SEEDS };
            others
                .push((name, outcomes(surface, seeds, &|seed| ask(python, name, surface, seed))?));
        }
        for (name, theirs) in others {
            report_peer(&format!("{}, {name}", surface.name), &theirs, &ours, report);
        }
        all_ours.extend(ours);
    }
    over_all(&all_ours, report);
    report.note(format!(
        "{} surfaces: {TRIALS} trials a search, {SEEDS} seeds, {seeds_of_ax} for Ax. A choice is \
         judged by the truth of the surface; one that misses the bound may take less than the \
         best that does not. TPE and Ax have the tail as a constraint, SMAC3 the paper's penalty, \
         Sobol points and random ones neither; they answer the least power of the trials that met \
         the bound. Ours answers the fastest setting where it shows none. The row of a difference \
         has the mean and its 95 % interval over seeds; times are CPU time over all suggestions \
         of a search. Peers: {}. {}",
        surfaces.len(),
        peers.join(", "),
        python.versions(&["ax-platform", "optuna", "scipy", "smac"])?
    ));
    Ok(())
}

/// Reports a peer's searches, and their difference from ours.
fn report_peer(name: &str, theirs: &[Outcome], ours: &[Outcome], report: &mut Report) {
    report_outcomes(name, theirs, report);
    let gaps = |all: &[Outcome]| -> Vec<f64> {
        all.iter().take(theirs.len()).map(|it| it.gap_pct).collect()
    };
    if let Some(more) = paired_difference(&gaps(theirs), &gaps(ours)) {
        let ends = [-1.0, 0.0, 1.0].map(|side| more.mean + side * more.half_width);
        report.reported(&format!("{name}: gap less ours"), Summary::new(ends), "%");
    }
}

/// Reports our searches of all surfaces together.
fn over_all(all: &[Outcome], report: &mut Report) {
    let gaps = || all.iter().map(|it| it.gap_pct);
    let what = "all surfaces, ours: gap";
    report.bounded(what, Summary::new(gaps()), "%", f64::NEG_INFINITY..=MEDIAN_MAX_PCT);
    let largest = Summary::new([gaps().fold(f64::NEG_INFINITY, f64::max)]);
    let what = "all surfaces, ours: largest gap";
    report.bounded(what, largest, "%", f64::NEG_INFINITY..=GAP_MAX_PCT);
    report_showable("all surfaces", all, report);
    let shown: Vec<_> = all.iter().filter(|it| it.is_shown).collect();
    let wrong = shown.iter().filter(|it| it.misses).count();
    let share = Summary::new([100.0 * wrong as f64 / shown.len().max(1) as f64]);
    let what = format!("all surfaces, ours: of {} stated to meet the bound, miss it", shown.len());
    report.bounded(&what, share, "%", 0.0..=WRONG_MAX_PCT);
}

/// Reports the gaps of ours to what a search can be expected to show, where it can show a setting.
fn report_showable(name: &str, ours: &[Outcome], report: &mut Report) {
    let gaps: Vec<f64> = ours.iter().filter_map(|it| it.showable_gap_pct).collect();
    if !gaps.is_empty() {
        report.reported(&format!("{name}, ours: {SHOWABLE}"), Summary::new(gaps), "%");
    }
}

fn report_outcomes(name: &str, all: &[Outcome], report: &mut Report) {
    let gaps = Summary::new(all.iter().map(|it| it.gap_pct));
    report.reported(&format!("{name}: gap"), gaps, "%");
    let misses = all.iter().filter(|it| it.misses).count();
    let took = Summary::new(all.iter().map(|it| it.took_ms));
    report.reported(&format!("{name}: a suggestion"), took, "ms");
    let name = format!("{name}: choices of {} that miss", all.len());
    report.reported(&name, Summary::new([misses as f64]), "choices");
}

fn outcomes(
    surface: &Surface,
    seeds: u64,
    choose: &dyn Fn(u64) -> Result<Chosen>,
) -> Result<Vec<Outcome>> {
    (1..=seeds).map(|seed| Ok(judge(surface, &choose(seed)?))).collect()
}

/// Judges a choice by the truth of its surface.
fn judge(surface: &Surface, chosen: &Chosen) -> Outcome {
    let truth = surface.truth(&chosen.point);
    let gap_pct = |least_watts: f64| 100.0 * (truth.watts / least_watts - 1.0);
    let showable_watts = surface.least_showable_watts();
    Outcome {
        gap_pct: gap_pct(surface.least_watts()),
        showable_gap_pct: showable_watts.is_finite().then(|| gap_pct(showable_watts)),
        misses: truth.tail_us > BOUND_US,
        is_shown: chosen.is_shown,
        took_ms: chosen.took_ms,
    }
}

/// Runs one search of ours.
fn search(surface: &Surface, method: Method, seed: u64) -> Result<Chosen> {
    let mut search = Search::new(surface.space.clone(), Rules::new(method, BOUND_US, TRIALS));
    let mut rng = Rng::seed_from_u64(seed);
    // A surface takes next to no time to draw a trial.
    let took_ns = ns_each(TRIALS, || {
        while let Some(next) = search.ask(&mut rng) {
            let reading = surface.trial(&next.point, &mut rng);
            search.tell(next.point, Ok(reading));
        }
    });
    let choice = search.choice().context("a search without a choice")?;
    Ok(Chosen { point: choice.point, is_shown: choice.meets, took_ms: took_ns / 1e6 })
}

/// Runs one search of a peer, whose trials have this seed.
fn ask(python: &Python, name: &str, surface: &Surface, seed: u64) -> Result<Chosen> {
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
            Message::Asked { point } => {
                let reading = surface.trial(&SearchPoint(point), &mut rng);
                writeln!(to, "{}", json!({"tail_us": reading.tail_us, "watts": reading.watts}))?;
            }
            Message::Ended { chosen: point, took_ms } => {
                chosen = Some(Chosen { point: SearchPoint(point), is_shown: false, took_ms });
            }
        }
    }
    child.wait()?;
    chosen.with_context(|| format!("{name} ended without a choice"))
}

#[cfg(test)]
mod tests {
    use super::super::surfaces::Truth;
    use super::*;
    use lull_control::Capability;
    use lull_lab::server::ServerFile;
    use lull_policies::search::{Reading, Space};
    use rayon::prelude::*;

    /// The environment variable with the number of seeds for a long run over all six surfaces and
    /// those that are held out.
    const LONG: &str = "LULL_SEARCH_SEEDS";

    fn surfaces(is_long: bool) -> Vec<Surface> {
        if !is_long {
            return Surface::from_formulas();
        }
        let text = include_str!("../../../../examples/tune/netserver.toml");
        let file: ServerFile = toml::from_str(text).unwrap();
        let server = file.check().unwrap();
        let (all, held_out) = (Surface::all(&server), Surface::held_out(&server));
        all.unwrap().into_iter().chain(held_out.unwrap()).collect()
    }

    #[test]
    fn peers_are_those_that_are_named_and_another_name_is_refused() {
        assert_eq!(parse_peers(None).unwrap(), ["optuna", "smac", "sobol", "ax"]);
        assert_eq!(parse_peers(Some("ax, sobol")).unwrap(), ["sobol", "ax"]);
        for (wrong, unknown) in [("sobol,smac3", "`smac3`"), ("", "``")] {
            let why = parse_peers(Some(wrong)).unwrap_err().to_string();
            assert!(why.contains(unknown) && why.contains("optuna,smac,sobol,ax"), "{why}");
        }
    }

    /// A server of one and two cores, with the tails of the trials of each and their mean.
    fn two_settings(settings: [([f64; 2], f64); 2]) -> Surface {
        let space = Space::from_values(&[(Capability::Cores, vec![1.0, 2.0])]).unwrap();
        let reading = |tail_us: f64| {
            let late = u64::from(tail_us > BOUND_US);
            Reading { tail_us, watts: 1.0, requests: 1, late, progress_per_s: None }
        };
        let readings = settings.map(|(tails, _)| tails.map(reading).to_vec()).to_vec();
        let truth = |((_, tail_us), watts)| Truth { tail_us, watts };
        let truths = settings.into_iter().zip([1.0, 2.0]).map(truth).collect();
        Surface::from_readings("two settings".to_owned(), space, truths, readings)
    }

    #[test]
    fn without_a_setting_that_a_search_can_show_there_is_no_gap_to_it() {
        let chosen = Chosen { point: SearchPoint(vec![1]), is_shown: false, took_ms: 1.0 };
        // Each setting meets the bound, and every other trial misses it.
        let none = two_settings([([100.0, 1600.0], 400.0), ([300.0, 600.0], 424.0)]);
        let outcome = judge(&none, &chosen);
        assert_eq!((outcome.gap_pct, outcome.showable_gap_pct), (100.0, None));
        let second = two_settings([([100.0, 1600.0], 400.0), ([300.0, 300.0], 300.0)]);
        let outcome = judge(&second, &chosen);
        assert_eq!((outcome.gap_pct, outcome.showable_gap_pct), (100.0, Some(0.0)));
    }

    #[test]
    fn what_a_search_says_to_meet_the_bound_meets_it_on_every_surface() {
        let long: Option<u64> = std::env::var(LONG).ok().and_then(|text| text.parse().ok());
        let mut all = Vec::new();
        for surface in &surfaces(long.is_some()) {
            let one = |seed: u64| judge(surface, &search(surface, Method::Apart, seed).unwrap());
            let seeds = long.unwrap_or(2);
            let ours: Vec<Outcome> = (1..=seeds).into_par_iter().map(one).collect();
            let sorted = |gap: fn(&Outcome) -> Option<f64>| -> Vec<f64> {
                let mut gaps: Vec<f64> = ours.iter().filter_map(gap).collect();
                gaps.sort_by(f64::total_cmp);
                gaps
            };
            let (gaps, showable) =
                (sorted(|it| Some(it.gap_pct)), sorted(|it| it.showable_gap_pct));
            let shown = ours.iter().filter(|it| it.is_shown).count();
            eprintln!("{}: {shown} of {seeds} shown, gaps {gaps:.2?}", surface.name);
            eprintln!("  {SHOWABLE}: {showable:.2?}");
            all.extend(ours);
        }
        assert!(all.iter().all(|it| !(it.is_shown && it.misses)), "{all:?}");
        assert!(all.iter().filter(|it| it.is_shown).count() * 2 > all.len(), "{all:?}");
    }

    #[test]
    fn bursts_in_a_third_of_trials_are_found_by_most_searches() {
        let long: Option<u64> = std::env::var(LONG).ok().and_then(|text| text.parse().ok());
        let seeds = long.unwrap_or(3);
        for share in [1.0 / 3.0, 0.1] {
            let surface = Surface::with_bursts(share);
            let one = |seed: u64| judge(&surface, &search(&surface, Method::Apart, seed).unwrap());
            let ours: Vec<Outcome> = (1..=seeds).into_par_iter().map(one).collect();
            let wrong = ours.iter().filter(|it| it.is_shown && it.misses).count();
            eprintln!("{}: {wrong} of {seeds} choices have bursts", surface.name);
            assert!(share < 0.3 || wrong * 2 < ours.len(), "{ours:?}");
        }
    }
}
