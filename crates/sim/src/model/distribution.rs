//! Distributions of work, think times and gaps.

use crate::replication::Stream;
use lull_measure::Nanos;
use rand::RngExt;
use rand_distr::{Distribution as _, Exp1, Gamma, LogNormal};
use serde::{Deserialize, Serialize};

/// A positive random span: its mean and its shape.
///
/// `{ mean = "1.06ms" }` is exponential;
/// `{ mean = "1ms", shape = { hyper-exponential = { cv2 = 4.0 } } }` has a
/// squared coefficient of variation of 4.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Mean.
    pub mean: Nanos,
    /// Shape.
    #[serde(default)]
    pub shape: Shape,
}

/// A distribution's shape, apart from its mean. `cv2` is variance / mean².
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Shape {
    /// Exponential, cv² = 1.
    #[default]
    Exponential,
    /// Always the mean.
    Constant,
    /// Uniform between 0 and twice the mean, cv² = 1/3.
    Uniform,
    /// Sum of equal exponential stages, cv² = 1/stages.
    Erlang {
        /// Number of stages, at least 1.
        stages: u32,
    },
    /// Two exponential branches with balanced means (each carries half of the mean).
    HyperExponential {
        /// Squared coefficient of variation, at least 1.
        cv2: f64,
    },
    /// Lognormal.
    Lognormal {
        /// Squared coefficient of variation, above 0.
        cv2: f64,
    },
    /// Gamma.
    Gamma {
        /// Squared coefficient of variation, above 0.
        cv2: f64,
    },
}

impl Distribution {
    /// Exponential with this mean.
    pub const fn exponential(mean: Nanos) -> Self {
        Self { mean, shape: Shape::Exponential }
    }

    /// Always `mean`.
    pub const fn constant(mean: Nanos) -> Self {
        Self { mean, shape: Shape::Constant }
    }

    /// This distribution with another shape.
    pub const fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// The sampler, in nanoseconds.
    pub(crate) fn draw(self) -> Draw {
        Draw { mean: self.mean.0 as f64, unit: Unit::new(self.shape) }
    }
}

impl Shape {
    /// Squared coefficient of variation.
    pub fn cv2(self) -> f64 {
        match self {
            Self::Exponential => 1.0,
            Self::Constant => 0.0,
            Self::Uniform => 1.0 / 3.0,
            Self::Erlang { stages } => 1.0 / f64::from(stages),
            Self::HyperExponential { cv2 } | Self::Lognormal { cv2 } | Self::Gamma { cv2 } => cv2,
        }
    }
}

/// A distribution made ready for sampling.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    mean: f64,
    unit: Unit,
}

/// Samplers of mean 1.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit {
    Exponential,
    Constant,
    Uniform,
    /// Probability of the first branch and the means of both.
    HyperExponential {
        first: f64,
        means: [f64; 2],
    },
    Lognormal(LogNormal<f64>),
    Gamma(Gamma<f64>),
}

impl Draw {
    /// Returns the mean, by which a sample of mean 1 is multiplied.
    #[inline(always)]
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// The sampler of mean 1.
    #[inline(always)]
    pub(crate) fn unit(&self) -> &Unit {
        &self.unit
    }

    /// Draws one sample.
    #[inline(always)]
    pub(crate) fn sample(&self, stream: &mut Stream) -> f64 {
        self.mean * self.unit.sample(stream)
    }
}

impl Unit {
    /// The sampler of a checked shape.
    pub(crate) fn new(shape: Shape) -> Self {
        match shape {
            Shape::Exponential => Self::Exponential,
            Shape::Constant => Self::Constant,
            Shape::Uniform => Self::Uniform,
            Shape::Erlang { stages } => Self::gamma(1.0 / f64::from(stages)),
            Shape::Gamma { cv2 } => Self::gamma(cv2),
            Shape::HyperExponential { cv2 } => {
                let first = 0.5 * (1.0 + ((cv2 - 1.0) / (cv2 + 1.0)).sqrt());
                Self::HyperExponential { first, means: [0.5 / first, 0.5 / (1.0 - first)] }
            }
            Shape::Lognormal { cv2 } => {
                let variance = cv2.ln_1p();
                let unit = LogNormal::new(-0.5 * variance, variance.sqrt());
                Self::Lognormal(unit.expect("a checked cv² is finite and positive"))
            }
        }
    }

    fn gamma(cv2: f64) -> Self {
        Self::Gamma(Gamma::new(1.0 / cv2, cv2).expect("a checked cv² is finite and positive"))
    }

    /// Draws one sample of mean 1.
    #[inline(always)]
    pub(crate) fn sample(&self, stream: &mut Stream) -> f64 {
        // The usual case apart from the rest: a predicted branch, no jump table.
        if let Self::Exponential = self { Exp1.sample(stream) } else { self.sample_other(stream) }
    }

    #[inline(never)]
    fn sample_other(&self, stream: &mut Stream) -> f64 {
        match self {
            Self::Exponential => Exp1.sample(stream),
            Self::Constant => 1.0,
            Self::Uniform => 2.0 * stream.random::<f64>(),
            Self::HyperExponential { first, means } => {
                let branch = usize::from(stream.random::<f64>() >= *first);
                let unit: f64 = Exp1.sample(stream);
                means[branch] * unit
            }
            Self::Lognormal(unit) => unit.sample(stream),
            Self::Gamma(unit) => unit.sample(stream),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::{Replication, StreamPurpose};

    #[test]
    fn every_shape_has_the_mean_and_the_spread_it_states() {
        let shapes = [
            Shape::Exponential,
            Shape::Constant,
            Shape::Uniform,
            Shape::Erlang { stages: 3 },
            Shape::HyperExponential { cv2: 4.0 },
            Shape::Lognormal { cv2: 0.5 },
            Shape::Gamma { cv2: 2.0 },
        ];
        for (index, shape) in shapes.into_iter().enumerate() {
            let draw = Distribution::exponential(Nanos(1000)).shaped(shape).draw();
            let mut stream = Replication { seed: 1, number: 0 }.stream(StreamPurpose::Work, index);
            let samples: Vec<f64> = (0..400_000).map(|_| draw.sample(&mut stream)).collect();
            let mean = samples.iter().sum::<f64>() / samples.len() as f64;
            let square = samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
            let cv2 = square / samples.len() as f64 / (mean * mean);
            assert!((mean / 1000.0 - 1.0).abs() < 0.012, "{shape:?}: mean {mean}");
            assert!((cv2 - shape.cv2()).abs() < 0.03 * (1.0 + shape.cv2()), "{shape:?}: {cv2}");
        }
    }
}
