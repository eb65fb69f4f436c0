//! EETL: slow to fast, with thresholds that keep the tail just on target.
//!
//! Haque et al., Exploiting Heterogeneity for Tail Latency and Energy
//! Efficiency, MICRO-50. Long requests reveal themselves by their
//! age. Each starts on a slow core and moves up when it is older than a
//! threshold, or earlier when the young run out of slow cores (Algorithm 1,
//! [`crate::toolkit::slow_to_fast`]). The threshold is what latency and energy
//! are traded with, so a PID controller with gains by load moves it until the
//! measured tail is the target ([`crate::toolkit::pid`]). With N types the
//! thresholds of figure 5 are scaled by one number z (section 4.4).
//!
//! # Where it differs, and why
//!
//! - The error is target - measured. The paper prints the opposite, with which
//!   the threshold runs to 0.
//! - The paper works on z in [0, 1] with gains that it does not print. Here the
//!   controller works on the last threshold in milliseconds, with table 2's
//!   gains, for any number of types; the others keep their ratio to it. Its
//!   bound is `most` targets, which lets z exceed 1 where the profile is more
//!   pessimistic than what is measured.
//! - A type that figure 5 has no use for (at low load the fastest of five DVFS
//!   levels is one) gets the target as its threshold: beyond it all speed is
//!   late at low load, and at high load z brings it down with the others.
//! - The integral starts so that the first threshold is `start` targets (two
//!   types) or figure 5's (more): from 0 the first epochs run at full energy.
//! - With fewer answers than [`samples_needed`] nothing is changed: five of 500
//!   lie beyond the p99, and a controller that acts on less acts on noise.
//!
//! Checked against: Algorithm 1 as printed (property test), figures 8 to 14 by
//! `lull lab run eetl-...`.

use super::{DispatcherKind, Site};
use crate::config::{config, read, wrong};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::pid::{self, Band, Pid};
use crate::toolkit::slow_to_fast::SlowToFast;
use crate::toolkit::thresholds::{Profile, solve};
use lull_control::PolicyError;
use lull_control::dispatcher::{
    Answer, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher, DispatcherError,
    MeasurementPeriod, MeasurementRule, samples_needed,
};
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "eetl",
    paper: "EETL (Haque et al., MICRO-50), sections 4.2 to 4.4, Algorithm 1, table 2",
    summary: "Moves requests up at ages that a controller sets so that the tail just meets its \
              target.",
    kind: DispatcherKind { needs: "with more than two core types a profile of the demand" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        Ok(Box::new(Eetl::new(config, site)?))
    },
};

