//! `lull lab tiers`: two tiers under frequency policies, from the records of `lull compare`.
//!
//! Each record is of one burst cycle: its config has one `[[load]]` with a `burst:` rate, on the
//! front tier. Each tier has a core of its own with P-states. The figures are those of
//! [`lull_lab::tiers`], computed for blocks; intervals are over blocks.

mod result;
mod samples;

use super::UsageError;
use crate::cli::TiersArgs;
use crate::commands::save::{self, Destination};
use anyhow::Context;
use lull_agent::config::Config;
use lull_agent::located::Located;
use lull_agent::recorded::{Database, Part, PlannedFrequency, Run, Series, open};
use lull_control::{Capability, CoreId, FrequencyDomain, Machine};
use lull_lab::tiers::{PoolSample, TIERS, TierBlock, TierEpoch, TierSystem};
use lull_measure::catalogue::{CORE_UTILISATION, EPOCH, Metric, OFFERED};
use lull_measure::{Hertz, Latency, Nanos};
use lull_workload::arrivals::Rate;
use result::{CycleReport, PolicyReport};
use samples::TimedSample;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &TiersArgs) -> anyhow::Result<()> {
    let read: Vec<&Path> = args.runs.iter().chain([&args.samples]).map(PathBuf::as_path).collect();
    let page = args.markdown.as_deref().map(|file| Destination::new(file)?.apart_from(&read));
    let page = page.transpose()?;
    let samples = samples::read(&args.samples)?;
    let report = |file: &PathBuf| -> anyhow::Result<CycleReport> {
        TierRecord::read(file, args, &samples)?.report(file, args.skip)
    };
    let mut cycles = args.runs.iter().map(report).collect::<anyhow::Result<Vec<_>>>()?;
    cycles.sort_by_key(|cycle| cycle.bursts.cycle);
    if let Some(to) = &page {
        save::all(&[(to, result::markdown(&cycles).into_bytes())])?;
    }
    if args.json {
        return super::print_json(&cycles);
    }
    result::print(&cycles);
    Ok(())
}

/// The load of a record.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct Bursts {
    cycle: Nanos,
    high_per_s: f64,
    low_per_s: f64,
}

/// The P-states of one tier.
struct TierStates {
    /// The label of its core in the record.
    core: String,
    steps: Vec<Hertz>,
    /// The plans by number of the epoch.
    plans: Vec<(i64, usize)>,
}

/// A record with its fields used here, and the samples of the pool.
struct TierRecord<'a> {
    run: Run,
    series: Series,
    /// Index and name of the front tier's app.
    front: usize,
    tiers: [TierStates; TIERS],
    bursts: Bursts,
    system: TierSystem,
    /// When the run began, in milliseconds since 1970.
    started_ms: f64,
    samples: &'a [TimedSample],
}

impl<'a> TierRecord<'a> {
    fn read(file: &Path, args: &TiersArgs, samples: &'a [TimedSample]) -> anyhow::Result<Self> {
        let refuse = |why: String| UsageError(format!("{} {why}", file.display()));
        let record = open(file)?;
        let run = Run::read(file)?;
        let started_ns: f64 = fact(&record, "started_unix_ns")?.parse()?;
        let located = Located::embedded("the recorded config", &fact(&record, "config")?);
        let config = Config::from_located(located)?;
        let [load] = config.loads.as_slice() else {
            let count = config.loads.len();
            return Err(
                refuse(format!("has {count} [[load]] and not one, on the front tier")).into()
            );
        };
        let Rate::Burst { high_per_s, low_per_s, cycle, .. } = load.rate else {
            return Err(refuse(format!("has a load of {}, not of bursts", load.rate)).into());
        };
        let front = run.apps.iter().position(|app| app.name == load.app);
        let front = front.with_context(|| format!("no app is called {}", load.app))?;
        let machine: Machine = serde_json::from_str(&fact(&record, "machine")?)?;
        let plans = PlannedFrequency::read_all(&record)?;
        let tier = |core| TierStates::new(core, &machine.domains, &plans).map_err(refuse);
        let tiers = [tier(args.front)?, tier(args.back)?];
        let states = tiers[0].steps.len();
        if tiers[1].steps.len() != states {
            return Err(refuse("has tiers with different numbers of P-states".to_owned()).into());
        }
        let high_from_per_s = f64::midpoint(high_per_s, low_per_s);
        Ok(Self {
            series: Series::read(&record, &run, &[CORE_UTILISATION, EPOCH, OFFERED])?,
            run,
            front,
            tiers,
            bursts: Bursts { cycle, high_per_s, low_per_s },
            system: TierSystem {
                states,
                connections: args.connections,
                high_per_s: high_from_per_s,
            },
            started_ms: started_ns / 1e6,
            samples,
        })
    }

    /// The figures of all policies; those that leave frequencies alone come first.
    fn report(&self, file: &Path, skip: Nanos) -> anyhow::Result<CycleReport> {
        let mut policies = Vec::new();
        for part in Part::all_of(&self.run, skip)? {
            let policy = lull_policies::POLICIES.find(&part.name)?;
            let is_steered = policy.kind.needs.contains(&Capability::Frequency);
            let blocks = part.numbers().into_iter().zip(part.latencies(self.front));
            let blocks: Vec<TierBlock> = blocks
                .map(|(numbers, latency)| self.block(&numbers, latency, is_steered))
                .collect();
            policies.push((is_steered, PolicyReport::new(&part.name, &blocks, &self.system)));
        }
        policies.sort_by_key(|(is_steered, _)| *is_steered);
        let policies = policies.into_iter().map(|(_, report)| report).collect();
        Ok(CycleReport { record: file.to_owned(), bursts: self.bursts, policies })
    }

