//! Sources: closed clients with think times, open arrivals, and their schedules.

use super::{Distribution, Shape};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// The arrival process of an app's requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A fixed number of clients, each with one request or thinking.
    Closed(Closed),
    /// Arrivals that do not wait for answers.
    Open(Open),
}

/// Clients that think, send a request, and wait for its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Closed {
    /// Number of clients.
    pub clients: u32,
    /// Think time. Exponential ones share a single clock, whatever the number of clients.
    pub think: Distribution,
    /// Number of active clients over time; the others are frozen while they
    /// think. Needs exponential think times.
    #[serde(default)]
    pub schedule: Option<Schedule>,
}

/// Arrivals at a rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// Mean arrivals per second, unless there is a schedule.
    pub rate_per_s: f64,
    /// Shape of the gaps; exponential ones make a Poisson process.
    #[serde(default)]
    pub gaps: Shape,
    /// Rate over time. A gap that spans a change is stretched or squeezed with the rate.
    #[serde(default)]
    pub schedule: Option<Schedule>,
}

/// How a source's level changes: clients for a closed one, arrivals per second for an open one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// Whether to start again after the last one; otherwise it lasts.
    #[serde(default = "yes")]
    pub cycle: bool,
    /// Whether phases have exactly or on average their `span`.
    #[serde(default)]
    pub spans: Spans,
}

/// A stretch of time at one level.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// How long.
    pub span: Nanos,
    /// Clients, or arrivals per second.
    pub level: f64,
}

/// Lengths of phases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spans {
    /// Exactly `span`.
    #[default]
    Fixed,
    /// Exponential with mean `span`: a Markov-modulated source.
    Exponential,
}

impl Source {
    /// Closed clients with exponential think times.
    pub fn clients(clients: u32, think: Nanos) -> Self {
        let think = Distribution::exponential(think);
        Self::Closed(Closed { clients, think, schedule: None })
    }

    /// Poisson arrivals.
    pub fn poisson(rate_per_s: f64) -> Self {
        Self::Open(Open { rate_per_s, gaps: Shape::Exponential, schedule: None })
    }

    /// The schedule, if any.
    pub fn schedule(&self) -> Option<&Schedule> {
        match self {
            Self::Closed(closed) => closed.schedule.as_ref(),
            Self::Open(open) => open.schedule.as_ref(),
        }
    }
}

impl Schedule {
    /// High and low in turn, each for half of `cycle`, beginning high.
    pub fn bursts(high: f64, low: f64, cycle: Nanos) -> Self {
        let span = cycle / 2;
        let phases = vec![Phase { span, level: high }, Phase { span, level: low }];
        Self { phases, cycle: true, spans: Spans::Fixed }
    }

    /// Returns the length of a cycle, where the phases repeat and have fixed lengths.
    pub fn cycle_length(&self) -> Option<Nanos> {
        let fixed = self.cycle && self.spans == Spans::Fixed;
        fixed.then(|| Nanos(self.phases.iter().map(|phase| phase.span.0).sum()))
    }

    /// Returns the same phases, scaled to a cycle of this length.
    #[must_use]
    pub fn with_cycle(&self, cycle: Nanos) -> Self {
        let now: u64 = self.phases.iter().map(|phase| phase.span.0).sum();
        let (mut end, mut scaled_end) = (0, 0);
        // Ends are scaled and not spans, so that rounding does not add up.
        let phases = self.phases.iter().map(|phase| {
            end += phase.span.0;
            let begin = scaled_end;
            scaled_end = (u128::from(end) * u128::from(cycle.0) / u128::from(now.max(1))) as u64;
            Phase { span: Nanos((scaled_end - begin).max(1)), ..*phase }
        });
        Self { phases: phases.collect(), ..self.clone() }
    }

    /// Integral of the level over the first `span`: requests, for an open source.
    pub fn level_seconds(&self, span: Nanos) -> f64 {
        if self.cycle {
            return self.mean_level() * span.as_secs_f64();
        }
        let (mut left, mut sum) = (span, 0.0);
        for (at, phase) in self.phases.iter().enumerate() {
            let lasts = at + 1 == self.phases.len();
            let here = if lasts { left } else { left.min(phase.span) };
            sum += here.as_secs_f64() * phase.level;
            left = left.saturating_sub(here);
        }
        sum
    }

    /// Mean level over a cycle; the last phase's where there is no cycle.
    pub fn mean_level(&self) -> f64 {
        let (time, sum) = self.phases.iter().fold((0.0, 0.0), |(time, sum), phase| {
            (time + phase.span.as_secs_f64(), sum + phase.span.as_secs_f64() * phase.level)
        });
        match self.phases.last() {
            Some(last) if !self.cycle => last.level,
            _ => sum / time,
        }
    }
}

/// The default of `cycle`.
fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretched_cycle_keeps_levels_and_proportions() {
        let bursts = Schedule::bursts(3.0, 1.0, Nanos::from_secs(2));
        assert_eq!(bursts.cycle_length(), Some(Nanos::from_secs(2)));
        let other = bursts.with_cycle(Nanos(1_000_000_001));
        assert_eq!(other.cycle_length(), Some(Nanos(1_000_000_001)));
        assert_eq!(other.phases[0], Phase { span: Nanos(500_000_000), level: 3.0 });
        assert!((other.mean_level() - 2.0).abs() < 1e-8);
        let lasting = Schedule { cycle: false, ..bursts };
        assert_eq!(lasting.cycle_length(), None);
    }

    #[test]
    fn the_last_phase_of_a_schedule_without_cycle_lasts() {
        let bursts = Schedule::bursts(3.0, 1.0, Nanos::from_secs(2));
        assert_eq!(bursts.level_seconds(Nanos::from_secs(10)), 20.0);
        let lasting = Schedule { cycle: false, ..bursts };
        assert_eq!(lasting.level_seconds(Nanos::from_secs(10)), 12.0);
        assert_eq!(lasting.level_seconds(Nanos::from_millis(500)), 1.5);
    }
}
