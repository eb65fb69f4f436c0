//! Figs. 4 and 9: space-time of cores under isolation, priority and both, by tick, triangle,
//! cross and waste.

mod example;
mod slices;

use super::paper::paper;
use super::platform::{Platform, Scene, WAYS, steady};
use super::play::{
    ARQ, ARQ_PRIORITY, CLITE, EVEN, LC_FIRST, PARTIES, Runs, Span, Strategy, UNMANAGED,
};
use super::{SEED_FILE, sourced};
use crate::colocation::SpaceTime;
use crate::prelude::*;
use lull_measure::Nanos;
use lull_sim::stats::{Estimate, Failure};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-space-time",
    paper: "Liu et al. 2024, Figs. 4 and 9",
    seed_file: SEED_FILE,
    summary: "Space-time of cores by tick, triangle, cross and waste, under seven strategies",
    run,
};

const STRATEGIES: [Strategy; 7] = [UNMANAGED, EVEN, LC_FIRST, PARTIES, CLITE, ARQ_PRIORITY, ARQ];

/// A mix of apps on some cores.
struct Mix {
    name: &'static str,
    cores: u16,
    /// Latency-critical apps, and their share of the max load.
    critical: &'static [(&'static str, f64)],
}

/// The two apps of Fig. 4: isolation gives each half of the cores.
const FIG_4: Mix = Mix { name: "Fig. 4", cores: 4, critical: &[("xapian", 0.4)] };
/// The two latency-critical apps and the best-effort app of Fig. 9.
const FIG_9: Mix = Mix { name: "Fig. 9", cores: 6, critical: &[("xapian", 0.4), ("moses", 0.4)] };
const MIXES: [Mix; 2] = [FIG_4, FIG_9];

/// Runs of all strategies on all mixes.
type Study = Runs<SpaceTime>;

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let platform = Platform::a();
    let study = measure(&platform, setup)?;
    let mut report = EXPERIMENT.report(paper().titled("Figs. 4 and 9"), setup);
    report.choices = choices();
    report.choices.extend(sourced::choices(&platform.parameters));
    report.rows = example::rows();
    report.rows.extend(study.rows());
    let mut figures = slices::figures(&scene(&platform, &FIG_4)?, setup.seed)?;
    figures.extend(example::figures());
    figures.extend(MIXES.iter().map(|mix| figure(mix, &study)));
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures)?];
    Ok(report)
}

fn choices() -> Vec<String> {
    let mix = |mix: &Mix| {
        let apps = mix.critical.iter().map(|(app, load)| format!("{app} at {:.0} %", 100.0 * load));
        let apps = apps.collect::<Vec<_>>().join(", ");
        format!("{}: {apps} and Fluidanimate on {} cores", mix.name, mix.cores)
    };
    let mut all = vec![
        "a core is a slice; time is not divided. Tick: an app uses a core that it had before. \
         Triangle: it uses a core that another app had before. Cross: a thread of it could run \
         and has no core. Waste: a core is idle while a thread that may not use it waits"
            .to_owned(),
        "of Fig. 9 eight time-slices are left without their marks. Those of the example are ours, \
         chosen so that all that the text prints of them holds: in time-slice 3 LC1 does \
         not require the slice and BE does, in 6 all three require it, 10 crosses under isolation"
            .to_owned(),
        "what an app requires over time is random arrivals and random work; the patterns of Fig. 4 \
         are not printed"
            .to_owned(),
        "isolation without priority is Even on cores, priority without isolation is LC-first"
            .to_owned(),
    ];
    all.extend(MIXES.iter().map(mix));
    all
}

fn scene(platform: &Platform, mix: &Mix) -> Result<Scene, Failure> {
    let loads: Vec<_> = mix.critical.iter().map(|(app, load)| (*app, steady(*load))).collect();
    platform.scene(mix.cores, WAYS, &loads, &["fluidanimate"])
}

fn measure(platform: &Platform, setup: &Setup<'_>) -> Result<Study, LabError> {
    let second = Nanos::from_secs(1);
    let (warmup, length) = setup.either((120, 60), (5, 5));
    let span = Span { warmup: second * warmup, length: second * length, seed: setup.seed };
    let scenes = MIXES.iter().map(|mix| scene(platform, mix));
    let scenes: Vec<Scene> = scenes.collect::<Result<_, Failure>>()?;
    let replications = 0..setup.either(5, 1);
    Runs::play(&STRATEGIES, &scenes, replications, span, &setup.progress, |run| run.space_time)
}

impl Study {
    /// The replications of a strategy on a mix; both are among those of the study.
    fn replications(&self, mix: &Mix, strategy: Strategy) -> &[SpaceTime] {
        let mix = MIXES.iter().position(|it| it.name == mix.name).expect("a mix of the study");
        let runs = self.under(strategy).expect("this build has all policies of the study");
        &runs[mix]
    }

    /// A value of the replications.
    fn value(&self, mix: &Mix, strategy: Strategy, value: impl Fn(&SpaceTime) -> f64) -> Estimate {
        let values: Vec<f64> = self.replications(mix, strategy).iter().map(value).collect();
        estimate_of(&values)
    }

