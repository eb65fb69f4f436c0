//! A policy's own period, whatever the loop's epoch.
//!
//! A loop that observes every 100 ms can run a policy that decides every 500 ms. Observations are
//! merged until the period has passed: latency histograms are added, rates averaged over time,
//! energy summed; states (alive, threads, queue) are those of the last epoch. Epochs are never
//! exactly as long as configured, so the epoch whose end is nearest to the period's end closes it.
//! A period shorter than the epoch is one epoch.

use lull_control::{
    AppObservation, CoreObservation, EnergyObservation, LatencyObservation, Observation, Progress,
    SpanWeights,
};
use lull_measure::{Gauge, Missing, Nanos};
use std::borrow::Cow;

/// Observations of a period so far.
#[derive(Debug, Clone)]
pub(crate) struct Period {
    length: Nanos,
    merged: Option<Observation>,
}

impl Period {
    /// A period of this length.
    pub(crate) fn new(length: Nanos) -> Self {
        Self { length, merged: None }
    }

    /// Sets another length, from the present period on.
    pub(crate) fn set_length(&mut self, length: Nanos) {
        self.length = length;
    }

    /// Adds an epoch; the whole period's observation if it ends with it.
    pub(crate) fn add<'a>(&mut self, seen: &'a Observation) -> Option<Cow<'a, Observation>> {
        let so_far = self.merged.as_ref().map_or(Nanos::ZERO, |merged| merged.epoch);
        let is_due = so_far + seen.epoch + seen.epoch / 2 > self.length;
        match (self.merged.take(), is_due) {
            (None, true) => Some(Cow::Borrowed(seen)),
            (Some(merged), true) => Some(Cow::Owned(merge(merged, seen))),
            (None, false) => {
                self.merged = Some(seen.clone());
                None
            }
            (Some(merged), false) => {
                self.merged = Some(merge(merged, seen));
                None
            }
        }
    }
}

fn merge(mut old: Observation, new: &Observation) -> Observation {
    let lengths = (old.epoch.as_secs_f64(), new.epoch.as_secs_f64());
    let weights = SpanWeights { old: lengths.0, new: lengths.1.max(f64::MIN_POSITIVE) };
    for (old, new) in old.apps.iter_mut().zip(&new.apps) {
        merge_app(old, new, weights);
    }
    for (old, new) in old.cores.iter_mut().zip(&new.cores) {
        merge_core(old, new, weights);
    }
    merge_energy(&mut old.energy, &new.energy);
    weights.merge(&mut old.cpu_pressure, &new.cpu_pressure);
    weights.merge(&mut old.interrupts_per_s, &new.interrupts_per_s);
    weights.merge(&mut old.packets_per_s, &new.packets_per_s);
    weights.merge(&mut old.c6_opportunity, &new.c6_opportunity);
    // Quantiles of two spans cannot be averaged; the newest that are known count.
    newest(&mut old.idle_gaps, &new.idle_gaps);
    newest(&mut old.run_queue_latency, &new.run_queue_latency);
    old.foreign.extend(new.foreign.iter().cloned());
    old.time = new.time;
    old.epoch += new.epoch;
    old
}

fn newest<T: Clone>(old: &mut Gauge<T>, new: &Gauge<T>) {
    if new.is_ok() || old.is_err() {
        old.clone_from(new);
    }
}

fn merge_app(old: &mut AppObservation, new: &AppObservation, weights: SpanWeights) {
    match (&mut old.latency, &new.latency) {
        (Ok(old), Ok(new)) => merge_latency(old, new, weights),
        (Err(_), _) => old.latency.clone_from(&new.latency),
        (Ok(_), Err(_)) => {}
    }
    match (&mut old.progress, &new.progress) {
        (Ok(Progress { per_s, source }), Ok(new)) if *source == new.source => {
            *per_s = weights.mean(*per_s, new.per_s);
        }
        // Values of different units cannot be averaged; the newer source continues.
        (_, Ok(_)) | (Err(_), Err(_)) => old.progress.clone_from(&new.progress),
        (Ok(_), Err(_)) => {}
    }
    old.readings.merge(&new.readings, weights);
    old.alive = new.alive;
    old.threads.clone_from(&new.threads);
    // No policy decides by them.
    old.client_classes.clone_from(&new.client_classes);
    old.client_accounts.clone_from(&new.client_accounts);
}

