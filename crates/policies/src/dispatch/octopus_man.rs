//! Octopus-Man: all slow cores or all fast ones, never both.
//!
//! Petrucci et al., Octopus-Man: QoS-Driven Task Management for Heterogeneous
//! Multicores, HPCA'15, as EETL (Haque et al., MICRO-50), sections 5.5 and 6.5,
//! compares itself with it. A ladder of configurations, each some cores of one
//! type, ordered by what they can do: 1 to N slow cores, then from as many fast
//! ones as are worth N slow ones. Only rungs of rising capacity are kept, which
//! makes {S1, S2, F1, F2} of two and two (two slow equal one fast: the first
//! ordering, which the paper uses). In two forms:
//!
//! - `table`: the ideal one: for each load the lowest rung that meets the
//!   target, found by sweeping;
//! - an empty table: one rung up when the tail exceeds `danger` targets, one
//!   down when it is below `safe` targets, judged on as many fresh answers as
//!   the percentile needs.
//!
//! A request under way moves to the rung's cores as they come free: Linux
//! migrates the threads of cores that leave a cpuset.

use super::{DispatcherKind, Site};
use crate::config::{config, read, wrong};
use crate::entry::{ConfigSchema, Entry};
use lull_control::PolicyError;
use lull_control::dispatcher::{
    Answer, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher, DispatcherError,
    Ladder, MeasurementPeriod, MeasurementRule, samples_needed,
};
use serde::{Deserialize, Serialize};

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "octopus-man",
    paper: "Octopus-Man, HPCA'15; EETL (Haque et al., MICRO-50), sections 5.5 and 6.5",
    summary: "Climbs a ladder of slow cores, then fast ones, and never uses both.",
    kind: DispatcherKind { needs: "cores of fixed types" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        Ok(Box::new(OctopusMan::new(config, site)?))
    },
};

config! {
    /// The table, or the step rule's numbers.
    struct Config checked by check {
        /// Rungs by load: `{ up_to_per_s = 12.0, rung = 1 }`, loads rising; empty: step rule.
        table: Vec<Line> = Vec::new(),
        /// Tail in targets above which it climbs.
        danger: f64 = 0.9,
        /// Tail in targets below which it descends.
        safe: f64 = 0.6,
    }
}

/// One line of the ideal table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    up_to_per_s: f64,
    rung: usize,
}

fn check(config: &Config) -> Result<(), PolicyError> {
    if !(0.0 < config.safe && config.safe < config.danger && config.danger <= 1.0) {
        let message = "needs 0 < `safe` < `danger` <= 1".to_owned();
        return Err(wrong("safe", message));
    }
    if config.table.windows(2).all(|pair| pair[0].up_to_per_s < pair[1].up_to_per_s) {
        return Ok(());
    }
    Err(wrong("table", "`table`: loads must rise from line to line".to_owned()))
}

/// Cores of one type that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rung {
    kind: usize,
    cores: u32,
}

/// The ladder of configurations: rungs whose capacity is not below the last.
fn rungs(ladder: &Ladder) -> Vec<Rung> {
    let mut rungs = Vec::new();
    let mut best = 0.0;
    for (kind, one) in ladder.types().iter().enumerate() {
        for cores in 1..=ladder.cores(kind) {
            let capacity = cores as f64 * one.speed;
            if capacity >= best {
                rungs.push(Rung { kind, cores: cores as u32 });
                best = capacity;
            }
        }
    }
    rungs
}

struct OctopusMan {
    config: Config,
    rungs: Vec<Rung>,
    at: usize,
    /// Cores of each type.
    cores: Vec<u32>,
    target_ms: f64,
    needed: usize,
    rule: MeasurementRule,
}

impl OctopusMan {
    fn new(config: Config, site: &Site<'_>) -> Result<Self, DispatcherError> {
        if site.ladder.scales() {
            let (dispatcher, wanted) = ("octopus-man", "cores of fixed types");
            return Err(DispatcherError::Cores {
                dispatcher,
                wanted,
                advice: "use pegasus on DVFS cores",
            });
        }
        let rungs = rungs(site.ladder);
        if let Some(line) = config.table.iter().find(|line| line.rung >= rungs.len()) {
            let message = format!("`table`: rung {} of {}, counted from 0", line.rung, rungs.len());
            return Err(wrong("table", message).into());
        }
        let needed = samples_needed(site.percentile);
        let types = 0..site.ladder.types().len();
        Ok(Self {
            at: rungs.len() - 1,
            rungs,
            config,
            cores: types.map(|kind| site.ladder.cores(kind) as u32).collect(),
            target_ms: site.target.as_millis_f64(),
            needed,
            // All answers of a window belong to the rung that it judges.
            rule: MeasurementRule {
                every: MeasurementPeriod::Answers(needed as u32),
                window: needed,
                percentile: site.percentile,
                bound: None,
            },
        })
    }
}

