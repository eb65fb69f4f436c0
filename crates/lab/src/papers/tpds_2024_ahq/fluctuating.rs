//! Fig. 17: violations and entropy while Xapian's load rises and falls within 250 s.

use super::paper::paper;
use super::platform::{LoadProfile, Platform, Scene, WAYS, steady};
use super::play::{
    ARQ, ARQ_PRIORITY, CLITE, FRESH, HERACLES, LC_FIRST, PARTIES, Played, Runs, Span, Strategy,
    TIDE, UNMANAGED, freshness, is_here, start,
};
use super::{SEED_FILE, absent, sourced};
use crate::prelude::*;
use lull_measure::Nanos;
use lull_measure::entropy::SystemEntropy;
use lull_sim::stats::{Estimate, Failure};
use rayon::prelude::*;
use std::convert::identity;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-fluctuating",
    paper: "Liu et al. 2024, Fig. 17",
    seed_file: SEED_FILE,
    summary: "Violations and entropy over 250 s of Xapian's load between 10 and 90 %",
    run,
};

const STRATEGIES: [Strategy; 8] =
    [UNMANAGED, LC_FIRST, HERACLES, PARTIES, CLITE, ARQ, ARQ_PRIORITY, TIDE];
const LENGTH_S: u64 = 250;

/// Xapian's load in percent, 20 s a step. The text gives 70 % at 100 s and
/// 90 % at 120 s, and a low start; the figure with the rest is lost.
const STEPS: [u64; 12] = [10, 30, 50, 30, 50, 70, 90, 70, 50, 30, 50, 30];
const LAST: u64 = 10;
/// The seconds from and to which the load is 90 %.
const PEAK_S: [u64; 2] = [120, 140];

/// Section V-B: a bound is elastic by 5 %.
const ELASTIC: f64 = 1.05;
const ELASTICITY: &str = "section V-B calls bounds elastic by 5 %; whether Fig. 17 counts so is \
                          not printed";

const NOT_HALF: &str = "the range 0.5 to 1 is missed on the good side. Over four seeds, \
                        20 of ARQ's 45 epochs are in the first 20 s, while it finds its \
                        regions, 13 at 90 %, and hardly any at the other rises; PARTIES, which \
                        takes until a bound is missed, loses 2 to 29 in every step. So the ratio \
                        is one of how often the load rises, and all but two of the paper's steps \
                        are lost. Held is the order, below";

/// Our own bounds for `tide`: epochs that miss an objective, and its entropy over ARQ's.
const TIDE_VIOLATIONS: f64 = 40.0;
const TIDE_ENTROPY: f64 = 0.6;

/// All seeds of every strategy on the one scene.
type Races = Runs<Played>;

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let races = race(setup)?;
    let paper = paper();
    let mut report = EXPERIMENT.report(paper.titled("Fig. 17"), setup);
    report.choices = choices();
    report.choices.push(freshness(seeds(setup)));
    report.choices.extend(absent(&STRATEGIES));
    report.choices.extend(sourced::choices(&Platform::a().parameters));
    report.rows = rows(&races);
    report.rows.extend(peak_row(setup)?);
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&races))?];
    Ok(report)
}

fn choices() -> Vec<String> {
    let steps = STEPS.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    vec![
        format!(
            "Xapian's load in steps of 20 s: {steps}, then {LAST} % of max load; printed are only \
             70 % from 100 s on, 90 % from 120 s on, and that it is low at first"
        ),
        "Moses and Img-dnn at 20 % of max load, Stream beside them; no warm-up is taken off, the \
         paper's 500 epochs of 500 ms start with the run"
            .to_owned(),
        "an epoch is violating if the tail of any app in it is above its bound; without an answer \
         in the epoch the age of the oldest request is its tail"
            .to_owned(),
        super::READINGS.to_owned(),
    ]
}

fn seeds(setup: &Setup<'_>) -> u64 {
    setup.either(30, 2)
}

/// Xapian's load over time.
pub(super) fn profile() -> LoadProfile {
    let steps = STEPS.into_iter().chain([LAST]);
    (0..).map(|step| Nanos::from_secs(20 * step)).zip(steps.map(|it| it as f64 / 100.0)).collect()
}

fn scene(platform: &Platform) -> Result<Scene, Failure> {
    let loads = [("xapian", profile()), ("moses", steady(0.2)), ("img-dnn", steady(0.2))];
    platform.scene(10, WAYS, &loads, &["stream"])
}

