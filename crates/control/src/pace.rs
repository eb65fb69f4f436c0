//! How long an epoch is: fixed, or led by the bursts of the observed load.
//!
//! The adaptive rule is that of [`crate::Rhythm`], generalized. Wang et al. 2013
//! detect bursts by P-state switches, which only a frequency governor
//! has; here they are detected in the load, so that any policy can be paced.
//!
//! # What a burst is
//!
//! The load of an app in an epoch is its offered requests per second. Where
//! no app has a known offered load, there is one load, the mean utilisation
//! of all cores. Each load is compared with its own slow mean (exponential in
//! time, constant ten times the longest epoch). It is *low* below the mean by
//! more than the swing and *high* above the mean by more than the swing; the
//! swing is a share of the mean, for request rates at least three standard
//! deviations of a Poisson count of the epoch, so that shorter epochs do not
//! see bursts in noise. A **burst** is the first high epoch after a low one;
//! its time is the epoch's end. Between low and high nothing changes.
//!
//! Every app has its own rhythm; the shortest period of all is the epoch.
//! Bursts more frequent than every other epoch cannot be seen, as with any
//! sampling; what is faster than twice the longest epoch stays unseen until
//! some rhythm has shortened it.

use crate::{Observation, Rhythm, RhythmError, RhythmRule};
use lull_measure::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the control loop chooses the length of its epochs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpochRule {
    /// Always this long.
    Fixed(Nanos),
    /// The rhythm of the load's bursts.
    Adaptive(AdaptiveEpoch),
}

/// The constants of an adaptive epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdaptiveEpoch {
    /// The rule from burst intervals to the epoch.
    pub rhythm: RhythmRule,
    /// How far from its mean a load is high or low, as a share of the mean; above 0.
    #[schemars(extend("x-unit" = "share"))]
    pub swing: f64,
}

impl Default for AdaptiveEpoch {
    /// The paper's rhythm; a swing of a quarter (its bursts are 3:1, a swing of a half).
    fn default() -> Self {
        Self { rhythm: RhythmRule::default(), swing: 0.25 }
    }
}

impl From<Nanos> for EpochRule {
    fn from(epoch: Nanos) -> Self {
        Self::Fixed(epoch)
    }
}

impl fmt::Display for EpochRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(epoch) => epoch.fmt(f),
            Self::Adaptive(AdaptiveEpoch { rhythm, .. }) => {
                write!(f, "{} to {}", rhythm.shortest, rhythm.longest)
            }
        }
    }
}

impl EpochRule {
    /// The longest epoch that the rule gives.
    pub fn longest(&self) -> Nanos {
        match self {
            Self::Fixed(epoch) => *epoch,
            Self::Adaptive(rule) => rule.rhythm.longest,
        }
    }

    /// Checks the rule's constants.
    ///
    /// # Errors
    /// If an epoch would be empty, or a constant of the adaptive rule makes no sense.
    pub fn check(&self) -> Result<(), RhythmError> {
        let fail = |key, message| Err(RhythmError { key, message });
        match self {
            Self::Fixed(Nanos::ZERO) => {
                fail("epoch", "the epoch is zero: write a time such as 500ms".to_owned())
            }
            Self::Fixed(_) => Ok(()),
            Self::Adaptive(rule) if !(rule.swing > 0.0 && rule.swing < 1.0) => {
                let message = format!("`swing` is {}: write a share such as 0.25", rule.swing);
                fail("swing", message)
            }
            Self::Adaptive(rule) => rule.rhythm.check(),
        }
    }
}

/// Follows a rule from observation to observation.
#[derive(Debug, Clone)]
pub struct Pace {
    rule: EpochRule,
    epoch: Nanos,
    apps: Vec<Pulse>,
    machine: Pulse,
}

impl Pace {
    /// Starts with the fixed epoch or the longest.
    pub fn new(rule: EpochRule) -> Self {
        let (epoch, pulse) = match &rule {
            EpochRule::Fixed(epoch) => (*epoch, Pulse::new(&AdaptiveEpoch::default())),
            EpochRule::Adaptive(adaptive) => (adaptive.rhythm.longest, Pulse::new(adaptive)),
        };
        Self { rule, epoch, apps: Vec::new(), machine: pulse }
    }

    /// Follows another rule from the next epoch on; the same rule keeps its history.
    pub fn set_rule(&mut self, rule: EpochRule) {
        if rule != self.rule {
            *self = Self::new(rule);
        }
    }

    /// The length of the next epoch.
    pub fn epoch(&self) -> Nanos {
        self.epoch
    }

