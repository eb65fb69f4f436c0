//! Pegasus: one level for all cores, as low as the tail allows.
//!
//! Lo et al., Towards Energy Proportionality for Large-Scale Latency-Critical
//! Workloads, ISCA'14, as EETL (Haque et al., MICRO-50), section 5.5 compares
//! itself with it: every five seconds one setting for the whole processor. In
//! two forms:
//!
//! - `table`: the ideal one of EETL. For each load the lowest level that
//!   meets the target, found by sweeping (`lull lab` does, with `level`), looked
//!   up by the measured load. "A feedback controller can only do worse."
//! - an empty table: the feedback controller, by latency over target. The
//!   setting is a share of the greatest power, as RAPL's limit is; the level is
//!   the highest that it allows.
//!
//! ```text
//! long-term tail > target    all power, for 5 minutes
//! tail > 1.35 target         all power
//! tail > target              7 % of the present limit more
//! tail < 0.60 target         3 % less
//! tail < 0.85 target         1 % less
//! ```
//!
//! The rule is recalled from the ISCA paper, whose text was not at hand; the
//! long-term tail is the mean of the measurements of one minute.

use super::{DispatcherKind, Site, must_be_a_type, must_scale};
use crate::config::{config, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry};
use lull_control::PolicyError;
use lull_control::dispatcher::{
    Answer, DispatchObservation, DispatchRequest, Dispatcher, DispatcherError, MeasurementPeriod,
    MeasurementRule, samples_needed,
};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "pegasus",
    paper: "Pegasus, ISCA'14; EETL (Haque et al., MICRO-50), section 5.5",
    summary: "Runs all cores at the lowest common level that keeps the tail, decided every 5 s.",
    kind: DispatcherKind { needs: "cores that each take every speed" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        Ok(Box::new(Pegasus::new(config, site)?))
    },
};

config! {
    /// The table, or the feedback controller's numbers.
    struct Config checked by check {
        /// Levels by load: `{ up_to_per_s = 30.0, level = 2 }`, loads rising; empty: feedback.
        table: Vec<Rung> = Vec::new(),
        /// Time between two decisions (section 5.5: 5 s).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_secs(5),
        /// Answers the tail and arrivals the load is measured over.
        window: usize = 500,
        /// How long all power stays after a minute above the target (ISCA'14: 5 minutes).
        #[serde(serialize_with = "text")]
        penalty: Nanos = Nanos::from_secs(300),
    }
}

/// One line of the ideal table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rung {
    pub(crate) up_to_per_s: f64,
    pub(crate) level: usize,
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    if config.window < 2 {
        return Err(wrong("window", "`window` must be at least 2 answers".to_owned()));
    }
    if config.table.windows(2).all(|pair| pair[0].up_to_per_s < pair[1].up_to_per_s) {
        return Ok(());
    }
    Err(wrong("table", "`table`: loads must rise from line to line".to_owned()))
}

/// Measurements of the long-term tail: a minute of the paper's period.
const LONG: usize = 12;

struct Pegasus {
    config: Config,
    site_target_ms: f64,
    needed: usize,
    rule: MeasurementRule,
    /// Power of each level as a share of the highest one's.
    shares: Vec<f64>,
    level: usize,
    limit: f64,
    /// The last tails over the target, as many as fill the long term.
    tails: Vec<f64>,
    until: Nanos,
}

impl Pegasus {
    fn new(config: Config, site: &Site<'_>) -> Result<Self, DispatcherError> {
        must_scale("pegasus", site)?;
        for rung in &config.table {
            must_be_a_type("table", rung.level, site.ladder)?;
        }
        let types = site.ladder.types();
        let top = types.len() - 1;
        Ok(Self {
            rule: MeasurementRule {
                every: MeasurementPeriod::Time(config.period),
                window: config.window,
                percentile: site.percentile,
                bound: None,
            },
            config,
            site_target_ms: site.target.as_millis_f64(),
            needed: samples_needed(site.percentile),
            shares: types.iter().map(|one| one.watts.0 / types[top].watts.0).collect(),
            level: top,
            limit: 1.0,
            tails: Vec::new(),
            until: Nanos::ZERO,
        })
    }

    /// The ideal table: the first line whose load is not exceeded, else all.
    fn look_up(&mut self, rate_per_s: f64) {
        let fits = |rung: &&Rung| rate_per_s <= rung.up_to_per_s;
        let top = self.shares.len() - 1;
        self.level = self.config.table.iter().find(fits).map_or(top, |rung| rung.level);
    }

