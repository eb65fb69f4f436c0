//! The epochs of one period of Heracles, merged.

use lull_measure::Nanos;

/// The observations of one epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct EpochSeen {
    pub(super) length: Nanos,
    /// Slack, and whether requests were answered or wait; `None` if it cannot be read.
    pub(super) slack: Option<(f64, bool)>,
    /// How much the slack counts: requests due, at least one.
    pub(super) weight: f64,
    pub(super) load: Option<f64>,
    pub(super) progress: Option<f64>,
}

/// A summary of a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
    /// Weighted mean; 1 for an app that was idle throughout.
    pub(super) slack: f64,
    /// Mean over time of the epochs that have it.
    pub(super) load: Option<f64>,
    /// Mean over time of the epochs that have it.
    pub(super) progress: Option<f64>,
}

/// A mean under way: the sum of weighted values, and of their weights.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
    }

    fn get(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// A period under way.
#[derive(Debug, Clone)]
pub(super) struct Window {
    length: Nanos,
    elapsed: Nanos,
    slack: Mean,
    load: Mean,
    progress: Mean,
    was_idle: bool,
}

impl Window {
    /// A period of this length.
    pub(super) fn new(length: Nanos) -> Self {
        Self {
            length,
            elapsed: Nanos::ZERO,
            slack: Mean::default(),
            load: Mean::default(),
            progress: Mean::default(),
            was_idle: false,
        }
    }

    /// Adds an epoch. If the period ends with it, returns its summary, `None` inside if nothing
    /// could be read in all of it.
    pub(super) fn add(&mut self, epoch: EpochSeen) -> Option<Option<Summary>> {
        let seconds = epoch.length.as_secs_f64();
        match epoch.slack {
            Some((slack, true)) => self.slack.add(slack, epoch.weight),
            Some((_, false)) => self.was_idle = true,
            None => {}
        }
        epoch.load.into_iter().for_each(|load| self.load.add(load, seconds));
        epoch.progress.into_iter().for_each(|progress| self.progress.add(progress, seconds));
        self.elapsed += epoch.length;
        // The period ends with the epoch that brings the time nearest to it.
        if self.elapsed + epoch.length / 2 <= self.length {
            return None;
        }
        let done = std::mem::replace(self, Self::new(self.length));
        let slack = done.slack.get().or(done.was_idle.then_some(1.0));
        let (load, progress) = (done.load.get(), done.progress.get());
        Some(slack.map(|slack| Summary { slack, load, progress }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(slack: Option<(f64, bool)>, weight: f64) -> EpochSeen {
        let length = Nanos::from_secs(1);
        EpochSeen { length, slack, weight, load: Some(weight / 100.0), progress: None }
    }

    fn over(epochs: [EpochSeen; 2]) -> Option<Summary> {
        let mut window = Window::new(Nanos::from_secs(2));
        assert_eq!(window.add(epochs[0]), None);
        window.add(epochs[1]).unwrap()
    }

    #[test]
    fn busy_epochs_count_more_and_idle_ones_not_at_all() {
        let summary = over([epoch(Some((0.2, true)), 30.0), epoch(Some((0.6, true)), 10.0)]);
        let Summary { slack, load, progress } = summary.unwrap();
        assert!((slack - 0.3).abs() < 1e-12 && progress.is_none());
        assert!((load.unwrap() - 0.2).abs() < 1e-12);
        let summary = over([epoch(Some((0.2, true)), 30.0), epoch(Some((0.9, false)), 1.0)]);
        assert!((summary.unwrap().slack - 0.2).abs() < 1e-12);
    }

    #[test]
    fn an_idle_period_has_all_the_slack_and_an_unread_one_none_to_speak_of() {
        let idle = epoch(Some((-3.0, false)), 1.0);
        assert_eq!(over([idle, epoch(None, 1.0)]).map(|summary| summary.slack), Some(1.0));
        assert_eq!(over([epoch(None, 1.0), epoch(None, 1.0)]), None);
    }
}