    /// Notes the observation of an epoch.
    pub fn note(&mut self, seen: &Observation) {
        let EpochRule::Adaptive(rule) = &self.rule else { return };
        while self.apps.len() < seen.apps.len() {
            self.apps.push(Pulse::new(rule));
        }
        let offered =
            |app: &crate::AppObservation| app.latency.as_ref().ok().map(|at| at.offered_per_s);
        let mut known = false;
        for (pulse, app) in self.apps.iter_mut().zip(&seen.apps) {
            if let Some(per_s) = offered(app) {
                pulse.note(per_s, poisson_swing(pulse.mean, seen.epoch), seen);
                known = true;
            }
        }
        if let Some(busy) = utilisation(seen).filter(|_| !known) {
            self.machine.note(busy, 0.0, seen);
        }
        let pulses = self.apps.iter_mut().chain([&mut self.machine]);
        let periods = pulses.map(|pulse| pulse.rhythm.period(seen.time));
        self.epoch = periods.min().unwrap_or(rule.rhythm.longest);
    }
}

/// Three standard deviations of the rate seen in an epoch with this mean rate.
fn poisson_swing(mean_per_s: f64, epoch: Nanos) -> f64 {
    let seconds = epoch.as_secs_f64().max(f64::MIN_POSITIVE);
    3.0 * (mean_per_s / seconds).sqrt()
}