    /// The feedback rule.
    fn react(&mut self, ratio: f64, now: Nanos) {
        self.tails.push(ratio);
        if self.tails.len() > LONG {
            self.tails.remove(0);
        }
        let long = self.tails.iter().sum::<f64>() / self.tails.len() as f64;
        if now < self.until {
            return;
        }
        if self.tails.len() == LONG && long > 1.0 {
            self.limit = 1.0;
            self.until = now + self.config.penalty;
            self.tails.clear();
        } else if ratio > 1.35 {
            self.limit = 1.0;
        } else if ratio > 1.0 {
            self.limit *= 1.07;
        } else if ratio < 0.60 {
            self.limit *= 0.97;
        } else if ratio < 0.85 {
            self.limit *= 0.99;
        }
        // Below the lowest level's power a limit has no effect but to wind up.
        self.limit = self.limit.clamp(self.shares[0], 1.0);
        let allowed = |share: &f64| *share <= self.limit + 1e-12;
        self.level = self.shares.iter().rposition(allowed).unwrap_or(0);
    }
}

impl Dispatcher for Pegasus {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        if request.free[self.level] > 0 || request.on.is_some() {
            return Answer::on(self.level, None);
        }
        Answer::stay(None)
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        Some(self.rule)
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        if !self.config.table.is_empty() {
            if let Some(rate) = seen.rate_per_s {
                self.look_up(rate);
            }
        } else if let Some(tail) =
            seen.tail.filter(|_| seen.samples >= self.needed.min(self.rule.window))
        {
            self.react(tail.as_millis_f64() / self.site_target_ms, seen.now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{amp_site, build, dvfs_site, refused, request, seen_at};
    use lull_control::dispatcher::{CoreChoice, Dispatcher};

    fn level(dispatcher: &mut dyn Dispatcher) -> usize {
        match dispatcher.place(&request(0, None, (0, 1), &[1; 5])).place {
            CoreChoice::On(level) => level,
            CoreChoice::Stay => panic!("it must run"),
        }
    }

    #[test]
    fn the_table_is_looked_up_by_load() {
        let table =
            "table = [{ up_to_per_s = 20.0, level = 1 }, { up_to_per_s = 40.0, level = 3 }]";
        let mut dispatcher = build("pegasus", table, &dvfs_site());
        assert_eq!(level(dispatcher.as_mut()), 4, "before anything is measured");
        for (rate, wanted) in [(10.0, 1), (20.0, 1), (30.0, 3), (50.0, 4), (5.0, 1)] {
            dispatcher.adjust(&seen_at(5, 100, 500, rate));
            assert_eq!(level(dispatcher.as_mut()), wanted, "{rate}");
        }
    }

    #[test]
    fn feedback_goes_down_slowly_and_up_at_once() {
        let mut dispatcher = build("pegasus", "", &dvfs_site());
        let mut at_s = 0;
        let mut step = |dispatcher: &mut dyn Dispatcher, tail_ms| {
            at_s += 5;
            dispatcher.adjust(&seen_at(at_s, tail_ms, 500, 25.0));
            level(dispatcher)
        };
        // Below 100 % the fastest level is not allowed; 3.8 of 6.8 W are 56 %: 19 steps of 3 %.
        assert_eq!(step(dispatcher.as_mut(), 100), 3);
        for _ in 0..200 {
            step(dispatcher.as_mut(), 100);
        }
        assert_eq!(step(dispatcher.as_mut(), 100), 0, "the limit has come down to the slowest");
        assert_eq!(step(dispatcher.as_mut(), 271), 4, "135 % of the target: all power");
    }

    #[test]
    fn a_minute_above_the_target_costs_five_minutes_of_full_power() {
        let mut dispatcher = build("pegasus", "", &dvfs_site());
        for period in 1..=12 {
            dispatcher.adjust(&seen_at(5 * period, 210, 500, 25.0));
        }
        for period in 13..=71 {
            dispatcher.adjust(&seen_at(5 * period, 50, 500, 25.0));
            assert_eq!(level(dispatcher.as_mut()), 4, "{period}");
        }
        for period in 72..=90 {
            dispatcher.adjust(&seen_at(5 * period, 50, 500, 25.0));
        }
        assert!(level(dispatcher.as_mut()) < 4);
    }

    #[test]
    fn it_needs_levels_and_a_table_in_order() {
        assert!(refused("pegasus", "", &amp_site()).to_string().contains("per-core DVFS"));
        let twice =
            "table = [{ up_to_per_s = 20.0, level = 1 }, { up_to_per_s = 20.0, level = 3 }]";
        assert!(refused("pegasus", twice, &dvfs_site()).to_string().contains("must rise"));
        let beyond = "table = [{ up_to_per_s = 20.0, level = 7 }]";
        assert!(refused("pegasus", beyond, &dvfs_site()).to_string().contains("`table` is 7"));
    }
}
