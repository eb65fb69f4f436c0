//! Simulated surveys: how often a gate is closed that does not help, and opened that does.
//!
//! Blocks are drawn from a model: the true ratios of throughput and tail behind each limit, the
//! standard deviation of their logarithms from block to block, and their autocorrelation. Rates
//! are stated in `docs/design/auto.md`.

use super::aim::{Aim, ServerObjective};
use super::survey::{Finding, Plan, Progress, Survey, SurveyKind};
use super::window::WindowReading;
use super::*;
use lull_measure::statistics::alpha_of_test;
use rand::RngExt;
use rand_distr::{Distribution, StandardNormal};

/// The effect of every limit on a server, and the scatter of blocks.
#[derive(Debug, Clone, Copy)]
struct Model {
    /// True throughput and tail behind a limit, over those of the open gate.
    throughput: f64,
    tail: f64,
    scatter: f64,
    autocorrelation: f64,
    /// Share of blocks in which a checkpoint or a convoy takes a third of the throughput and
    /// triples the tail; it lasts two blocks in the mean.
    bursts: f64,
    /// Standard deviation of the logarithm of the number of connections from block to block;
    /// throughput is in proportion to it.
    swings: f64,
}

impl Model {
    const fn new(throughput: f64, tail: f64, scatter: f64) -> Self {
        Self { throughput, tail, scatter, autocorrelation: 0.0, bursts: 0.0, swings: 0.0 }
    }
}

/// The scatter of blocks, one after the other.
struct Scatter {
    model: Model,
    last: [f64; 2],
    is_burst: bool,
}

impl Scatter {
    fn new(model: Model, rng: &mut Rng) -> Self {
        let last = [0, 1].map(|_| StandardNormal.sample(rng));
        Self { model, last, is_burst: false }
    }

    fn look(&mut self, setting: Setting, rng: &mut Rng) -> WindowReading {
        let Model { throughput, tail, scatter, autocorrelation: by, bursts, swings } = self.model;
        for one in &mut self.last {
            let new: f64 = StandardNormal.sample(rng);
            *one = by * *one + (1.0 - by * by).sqrt() * new;
        }
        let chance = if self.is_burst { 0.5 } else { bursts / 2.0 };
        self.is_burst = bursts > 0.0 && rng.random_bool(chance);
        let (throughput, tail) =
            if setting == Setting::Open { (1.0, 1.0) } else { (throughput, tail) };
        let (slower, longer) = if self.is_burst { (0.67, 3.0) } else { (1.0, 1.0) };
        let swing: Option<f64> = (swings > 0.0).then(|| StandardNormal.sample(rng));
        let more = swing.map(|swing| (swings * swing).exp());
        let usual = 1000.0 * more.unwrap_or(1.0);
        let per_s = usual * throughput * slower * (scatter * self.last[0]).exp();
        let tail_s = 0.1 * tail * longer * (scatter * self.last[1]).exp();
        WindowReading {
            tail_s,
            connections: more.map(|more| 64.0 * more),
            span: Nanos::from_millis(400),
            ..WindowReading::of_rate(per_s)
        }
    }
}

/// Returns the result of one survey of four limits, and its number of blocks.
fn survey(goal: Goal, model: Model, number: u64, seed: u64) -> (Finding, usize) {
    let config = Config { goal, ..Config::default() };
    let aim = Aim::new(&config, ServerObjective::from_list(&[]));
    let caps = [51, 28, 15, 8].map(|cap| Setting::Flow { cap, batch: 1 });
    let plan = Plan {
        what: SurveyKind::Caps,
        reference: Setting::Open,
        candidates: caps.to_vec(),
        expected_per_s: 1000.0,
        last_reference: None,
        pairs: config.pairs as usize,
        number,
    };
    let mut rng = Rng::seed_from_u64(seed);
    let mut survey = Survey::new(plan, &aim, &mut rng);
    let mut scatter = Scatter::new(model, &mut rng);
    for block in 1.. {
        let look = scatter.look(survey.setting(), &mut rng);
        match survey.takes(look, &aim, &mut rng) {
            Progress::GoesOn => {}
            Progress::Found(found) => return (found, block),
            Progress::Torn => panic!("the load does not change"),
        }
    }
    unreachable!()
}

/// Share of surveys that close the gate, and their blocks in the mean.
fn closes(goal: Goal, model: Model, number: u64, runs: u64) -> (f64, f64) {
    let (mut closed, mut blocks) = (0, 0);
    for seed in 0..runs {
        let (found, took) = survey(goal, model, number, 7000 + seed);
        closed += u64::from(found.best.is_some());
        blocks += took;
    }
    (closed as f64 / runs as f64, blocks as f64 / runs as f64)
}

const GOALS: [Goal; 3] = [Goal::Both, Goal::Tail, Goal::Throughput];

/// The model with independent, autocorrelated and bursty blocks.
fn noises(model: Model) -> [Model; 3] {
    [model, Model { autocorrelation: 0.7, ..model }, Model { bursts: 0.1, ..model }]
}