/// Mean over the cores whose utilisation is known.
fn utilisation(seen: &Observation) -> Option<f64> {
    let known: Vec<f64> =
        seen.cores.iter().filter_map(|core| core.utilisation.as_ref().ok().copied()).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

/// One load: its slow mean, whether it was low last, and its rhythm.
#[derive(Debug, Clone)]
struct Pulse {
    swing: f64,
    memory: Nanos,
    mean: f64,
    begun: bool,
    low: bool,
    rhythm: Rhythm,
}

impl Pulse {
    fn new(rule: &AdaptiveEpoch) -> Self {
        Self {
            swing: rule.swing,
            memory: Nanos(rule.rhythm.longest.0.saturating_mul(10)),
            mean: 0.0,
            begun: false,
            low: false,
            rhythm: Rhythm::new(rule.rhythm.clone()),
        }
    }

    fn note(&mut self, load: f64, noise: f64, seen: &Observation) {
        if !load.is_finite() {
            return;
        }
        if !std::mem::replace(&mut self.begun, true) {
            self.mean = load;
            return;
        }
        let swing = (self.swing * self.mean).max(noise);
        if load < self.mean - swing {
            self.low = true;
        } else if load > self.mean + swing && std::mem::take(&mut self.low) {
            self.rhythm.burst(seen.time);
        }
        let span = seen.epoch.as_secs_f64() / self.memory.as_secs_f64().max(f64::MIN_POSITIVE);
        self.mean += (1.0 - (-span).exp()) * (load - self.mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppObservation, CoreObservation, LatencyObservation};
    use lull_measure::Missing;
    use proptest::prelude::*;

    const BASE: f64 = 10_000.0;

    fn because() -> Missing {
        Missing::because("test")
    }

    fn seen(time: Nanos, epoch: Nanos, offered: &[f64], busy: Option<f64>) -> Observation {
        let app = |rate: &f64| AppObservation {
            latency: Ok(LatencyObservation {
                offered_per_s: *rate,
                ..LatencyObservation::default()
            }),
            ..AppObservation::unknown(&because())
        };
        let core = |busy| CoreObservation {
            utilisation: Ok(busy),
            ..CoreObservation::unknown(&because())
        };
        Observation {
            apps: offered.iter().map(app).collect(),
            cores: busy.map(core).into_iter().collect(),
            ..Observation::unknown(time, epoch, &because())
        }
    }

    /// Half a cycle at `1 - swing`, half at `1 + swing` of the mean.
    fn square(cycle_s: f64, swing: f64) -> impl Fn(f64) -> f64 {
        move |at_s| if (at_s / cycle_s).fract() < 0.5 { 1.0 - swing } else { 1.0 + swing }
    }

    /// Lets a pace follow loads for a minute, with what each epoch's rate was.
    fn follow(rule: AdaptiveEpoch, observe: impl Fn(Nanos, Nanos) -> Observation) -> Nanos {
        let mut pace = Pace::new(EpochRule::Adaptive(rule));
        let mut time = Nanos::ZERO;
        while time < Nanos::from_secs(60) {
            let epoch = pace.epoch();
            time += epoch;
            pace.note(&observe(time, epoch));
        }
        pace.epoch()
    }

    fn follow_square(cycle_s: f64, swing: f64) -> f64 {
        let load = square(cycle_s, swing);
        let observe = |time: Nanos, epoch: Nanos| {
            let middle = time.as_secs_f64() - epoch.as_secs_f64() / 2.0;
            seen(time, epoch, &[BASE * load(middle)], None)
        };
        follow(AdaptiveEpoch::default(), observe).as_millis_f64()
    }

    #[test]
    fn the_epoch_becomes_a_tenth_of_the_burst_cycle() {
        for cycle_s in [1.5, 2.0, 3.0, 4.0] {
            let epoch_ms = follow_square(cycle_s, 0.5);
            assert!((epoch_ms / (100.0 * cycle_s) - 1.0).abs() < 0.2, "{cycle_s} s: {epoch_ms} ms");
        }
    }

    #[test]
    fn slow_cycles_and_steady_load_leave_the_longest_epoch() {
        assert_eq!(follow_square(20.0, 0.5), 500.0);
        assert_eq!(follow_square(2.0, 0.0), 500.0);
    }

    #[test]
    fn a_ripple_below_the_swing_is_no_burst() {
        assert_eq!(follow_square(2.0, 0.2), 500.0);
    }

    #[test]
    fn the_noise_of_a_few_requests_is_no_burst() {
        // 20 requests/s in epochs of 500 ms: 10 each, so three sigma are 95 % of the mean.
        let rates = [12.0, 28.0];
        let observe = |time: Nanos, epoch: Nanos| {
            let odd = (time.0 / epoch.0) % 2;
            seen(time, epoch, &[rates[odd as usize]], None)
        };
        assert_eq!(follow(AdaptiveEpoch::default(), observe), Nanos::from_millis(500));
    }

    #[test]
    fn the_fastest_rhythm_of_several_apps_sets_the_pace() {
        let (fast, slow) = (square(2.0, 0.5), square(4.0, 0.5));
        let observe = |time: Nanos, epoch: Nanos| {
            let at = time.as_secs_f64() - epoch.as_secs_f64() / 2.0;
            seen(time, epoch, &[BASE * slow(at), BASE * fast(at)], None)
        };
        let epoch_ms = follow(AdaptiveEpoch::default(), observe).as_millis_f64();
        assert!((epoch_ms - 200.0).abs() < 40.0, "{epoch_ms}");
    }

    #[test]
    fn utilisation_is_used_where_no_app_reports_its_load() {
        let load = square(2.0, 0.5);
        let observe = |time: Nanos, epoch: Nanos| {
            let at = time.as_secs_f64() - epoch.as_secs_f64() / 2.0;
            seen(time, epoch, &[], Some(0.5 * load(at)))
        };
        let epoch_ms = follow(AdaptiveEpoch::default(), observe).as_millis_f64();
        assert!((epoch_ms - 200.0).abs() < 40.0, "{epoch_ms}");
    }

    #[test]
    fn a_fixed_epoch_stays_as_it_is() {
        let mut pace = Pace::new(Nanos::from_secs(1).into());
        for second in 1..20 {
            let rate = BASE * (1.0 + f64::from(second % 2));
            let time = Nanos::from_secs(second as u64);
            pace.note(&seen(time, Nanos::from_secs(1), &[rate], None));
            assert_eq!(pace.epoch(), Nanos::from_secs(1));
        }
    }

    #[test]
    fn a_senseless_rule_is_refused_with_its_key() {
        let key = |rule: EpochRule| rule.check().unwrap_err().key;
        assert_eq!(key(EpochRule::Fixed(Nanos::ZERO)), "epoch");
        let swing = |swing| AdaptiveEpoch { swing, ..AdaptiveEpoch::default() };
        assert_eq!(key(EpochRule::Adaptive(swing(f64::NAN))), "swing");
        assert_eq!(EpochRule::Adaptive(swing(0.3)).check(), Ok(()));
    }

    proptest! {
        #[test]
        fn any_load_gives_an_epoch_within_the_bounds(
            loads in prop::collection::vec((0.0f64..1e9, 1u64..2_000), 0..100),
        ) {
            let mut pace = Pace::new(EpochRule::Adaptive(AdaptiveEpoch::default()));
            let mut time = Nanos::ZERO;
            for (rate, epoch_ms) in loads {
                let epoch = Nanos::from_millis(epoch_ms);
                time += epoch;
                pace.note(&seen(time, epoch, &[rate], None));
                let bounds = Nanos::from_millis(50)..=Nanos::from_millis(500);
                prop_assert!(bounds.contains(&pace.epoch()));
            }
        }
    }
}
