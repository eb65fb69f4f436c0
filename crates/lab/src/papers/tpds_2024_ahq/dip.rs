//! Figs. 13 to 15: the effect of isolation and of priority on pairs of apps.

use super::SEED_FILE;
use super::paper::paper;
use super::platform::Scene;
use super::play::{Played, Span, Strategy, play, play_all};
use super::sourced::{self, Parameter};
use crate::prelude::*;
use crate::trial::rules;
use lull_control::AppSpec;
use lull_measure::{Nanos, Percentile};
use lull_sim::machine::{MachineModel, MachineSimulation};
use lull_sim::stats::Failure;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-dip",
    paper: "Liu et al. 2024, Figs. 13 to 15",
    seed_file: SEED_FILE,
    summary: "Ninety ordered pairs of apps, shared, divided evenly, or one going first",
    run,
};

/// Sharing, isolation without priority, priority without isolation.
const STRATEGIES: [&str; 3] = ["Shared", "Even", "RR"];
const SHARED: usize = 0;
const EVEN: usize = 1;
const RR: usize = 2;
/// Bound of latency-critical apps: policies of this study do not use it.
const BOUND: Nanos = Nanos::from_secs(1);

/// Two apps side by side; the first has priority where that is known.
struct Pair {
    first: usize,
    second: usize,
}

/// The performance of both apps of a pair (higher is better) and the cores' use.
#[derive(Debug, Clone, Copy)]
struct PairOutcome {
    performance: [f64; 2],
    utilisation: f64,
}

/// All pairs under all strategies.
struct Study {
    model: MachineModel,
    pairs: Vec<Pair>,
    /// Indexed by strategy, then pair.
    outcomes: Vec<Vec<PairOutcome>>,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, parameters) = sourced::read::<MachineModel>(include_str!("platform-b.toml"));
    let study = Study::run(model, setup)?;
    let paper = paper();
    let mut report = EXPERIMENT.report(paper.titled("Figs. 13 to 15"), setup);
    report.choices = choices(&parameters);
    report.rows = study.rows();
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &study.figures())?];
    Ok(report)
}

fn choices(parameters: &[Parameter]) -> Vec<String> {
    let mut all = vec![
        "90 combinations are the ordered pairs of 10 apps; the first has priority under RR"
            .to_owned(),
        "uncertainty under RR is that of Fig. 13's caption: latency-critical apps go first, \
         best-effort apps go last"
            .to_owned(),
        "Even divides cores only, as the paper does".to_owned(),
        "a low-priority app that answers nothing has the length of the run as its tail".to_owned(),
    ];
    all.extend(sourced::choices(parameters));
    all
}

fn pairs(apps: usize) -> Vec<Pair> {
    let ordered = (0..apps).flat_map(|first| (0..apps).map(move |second| (first, second)));
    let different = ordered.filter(|(first, second)| first != second);
    different.map(|(first, second)| Pair { first, second }).collect()
}

impl Study {
    fn run(model: MachineModel, setup: &Setup<'_>) -> Result<Self, LabError> {
        let pairs = pairs(model.app.len());
        let specs = specs(&model)?;
        let second = Nanos::from_secs(1);
        let length = second * setup.either(20, 4);
        let span = Span { warmup: second * 2, length, seed: setup.seed };
        let wanted: Vec<_> = (0..STRATEGIES.len())
            .flat_map(|strategy| (0..pairs.len()).map(move |pair| (strategy, pair)))
            .collect();
        let played = play_all(&wanted, &setup.progress, |(strategy, number)| {
            let scene = scene(&model, &specs, &pairs[*number]);
            play(&scene, &strategy_of(*strategy), span, *number as u64)
        })?;
        let worst = length.as_secs_f64() * 1e3;
        let mut each = wanted
            .iter()
            .zip(&played)
            .map(|((_, number), played)| outcome(&model, &pairs[*number], played, worst));
        let outcomes =
            STRATEGIES.iter().map(|_| each.by_ref().take(pairs.len()).collect()).collect();
        Ok(Self { model, pairs, outcomes })
    }

    /// Performance of an app under a strategy over its co-runners, in a role.
    fn performances(&self, strategy: usize, app: usize, as_first: bool) -> Vec<f64> {
        let all = self.pairs.iter().zip(&self.outcomes[strategy]);
        let mine = all.filter(|(pair, _)| app == if as_first { pair.first } else { pair.second });
        mine.map(|(_, outcome)| outcome.performance[usize::from(!as_first)]).collect()
    }

    /// σ over mean of tail latency or IPC.
    fn uncertainty(&self, strategy: usize, app: usize, as_first: bool) -> f64 {
        let serves = self.model.app[app].serves();
        // Performance of a latency-critical app is the inverse of its tail.
        let raw = |value: f64| if serves { 1.0 / value } else { value };
        let values: Vec<f64> =
            self.performances(strategy, app, as_first).into_iter().map(raw).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        (square / values.len() as f64).sqrt() / mean
    }

