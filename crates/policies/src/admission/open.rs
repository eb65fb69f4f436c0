//! Open: no gate at all.
//!
//! The self-serving threads of REEF (Li et al., SoCC'25, section 2.1): every worker takes
//! its query when it comes. What is measured under it is what the server does
//! by itself, which is what every other admission controller is compared with, and what a
//! gate must fall back to where it cannot help.

use super::AdmissionKind;
use crate::config::{NoKeys, read};
use crate::entry::{ConfigSchema, Entry};
use lull_control::admission::{Admission, GateObservation, RoundLimits};

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "open",
    paper: "REEF (Li et al., SoCC'25), section 2.1: self-serving threads",
    summary: "Admits every query at once: the server by itself, to compare with.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<NoKeys>(),
    make: |table, _, _| {
        read::<NoKeys>(table)?;
        Ok(Box::new(Open))
    },
};

struct Open;

impl Admission for Open {
    fn decide(&mut self, _: &GateObservation<'_>, admission: &mut RoundLimits) {
        *admission = RoundLimits::open(admission.allow.len());
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build};
    use lull_control::admission::{Pace, RoundLimits};

    #[test]
    fn it_opens_a_gate_that_was_closed() {
        let mut bench = Bench::best_effort(4);
        let mut admission = RoundLimits { cap: 1, ..RoundLimits::open(4) };
        admission.pace = Pace::Flow { again: lull_measure::Nanos(1) };
        build("open", "", &bench).decide(&bench.seen(), &mut admission);
        assert_eq!(admission, RoundLimits::open(4));
    }
}
