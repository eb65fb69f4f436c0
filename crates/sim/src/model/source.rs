//! Sources: closed clients with think times, open arrivals, and their schedules.

use super::{Distribution, Shape};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// Where an app's requests come from.
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
    /// Mean arrivals per second, unless a schedule says otherwise.
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
    /// Whether phases last exactly or on average as long as they say.
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