#[test]
fn a_gate_that_changes_nothing_is_hardly_ever_closed() {
    for goal in GOALS {
        for scatter in [0.1, 0.2] {
            for model in noises(Model::new(1.0, 1.0, scatter)) {
                let (closed, _) = closes(goal, model, 1, 100);
                // Promised are .15 % for the first survey: one of 100 may be chance.
                assert!(closed <= 0.01, "{goal:?}, {model:?}: {closed}");
            }
        }
    }
}

#[test]
fn a_gain_of_12_percent_is_found_within_sixty_pairs() {
    for (goal, least) in [(Goal::Throughput, 0.9), (Goal::Both, 0.7)] {
        let (found, _) = closes(goal, Model::new(1.12, 1.0, 0.1), 1, 300);
        assert!(found >= least, "{goal:?}: {found}");
    }
    // A large gain in both is found whatever the noise, after about twelve pairs.
    for model in noises(Model::new(1.4, 0.3, 0.2)) {
        let (found, blocks) = closes(Goal::Both, model, 1, 100);
        assert!(found >= 0.9 && blocks < 60.0, "{model:?}: {found} after {blocks} blocks");
    }
}

#[test]
fn a_gain_is_found_while_the_number_of_connections_swings() {
    // Seventy of these hundred find it. A scatter of .25 without the covariate hides the gain.
    let swinging = |throughput| Model { swings: 0.25, ..Model::new(throughput, 1.0, 0.05) };
    let (found, _) = closes(Goal::Throughput, swinging(1.12), 1, 100);
    assert!(found >= 0.6, "{found}");
    let (closed, _) = closes(Goal::Throughput, swinging(1.0), 1, 100);
    assert!(closed <= 0.01, "{closed}");
}

#[test]
fn a_throughput_that_is_too_low_seldom_passes_for_harmless() {
    // The mean alone, compared with .97, closed the gate in 65 to 75 % of such surveys.
    let (closed, _) = closes(Goal::Both, Model::new(0.96, 0.66, 0.1), 1, 300);
    assert!(closed < 0.4, "{closed}");
    let (closed, _) = closes(Goal::Both, Model::new(0.9, 0.5, 0.1), 1, 300);
    assert!(closed < 0.02, "{closed}");
}

#[test]
fn late_surveys_need_more_evidence() {
    let model = Model::new(1.12, 1.0, 0.1);
    let [first, hundredth] = [1, 100].map(|number| closes(Goal::Throughput, model, number, 100));
    assert!(hundredth.0 < first.0 && hundredth.1 > first.1, "{first:?} {hundredth:?}");
}

/// Surveys for each figure: as many as `LULL_SURVEYS` says, or few, which bound no rate.
fn surveys() -> u64 {
    std::env::var("LULL_SURVEYS").map_or(8, |text| text.parse().expect("LULL_SURVEYS is a number"))
}

/// Share of simulated weeks in which a gate is closed although all limits are alike. A week has
/// surveys with 1, 2, 4, 8, and then 16 minutes between them.
#[test]
#[ignore = "slow: as many surveys as LULL_SURVEYS says for each of 24 figures"]
fn weeks_of_alike_limits() {
    let surveys = surveys();
    const SURVEYS_A_WEEK: u64 = 633;
    let first_alpha = alpha_of_test(1.0, 1);
    let spent: f64 = (1..=SURVEYS_A_WEEK).map(|one| alpha_of_test(1.0, one)).sum();
    for goal in GOALS {
        for model in
            noises(Model::new(1.0, 1.0, 0.1)).into_iter().chain(noises(Model::new(1.0, 1.0, 0.2)))
        {
            let (first, _) = closes(goal, model, 1, surveys);
            let weeks = first * spent / first_alpha;
            println!("{goal:?}, {model:?}: first {first}, weeks {weeks}");
            let is_enough = surveys >= 3000;
            assert!(!is_enough || weeks <= 0.008, "{goal:?}, {model:?}: {weeks} of weeks");
            assert!(first <= 0.125, "{goal:?}, {model:?}: {first} of {surveys} surveys");
        }
    }
}

#[test]
#[ignore = "slow: as many surveys as LULL_SURVEYS says for each of 216 figures"]
fn the_rates_of_the_documentation() {
    let surveys = surveys();
    for (name, throughput, tail) in [
        ("alike", 1.0, 1.0),
        ("0.96, p99 0.66", 0.96, 0.66),
        ("0.9, p99 0.5", 0.9, 0.5),
        ("+12 %", 1.12, 1.0),
        ("+12 %, p99 0.8", 1.12, 0.8),
        ("+40 %, p99 0.3", 1.4, 0.3),
    ] {
        for goal in GOALS {
            for scatter in [0.05, 0.1, 0.2] {
                let row = noises(Model::new(throughput, tail, scatter)).map(|model| {
                    let (closed, blocks) = closes(goal, model, 1, surveys);
                    let most = if surveys >= 1000 { 0.005 } else { 0.125 };
                    assert!(name != "alike" || closed <= most, "{goal:?}, {model:?}: {closed}");
                    format!("{:.1} % {blocks:.0}", 100.0 * closed)
                });
                println!("{name} | {goal:?} | {scatter} | {}", row.join(" | "));
            }
        }
    }
}