fn merge_latency(old: &mut LatencyObservation, new: &LatencyObservation, weights: SpanWeights) {
    old.window.merge(&new.window);
    old.buckets.merge(&new.buckets);
    old.offered_per_s = weights.mean(old.offered_per_s, new.offered_per_s);
    old.completed_per_s = weights.mean(old.completed_per_s, new.completed_per_s);
    old.errors_per_s = weights.mean(old.errors_per_s, new.errors_per_s);
    old.outstanding = new.outstanding;
    old.oldest = new.oldest;
    // A source may report a tail over several epochs; the newest one that is present counts.
    old.reported = match (old.reported, new.reported) {
        (Some(earlier), Some(silent)) if silent.tail.is_none() => Some(earlier),
        (_, new) => new,
    };
}

fn merge_core(old: &mut CoreObservation, new: &CoreObservation, weights: SpanWeights) {
    weights.merge(&mut old.utilisation, &new.utilisation);
    weights.merge(&mut old.idle_residency, &new.idle_residency);
    weights.merge(&mut old.deep_idle_residency, &new.deep_idle_residency);
    weights.merge(&mut old.c6_opportunity, &new.c6_opportunity);
    old.frequency.clone_from(&new.frequency);
}

/// A part that is unknown makes the sum unknown.
fn merge_energy(old: &mut Gauge<EnergyObservation>, new: &Gauge<EnergyObservation>) {
    match (&mut *old, new) {
        (Ok(old), Ok(new)) if old.source == new.source => old.energy += new.energy,
        (Ok(_), Ok(_)) => *old = Err(Missing::because("its source changed within the period")),
        (Ok(_), Err(_)) => old.clone_from(new),
        (Err(_), _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::{MemoryApp, MemoryPlant};
    use lull_control::{AppSpec, Plant};
    use lull_measure::Percentile;

    fn plant() -> MemoryPlant {
        let spec = AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(10));
        let service = Nanos::from_millis(1);
        MemoryPlant::new(2, vec![MemoryApp { spec, demand_cores: 1.0, service, threads: 2 }])
    }

    fn epochs_until_due(length: Nanos, epochs: &[Nanos]) -> Option<usize> {
        let (mut period, mut plant) = (Period::new(length), plant());
        epochs.iter().position(|epoch| period.add(&plant.observe(*epoch).unwrap()).is_some())
    }

    #[test]
    fn a_period_ends_at_the_nearest_epoch() {
        let (ms, length) = (Nanos::from_millis, Nanos::from_millis(500));
        assert_eq!(epochs_until_due(length, &[ms(499)]), Some(0));
        assert_eq!(epochs_until_due(length, &[ms(2_000)]), Some(0));
        assert_eq!(epochs_until_due(length, &[ms(99); 6]), Some(4));
        assert_eq!(epochs_until_due(length, &[ms(101); 6]), Some(4));
        assert_eq!(epochs_until_due(length, &[ms(200); 4]), Some(2));
    }

    #[test]
    fn a_period_that_is_one_epoch_copies_nothing() {
        let seen = plant().observe(Nanos::from_millis(500)).unwrap();
        let whole = Period::new(Nanos::from_millis(500)).add(&seen).unwrap();
        assert!(matches!(whole, Cow::Borrowed(_)));
    }

    #[test]
    fn merged_epochs_count_all_requests_and_average_rates_over_time() {
        let (mut period, mut plant) = (Period::new(Nanos::from_millis(400)), plant());
        let first = plant.observe(Nanos::from_millis(100)).unwrap();
        let second = plant.observe(Nanos::from_millis(300)).unwrap();
        assert!(period.add(&first).is_none());
        let whole = period.add(&second).unwrap().into_owned();
        let [one, two, all] = [first, second, whole].map(|seen| {
            assert!(seen.energy.is_ok());
            seen
        });
        assert_eq!(all.completed(), Some(one.completed().unwrap() + two.completed().unwrap()));
        assert_eq!((all.time, all.epoch), (two.time, Nanos::from_millis(400)));
        let rate = |seen: &Observation| seen.apps[0].latency.clone().unwrap().completed_per_s;
        assert!((rate(&all) - (0.25 * rate(&one) + 0.75 * rate(&two))).abs() < 1e-6);
        let energy = |seen: &Observation| seen.energy.clone().unwrap().energy.0;
        assert!((energy(&all) - energy(&one) - energy(&two)).abs() < 1e-9);
    }

    #[test]
    fn an_epoch_of_silence_hides_nothing_of_the_rest() {
        let (mut period, mut plant) = (Period::new(Nanos::from_millis(200)), plant());
        let heard = plant.observe(Nanos::from_millis(100)).unwrap();
        let mut silent = plant.observe(Nanos::from_millis(100)).unwrap();
        silent.apps[0].latency = Err(Missing::because("test"));
        period.add(&heard);
        let whole = period.add(&silent).unwrap().into_owned();
        assert_eq!(whole.completed(), heard.completed());
    }
}
