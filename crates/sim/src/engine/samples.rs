//! Random numbers drawn in batches, where a stream has samples of one kind only.
//!
//! Each sample waits for the generator's state, and the event that needs it
//! waits for the sample. In a batch the state stays in registers and the samples
//! overlap, so that the next event's time is available when it is needed. The
//! numbers are the same as those drawn one by one.

use crate::model::{Draw, Unit};
use crate::replication::Stream;

/// Samples of a batch: half a kilobyte, which stays in the nearest cache.
const AHEAD: usize = 64;

/// A stream, with exponential samples ahead if nothing else is drawn from it.
#[derive(Debug, Clone)]
pub(super) struct Samples {
    ahead: [f64; AHEAD],
    /// The next one of the batch; [`AHEAD`] is none, as always where other
    /// samples are drawn.
    next: usize,
    is_exponential: bool,
    stream: Stream,
}

impl Samples {
    /// A stream from which samples of these are drawn.
    pub(super) fn new(stream: Stream, units: &[Unit]) -> Self {
        let is_exponential = units.iter().all(|unit| matches!(unit, Unit::Exponential));
        Self { ahead: [0.0; AHEAD], next: AHEAD, is_exponential, stream }
    }

    /// Draws one sample of a distribution.
    #[inline(always)]
    pub(super) fn span(&mut self, draw: &Draw) -> f64 {
        draw.mean() * self.draw(draw.unit())
    }

    /// Draws one sample of mean 1; `unit` is one of those that the samples were made for.
    #[inline(always)]
    pub(super) fn draw(&mut self, unit: &Unit) -> f64 {
        let Some(drawn) = self.ahead.get(self.next) else { return self.draw_again(unit) };
        self.next += 1;
        *drawn
    }

    /// The same where none is ahead.
    #[inline(never)]
    fn draw_again(&mut self, unit: &Unit) -> f64 {
        if !self.is_exponential {
            return unit.sample(&mut self.stream);
        }
        // Copy the generator: the compiler keeps its state in registers only where no
        // other reference can see it.
        let mut stream = self.stream.clone();
        for sample in &mut self.ahead {
            *sample = Unit::Exponential.sample(&mut stream);
        }
        self.stream = stream;
        self.next = 1;
        self.ahead[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Shape;
    use crate::replication::{Replication, StreamPurpose};

    #[test]
    fn samples_drawn_ahead_are_those_drawn_one_by_one() {
        let stream = || Replication { seed: 5, number: 1 }.stream(StreamPurpose::Work, 0);
        for shape in [Shape::Exponential, Shape::Lognormal { cv2: 2.0 }] {
            let (unit, other) = (Unit::new(shape), Unit::Exponential);
            let mut samples = Samples::new(stream(), &[unit, other]);
            let mut one_by_one = stream();
            for number in 0..300 {
                let unit = if number % 3 == 0 { other } else { unit };
                assert_eq!(samples.draw(&unit), unit.sample(&mut one_by_one), "{number}");
            }
        }
    }
}