fn race(setup: &Setup<'_>) -> Result<Races, LabError> {
    let length = Nanos::from_secs(LENGTH_S);
    let span = Span { warmup: Nanos::ZERO, length, seed: setup.seed };
    let scenes = [scene(&Platform::a())?];
    let replications = FRESH..FRESH + seeds(setup);
    Runs::play(&STRATEGIES, &scenes, replications, span, &setup.progress, identity)
}

impl Races {
    fn seeds_under(&self, strategy: Strategy) -> Option<&[Played]> {
        Some(&self.under(strategy)?[0])
    }
}

/// Over seeds.
fn over(runs: &[Played], value: impl Fn(&Played) -> f64) -> Estimate {
    estimate_of(&runs.iter().map(value).collect::<Vec<_>>())
}

fn violations(runs: &[Played]) -> Estimate {
    over(runs, Played::violations)
}

fn entropy(runs: &[Played]) -> Estimate {
    over(runs, Played::mean_system)
}

/// Ratio of the means, with an interval from ratios of the same seeds.
fn ratio(ours: &[Played], theirs: &[Played], value: impl Fn(&Played) -> f64) -> Estimate {
    let mean = over(ours, &value).mean / over(theirs, &value).mean;
    Estimate { mean, ..paired_ratio(ours, theirs, value) }
}

fn rows(races: &Races) -> Vec<Row> {
    let steps =
        "the load's steps are ours but for two: only the order and the ratio are comparable";
    let mut rows = Vec::new();
    for (strategy, scenes) in races.strategies.iter().zip(&races.runs) {
        let runs = &scenes[0];
        let paper = match *strategy {
            ARQ => Some(59.0),
            PARTIES => Some(105.0),
            _ => None,
        };
        let name = format!("{}, violating epochs of 500", strategy.name);
        rows.push(Row::reported(name, "epochs", paper, violations(runs), steps));
        let name = format!("{}, mean E_S", strategy.name);
        rows.push(Row::reported(name, "", Printed::Nothing, entropy(runs), steps));
    }
    rows.extend(paper_rows(races));
    rows.extend(tide_rows(races));
    rows
}

fn paper_rows(races: &Races) -> Vec<Row> {
    let mut rows = Vec::new();
    let Some(parties) = races.seeds_under(PARTIES) else { return rows };
    for strategy in [ARQ, ARQ_PRIORITY] {
        let Some(arq) = races.seeds_under(strategy) else { continue };
        let name = |what: &str| format!("{what}, {} over PARTIES", strategy.name);
        let share = ratio(arq, parties, Played::violations);
        let printed = 59.0 / 105.0;
        rows.push(Row::reported(name("violating epochs"), "", printed, share, NOT_HALF));
        let gaps: Vec<f64> =
            arq.iter().zip(parties).map(|(a, b)| a.violations() - b.violations()).collect();
        let less = format!("violating epochs, {} less PARTIES", strategy.name);
        let (printed, most) = (59.0 - 105.0, AtMost(0.0));
        rows.push(Row::held(less, "epochs", printed, estimate_of(&gaps), most));
        let elastic = ratio(arq, parties, |played| played.beyond(ELASTIC));
        let name_5 = name("epochs beyond the bound by 5 %");
        rows.push(Row::reported(name_5, "", Printed::Nothing, elastic, ELASTICITY));
        let claim = "ARQ < PARTIES";
        let less = AtMost(1.0);
        let entropy = ratio(arq, parties, Played::mean_system);
        rows.push(Row::held(name("mean E_S"), "", claim, entropy, less));
    }
    let start = [(PARTIES, 0.85), (ARQ, 0.66), (ARQ_PRIORITY, 0.66)];
    rows.extend(start.into_iter().filter_map(|(strategy, printed)| {
        let why = "at 10 to 20 s; how soon a strategy gives to Stream depends on where it starts";
        let name = format!("{}, E_BE at low load", strategy.name);
        let ours = over(races.seeds_under(strategy)?, early_be);
        Some(Row::compared(name, "", printed, ours, Absolute(0.1)).because(why))
    }));
    rows
}

