//! Figs. 6 and 7: throughput and tail over the number of outstanding requests (RLP), and the
//! tail that inversions of the order of apps add (wNoI, section II).

use super::paper::paper;
use super::platform::{Platform, Scene, WAYS, steady};
use super::play::{ARQ_PRIORITY, Played, Span, Strategy, UNMANAGED, play, play_all};
use super::{SEED_FILE, sourced};
use crate::prelude::*;
use lull_measure::{Latency, Nanos};
use lull_sim::machine::{Activity, ClosedClients};
use lull_sim::model::{Distribution, Shape};
use lull_sim::stats::{Estimate, Failure};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "ahq-scalability",
    paper: "Liu et al. 2024, Figs. 6 and 7",
    seed_file: SEED_FILE,
    summary: "Throughput and tail over 1 to 80 outstanding requests, alone and co-located",
    run,
};

/// The apps of Fig. 7, one at a time.
const APPS: [&str; 2] = ["moses", "img-dnn"];
/// The cores: as many as the app has threads, and as the best-effort app has, so that all of them
/// compete.
const CORES: u16 = 4;
/// Numbers of requests that are outstanding at any time.
const RLP: [u32; 7] = [1, 2, 4, 8, FIG_6_LOW, FIG_6_HIGH, 2 * FIG_6_HIGH];
/// The two that Fig. 6a compares.
const FIG_6_LOW: u32 = 20;
const FIG_6_HIGH: u32 = 40;

/// How an app runs.
struct Arrangement {
    name: &'static str,
    strategy: Strategy,
    best_effort: &'static [&'static str],
}

const ALONE: Arrangement = Arrangement { name: "alone", strategy: UNMANAGED, best_effort: &[] };
const WITHOUT_DIP: Arrangement =
    Arrangement { name: "Unmanaged", strategy: UNMANAGED, best_effort: &["fluidanimate"] };
const WITH_DIP: Arrangement =
    Arrangement { name: "ARQ, LC first", strategy: ARQ_PRIORITY, best_effort: &["fluidanimate"] };
static ARRANGEMENTS: [Arrangement; 3] = [ALONE, WITHOUT_DIP, WITH_DIP];

/// One run: its indices in [`ARRANGEMENTS`], [`RLP`] and [`APPS`], and the replication.
struct RlpCell {
    arrangement: usize,
    rlp: usize,
    app: usize,
    replication: u64,
}

/// The measurements of one run.
#[derive(Debug, Clone, Copy)]
struct Served {
    throughput_per_s: f64,
    tail_ms: f64,
}

/// All runs.
struct Study {
    /// Indexed by arrangement, then number of requests, then app, then replication.
    served: Vec<Served>,
    replications: usize,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let platform = Platform::a();
    let study = Study::run(&platform, setup)?;
    let mut report = EXPERIMENT.report(paper().titled("Figs. 6 and 7"), setup);
    report.choices = choices();
    report.choices.extend(sourced::choices(&platform.parameters));
    report.rows = study.rows();
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &study.figures())?];
    Ok(report)
}

fn choices() -> Vec<String> {
    vec![
        format!(
            "each app alone, and beside Fluidanimate, with {CORES} threads each on {CORES} cores; \
             20 s to settle, 10 s counted"
        ),
        "so many clients that each send again 1 us after an answer: that many requests are \
         outstanding at any time"
            .to_owned(),
        "ratios are geometric means over the two apps".to_owned(),
        "wNoI is the tail beside Fluidanimate less that alone, summed over the apps, under a \
         strategy that lets Fluidanimate run while requests wait (NoI = 1). In the ideal order \
         latency-critical apps go first; the paper does not define it"
            .to_owned(),
        "the strategy with all three abilities (D, I and P) is ARQ, LC first; the one without is \
         Unmanaged"
            .to_owned(),
    ]
}

/// An app on all cores, with this many outstanding requests.
fn scene(platform: &Platform, cell: &RlpCell) -> Result<Scene, Failure> {
    let best_effort = ARRANGEMENTS[cell.arrangement].best_effort;
    let loads = [(APPS[cell.app], steady(1.0))];
    let mut scene = platform.scene(CORES, WAYS, &loads, best_effort)?;
    for app in &mut scene.model.app {
        if let Activity::Requests { load, closed, .. } = &mut app.activity {
            load.clear();
            let think = Distribution { mean: Nanos::from_micros(1), shape: Shape::Constant };
            *closed = Some(ClosedClients { clients: RLP[cell.rlp], think });
        }
    }
    Ok(scene)
}

impl Served {
    fn new(played: &Played, length: Nanos) -> Self {
        let answers = played.answers.first().map_or(0, Latency::count);
        Self {
            throughput_per_s: answers as f64 / length.as_secs_f64(),
            tail_ms: played.tails_ms.first().copied().unwrap_or(f64::NAN),
        }
    }
}

impl Study {
    fn run(platform: &Platform, setup: &Setup<'_>) -> Result<Self, LabError> {
        let replications = setup.either(5, 1);
        let second = Nanos::from_secs(1);
        let (warmup, length) = setup.either((20, 10), (3, 2));
        let span = Span { warmup: second * warmup, length: second * length, seed: setup.seed };
        let mut wanted = Vec::new();
        for arrangement in 0..ARRANGEMENTS.len() {
            for rlp in 0..RLP.len() {
                for app in 0..APPS.len() {
                    let cell = |replication| RlpCell { arrangement, rlp, app, replication };
                    wanted.extend((0..replications).map(cell));
                }
            }
        }
        let played = play_all(&wanted, &setup.progress, |cell| {
            let strategy = &ARRANGEMENTS[cell.arrangement].strategy;
            play(&scene(platform, cell)?, strategy, span, cell.replication)
        })?;
        let served = played.iter().map(|played| Served::new(played, span.length)).collect();
        Ok(Self { served, replications: replications as usize })
    }

