//! gate-fifo: at most C queries in service, in turn.
//!
//! The simplest gate: a slot that comes free goes to the next
//! connection of the ring that has a query, for that one query. It removes
//! contention and has no other effect. It is not in the paper. As a baseline it
//! separates the effect of REEF's gate from that of its batches and pauses.
//!
//! C is given, or searched for as the fewest workers with the highest
//! throughput (REEF, section 3.3; [`crate::toolkit::knee`]) and kept up to date. At a live server
//! the search begins with the open gate ([`crate::toolkit::descent`]).
//!
//! Checked against: the search's claims, and in the lab as a row beside
//! AppleS and REEF: tails of a ring of single queries are nearly flat.

use super::AdmissionKind;
use super::cap_search::CapSearch;
use crate::config::{config, positive_time, read, text, within};
use crate::entry::{ConfigSchema, Entry};
use lull_control::PolicyError;
use lull_control::admission::{Admission, Allowance, GateObservation, Pace, RoundLimits};
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "gate-fifo",
    paper: "ours: the gate of REEF (Li et al., SoCC'25), section 3.3, without batches or pauses",
    summary: "Admits single queries in turn, no more than C at a time.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        let connections = site.objectives.len() as u32;
        let search = CapSearch::new(config.cap, connections, config.window, site);
        Ok(Box::new(InTurn { batch: 1, search, look: config.look }))
    },
};

config! {
    /// The cap.
    struct Config checked by check {
        /// C, queries in service at a time; 0: searched for and kept up to date.
        cap: u32 = 0,
        /// How long each cap of the search is measured (ours: 2 s).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_secs(2),
        /// Time between two checks of the cap (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(100),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("window", config.window)?;
    positive_time("look", config.look)?;
    within("cap", f64::from(config.cap), 0.0..=1e6)
}

/// A gate of turns of one length under a cap that is searched for.
pub(super) struct InTurn {
    pub(super) batch: u32,
    pub(super) search: CapSearch,
    pub(super) look: Nanos,
}

impl Admission for InTurn {
    fn decide(&mut self, seen: &GateObservation<'_>, admission: &mut RoundLimits) {
        self.search.note(seen);
        admission.allow.fill(Allowance::turns_of(self.batch));
        let again = self.look;
        (admission.cap, admission.pace) = match self.search.cap() {
            Some(cap) => (cap, Pace::Flow { again }),
            None => (u32::MAX, Pace::Open { again }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::Workers;
    use super::super::testing::{Bench, build, refused};
    use lull_control::admission::{Allowance, Pace, RoundLimits};
    use lull_measure::Nanos;

    #[test]
    fn a_given_cap_is_kept_and_turns_are_of_one_query() {
        let mut bench = Bench::best_effort(8);
        let mut gate = build("gate-fifo", "cap = 3", &bench);
        let mut admission = RoundLimits::open(8);
        gate.decide(&bench.seen(), &mut admission);
        assert_eq!(admission.cap, 3);
        assert_eq!(admission.allow, vec![Allowance::turns_of(1); 8]);
        assert_eq!(admission.pace, Pace::Flow { again: Nanos::from_millis(100) });
        bench.pass(Nanos::from_secs(60), 100.0);
        gate.decide(&bench.seen(), &mut admission);
        assert_eq!(admission.cap, 3);
    }

    #[test]
    fn a_search_starts_with_one_worker() {
        let mut bench = Bench::best_effort(8);
        let mut admission = RoundLimits::open(8);
        build("gate-fifo", "", &bench).decide(&bench.seen(), &mut admission);
        assert_eq!(admission.cap, 1);
    }

    #[test]
    fn a_search_at_a_live_server_starts_with_the_open_gate() {
        let mut bench = Bench::best_effort(8);
        bench.is_live = true;
        for name in ["gate-fifo", "apples", "reef"] {
            let mut admission = RoundLimits::open(8);
            build(name, "", &bench).decide(&bench.seen(), &mut admission);
            assert_eq!(admission.cap, u32::MAX, "{name}");
            assert!(matches!(admission.pace, Pace::Open { .. }), "{name}: {:?}", admission.pace);
        }
        bench.workers = Workers::Rest;
        let mut admission = RoundLimits::open(8);
        build("gate-fifo", "", &bench).decide(&bench.seen(), &mut admission);
        assert_eq!(admission.cap, 1, "workers that only rest have no open gate");
    }

    #[test]
    fn times_of_nothing_are_refused() {
        let text = refused("gate-fifo", "window = \"0s\"", &Bench::best_effort(1)).to_string();
        assert!(text.contains("`window` is zero"), "{text}");
    }
}
