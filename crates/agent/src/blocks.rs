//! On/off comparison: alternating blocks, paired differences, confidence intervals.
//!
//! A pair is one block without and one with the policy, next to each other in
//! time, so that slow drift of the machine cancels. The interval is that of Student's
//! t over the pairs, which is wide for few pairs.

use lull_measure::statistics::{Estimate, paired_difference};
use serde::Serialize;

/// One quantity without and with the policy, block by block.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Paired {
    off: Vec<f64>,
    on: Vec<f64>,
}

impl Paired {
    /// Adds one pair; a pair with a missing half is left out.
    pub fn push(&mut self, off: Option<f64>, on: Option<f64>) {
        if let (Some(off), Some(on)) = (off, on) {
            self.off.push(off);
            self.on.push(on);
        }
    }

    /// Without the policy.
    pub fn off(&self) -> Option<Estimate> {
        Estimate::from_values(&self.off)
    }

    /// With the policy.
    pub fn on(&self) -> Option<Estimate> {
        Estimate::from_values(&self.on)
    }

    /// On minus off, over pairs.
    pub fn difference(&self) -> Option<Estimate> {
        paired_difference(&self.on, &self.off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_common_to_both_halves_cancels() {
        let mut paired = Paired::default();
        for drift in [0.0, 100.0, 200.0, 300.0] {
            paired.push(Some(10.0 + drift), Some(8.0 + drift));
        }
        let difference = paired.difference().unwrap();
        assert_eq!((difference.mean, difference.half_width), (-2.0, 0.0));
        assert!(difference.excludes_zero());
    }

    #[test]
    fn a_half_without_a_value_is_left_out() {
        let mut paired = Paired::default();
        paired.push(None, Some(1.0));
        assert_eq!(paired.difference(), None);
    }
}
