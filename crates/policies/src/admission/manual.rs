//! Manual: the gate's numbers as they are given.
//!
//! C, N and D stay what the config says until others are set: by a person,
//! or a policy that has them among its knobs (`bayop` with `gate-cap`,
//! `gate-batch`, `gate-delay`). It is what `concurrency = 16` is before an app
//! of `lull run`, so that the same policy finds the same knobs in the simulator
//! and on a live server. All other admission controllers choose the numbers themselves, and
//! a policy that would set them is refused beside them. Ours.
//!
//! Checked against: what it is given reaches the gate, and what is set later too.

use super::AdmissionKind;
use crate::config::{config, read, text, within, wrong};
use crate::entry::{ConfigSchema, Entry};
use lull_control::admission::{
    Admission, Allowance, GateLimits, GateObservation, Pace, RoundLimits,
};
use lull_control::{Objective, PolicyError};
use lull_measure::Nanos;

/// Time between two reads of limits that do not change (ours). A change of the limits
/// makes the gate read them at once.
const AGAIN: Nanos = Nanos::from_millis(100);
/// The longest pause that a live gate keeps.
const DELAY_MAX: Nanos = Nanos::from_millis(100);

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "manual",
    paper: "ours: the three numbers of REEF's gate, SoCC'25, sections 3.3 and 3.4",
    summary: "Keeps the numbers that it is given, for a person or a policy to set.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, _, _| {
        let config: Config = read(table)?;
        let Config { cap, batch, delay } = config;
        Ok(Box::new(Manual { numbers: GateLimits { cap, batch, delay } }))
    },
};

config! {
    /// The numbers to begin with.
    struct Config checked by check {
        /// C, queries in service at a time.
        cap: u32 = 16,
        /// N, queries a turn.
        batch: u32 = 1,
        /// D, the rest between rounds, at most 100 ms; 0 hands turns on at once.
        #[serde(serialize_with = "text")]
        delay: Nanos = Nanos::ZERO,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    within("cap", f64::from(config.cap), 1.0..=1e6)?;
    within("batch", f64::from(config.batch), 1.0..=1024.0)?;
    match config.delay > DELAY_MAX {
        true => {
            let delay = config.delay;
            Err(wrong("delay", format!("`delay` is {delay}: write at most {DELAY_MAX}")))
        }
        false => Ok(()),
    }
}

struct Manual {
    numbers: GateLimits,
}

impl Admission for Manual {
    fn decide(&mut self, _: &GateObservation<'_>, admission: &mut RoundLimits) {
        let GateLimits { cap, batch, delay } = self.numbers;
        admission.allow.fill(Allowance::turns_of(batch));
        admission.cap = cap;
        admission.pace = match delay {
            Nanos::ZERO => Pace::Flow { again: AGAIN },
            // A round is one turn of every waiting connection, as at a live gate.
            pause => Pace::Rounds { turns: u32::MAX, pause, every: None },
        };
    }

    /// It ignores objectives.
    fn retarget(&mut self, _: &[Option<Objective>]) -> bool {
        true
    }

    fn numbers(&mut self) -> Option<&mut GateLimits> {
        Some(&mut self.numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, refused};
    use super::*;

    #[test]
    fn what_is_given_reaches_the_gate_and_what_is_set_later_too() {
        let mut bench = Bench::best_effort(8);
        let mut gate = build("manual", "cap = 3\nbatch = 2", &bench);
        let mut admission = RoundLimits::open(8);
        gate.decide(&bench.seen(), &mut admission);
        assert_eq!((admission.cap, admission.pace), (3, Pace::Flow { again: AGAIN }));
        assert_eq!(admission.allow, vec![Allowance::turns_of(2); 8]);
        let delay = Nanos::from_millis(2);
        *gate.numbers().unwrap() = GateLimits { cap: 5, batch: 1, delay };
        gate.decide(&bench.seen(), &mut admission);
        assert_eq!(admission.cap, 5);
        assert_eq!(admission.pace, Pace::Rounds { turns: u32::MAX, pause: delay, every: None });
    }

    #[test]
    fn numbers_that_no_gate_keeps_are_refused_by_key() {
        for (wrong, key) in
            [("cap = 0", "cap"), ("batch = 0", "batch"), ("delay = \"1s\"", "delay")]
        {
            let text = refused("manual", wrong, &Bench::best_effort(1)).to_string();
            assert!(text.contains(&format!("`{key}`")), "{text}");
        }
    }
}