    fn block(&self, numbers: &[i64], latency: Latency, is_steered: bool) -> TierBlock {
        let app = &self.run.apps[self.front].name;
        let epoch = |number: &i64| {
            let value = |metric: &Metric, label: &str| self.series.value(metric, label, *number);
            Some(TierEpoch {
                length: Nanos::from_secs_f64(value(EPOCH, "")?),
                states: self.states(*number, is_steered),
                busy: [0, 1].map(|tier: usize| value(CORE_UTILISATION, &self.tiers[tier].core)),
                offered_per_s: value(OFFERED, app),
            })
        };
        let epochs = numbers.iter().filter_map(epoch).collect();
        TierBlock { epochs, pool: self.pool(numbers), latency }
    }

    /// The tiers' P-states in an epoch. A policy that leaves frequencies alone finds them as they
    /// were before the run, which is at full speed.
    fn states(&self, number: i64, is_steered: bool) -> [usize; TIERS] {
        let highest = self.system.states - 1;
        [0, 1].map(|tier: usize| match is_steered {
            true => self.tiers[tier].in_force(number).unwrap_or(highest),
            false => highest,
        })
    }

    /// The samples between the first of these epochs and the last one.
    fn pool(&self, numbers: &[i64]) -> Vec<PoolSample> {
        let ms =
            |number: Option<&i64>| Some(self.started_ms + 1e3 * self.series.times_s.get(number?)?);
        let Some((first, last)) = ms(numbers.first()).zip(ms(numbers.last())) else {
            return Vec::new();
        };
        let is_within = |sample: &&TimedSample| (first..=last).contains(&(sample.unix_ms as f64));
        let steps = &self.tiers[1].steps;
        let sample = |sample: &TimedSample| PoolSample {
            back_state: state_of(steps, Hertz::from_khz(sample.back_khz)),
            waiting: sample.waiting,
            in_use: sample.in_use,
        };
        self.samples.iter().filter(is_within).map(sample).collect()
    }
}

impl TierStates {
    fn new(
        core: u16,
        domains: &[FrequencyDomain],
        plans: &[PlannedFrequency],
    ) -> Result<Self, String> {
        let has = |domain: &&FrequencyDomain| domain.cores.contains(CoreId(core));
        let domain = domains.iter().find(has);
        let domain = domain.filter(|domain| domain.steps.len() > 1);
        let domain = domain.ok_or_else(|| format!("has no P-states of core {core}"))?;
        let own = plans.iter().filter(|plan| plan.domain == domain.id);
        let plans = own.map(|plan| (plan.epoch, state_of(&domain.steps, plan.frequency)));
        Ok(Self { core: core.to_string(), steps: domain.steps.clone(), plans: plans.collect() })
    }

    /// Returns the state during an epoch: the last plan before it.
    fn in_force(&self, number: i64) -> Option<usize> {
        let before = self.plans.partition_point(|(epoch, _)| *epoch < number);
        self.plans[..before].last().map(|(_, state)| *state)
    }
}

/// Index of the slowest step that is not below a frequency.
fn state_of(steps: &[Hertz], frequency: Hertz) -> usize {
    let found = steps.iter().position(|step| *step >= frequency);
    found.unwrap_or(steps.len().saturating_sub(1))
}

fn fact(record: &Database, key: &str) -> anyhow::Result<String> {
    let sql = "SELECT value FROM run WHERE key = ?1";
    let found = record.database.query_row(sql, [key], |row| row.get(0));
    found.with_context(|| format!("the record does not say `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::DomainId;

    fn states(plans: &[(i64, usize)]) -> TierStates {
        let steps = [1_197_000, 1_729_000, 2_260_000].map(Hertz::from_khz).to_vec();
        TierStates { core: "0".to_owned(), steps, plans: plans.to_vec() }
    }

    #[test]
    fn a_plan_is_in_force_from_the_epoch_after_its_own() {
        let tier = states(&[(3, 0), (7, 1), (9, 2)]);
        let found = [3, 4, 7, 8, 9, 10, 99].map(|number| tier.in_force(number));
        assert_eq!(
            found,
            [None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(2)],
            "the plan of an epoch follows from what was seen in it"
        );
    }

    #[test]
    fn plans_are_those_of_the_tiers_own_domain() {
        let khz = Hertz::from_khz;
        let domain = |number: u16| FrequencyDomain {
            id: DomainId(number),
            cores: number.to_string().parse().unwrap(),
            steps: vec![khz(1_197_000), khz(2_260_000)],
            continuous: false,
        };
        let domains = [domain(0), domain(1)];
        let plan = |epoch, number, frequency| PlannedFrequency {
            epoch,
            domain: DomainId(number),
            frequency: khz(frequency),
        };
        let plans = [plan(1, 0, 2_260_000), plan(2, 1, 1_197_000), plan(5, 1, 2_260_000)];
        let tier = TierStates::new(1, &domains, &plans).ok().unwrap();
        assert_eq!(tier.plans, [(2, 0), (5, 1)]);
        assert!(TierStates::new(7, &domains, &plans).is_err());
    }

    #[test]
    fn a_frequency_between_two_steps_is_the_faster_one() {
        let steps = states(&[]).steps;
        let state = |khz| state_of(&steps, Hertz::from_khz(khz));
        assert_eq!([0, 1_197_000, 1_200_000, 2_260_000, 9_000_000].map(state), [0, 0, 1, 2, 2]);
    }
}
