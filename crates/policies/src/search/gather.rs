//! One trial: accumulates epochs until they make a reading.

use super::reading::Reading;
use lull_control::{AppId, AppSpec, EnergySource, Observation, numbered};
use lull_measure::{Latency, Missing, Nanos, Percentile};
use std::collections::BTreeMap;

/// Share of the offered requests that a server must complete to keep up.
const KEEPS_UP: f64 = 0.97;
/// Tail over bound that is assumed for a server that does not keep up.
const OVERLOAD: f64 = 5.0;
/// Tail over bound that is assumed for a trial without completed requests.
const SILENCE: f64 = 10.0;
/// Requests that a tail needs before a trial ends early because of it.
const ENOUGH: u64 = 200;

/// How a trial is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Protocol {
    /// The app whose latency is measured.
    pub app: AppId,
    /// The percentile of its objective.
    pub percentile: Percentile,
    /// The bound of its objective.
    pub bound: Nanos,
    /// Time after a change of settings that is not measured.
    pub settle: Nanos,
    /// Length of the measurement.
    pub window: Nanos,
    /// Tail over bound above which a trial ends after a quarter of its window.
    pub cut: f64,
    /// Whether energy may come from a model instead of a meter.
    pub allow_modelled: bool,
}

impl Protocol {
    /// Returns the same protocol without early ends, for settings that are in force for good.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { cut: f64::INFINITY, ..self }
    }
}

/// Returns the first latency-critical app with a tail objective, its percentile and its bound.
pub(crate) fn first_tail(apps: &[AppSpec]) -> Option<(AppId, Percentile, Nanos)> {
    numbered(apps).find_map(|(app, spec)| {
        let (percentile, bound) = spec.tail().filter(|_| spec.is_latency_critical())?;
        Some((app, percentile, bound))
    })
}

/// A trial in progress.
#[derive(Debug, Clone)]
pub struct Gather {
    protocol: Protocol,
    settled: Nanos,
    span: Nanos,
    latency: Latency,
    offered: f64,
    completed: f64,
    joules: Result<f64, Missing>,
    /// Work of each app whose progress is known in every epoch, by its number.
    done: BTreeMap<usize, f64>,
}

/// The state of a trial after an epoch.
#[derive(Debug, Clone, PartialEq)]
pub enum Gathered {
    /// The trial needs more epochs.
    More,
    /// The reading, and the rate of requests per second in it.
    Reading(Reading, f64),
    /// There is no reading, for this reason: no energy gauge, no latency, or an idle app.
    Nothing(String),
}