config! {
    /// The paper's numbers.
    struct Config checked by check {
        /// Answers between two steps of the controller (section 5.4: 500).
        epoch: u32 = 500,
        /// Answers the tail and arrivals the load is measured over (section 5.4: 2000).
        window: usize = 2000,
        /// Gains by load in requests per second, milliseconds to milliseconds (table 2).
        gains: Vec<Band> = pid::published(),
        /// First threshold with two types, in targets (not printed; from 0 energy is wasted first).
        start: f64 = 0.5,
        /// Largest last threshold, in targets (not printed).
        most: f64 = 2.0,
        /// Whether the oldest make room for the young before their age (Algorithm 1, line 10).
        makes_room: bool = true,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    pid::check("gains", &config.gains)?;
    if config.epoch == 0 {
        return Err(wrong("epoch", "`epoch` is 0: the paper's is 500 answers".to_owned()));
    }
    if config.window < 2 {
        let message = format!("`window` is {}: the paper's is 2000 answers", config.window);
        return Err(wrong("window", message));
    }
    for (key, value) in [("start", config.start), ("most", config.most)] {
        if !(value > 0.0 && value.is_finite()) {
            return Err(wrong(
                key,
                format!("`{key}` is {value}: write a number of targets above 0"),
            ));
        }
    }
    Ok(())
}

struct Eetl {
    mechanism: SlowToFast,
    pid: Pid,
    /// Thresholds relative to the last one.
    shape: Vec<f64>,
    target: Nanos,
    rule: MeasurementRule,
    needed: usize,
}

impl Eetl {
    fn new(config: Config, site: &Site<'_>) -> Result<Self, DispatcherError> {
        let target_ms = site.target.as_millis_f64();
        let (shape, start_ms) = shape(&config, site)?;
        let needed = samples_needed(site.percentile);
        if config.window < needed {
            let message = format!(
                "`window` is {}, and {} needs {needed} answers; with fewer the controller would \
                 never act",
                config.window, site.percentile
            );
            return Err(wrong("window", message).into());
        }
        let mut ours = Self {
            mechanism: SlowToFast::new(
                site.ladder,
                vec![Nanos::MAX; shape.len()],
                config.makes_room,
            ),
            pid: Pid::new(config.gains, start_ms, config.most * target_ms),
            shape,
            target: site.target,
            rule: MeasurementRule {
                every: MeasurementPeriod::Answers(config.epoch),
                window: config.window,
                percentile: site.percentile,
                bound: None,
            },
            needed,
        };
        ours.set(start_ms);
        Ok(ours)
    }

    /// Sets the last threshold, and the others in their ratio to it.
    fn set(&mut self, last_ms: f64) {
        for (age, share) in self.mechanism.ages_mut().iter_mut().zip(&self.shape) {
            *age = Nanos::from_secs_f64(share * last_ms / 1e3);
        }
    }
}

/// Shape of the thresholds and the first value of the last one, in ms.
fn shape(config: &Config, site: &Site<'_>) -> Result<(Vec<f64>, f64), DispatcherError> {
    let target_ms = site.target.as_millis_f64();
    let steps = site.ladder.types().len() - 1;
    if steps <= 1 && site.profile.is_empty() {
        return Ok((vec![1.0; steps], config.start * target_ms));
    }
    let profile = Profile::new(site.profile, site.percentile)?;
    let low = solve(&profile, site.ladder, site.percentile, site.target)?;
    if steps <= 1 {
        return Ok((vec![1.0; steps], config.start * target_ms));
    }
    // A type without a use at low load has one at high load: it is reached at the target.
    let reached = |age: &Nanos| (*age).min(site.target).as_millis_f64();
    let last_ms = low.ages.last().map_or(target_ms, reached).max(f64::MIN_POSITIVE);
    Ok((low.ages.iter().map(|age| reached(age) / last_ms).collect(), last_ms))
}

impl Dispatcher for Eetl {
    #[inline]
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        self.mechanism.place(request)
    }

    fn decision_scope(&self) -> DecisionScope {
        self.mechanism.decision_scope()
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        Some(self.rule)
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        let Some(tail) = seen.tail.filter(|_| seen.samples >= self.needed) else { return };
        let error_ms = self.target.as_millis_f64() - tail.as_millis_f64();
        let last_ms = self.pid.step(error_ms, seen.rate_per_s);
        self.set(last_ms);
    }

    fn thresholds(&self) -> &[Nanos] {
        self.mechanism.thresholds()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{OwnedSite, amp_site, build, dvfs_site, refused, request, seen};
    use lull_control::dispatcher::{Answer, CoreChoice, MeasurementPeriod};
    use lull_measure::Nanos;

    #[test]
    fn the_threshold_starts_in_the_middle_and_follows_the_error() {
        let mut dispatcher = build("eetl", "", &amp_site());
        assert_eq!(dispatcher.thresholds(), [Nanos::from_millis(100)]);
        assert_eq!(dispatcher.measurement_rule().unwrap().every, MeasurementPeriod::Answers(500));
        dispatcher.adjust(&seen(150, 500, 25.0));
        // Kp 0.11 and Ki 0.49 on an error of 50 ms: 100 + 30 ms.
        assert_eq!(dispatcher.thresholds(), [Nanos::from_millis(130)]);
        let next = Some(Nanos::from_millis(130));
        assert_eq!(dispatcher.place(&request(100, Some(0), (0, 1), &[12, 2])), Answer::stay(next));
        dispatcher.adjust(&seen(300, 1000, 25.0));
        assert!(dispatcher.thresholds()[0] < Nanos::from_millis(100));
    }

    #[test]
    fn too_few_answers_move_nothing() {
        let mut dispatcher = build("eetl", "", &amp_site());
        dispatcher.adjust(&seen(900, 499, 25.0));
        assert_eq!(dispatcher.thresholds(), [Nanos::from_millis(100)]);
        let small = refused("eetl", "window = 400", &amp_site()).to_string();
        assert!(small.contains("needs 500 answers"), "{small}");
    }

    #[test]
    fn five_levels_keep_their_ratios() {
        let mut dispatcher = build("eetl", "", &dvfs_site());
        let before = dispatcher.thresholds().to_vec();
        assert!(before.is_sorted() && before[3] > Nanos::ZERO && before[3] < Nanos::MAX);
        dispatcher.adjust(&seen(150, 2000, 25.0));
        let after = dispatcher.thresholds();
        assert!(after[3] > before[3]);
        let ratio = |ages: &[Nanos]| ages[0].0 as f64 / ages[3].0 as f64;
        assert!((ratio(after) - ratio(&before)).abs() < 1e-6);
    }

    #[test]
    fn at_a_hopeless_load_it_becomes_the_tail_latency_policy() {
        let mut dispatcher = build("eetl", "", &amp_site());
        for _ in 0..20 {
            dispatcher.adjust(&seen(800, 2000, 120.0));
        }
        assert_eq!(dispatcher.thresholds(), [Nanos::ZERO]);
        assert_eq!(dispatcher.place(&request(0, None, (0, 1), &[13, 2])).place, CoreChoice::On(1));
    }

    #[test]
    fn a_target_that_no_core_meets_is_refused_with_the_best_one() {
        let site = OwnedSite { target: Nanos::from_millis(100), ..amp_site() };
        let text = refused("eetl", "", &site).to_string();
        assert!(text.contains("target of 100ms cannot be met") && text.contains("p99"), "{text}");
        let five = OwnedSite { profile: Vec::new(), ..dvfs_site() };
        assert!(refused("eetl", "", &five).to_string().contains("needs 500"));
        assert!(refused("eetl", "epoch = 0", &amp_site()).to_string().contains("`epoch` is 0"));
        assert!(refused("eetl", "gains = []", &amp_site()).to_string().contains("one band"));
    }
}
