//! UTSLO: waiting drives away at most a given share of some connections' users, the others share
//! the rest.
//!
//! Li and others, User disengagement-oriented target enforcement for
//! multi-tenant database systems, SoCC'23, as REEF (Li et al., SoCC'25, sections 5.1 and
//! 5.2) uses it: 16 connections with a user disengagement ratio of 0.1 % each,
//! 496 best-effort ones with what remains. (The seed cites PSLO's number for it
//! once; Table 1 has the right one.)
//!
//! Neither how users leave nor the controller was at hand. The first is
//! [`lull_measure::compliance::Patience`], the second PSLO's loop with the
//! ratio in place of the late share ([`crate::toolkit::quota`]); the paper's
//! two stages, planning and enforcement, come down to the second, for a promise
//! that cannot be kept shows as best effort with nothing left.
//!
//! Checked against: REEF's 0.1 % for 16 of 512 connections, in `lull lab run
//! reef-policies`.

use super::AdmissionKind;
use super::pslo::{self, Promises, must_have};
use crate::config::{config, positive_time, read, text};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::quota::Limits;
use lull_control::{Objective, PolicyError};
use lull_measure::Nanos;
use lull_measure::compliance::Patience;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "utslo",
    paper: "UTSLO, SoCC'23, as used by REEF (Li et al., SoCC'25), sections 5.1 and 5.2",
    summary: "Keeps the disengagement ratios of a few connections, and gives the others the rest.",
    kind: AdmissionKind { needs: "a connection with a disengagement objective" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        let is = |one: &Objective| matches!(one, Objective::Disengagement { .. });
        must_have(site, "utslo", "a disengagement ratio", is)?;
        let patience = Patience { start: config.start, scale: config.scale };
        Ok(Box::new(Promises::new(&config.shared(), patience, site)))
    },
};

config! {
    /// The loop's numbers and the users' patience.
    struct Config checked by check {
        /// No connection leaves before this (ours).
        #[serde(serialize_with = "text")]
        start: Nanos = Patience::OURS.start,
        /// After it, all but a share of 1/e leave within this (ours).
        #[serde(serialize_with = "text")]
        scale: Nanos = Patience::OURS.scale,
        /// Answers of a connection that its ratio is taken over (ours).
        answers: usize = 2000,
        /// Time between two moves of the best-effort rate (ours).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_secs(1),
        /// Queries in one turn of a best-effort connection (ours).
        batch: u32 = 1,
        /// The limit of best effort: a `rate`, or the `level` of queries at a time.
        limits: Limits = Limits::Rate,
        /// Connections that have a turn at a time; 0: searched for.
        cap: u32 = 0,
        /// How long each cap of the search is measured (ours: 2 s).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_secs(2),
        /// Time between two shares of the best-effort rate (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(10),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("scale", config.scale)?;
    pslo::check(&config.shared())
}

impl Config {
    /// The keys that it has in common with PSLO.
    fn shared(&self) -> pslo::Config {
        let Self { answers, period, batch, limits, cap, window, look, .. } = *self;
        pslo::Config { answers, period, batch, limits, cap, window, look }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, refused};
    use lull_control::Objective;
    use lull_control::admission::RoundLimits;
    use lull_measure::Nanos;

    fn users() -> Bench {
        let mut bench = Bench::best_effort(8);
        bench.objectives[0] = Some(Objective::Disengagement { ratio: 0.001 });
        bench
    }

    #[test]
    fn users_who_leave_cost_the_others() {
        let mut bench = users();
        let mut utslo = build("utslo", "cap = 4", &bench);
        let mut admission = RoundLimits::open(8);
        bench.latency = Nanos::from_millis(15);
        for wait_ms in [15, 60] {
            bench.latency = Nanos::from_millis(wait_ms);
            for _ in 0..30 {
                bench.pass(Nanos::from_millis(100), 1000.0);
                utslo.decide(&bench.seen(), &mut admission);
            }
            let limited = admission.allow[1..].iter().any(|one| one.queries < u32::MAX);
            assert_eq!(limited, wait_ms > 20, "no connection leaves within 20 ms");
        }
    }

    #[test]
    fn it_needs_a_ratio() {
        let text = refused("utslo", "", &Bench::promised(1, 3)).to_string();
        assert!(text.contains("a disengagement ratio"), "{text}");
        assert!(refused("utslo", "scale = \"0s\"", &users()).to_string().contains("`scale`"));
    }
}
