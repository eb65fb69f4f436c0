//! The evidence that the trials of one setting give for its objective.
//!
//! A setting *meets* its objective on two conditions, and both count every violation in full:
//!
//! 1. The share of late requests is below the allowed one (0.01 for a p99) at 99 %
//!    confidence. A search looks at this limit after each trial and confirms until it decides,
//!    so that the limit is one that holds at all times together
//!    ([`lull_measure::statistics::proportion_upper_anytime`]). Requests of one trial are not
//!    independent, because a burst makes many of them late at once. Their number is therefore
//!    divided by the design effect, the ratio of the variance between trials to that of
//!    independent requests (Rao and Scott, "A simple method for the analysis of clustered
//!    binary data", Biometrics 1992). A trial that was cut short counts as a whole one.
//! 2. One more trial meets the bound with a probability of `final_floor`. With three trials or
//!    more this is the prediction interval of a normal sample, of the logarithms of their
//!    tails. Before, it is the prediction of the model, with the noise of a trial.
//!
//! The first condition is about requests, and the second about trials: a burst in every third
//! trial can leave the mean share of late requests below the allowed one.

use super::reading::Reading;
use super::rules::{CONFIDENCE, Rules};
use lull_control::TrialEvidence;
use lull_measure::statistics::{proportion_lower_anytime, proportion_upper_anytime, student_t_cdf};

/// Trials from which their own spread is used instead of the model's.
const OWN_SPREAD: usize = 3;
/// The least standard deviation of ln tail that any number of trials can reach (ours).
pub(super) const MIN_STD_DEV: f64 = 0.01;

/// Returns the evidence of a setting's trials; `predicted` is the model's probability that one
/// more trial meets the bound.
pub(super) fn weigh(readings: &[Reading], rules: &Rules, predicted: f64) -> TrialEvidence {
    let counted = Counted::new(readings, rules.allowed);
    let [at_least, at_most] = counted.limits();
    TrialEvidence {
        trials: readings.len() as u32,
        requests: readings.iter().map(|it| it.requests).sum(),
        late: readings.iter().map(|it| it.late).sum(),
        at_least,
        at_most,
        allowed: rules.allowed,
        probability: Spread::new(readings, rules.bound_us)
            .map_or(predicted, |spread| spread.below(readings.len())),
    }
}

/// Returns the evidence of readings that no model predicts.
pub fn evidence_of(readings: &[Reading], rules: &Rules) -> TrialEvidence {
    weigh(readings, rules, 0.0)
}

/// Whether trials refute a setting: more than one of them missed the bound, and the share of
/// late requests is above the allowed one.
pub(crate) fn is_refuted(readings: &[Reading], rules: &Rules) -> bool {
    let missed = readings.iter().filter(|it| it.tail_us > rules.bound_us).count();
    missed > 1 && Counted::new(readings, rules.allowed).limits()[0] > rules.allowed
}

/// Whether `more` trials like those so far would show that a setting meets its objective.
pub(super) fn can_be_shown(readings: &[Reading], rules: &Rules, more: usize) -> bool {
    let (count, all) = (readings.len().max(1), readings.len() + more);
    let counted = Counted::new(readings, rules.allowed).times(all as f64 / count as f64);
    let spread = Spread::new(readings, rules.bound_us);
    counted.limits()[1] <= rules.allowed
        && spread.is_none_or(|spread| spread.below(all) >= rules.final_floor)
}

/// Requests and late requests of some trials, divided by their design effect.
#[derive(Debug, Clone, Copy)]
struct Counted {
    requests: f64,
    late: f64,
}

impl Counted {
    fn new(readings: &[Reading], allowed: f64) -> Self {
        let whole = readings.iter().map(|it| it.requests).max().unwrap_or(0).max(1) as f64;
        let pair = |it: &Reading| {
            let requests = it.requests.max(1) as f64;
            let share = (it.late as f64 / requests).min(1.0);
            // A trial that is far over its bound is cut short.
            let requests = if share > allowed { whole } else { requests };
            (requests, share * requests)
        };
        let pairs: Vec<_> = readings.iter().map(pair).collect();
        let requests: f64 = pairs.iter().map(|pair| pair.0).sum();
        let late: f64 = pairs.iter().map(|pair| pair.1).sum();
        let effect = design_effect(&pairs, late / requests.max(1.0));
        Self { requests: requests / effect, late: late / effect }
    }

    fn times(self, factor: f64) -> Self {
        Self { requests: self.requests * factor, late: self.late * factor }
    }

    /// Returns one-sided lower and upper limits of the share of late requests, rounded outwards to
    /// whole requests.
    fn limits(self) -> [f64; 2] {
        let alpha = 1.0 - CONFIDENCE;
        let upper = (self.late.ceil() as u64, self.requests.floor() as u64);
        let lower = (self.late.floor() as u64, self.requests.ceil() as u64);
        [
            proportion_lower_anytime(lower.0, lower.1, alpha),
            proportion_upper_anytime(upper.0, upper.1, alpha),
        ]
    }
}

/// Returns the ratio of the variance between trials to that of independent requests; at least 1.
fn design_effect(trials: &[(f64, f64)], share: f64) -> f64 {
    if trials.len() < 2 || share <= 0.0 || share >= 1.0 {
        return 1.0;
    }
    let square = |(requests, late): &(f64, f64)| {
        (late - requests * share).powi(2) / (requests * share * (1.0 - share))
    };
    (trials.iter().map(square).sum::<f64>() / (trials.len() - 1) as f64).max(1.0)
}