/// E_BE while the load is low at first.
fn early_be(played: &Played) -> f64 {
    let early = played.epochs.iter().filter(|it| (10.0..20.0).contains(&it.time_s));
    let values: Vec<f64> = early.filter_map(|epoch| epoch.entropy.be).collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// Section IX-B: throughput of the four apps while Xapian's load is highest.
fn peak_row(setup: &Setup<'_>) -> Result<Option<Row>, LabError> {
    if !(is_here(&ARQ_PRIORITY) && is_here(&PARTIES)) {
        return Ok(None);
    }
    let scene = scene(&Platform::a())?;
    let seeds = seeds(setup);
    setup.progress.expect(seeds);
    let gain_percent = |replication: u64| -> Result<f64, LabError> {
        let done = |strategy| done_at_peak(&scene, strategy, setup.seed, replication);
        let (ours, theirs) = (done(&ARQ_PRIORITY)?, done(&PARTIES)?);
        setup.progress.step();
        let ratios: f64 = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).sum();
        Ok(100.0 * (ratios / ours.len() as f64 - 1.0))
    };
    let gains: Vec<Result<f64, LabError>> =
        (FRESH..FRESH + seeds).into_par_iter().map(gain_percent).collect();
    let gains = gains.into_iter().collect::<Result<Vec<_>, _>>()?;
    let name = "throughput while Xapian is at 90 %, ARQ, LC first over PARTIES, mean of the apps";
    let why = "answers of latency-critical apps and work of Stream, each over that under PARTIES; \
               the paper does not state how it averages them";
    Ok(Some(Row::change(name, "%", 36.4, estimate_of(&gains)).because(why)))
}

/// Answers of each latency-critical app and work of each other one while Xapian is at 90 %.
fn done_at_peak(
    scene: &Scene,
    strategy: &Strategy,
    seed: u64,
    replication: u64,
) -> Result<Vec<f64>, LabError> {
    let mut control = start(scene, strategy, seed, replication, false)?;
    let mut done_until = |second: u64| -> Result<Vec<f64>, LabError> {
        while control.plant().simulation().now() < Nanos::from_secs(second) {
            control.turn().map_err(|error| Failure::Setup(error.to_string()))?;
        }
        let totals = control.plant().simulation().totals();
        let done = totals.apps.iter().map(|app| match app.answered {
            0 => app.work_per_s * totals.span.as_secs_f64(),
            answers => answers as f64,
        });
        Ok(done.collect())
    };
    let (begun, ended) = (done_until(PEAK_S[0])?, done_until(PEAK_S[1])?);
    Ok(ended.iter().zip(&begun).map(|(ended, begun)| ended - begun).collect())
}

fn tide_rows(races: &Races) -> Vec<Row> {
    let (Some(tide), Some(arq)) = (races.seeds_under(TIDE), races.seeds_under(ARQ)) else {
        return Vec::new();
    };
    let most = AtMost(TIDE_VIOLATIONS);
    let share = AtMost(TIDE_ENTROPY);
    let goal = "our own goal for our own policy; no paper prints it";
    vec![
        Row::held(
            "tide, violating epochs: our goal",
            "epochs",
            Printed::Nothing,
            violations(tide),
            most,
        )
        .because(goal),
        Row::held(
            "tide, mean E_S over ARQ's: our goal",
            "",
            Printed::Nothing,
            ratio(tide, arq, Played::mean_system),
            share,
        )
        .because(goal),
    ]
}

fn figures(races: &Races) -> Vec<Figure> {
    let time = || Axis::linear("time (s)").between(0.0, LENGTH_S as f64);
    let load =
        profile().into_iter().map(|(from, share)| Point::at(from.as_secs_f64(), 100.0 * share));
    let end = Point::at(LENGTH_S as f64, LAST as f64);
    let load =
        Figure::new("Xapian's load", time(), Axis::linear("% of max load").between(0.0, 100.0))
            .with_curve("Xapian", CurveStyle::Steps, load.chain([end]));
    let shown = [LC_FIRST, PARTIES, ARQ, TIDE];
    let part = |title: &str, part: &dyn Fn(&SystemEntropy) -> Option<f64>| {
        let figure = Figure::new(title, time(), Axis::linear(title).between(0.0, 1.0));
        let there = shown.into_iter().filter_map(|it| Some((it, races.seeds_under(it)?.first()?)));
        there.fold(figure, |figure, (strategy, run)| {
            let points = run
                .epochs
                .iter()
                .filter_map(|epoch| Some(Point::at(epoch.time_s, part(&epoch.entropy)?)));
            figure.with_curve(strategy.name, CurveStyle::Trace, points.collect::<Vec<_>>())
        })
    };
    vec![
        load,
        part("E_LC, first seed", &|entropy| entropy.lc),
        part("E_BE, first seed", &|entropy| entropy.be),
        part("E_S, first seed", &|entropy| Some(entropy.system)),
    ]
}
