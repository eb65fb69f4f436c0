//! AppleS: fair turns of a few queries, no more workers than fill the device.
//!
//! Li and others, Improving scalability of database systems by reshaping user
//! parallel I/O, EuroSys'22, as REEF (Li et al., SoCC'25, sections 3.3 and 5.1) describes
//! and compares with it: it limits how many connections issue I/O at a time to
//! the fewest that keep the device busy, regulates them by connection, and
//! gives each a small batch for locality. Unlike REEF it never rests.
//!
//! The paper's controller was not at hand, so all numbers here are ours: turns
//! of 4 queries by a ring with equal weights, and the cap by the search of
//! [`crate::toolkit::knee`], at a live server that of [`crate::toolkit::descent`].
//! Whether REEF improves on tails hangs on the first
//! of them: with turns of N queries a share 1/N of all queries waits for a
//! whole cycle of the ring, so the p99 is N means. The lab shows both.
//!
//! Checked against: equal throughput of connections (Jain's index 1), and a
//! throughput no lower than that of self-serving threads at 512 connections.

use super::AdmissionKind;
use super::cap_search::CapSearch;
use super::gate_fifo::InTurn;
use crate::config::{config, positive_time, read, text, within};
use crate::entry::{ConfigSchema, Entry};
use lull_control::PolicyError;
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "apples",
    paper: "AppleS, EuroSys'22, as described by REEF (Li et al., SoCC'25), sections 3.3 and 5.1",
    summary: "Gives connections fair turns of a few queries, as few at a time as fill the device.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        let connections = site.objectives.len() as u32;
        let search = CapSearch::new(config.cap, connections, config.window, site);
        Ok(Box::new(InTurn { batch: config.batch, search, look: config.look }))
    },
};

config! {
    /// Turns and cap.
    struct Config checked by check {
        /// Queries in one turn (ours: small, for locality).
        batch: u32 = 4,
        /// Connections that have a turn at a time; 0: searched for and kept up to date.
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
    within("batch", f64::from(config.batch), 1.0..=1e6)?;
    within("cap", f64::from(config.cap), 0.0..=1e6)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, refused};
    use lull_control::admission::{Allowance, RoundLimits};

    #[test]
    fn all_connections_have_equal_turns() {
        let mut bench = Bench::best_effort(16);
        let mut admission = RoundLimits::open(16);
        build("apples", "", &bench).decide(&bench.seen(), &mut admission);
        assert_eq!(admission.allow, vec![Allowance::turns_of(4); 16]);
    }

    #[test]
    fn a_turn_of_nothing_is_refused() {
        let text = refused("apples", "batch = 0", &Bench::best_effort(1)).to_string();
        assert!(text.contains("`batch` is 0"), "{text}");
    }
}