/// Mean and spread of the logarithms of tail over bound of a setting's trials.
#[derive(Debug, Clone, Copy)]
struct Spread {
    mean: f64,
    std_dev: f64,
}

impl Spread {
    /// Returns `None` if the trials are too few to have a spread of their own.
    fn new(readings: &[Reading], bound_us: f64) -> Option<Self> {
        if readings.len() < OWN_SPREAD {
            return None;
        }
        let count = readings.len() as f64;
        let logs = || readings.iter().map(|it| (it.tail_us / bound_us).ln());
        let mean = logs().sum::<f64>() / count;
        let squares: f64 = logs().map(|log| (log - mean).powi(2)).sum();
        Some(Self { mean, std_dev: (squares / (count - 1.0)).sqrt().max(MIN_STD_DEV) })
    }

    /// Returns the probability that one more trial is below the bound, if these are the mean
    /// and the spread of `count` trials.
    fn below(self, count: usize) -> f64 {
        let z = -self.mean / (self.std_dev * (1.0 + 1.0 / count as f64).sqrt());
        student_t_cdf(z, count - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::Method;
    use super::*;

    fn rules(percent_late: f64, bound_us: f64) -> Rules {
        let allowed = percent_late / 100.0;
        Rules { allowed, ..Rules::new(Method::Apart, bound_us, 30) }
    }

    fn reading(tail_us: f64, requests: u64, late: u64) -> Reading {
        Reading { tail_us, watts: 1.0, requests, late, progress_per_s: None }
    }

    #[test]
    fn limits_are_rounded_outwards_to_whole_requests() {
        // `proportion.rs` has the source of the limits.
        for (requests, late, low, high) in [
            (556.9, 0.0, 0.0, 0.009_994_7),
            (100.0, 5.0, 0.006_331, 0.159_093),
            (99.2, 5.0, 0.006_331, 0.160_603),
            (10.0, 10.0, 0.516_076, 1.0),
        ] {
            let [at_least, at_most] = Counted { requests, late }.limits();
            // One request more or less moves each limit by 1.8e-5 or more.
            assert!((at_least - low).abs() < 1e-5, "{requests} {late}: {at_least}");
            assert!((at_most - high).abs() < 1e-5, "{requests} {late}: {at_most}");
        }
    }

    #[test]
    fn the_readings_of_a_setting_with_bursts_do_not_meet_its_bound() {
        // Measured: p95 in ms of seven trials of 200 requests, against a bound of 60 ms.
        let tails = [3.7, 3.3, 300.0, 3.8, 227.0, 524.0, 5.9];
        let late = |ms: f64| if ms > 60.0 { 30 } else { 0 };
        let all: Vec<_> = tails.iter().map(|ms| reading(1e3 * ms, 200, late(*ms))).collect();
        let evidence = weigh(&all, &rules(5.0, 60e3), 1.0);
        assert!(evidence.probability < 0.8 && !evidence.is_within(), "{evidence}");
        // Trials without a burst do: more than one of them is needed.
        let quiet: Vec<_> = all.iter().filter(|it| it.tail_us < 60e3).copied().collect();
        let evidence = weigh(&quiet, &rules(5.0, 60e3), 1.0);
        assert!(evidence.probability > 0.99 && evidence.is_within(), "{evidence}");
        assert!(!weigh(&quiet[..1], &rules(1.0, 60e3), 1.0).is_within(), "200 requests of a p99");
    }

    #[test]
    fn a_trial_that_was_cut_short_counts_as_a_whole_one() {
        let all = [reading(1.0, 1000, 0), reading(9.0, 250, 250), reading(1.0, 1000, 0)];
        let counted = Counted::new(&all, 0.05);
        assert!((counted.late / counted.requests - 1.0 / 3.0).abs() < 1e-9, "{counted:?}");
    }

    #[test]
    fn late_requests_that_come_together_are_fewer_observations() {
        let apart: Vec<_> = (0..10).map(|_| reading(1.0, 1000, 5)).collect();
        let together: Vec<_> =
            (0..10).map(|at| reading(1.0, 1000, if at == 0 { 50 } else { 0 })).collect();
        let limits = |all: &[Reading]| weigh(all, &rules(1.0, 10.0), 1.0).at_most;
        assert!(limits(&apart) < 0.0081, "{}", limits(&apart));
        assert!(limits(&together) > 0.02, "{}", limits(&together));
    }

    #[test]
    fn one_bad_trial_refutes_nothing_and_two_of_many_late_requests_do() {
        let bad = reading(900.0, 1000, 400);
        let rules = rules(1.0, 500.0);
        let refutes = |all: &[Reading]| is_refuted(all, &rules);
        assert!(!refutes(&[bad]) && refutes(&[bad, bad]));
        assert!(!refutes(&[reading(510.0, 1000, 11), reading(505.0, 1000, 10)]), "near the bound");
    }

    #[test]
    fn more_trials_can_show_what_a_few_cannot() {
        let rules = rules(1.0, 500.0);
        let near = vec![reading(480.0, 1000, 8), reading(482.0, 1000, 8), reading(478.0, 1000, 8)];
        assert!(!weigh(&near, &rules, 1.0).is_within());
        assert!(!can_be_shown(&near, &rules, 2) && can_be_shown(&near, &rules, 40));
        let over = vec![reading(480.0, 1000, 12); 3];
        assert!(!can_be_shown(&over, &rules, 1000));
    }
}
