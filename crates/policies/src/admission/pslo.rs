//! PSLO: a few connections keep an objective at any percentile, the others share the rest.
//!
//! Li and others, PSLO: Enforcing the Xth percentile latency and throughput
//! SLOs for consolidated VM storage, EuroSys'16, as REEF (Li et al., SoCC'25, sections
//! 5.1 and 5.2) uses it: latency-sensitive connections each with a percentile
//! and its bound, best-effort ones with the highest throughput that leaves
//! them kept, both through the number of I/Os at a time and the rate.
//!
//! The controller is not published; ours is in [`crate::toolkit::quota`]. By
//! default the gate's cap is searched for as AppleS searches it, which is best
//! on a live server. The paper's PSLO has no such cap: its threads are
//! self-serving until REEF turns them into on-call threads (section 5.4), so
//! that the lab gives it one as large as the number of connections. On its own
//! PSLO never rests; as `policy` of `reef` it sets the connections' turns, and
//! cap and pause are REEF's. Rounds must then be short (`turns = "cap"`): a
//! round of all 512 connections takes longer than the bounds.
//!
//! Checked against: REEF's objectives (4 of p95 20 ms, 4 of p99 40 ms, 8 of
//! p99.9 60 ms among 512 connections) in `lull lab run reef-policies`.

use super::cap_search::CapSearch;
use super::{AdmissionKind, Site};
use crate::config::{config, positive_time, read, text, within, wrong};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::quota::{Limits, Quota};
use lull_control::admission::{Admission, GateObservation, Pace, RoundLimits};
use lull_control::{Objective, PolicyError};
use lull_measure::Nanos;
use lull_measure::compliance::Patience;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "pslo",
    paper: "PSLO, EuroSys'16, as used by REEF (Li et al., SoCC'25), sections 5.1 and 5.2",
    summary: "Keeps the percentiles of a few connections, and gives the others the rest.",
    kind: AdmissionKind { needs: "a connection with a percentile objective" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        must_have(site, "pslo", "a percentile", |one| matches!(one, Objective::Tail { .. }))?;
        Ok(Box::new(Promises::new(&config, Patience::OURS, site)))
    },
};

config! {
    /// The loop's numbers.
    struct Config checked by check {
        /// Answers of a connection that its compliance is taken over (ours).
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

pub(super) fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    positive_time("window", config.window)?;
    positive_time("look", config.look)?;
    within("answers", config.answers as f64, 10.0..=1e6)?;
    within("batch", f64::from(config.batch), 1.0..=1e6)?;
    within("cap", f64::from(config.cap), 0.0..=1e6)
}

/// Refuses a site without a connection of the kind.
pub(super) fn must_have(
    site: &Site<'_>,
    admission: &'static str,
    what: &str,
    is: fn(&Objective) -> bool,
) -> Result<(), PolicyError> {
    if site.objectives.iter().flatten().any(is) {
        return Ok(());
    }
    let message = format!(
        "`{admission}` keeps what connections are promised, and none is promised {what}: give \
         one such an objective, or use `apples`"
    );
    Err(wrong("name", message))
}

/// Promises behind a gate of their own.
pub(super) struct Promises {
    quota: Quota,
    search: CapSearch,
    look: Nanos,
}

impl Promises {
    pub(super) fn new(config: &Config, patience: Patience, site: &Site<'_>) -> Self {
        let Config { answers, period, batch, limits, .. } = *config;
        let connections = site.objectives.len() as u32;
        Self {
            quota: Quota::new(site.objectives, patience, answers, batch, period, limits),
            search: CapSearch::new(config.cap, connections, config.window, site),
            look: config.look,
        }
    }
}

impl Admission for Promises {
    fn decide(&mut self, seen: &GateObservation<'_>, admission: &mut RoundLimits) {
        self.search.note(seen);
        if self.search.has_settled() {
            self.quota.note(seen);
        } else {
            self.quota.wait(seen.now);
        }
        self.quota.allow(seen, &mut admission.allow);
        // Promises need turns, so that the gate stays closed where no limit is in force.
        let cap = self.search.cap().unwrap_or(u32::MAX);
        admission.cap = self.quota.level().map_or(cap, |level| level.min(cap));
        admission.pace = Pace::Flow { again: self.look };
    }

    fn retarget(&mut self, objectives: &[Option<Objective>]) -> bool {
        self.quota.retarget(objectives)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, refused};
    use lull_control::Objective;
    use lull_control::admission::{Pace, RoundLimits};
    use lull_measure::Nanos;

    #[test]
    fn the_promised_go_first_and_a_late_one_costs_the_others() {
        let mut bench = Bench::promised(1, 7);
        let mut pslo = build("pslo", "cap = 4", &bench);
        let mut admission = RoundLimits::open(8);
        pslo.decide(&bench.seen(), &mut admission);
        assert!(admission.allow[0].first && !admission.allow[1].first);
        assert_eq!(admission.pace, Pace::Flow { again: Nanos::from_millis(10) });
        assert!(admission.allow[1..].iter().all(|one| one.queries == u32::MAX), "none is late yet");
        bench.latency = Nanos::from_millis(90);
        for _ in 0..30 {
            bench.pass(Nanos::from_millis(100), 1000.0);
            pslo.decide(&bench.seen(), &mut admission);
        }
        assert!(admission.allow[1..].iter().all(|one| one.queries < u32::MAX));
        assert_eq!((admission.allow[0].queries, admission.allow[0].first), (1, true));
    }

    #[test]
    fn a_late_one_lowers_the_level_of_the_others() {
        let mut bench = Bench::promised(1, 7);
        let mut pslo = build("pslo", "cap = 8\nlimits = \"level\"", &bench);
        let mut admission = RoundLimits::open(8);
        pslo.decide(&bench.seen(), &mut admission);
        assert_eq!(admission.cap, 8, "none is late yet");
        bench.latency = Nanos::from_millis(90);
        for _ in 0..30 {
            bench.pass(Nanos::from_millis(100), 1000.0);
            pslo.decide(&bench.seen(), &mut admission);
        }
        assert!(admission.cap < 8, "{}", admission.cap);
        assert!(admission.allow[1..].iter().all(|one| one.queries == u32::MAX), "no rate");
    }

    #[test]
    fn without_a_percentile_there_is_nothing_to_keep() {
        let text = refused("pslo", "", &Bench::best_effort(4)).to_string();
        assert!(text.contains("none is promised a percentile"), "{text}");
        let mut users = Bench::best_effort(4);
        users.objectives[0] = Some(Objective::Disengagement { ratio: 0.001 });
        assert!(refused("pslo", "", &users).to_string().contains("a percentile"));
    }
}