    /// Returns the values as Fig. 13 shows apps: latency-critical ones in front, the others behind.
    fn shown(&self, strategy: usize) -> Vec<f64> {
        let apps = 0..self.model.app.len();
        apps.map(|app| self.uncertainty(strategy, app, self.model.app[app].serves())).collect()
    }

    /// Share of performances that are better than under Shared, in percent;
    /// of high-priority apps, or of all.
    fn improved(&self, strategy: usize, high_only: bool) -> f64 {
        let roles = if high_only { 1 } else { 2 };
        let both = self.outcomes[strategy].iter().zip(&self.outcomes[SHARED]);
        let better = both.map(|(ours, shared)| {
            let role = |role: &usize| ours.performance[*role] > shared.performance[*role];
            (0..roles).filter(role).count()
        });
        100.0 * better.sum::<usize>() as f64 / (roles * self.pairs.len()) as f64
    }

    /// Share of pairs that use less of the cores than under Shared, in percent.
    fn less_used(&self, strategy: usize) -> f64 {
        let both = self.outcomes[strategy].iter().zip(&self.outcomes[SHARED]);
        let less = both.filter(|(ours, shared)| ours.utilisation < shared.utilisation);
        100.0 * less.count() as f64 / self.pairs.len() as f64
    }

    fn utilisation(&self, strategy: usize) -> Vec<f64> {
        self.outcomes[strategy].iter().map(|outcome| 100.0 * outcome.utilisation).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.uncertainty_rows();
        rows.extend(self.priority_rows());
        rows.extend(self.utilisation_rows());
        rows
    }

    /// Observation 1: isolation reduces uncertainty, priority does not.
    fn uncertainty_rows(&self) -> Vec<Row> {
        let all = [SHARED, EVEN, RR].map(|strategy| self.shown(strategy));
        let mean = |strategy: usize| all[strategy].iter().sum::<f64>() / all[strategy].len() as f64;
        let curves = "the figure survives without its numbers";
        let mut rows: Vec<Row> = [SHARED, EVEN, RR]
            .map(|strategy| {
                let name = format!("{}, uncertainty, mean of the apps", STRATEGIES[strategy]);
                Row::reported(name, "", Printed::Nothing, estimate_of(&all[strategy]), curves)
            })
            .to_vec();
        let (less, more) = (mean(EVEN) / mean(SHARED), mean(RR) / mean(EVEN));
        let claim = "reduced";
        rows.push(Row::held(
            "observation 1: uncertainty, Even over Shared",
            "",
            claim,
            less,
            AtMost(1.0),
        ));
        let claim = "not reduced";
        rows.push(Row::held(
            "observation 1: uncertainty, RR over Even",
            "",
            claim,
            more,
            AtLeast(1.0),
        ));
        let high = (0..self.model.app.len()).map(|app| self.uncertainty(RR, app, true));
        let other = "the other reading of Fig. 14: every app in front. A best-effort app with \
                     real-time priority everywhere leaves its co-runner nothing to interfere with";
        let high = estimate_of(&high.collect::<Vec<_>>());
        rows.push(Row::reported(
            "RR, uncertainty, every app in front",
            "",
            Printed::Nothing,
            high,
            other,
        ));
        rows
    }

    /// Observation 2: priority helps the critical app, isolation need not.
    fn priority_rows(&self) -> Vec<Row> {
        let (even, rr) = (self.improved(EVEN, false), self.improved(RR, true));
        let mix = "nothing but the names of the apps is printed: the share depends on their loads";
        vec![
            Row::held(
                "observation 2: RR, high-priority apps improved",
                "%",
                94.2,
                rr,
                AtLeast(50.0),
            ),
            Row::held(
                "observation 2: improved, RR less Even",
                "points",
                94.2 - 50.9,
                rr - even,
                AtLeast(0.0),
            ),
            Row::compared("Even, apps improved", "%", 50.9, even, Absolute(10.0)).because(mix),
            Row::ratio("Redis beside MySQL, tail under Even over Shared", 1.534, self.redis_tail())
                .because(mix),
        ]
    }

    /// Redis' tail beside MySQL under Even over that under Shared. Neither strategy looks at the
    /// order of a pair, so that both orders are replications.
    fn redis_tail(&self) -> f64 {
        let is = |app: usize, name: &str| self.model.app[app].name == name;
        let ratio = |at: usize| {
            let Pair { first, second } = self.pairs[at];
            let role = match () {
                () if is(first, "redis") && is(second, "mysql") => 0,
                () if is(first, "mysql") && is(second, "redis") => 1,
                () => return None,
            };
            // Performance is the inverse of the tail.
            let performance = |strategy: usize| self.outcomes[strategy][at].performance[role];
            Some(performance(SHARED) / performance(EVEN))
        };
        let ratios: Vec<f64> = (0..self.pairs.len()).filter_map(ratio).collect();
        ratios.iter().sum::<f64>() / ratios.len() as f64
    }