impl Gather {
    /// Starts a trial.
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            settled: Nanos::ZERO,
            span: Nanos::ZERO,
            latency: Latency::default(),
            offered: 0.0,
            completed: 0.0,
            joules: Ok(0.0),
            done: BTreeMap::new(),
        }
    }

    /// Returns the requests that were answered per second of the trial so far.
    pub fn completed_per_s(&self) -> f64 {
        self.completed / self.span.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Whether requests have arrived in the trial so far.
    pub fn has_requests(&self) -> bool {
        self.offered >= 1.0
    }

    /// Adds an epoch and returns the state of the trial.
    pub fn add(&mut self, seen: &Observation) -> Gathered {
        if self.settled < self.protocol.settle {
            self.settled += seen.epoch;
            return Gathered::More;
        }
        let Some(app) = seen.app(self.protocol.app) else {
            return Gathered::Nothing("there is no such app".to_owned());
        };
        let seconds = seen.epoch.as_secs_f64();
        self.add_progress(seen, seconds);
        self.span += seen.epoch;
        if let Ok(latency) = &app.latency {
            self.latency.merge(&latency.window);
            self.offered += latency.offered_per_s * seconds;
            self.completed += latency.completed_per_s * seconds;
        }
        self.add_energy(seen);
        // Epochs are never exactly as long as configured.
        if self.span + seen.epoch / 2 >= self.protocol.window {
            return self.conclude();
        }
        if self.is_hopeless() { self.conclude() } else { Gathered::More }
    }

    /// Adds the work of best-effort apps. An app that lacks its gauge in one epoch does not count.
    fn add_progress(&mut self, seen: &Observation, seconds: f64) {
        let is_first = self.span == Nanos::ZERO;
        for (number, app) in seen.apps.iter().enumerate() {
            match &app.progress {
                Ok(progress) if is_first || self.done.contains_key(&number) => {
                    *self.done.entry(number).or_default() += progress.per_s * seconds;
                }
                _ => drop(self.done.remove(&number)),
            }
        }
    }

    /// Returns the geometric mean of the rates of progress; `None` without one.
    fn progress_per_s(&self) -> Option<f64> {
        let seconds = self.span.as_secs_f64();
        let logs = self.done.values().map(|done| (done / seconds).ln());
        (!self.done.is_empty()).then(|| (logs.sum::<f64>() / self.done.len() as f64).exp())
    }

    fn add_energy(&mut self, seen: &Observation) {
        let energy = seen.energy.as_ref().map_err(Clone::clone).and_then(|it| match &it.source {
            EnergySource::Modelled(model) if !self.protocol.allow_modelled => {
                Err(Missing::because(format!(
                    "energy is modelled here ({model}), not measured: set allow_modelled = true \
                     to use it"
                )))
            }
            _ => Ok(it.energy.0),
        });
        self.joules = match (&self.joules, energy) {
            (Ok(sum), Ok(more)) => Ok(sum + more),
            (Err(why), _) => Err(why.clone()),
            (_, Err(why)) => Err(why),
        };
    }

    /// Whether the trial exceeds the bound so far that it must end.
    fn is_hopeless(&self) -> bool {
        let Protocol { percentile, bound, cut, window, .. } = self.protocol;
        self.span.0 >= window.0 / 4
            && self.latency.count() >= ENOUGH
            && self.latency.quantile(percentile).is_some_and(|tail| tail > bound.scale(cut))
    }

    fn conclude(&self) -> Gathered {
        let joules = match &self.joules {
            Ok(joules) => *joules,
            Err(why) => return Gathered::Nothing(why.to_string()),
        };
        if !self.has_requests() {
            return Gathered::Nothing("no request arrived".to_owned());
        }
        let seconds = self.span.as_secs_f64();
        let bound_us = self.protocol.bound.as_micros_f64();
        let tail_us = match self.latency.quantile(self.protocol.percentile) {
            None => SILENCE * bound_us,
            Some(tail) if self.completed < KEEPS_UP * self.offered => {
                tail.as_micros_f64().max(OVERLOAD * bound_us)
            }
            Some(tail) => tail.as_micros_f64(),
        };
        let unanswered = (self.offered - self.completed).max(0.0) as u64;
        let late = self.latency.count_above(self.protocol.bound) + unanswered;
        let requests = (self.offered as u64).max(late);
        let (watts, progress_per_s) = (joules / seconds, self.progress_per_s());
        let reading = Reading { tail_us, watts, requests, late, progress_per_s };
        Gathered::Reading(reading, self.offered / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BOUND, be, lc, observation, silent};
    use lull_control::{EnergyObservation, LatencyObservation};
    use lull_measure::Joules;

    fn protocol() -> Protocol {
        Protocol {
            app: AppId(0),
            percentile: Percentile::P95,
            bound: BOUND,
            settle: Nanos::from_secs(1),
            window: Nanos::from_secs(4),
            cut: 2.0,
            allow_modelled: false,
        }
    }

    fn epoch(app: lull_control::AppObservation, source: EnergySource) -> Observation {
        let second = Nanos::from_secs(1);
        let energy = Ok(EnergyObservation { energy: Joules(50.0), source });
        Observation { energy, ..observation(second, second, vec![app]) }
    }

    fn metered() -> EnergySource {
        EnergySource::Measured("test".to_owned())
    }

    fn play(
        app: impl Fn() -> lull_control::AppObservation,
        source: &EnergySource,
    ) -> (usize, Gathered) {
        let mut gather = Gather::new(protocol());
        for count in 1.. {
            match gather.add(&epoch(app(), source.clone())) {
                Gathered::More => {}
                end => return (count, end),
            }
        }
        unreachable!("a trial ends");
    }

    #[test]
    fn a_window_after_settling_is_one_reading() {
        let (epochs, end) = play(|| lc(5.0), &metered());
        let Gathered::Reading(reading, rate) = end else { panic!("{end:?}") };
        assert_eq!(epochs, 5);
        assert!((reading.tail_us / 5000.0 - 1.0).abs() < 0.01 && reading.watts == 50.0);
        assert_eq!((rate, reading.requests, reading.late), (2000.0, 8000, 0));
        let mut gather = Gather::new(protocol());
        assert_eq!(gather.completed_per_s(), 0.0);
        (0..5).for_each(|_| drop(gather.add(&epoch(lc(5.0), metered()))));
        assert_eq!(gather.completed_per_s(), 2000.0);
    }

    #[test]
    fn a_trial_that_is_far_over_is_cut_short() {
        let (epochs, end) = play(|| lc(35.0), &metered());
        assert_eq!(epochs, 2);
        assert!(matches!(end, Gathered::Reading(it, _) if it.tail_us > 34_000.0));
        assert_eq!(play(|| lc(15.0), &metered()).0, 5, "a little over is measured whole");
    }

    #[test]
    fn what_is_not_answered_counts_as_late_and_over() {
        let starved = || {
            let mut app = lc(1.0);
            app.latency =
                app.latency.map(|it| LatencyObservation { completed_per_s: 1500.0, ..it });
            app
        };
        let Gathered::Reading(reading, _) = play(starved, &metered()).1 else { panic!() };
        assert_eq!(reading.tail_us, 50_000.0);
        assert!(reading.late >= 2000, "{reading:?}");
        let dead = || {
            let mut app = silent(10);
            app.latency = app.latency.map(|it| LatencyObservation { offered_per_s: 100.0, ..it });
            app
        };
        let Gathered::Reading(reading, _) = play(dead, &metered()).1 else { panic!() };
        assert_eq!((reading.tail_us, reading.late), (100_000.0, reading.requests));
    }

    #[test]
    fn modelled_energy_is_refused_unless_it_is_allowed() {
        let model = EnergySource::Modelled("1 W a core".to_owned());
        let (_, end) = play(|| lc(5.0), &model);
        assert!(
            matches!(&end, Gathered::Nothing(why) if why.contains("allow_modelled")),
            "{end:?}"
        );
        let mut gather = Gather::new(Protocol { allow_modelled: true, ..protocol() });
        let ends: Vec<_> = (0..5).map(|_| gather.add(&epoch(lc(5.0), model.clone()))).collect();
        assert!(matches!(ends[4], Gathered::Reading(..)));
    }

    #[test]
    fn progress_is_the_geometric_mean_of_the_apps_whose_gauge_is_whole() {
        let read = |rates: &dyn Fn(usize) -> Vec<Option<f64>>| {
            let mut gather = Gather::new(protocol());
            for count in 0.. {
                let app = |rate: &Option<f64>| match rate {
                    Some(rate) => be(*rate),
                    None => lull_control::AppObservation {
                        progress: Err(Missing::because("lost")),
                        ..be(1.0)
                    },
                };
                let seen = epoch(lc(5.0), metered());
                let apps = seen.apps.iter().cloned().chain(rates(count).iter().map(app)).collect();
                match gather.add(&Observation { apps, ..seen }) {
                    Gathered::More => {}
                    Gathered::Reading(reading, _) => return reading.progress_per_s,
                    Gathered::Nothing(why) => panic!("{why}"),
                }
            }
            unreachable!("a trial ends");
        };
        assert_eq!(read(&|_| vec![]), None);
        let one = read(&|count| vec![Some(if count == 2 { 8.0 } else { 4.0 })]).unwrap();
        assert!((one - 5.0).abs() < 1e-9, "the first epoch settles, one of four has 8: {one}");
        let both = read(&|_| vec![Some(2.0), Some(800.0)]).unwrap();
        assert!((both - 40.0).abs() < 1e-9, "{both}");
        let lost = read(&|count| vec![Some(2.0), (count != 3).then_some(800.0)]).unwrap();
        assert!((lost - 2.0).abs() < 1e-9, "{lost}");
        assert_eq!(read(&|_| vec![Some(0.0)]), Some(0.0));
    }

    #[test]
    fn an_idle_app_gives_no_reading() {
        let (_, end) = play(|| silent(0), &metered());
        assert!(matches!(end, Gathered::Nothing(why) if why.contains("no request")));
    }
}