    /// Returns the measurement of a replication of an app under an arrangement with this many
    /// requests; both are among those of the study.
    fn at(&self, arrangement: &Arrangement, rlp: u32, app: usize, replication: usize) -> Served {
        let arrangements = ARRANGEMENTS.iter().position(|it| it.name == arrangement.name);
        let arrangement = arrangements.expect("an arrangement of the study");
        let rlp = RLP.iter().position(|it| *it == rlp).expect("a number of the study");
        let of_app = (arrangement * RLP.len() + rlp) * APPS.len() + app;
        self.served[of_app * self.replications + replication]
    }

    /// A value of each replication.
    fn each(&self, value: impl Fn(usize) -> f64) -> Estimate {
        estimate_of(&(0..self.replications).map(value).collect::<Vec<_>>())
    }

    /// A value over another one, each of an arrangement and a number of requests: the geometric
    /// mean over the apps.
    fn ratio(
        &self,
        over: (&Arrangement, u32),
        under: (&Arrangement, u32),
        value: fn(Served) -> f64,
    ) -> Estimate {
        self.each(|replication| {
            let logs = (0..APPS.len()).map(|app| {
                let at = |(arrangement, rlp)| value(self.at(arrangement, rlp, app, replication));
                (at(over) / at(under)).ln()
            });
            (logs.sum::<f64>() / APPS.len() as f64).exp()
        })
    }

    /// The tail that inversions add without DIP abilities, in ms.
    fn inversions_ms(&self, rlp: u32, replication: usize) -> f64 {
        let added = (0..APPS.len()).map(|app| {
            let tail_ms = |it: &Arrangement| self.at(it, rlp, app, replication).tail_ms;
            tail_ms(&WITHOUT_DIP) - tail_ms(&ALONE)
        });
        added.sum()
    }

    fn rows(&self) -> Vec<Row> {
        let throughput: fn(Served) -> f64 = |served| served.throughput_per_s;
        let tail: fn(Served) -> f64 = |served| served.tail_ms;
        let without = |value, more: u32, less: u32| {
            self.ratio((&WITHOUT_DIP, more), (&WITHOUT_DIP, less), value)
        };
        let with = |value| self.ratio((&WITH_DIP, FIG_6_HIGH), (&WITHOUT_DIP, FIG_6_HIGH), value);
        let inversions = self.each(|replication| {
            let at = |rlp| self.inversions_ms(rlp, replication);
            at(FIG_6_HIGH) / at(FIG_6_LOW)
        });
        let name = |what: &str, more: u32, less: u32| {
            format!("Unmanaged, {what} at an RLP of {more} over that at {less}")
        };
        let (low, high) = (FIG_6_LOW, FIG_6_HIGH);
        let compared = |name: String, claim: &'static str, ours: Estimate, tolerance| {
            Row::compared(name, "times", claim, ours, tolerance)
        };
        let grown = without(throughput, high, 1);
        let same = without(throughput, high, low);
        let saturated = without(throughput, 2 * high, high);
        let longer = without(tail, high, low);
        let dip = |what: &str| format!("{what} at an RLP of {high}, ARQ, LC first over Unmanaged");
        let scale = "the figure survives without its numbers";
        let inverted_ms = self.each(|replication| self.inversions_ms(high, replication));
        vec![
            compared(name("throughput", high, 1), "increases", grown, AtLeast(1.0)),
            Row::compared(name("throughput", high, low), "times", 1.0, same, Relative(0.05)),
            compared(name("tail", high, low), "increases", longer, AtLeast(1.0)),
            compared(name("throughput", 2 * high, high), "saturated", saturated, AtMost(1.05)),
            compared(dip("throughput"), "higher", with(throughput), AtLeast(1.0)),
            compared(dip("tail"), "lower", with(tail), AtMost(1.0)),
            compared(name("wNoI", high, low), "increases", inversions, AtLeast(1.0)),
            Row::reported(
                format!("Unmanaged, wNoI at an RLP of {high}"),
                "ms",
                Printed::Nothing,
                inverted_ms,
                scale,
            ),
        ]
    }

    fn figures(&self) -> Vec<Figure> {
        let throughput = Axis::log("throughput (1/s)");
        let tail = Axis::log("95th percentile (ms)");
        vec![
            self.figure("Throughput", throughput, |served| served.throughput_per_s),
            self.figure("Tail latency", tail, |served| served.tail_ms),
        ]
    }

    /// A value of each app under each arrangement, over the number of requests.
    fn figure(&self, title: &str, y: Axis, value: fn(Served) -> f64) -> Figure {
        let mut figure = Figure::new(title, Axis::log("outstanding requests (RLP)"), y);
        for arrangement in &ARRANGEMENTS {
            for (app, name) in APPS.iter().enumerate() {
                let points = RLP.map(|rlp| {
                    let one = |replication| value(self.at(arrangement, rlp, app, replication));
                    Point::from_estimate(f64::from(rlp), &self.each(one))
                });
                let name = format!("{name}, {}", arrangement.name);
                figure = figure.with_curve(name, CurveStyle::Line, points);
            }
        }
        figure
    }
}
