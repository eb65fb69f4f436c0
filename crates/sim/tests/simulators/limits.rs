//! Gates whose limits no controller moves.

use lull_control::admission::{
    Admission, Allowance, GateLimits, GateObservation, Pace, RoundLimits,
};
use lull_measure::Nanos;

/// No gate.
pub(crate) struct Open;

impl Admission for Open {
    fn decide(&mut self, _: &GateObservation<'_>, admission: &mut RoundLimits) {
        *admission = RoundLimits::open(admission.allow.len());
    }
}

/// A gate with fixed limits, which a policy may set.
pub(crate) struct FixedLimits(pub(crate) GateLimits);

impl Admission for FixedLimits {
    fn decide(&mut self, _: &GateObservation<'_>, admission: &mut RoundLimits) {
        admission.allow.fill(Allowance::turns_of(self.0.batch));
        admission.cap = self.0.cap;
        admission.pace = match self.0.delay {
            Nanos::ZERO => Pace::Flow { again: Nanos::from_secs(1) },
            pause => Pace::Rounds { turns: u32::MAX, pause, every: None },
        };
    }

    fn numbers(&mut self) -> Option<&mut GateLimits> {
        Some(&mut self.0)
    }
}
