//! RR: strict priorities in a given order, whatever the apps' class.
//!
//! Ah-Q (Liu et al. 2024), section VIII, "Round-Robin Strategy", the priority arm of
//! the DIP study: of two apps on the same cores the high-priority one is
//! SCHED_RR, the other SCHED_OTHER. The study runs all ordered pairs, so the
//! high-priority app may well be best-effort. Priority without isolation.
//!
//! Generalised to more than two apps: the last in the order stays
//! SCHED_OTHER, each one before it gets a SCHED_RR priority one higher. The
//! mechanism is that of `lc-first`, and its note on the throttle applies here too.
//!
//! Checked against: section VIII's rule for pairs.

use crate::config::{accept_any, config, read, wrong};
use crate::entry::{ConfigSchema, Entry, Family, PolicyKind};
use crate::toolkit::{FixedPlan, throttle};
use lull_control::{
    AppId, AppSpec, Capability, Machine, Plan, PolicyError, Reason, Scheduling, Setting, numbered,
    require,
};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "rr",
    paper: "Ah-Q (Liu et al. 2024), section VIII, Round-Robin Strategy",
    summary: "Gives apps strict priorities (SCHED_RR) in a given order; the last stays normal.",
    kind: PolicyKind {
        needs: &[Capability::Scheduling],
        uses: &[Capability::RealTimeThrottle],
        dip: Some(crate::Dip::DP),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(round_robin(&read(table)?, machine, apps)?)),
};

config! {
    /// The order of priorities.
    struct Config checked by accept_any {
        /// App names, highest priority first; apps not named follow as listed
        /// (section VIII: the first of each ordered pair).
        order: Vec<String> = Vec::new(),
        /// Whether the kernel keeps 5 % of each second from real-time threads
        /// (its default; the paper is silent).
        throttle: bool = true,
    }
}

fn round_robin(
    config: &Config,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<FixedPlan, PolicyError> {
    if !config.throttle {
        require(ENTRY.name, &[Capability::RealTimeThrottle], machine)?;
    }
    let order = ranked(&config.order, apps)?;
    let mut plan = Plan::keep();
    throttle(&mut plan, config.throttle, machine);
    for (app, from_last) in order.iter().rev().zip(0u8..) {
        let class = match from_last {
            0 => Scheduling::Normal { nice: 0 },
            priority => Scheduling::RoundRobin { priority },
        };
        plan.set(Setting::Scheduling(*app, class), Reason::Fixed);
    }
    Ok(FixedPlan(plan))
}

/// All apps, highest priority first.
fn ranked(order: &[String], apps: &[AppSpec]) -> Result<Vec<AppId>, PolicyError> {
    if apps.len() > 100 {
        let message = format!("{} apps, but SCHED_RR has only 99 priorities", apps.len());
        return Err(PolicyError::Apps { policy: ENTRY.name, message });
    }
    let mut ranked = Vec::new();
    for name in order {
        let known = numbered(apps).find(|(_, spec)| spec.name == *name);
        let (app, _) = known.ok_or_else(|| wrong("order", unknown(name, apps)))?;
        if ranked.contains(&app) {
            return Err(wrong("order", format!("`{name}` is named twice in `order`")));
        }
        ranked.push(app);
    }
    let rest: Vec<_> = numbered(apps).map(|(app, _)| app).collect();
    let rest = rest.into_iter().filter(|app| !ranked.contains(app)).collect::<Vec<_>>();
    ranked.extend(rest);
    Ok(ranked)
}

fn unknown(name: &str, apps: &[AppSpec]) -> String {
    let names: Vec<_> = apps.iter().map(|app| app.name.as_str()).collect();
    format!("no app is called `{name}`; there are: {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Plant;
    use lull_control::conformance::MemoryPlant;
    use lull_measure::{Nanos, Percentile};

    fn apps() -> Vec<AppSpec> {
        let lc = AppSpec::latency_critical("redis", Percentile::P95, Nanos::from_millis(1));
        vec![lc, AppSpec::best_effort("ferret"), AppSpec::best_effort("stream")]
    }

    /// Priorities by app, 0 for SCHED_OTHER.
    fn priorities(config: &str, apps: &[AppSpec]) -> Result<Vec<u8>, PolicyError> {
        let plant = MemoryPlant::new(2, Vec::new());
        let policy = round_robin(&read(&config.parse().unwrap())?, plant.machine(), apps)?;
        let class = |step: &lull_control::Step| match step.setting {
            Setting::Scheduling(_, Scheduling::RoundRobin { priority }) => Some(priority),
            Setting::Scheduling(..) => Some(0),
            _ => None,
        };
        Ok(policy.0.steps().filter_map(class).collect())
    }

    #[test]
    fn of_a_pair_the_first_is_real_time_and_it_may_be_best_effort() {
        assert_eq!(priorities("", &apps()[..2]).unwrap(), [1, 0]);
        assert_eq!(priorities("order = [\"ferret\"]", &apps()[..2]).unwrap(), [0, 1]);
    }

    #[test]
    fn more_apps_get_a_ladder_and_those_not_named_come_last() {
        assert_eq!(priorities("order = [\"stream\"]", &apps()).unwrap(), [1, 0, 2]);
        assert!(priorities("", &[]).unwrap().is_empty());
    }

    #[test]
    fn a_name_that_is_unknown_or_doubled_is_refused_with_the_key() {
        for (config, part) in [
            ("order = [\"nginx\"]", "redis, ferret, stream"),
            ("order = [\"redis\", \"redis\"]", "twice"),
        ] {
            let error = priorities(config, &apps()).unwrap_err();
            assert!(matches!(&error, PolicyError::Config { key, .. } if key == "order"));
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn a_hundred_and_one_apps_have_too_few_priorities() {
        let many: Vec<_> = (0..101).map(|n| AppSpec::best_effort(&n.to_string())).collect();
        assert!(matches!(priorities("", &many), Err(PolicyError::Apps { .. })));
        let top = priorities("", &many[..100]).unwrap();
        assert_eq!(top.first(), Some(&99));
    }
}