    /// A value under the first strategy over that under the second, by replication.
    fn ratio(
        &self,
        mix: &Mix,
        [ours, theirs]: [Strategy; 2],
        value: fn(&SpaceTime) -> f64,
    ) -> Estimate {
        let both = self.replications(mix, ours).iter().zip(self.replications(mix, theirs));
        estimate_of(&both.map(|(ours, theirs)| value(ours) / value(theirs)).collect::<Vec<_>>())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = self.factor_rows();
        rows.extend(self.sharing_rows());
        rows.extend(self.balance_rows());
        rows
    }

    /// Section IV-A, Fig. 4: what priority and isolation do about each factor of interference.
    fn factor_rows(&self) -> Vec<Row> {
        // The critical app comes first in the scene.
        let denied = |space: &SpaceTime| 100.0 * space.apps[0].denied();
        let waste = |space: &SpaceTime| 100.0 * space.waste / space.cores;
        let row =
            |what: &str, strategy: Strategy, claim, value: &dyn Fn(&SpaceTime) -> f64, near| {
                let name = format!("Fig. 4, {}: {what}", strategy.name);
                let ours = self.value(&FIG_4, strategy, value);
                Row::compared(name, "%", claim, ours, near).because(SOME)
            };
        let critical = "crosses of the critical app, of what it requires";
        let taken = "triangles, of all cores";
        let triangles =
            |space: &SpaceTime| 100.0 * space.sum_over_apps(|app| app.triangles) / space.cores;
        let (some, hardly_any) = (AtLeast(SOME_PERCENT), AtMost(SOME_PERCENT));
        vec![
            row(critical, LC_FIRST, "none", &denied, hardly_any),
            row(critical, EVEN, "some", &denied, some),
            row("waste, of all cores", EVEN, "some", &waste, some),
            row(taken, LC_FIRST, "some", &triangles, some),
            row(taken, EVEN, "none", &triangles, hardly_any),
        ]
    }

    /// Section VI-A, Fig. 9: sharing with priority against isolation.
    fn sharing_rows(&self) -> Vec<Row> {
        let both = [LC_FIRST, EVEN];
        let crosses = self.ratio(&FIG_9, both, |space| space.sum_over_apps(|app| app.crosses));
        let used = self.ratio(&FIG_9, both, SpaceTime::utilisation);
        let name = |what: &str| format!("Fig. 9 on 6 cores: {what}, LC-first over Even");
        let why = "the example's 6 over 10 crosses and nearly twice the use are of one slice";
        let row = |what: &str, claim, ours, near| {
            Row::compared(name(what), "times", claim, ours, near).because(why)
        };
        vec![
            row("crosses", "fewer", crosses, AtMost(1.0)),
            row("cores used", "more", used, AtLeast(1.0)),
        ]
    }

    /// Theorem 1: isolation and sharing together have the benefits of both.
    fn balance_rows(&self) -> Vec<Row> {
        let over = |theirs: Strategy, value: fn(&SpaceTime) -> f64| {
            self.ratio(&FIG_9, [ARQ_PRIORITY, theirs], value)
        };
        let why = "reported only: ARQ puts best effort into SCHED_IDLE and LC-first has SCHED_RR, \
                   so that the two differ in more than isolation; and ARQ isolates nothing while \
                   all bounds are met";
        let waste = over(EVEN, |space| space.waste);
        let transfers = over(LC_FIRST, |space| space.sum_over_apps(|app| app.transfers_per_s));
        let row = |what: &str, theirs: &str, ours| {
            let name = format!("Fig. 9 on 6 cores: {what}, ARQ, LC first over {theirs}");
            Row::reported(name, "times", "fewer", ours, why)
        };
        vec![row("waste", "Even", waste), row("transfers", "LC-first", transfers)]
    }
}

/// Printed is that there is some, or none: one in a hundred is the least that counts as some.
const SOME_PERCENT: f64 = 1.0;
const SOME: &str = "the figure survives without its marks; less than 1 % counts as none";

/// The marks of all apps together under each strategy.
fn figure(mix: &Mix, study: &Study) -> Figure {
    let title = format!("{}: all apps on {} cores", mix.name, mix.cores);
    let names = STRATEGIES.map(|strategy| strategy.name);
    let axes = Figure::new(title, Axis::names("", names), Axis::linear("cores, or threads"));
    let with = |figure: Figure, name: &str, value: fn(&SpaceTime) -> f64| {
        let points = (1..).zip(STRATEGIES).map(|(at, strategy)| {
            Point::from_estimate(f64::from(at), &study.value(mix, strategy, value))
        });
        figure.with_curve(name, CurveStyle::Points, points)
    };
    let figure = with(axes, "tick", |space| space.sum_over_apps(|app| app.ticks));
    let figure = with(figure, "waste", |space| space.waste);
    let figure = with(figure, "triangle", |space| space.sum_over_apps(|app| app.triangles));
    with(figure, "cross", |space| space.sum_over_apps(|app| app.crosses))
}