impl Dispatcher for OctopusMan {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let Rung { kind, cores } = self.rungs[self.at];
        let used = self.cores[kind] - request.free[kind];
        if request.on == Some(kind) || used >= cores {
            return Answer::stay(None);
        }
        Answer::on(kind, None)
    }

    fn decision_scope(&self) -> DecisionScope {
        DecisionScope::All
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        Some(self.rule)
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        if !self.config.table.is_empty() {
            let Some(rate) = seen.rate_per_s else { return };
            let line = self.config.table.iter().find(|line| rate <= line.up_to_per_s);
            self.at = line.map_or(self.rungs.len() - 1, |line| line.rung);
            return;
        }
        let Some(tail) = seen.tail.filter(|_| seen.samples >= self.needed) else { return };
        let ratio = tail.as_millis_f64() / self.target_ms;
        if ratio > self.config.danger {
            self.at = (self.at + 1).min(self.rungs.len() - 1);
        } else if ratio < self.config.safe {
            self.at = self.at.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{OwnedSite, amp_site, build, dvfs_site, refused, request, seen};
    use super::*;
    use crate::dispatch::testing::two_and_two;
    use lull_control::dispatcher::{CoreChoice, Supply};

    fn site() -> OwnedSite {
        OwnedSite { ladder: two_and_two(), ..amp_site() }
    }

    #[test]
    fn the_rungs_of_two_and_two_are_the_papers_first_ordering() {
        let rung = |kind, cores| Rung { kind, cores };
        assert_eq!(rungs(&two_and_two()), [rung(0, 1), rung(0, 2), rung(1, 1), rung(1, 2)]);
        let types = two_and_two().types().to_vec();
        let four = Ladder::new(types, Supply::Fixed(vec![4, 2])).unwrap();
        // One fast core is worth less than four slow ones: L is 2.
        assert_eq!(rungs(&four).iter().filter(|rung| rung.kind == 1).count(), 1);
    }

    #[test]
    fn only_the_cores_of_the_rung_are_used() {
        let table = "table = [{ up_to_per_s = 10.0, rung = 0 }, { up_to_per_s = 20.0, rung = 1 }]";
        let mut dispatcher = build("octopus-man", table, &site());
        assert_eq!(
            dispatcher.place(&request(0, None, (0, 1), &[2, 2])).place,
            CoreChoice::On(1),
            "safe start"
        );
        dispatcher.adjust(&seen(100, 500, 5.0));
        assert_eq!(dispatcher.place(&request(0, None, (0, 1), &[2, 2])).place, CoreChoice::On(0));
        assert_eq!(dispatcher.place(&request(0, None, (1, 2), &[1, 2])).place, CoreChoice::Stay);
        dispatcher.adjust(&seen(100, 500, 15.0));
        assert_eq!(dispatcher.place(&request(0, None, (1, 2), &[1, 2])).place, CoreChoice::On(0));
        assert_eq!(
            dispatcher.place(&request(9, Some(1), (0, 2), &[1, 1])).place,
            CoreChoice::On(0)
        );
    }

    #[test]
    fn the_step_rule_climbs_when_in_danger_and_descends_when_safe() {
        let mut dispatcher = build("octopus-man", "", &site());
        for (tail_ms, kind) in [(50, 1), (50, 0), (150, 0), (190, 1), (150, 1)] {
            dispatcher.adjust(&seen(tail_ms, 500, 15.0));
            assert_eq!(
                dispatcher.place(&request(0, None, (0, 1), &[2, 2])).place,
                CoreChoice::On(kind),
                "{tail_ms}"
            );
        }
        dispatcher.adjust(&seen(1, 499, 15.0));
        assert_eq!(
            dispatcher.place(&request(0, None, (0, 1), &[2, 2])).place,
            CoreChoice::On(1),
            "too few"
        );
    }

    #[test]
    fn levels_and_strange_tables_are_refused() {
        assert!(refused("octopus-man", "", &dvfs_site()).to_string().contains("use pegasus"));
        let far = "table = [{ up_to_per_s = 10.0, rung = 9 }]";
        assert!(refused("octopus-man", far, &site()).to_string().contains("rung 9 of 4"));
        let wrong = "safe = 0.95";
        assert!(refused("octopus-man", wrong, &site()).to_string().contains("`danger`"));
    }
}
