//! Values of the metrics that a plant reads of an app as they are: one number a metric, or the
//! reason why it is missing.
//!
//! The rows of `lull_measure::catalogue` with a [`Merging`] are these metrics. A plant fills in
//! what it can read. Samples, records, the page and policies' own periods iterate over the rows, so
//! a new gauge needs only its row and its reader.

use lull_measure::catalogue::{Merging, Metric, Scope, gauges};
use lull_measure::{Gauge, Missing};

/// Readings of one app in one epoch.
#[derive(Debug, Clone)]
pub struct Readings {
    values: Vec<(&'static Metric, Gauge<f64>)>,
    /// Why every other metric is missing.
    otherwise: Missing,
}

/// Lengths of two spans that become one; both count in seconds.
#[derive(Debug, Clone, Copy)]
pub struct SpanWeights {
    /// The value of the first span.
    pub old: f64,
    /// The value of the second span.
    pub new: f64,
}

impl SpanWeights {
    /// The mean over both spans of a value that is a mean over each.
    pub fn mean(self, old: f64, new: f64) -> f64 {
        (old * self.old + new * self.new) / (self.old + self.new)
    }

    /// Makes `old` the mean over both spans; a span without value counts for nothing.
    pub fn merge(self, old: &mut Gauge<f64>, new: &Gauge<f64>) {
        match (&mut *old, new) {
            (Ok(old), Ok(new)) => *old = self.mean(*old, *new),
            (Err(_), _) => old.clone_from(new),
            (Ok(_), Err(_)) => {}
        }
    }
}

/// The metrics of an app that are readings, in the order of the catalogue.
pub fn readings_of_apps() -> impl Iterator<Item = (&'static Metric, Merging)> {
    let of_app = gauges().filter(|metric| metric.scope == Scope::App);
    of_app.filter_map(|metric| Some((metric, metric.merging()?)))
}

impl Readings {
    /// No reading at all, for one reason.
    pub fn unknown(why: &Missing) -> Self {
        Self { values: Vec::new(), otherwise: why.clone() }
    }

    /// Sets the value of a metric, or its own reason.
    pub fn set(&mut self, metric: &'static Metric, value: Gauge<f64>) {
        debug_assert!(metric.merging().is_some(), "{} is not a reading", metric.name);
        match self.values.iter_mut().find(|(known, _)| known.place == metric.place) {
            Some((_, old)) => *old = value,
            None => self.values.push((metric, value)),
        }
    }

    /// The value of a metric, or why there is none.
    pub fn get(&self, metric: &Metric) -> Gauge<f64> {
        let found = self.values.iter().find(|(known, _)| known.place == metric.place);
        found.map_or_else(|| Err(self.otherwise.clone()), |(_, value)| value.clone())
    }

    /// The value of a metric where it is known.
    pub fn value(&self, metric: &Metric) -> Option<f64> {
        let found = self.values.iter().find(|(known, _)| known.place == metric.place);
        found.and_then(|(_, value)| value.as_ref().ok().copied())
    }

    /// The metrics whose values are known.
    pub fn known(&self) -> impl Iterator<Item = (&'static Metric, f64)> + '_ {
        self.values.iter().filter_map(|(metric, value)| Some((*metric, *value.as_ref().ok()?)))
    }

    /// Adds the readings of the span that follows.
    pub fn merge(&mut self, new: &Self, weights: SpanWeights) {
        for (metric, merging) in readings_of_apps() {
            let mut value = self.get(metric);
            match merging {
                Merging::Mean => weights.merge(&mut value, &new.get(metric)),
                Merging::Last => value = new.get(metric),
            }
            self.set(metric, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::catalogue::{CACHE_OCCUPANCY, CPU};

    #[test]
    fn rates_are_averaged_and_states_are_the_last() {
        let why = Missing::because("test");
        let mut old = Readings::unknown(&why);
        let mut new = old.clone();
        old.set(CPU, Ok(1.0));
        old.set(CACHE_OCCUPANCY, Ok(10.0));
        new.set(CPU, Ok(3.0));
        old.merge(&new, SpanWeights { old: 1.0, new: 3.0 });
        assert_eq!(old.get(CPU), Ok(2.5));
        assert_eq!(old.get(CACHE_OCCUPANCY), Err(why), "the last epoch did not know it");
    }

    #[test]
    fn a_span_without_value_counts_for_nothing() {
        let mut old = Readings::unknown(&Missing::because("test"));
        let silent = old.clone();
        old.set(CPU, Ok(1.0));
        old.merge(&silent, SpanWeights { old: 1.0, new: 3.0 });
        assert_eq!(old.value(CPU), Some(1.0));
    }
}