    /// Observation 3: isolation costs utilisation, priority does not.
    fn utilisation_rows(&self) -> Vec<Row> {
        let mean = |strategy| {
            let all = self.utilisation(strategy);
            all.iter().sum::<f64>() / all.len() as f64
        };
        let least = AtLeast(50.0);
        let less = self.less_used(EVEN);
        let gap = mean(RR) - mean(SHARED);
        let loss = mean(EVEN) - mean(SHARED);
        vec![
            Row::held("observation 3: Even, pairs with less utilisation", "%", 96.4, less, least),
            Row::held(
                "observation 3: mean utilisation, Even less Shared",
                "points",
                "lower",
                loss,
                AtMost(0.0),
            ),
            Row::held(
                "observation 3: mean utilisation, RR less Shared",
                "points",
                "not lower",
                gap,
                AtLeast(-1.0),
            ),
        ]
    }

    fn figures(&self) -> Vec<Figure> {
        let names = || self.model.app.iter().map(|app| app.name.clone());
        let by_app = |title: &str, y: &str, value: &dyn Fn(usize, usize) -> f64| {
            let empty = Figure::new(title, Axis::names("", names()), Axis::linear(y));
            STRATEGIES.iter().enumerate().fold(empty, |figure, (strategy, name)| {
                let apps = 0..self.model.app.len();
                let points = apps.map(|app| Point::at(app as f64 + 1.0, value(strategy, app)));
                figure.with_curve(*name, CurveStyle::Points, points)
            })
        };
        let uncertainty = by_app("Uncertainty over co-runners", "σ / mean", &|strategy, app| {
            self.uncertainty(strategy, app, self.model.app[app].serves())
        });
        let gain = by_app("Performance over that under Shared", "times", &|strategy, app| {
            let front = self.model.app[app].serves();
            let mean = |strategy| {
                let all = self.performances(strategy, app, front);
                all.iter().sum::<f64>() / all.len() as f64
            };
            mean(strategy) / mean(SHARED)
        });
        vec![uncertainty, gain, self.use_figure()]
    }

    /// Utilisation of all pairs, sorted: what a box plot would show, whole.
    fn use_figure(&self) -> Figure {
        let y = Axis::linear("busy cores (%)").between(0.0, 100.0);
        let empty = Figure::new("CPU utilisation", Axis::linear("share of pairs (%)"), y);
        STRATEGIES.iter().enumerate().fold(empty, |figure, (strategy, name)| {
            let mut all = self.utilisation(strategy);
            all.sort_by(f64::total_cmp);
            let count = all.len() as f64;
            let points = all.into_iter().enumerate();
            let points =
                points.map(|(at, used)| Point::at(100.0 * (at as f64 + 0.5) / count, used));
            figure.with_curve(*name, CurveStyle::Steps, points)
        })
    }
}

/// The apps as policies see them.
fn specs(model: &MachineModel) -> Result<Vec<AppSpec>, Failure> {
    let spec = |app: usize| {
        let app = &model.app[app];
        if app.serves() {
            return Ok(AppSpec::latency_critical(&app.name, Percentile::P95, BOUND));
        }
        let mut alone = model.clone();
        alone.app.retain(|other| other.name == app.name);
        let mut node = MachineSimulation::new(&alone, 0, 0)?;
        node.run_until(Nanos::from_secs(10));
        let mut spec = AppSpec::best_effort(&app.name);
        spec.solo_per_s = Some(node.totals().apps[0].work_per_s);
        Ok(spec)
    };
    (0..model.app.len()).map(spec).collect()
}

fn scene(model: &MachineModel, specs: &[AppSpec], pair: &Pair) -> Scene {
    let both = [pair.first, pair.second];
    let mut model = model.clone();
    model.app = both.iter().map(|app| model.app[*app].clone()).collect();
    let apps = both.iter().map(|app| specs[*app].clone()).collect();
    Scene { model, rules: rules(), apps, groups: Vec::new() }
}

/// Under RR the first app has priority: the policy ranks apps as listed.
fn strategy_of(strategy: usize) -> Strategy {
    let (policy, config) = match strategy {
        EVEN => ("even", "ways = false"),
        RR => ("rr", ""),
        _ => ("unmanaged", ""),
    };
    Strategy { name: STRATEGIES[strategy], policy, config }
}

fn outcome(model: &MachineModel, pair: &Pair, played: &Played, worst_ms: f64) -> PairOutcome {
    let (mut tails, mut progress) = (played.tails_ms.iter(), played.progress.iter());
    let performance = [pair.first, pair.second].map(|app| {
        let next = if model.app[app].serves() {
            tails.next().map(|tail_ms| 1.0 / tail_ms.min(worst_ms))
        } else {
            progress.next().copied()
        };
        next.unwrap_or(f64::NAN)
    });
    PairOutcome { performance, utilisation: played.utilisation }
}
