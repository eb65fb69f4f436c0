//! LC-first: latency-critical apps are real-time, best-effort ones are not.
//!
//! Ah-Q (Liu et al. 2024), section VII-A: every latency-critical thread is SCHED_RR,
//! every best-effort one SCHED_OTHER, all on all cores. A latency-critical
//! thread that wakes pre-empts a best-effort one immediately; among themselves
//! latency-critical apps share by round robin (the kernel's slice is 100 ms).
//! Priority without isolation.
//!
//! The paper does not say what became of the kernel's real-time throttle,
//! which by default lets real-time threads have 95 % of each second.
//! `throttle = true` keeps it: a latency-critical app that spins cannot take
//! the machine away from its operator. `throttle = false` is for simulations
//! and for machines that are watched. The priority is the lowest, 1, so that
//! the kernel's own real-time threads (migration, threaded interrupts) still
//! go first.
//!
//! Checked against: section VII-A's rule; that E_LC falls against unmanaged
//! and E_BE rises (section IX, on the in-memory plant).

use crate::config::{config, read, wrong};
use crate::entry::{ConfigSchema, Entry, Family, PolicyKind};
use crate::toolkit::{FixedPlan, throttle};
use lull_control::{
    AppSpec, Capability, Machine, Plan, PolicyError, Reason, Scheduling, Setting, numbered, require,
};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "lc-first",
    paper: "Ah-Q (Liu et al. 2024), section VII-A, LC-first",
    summary: "Makes latency-critical apps real-time (SCHED_RR), so that they always go first.",
    kind: PolicyKind {
        needs: &[Capability::Scheduling],
        uses: &[Capability::RealTimeThrottle],
        dip: Some(crate::Dip::DP),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(lc_first(&read(table)?, machine, apps)?)),
};

config! {
    /// How hard they go first.
    struct Config checked by check {
        /// Whether the kernel keeps 5 % of each second from real-time threads
        /// (its default; the paper is silent).
        throttle: bool = true,
        /// SCHED_RR priority of latency-critical apps, 1 to 99 (the paper is silent; any
        /// goes before best-effort, the lowest lets the kernel's own threads go first).
        priority: u8 = 1,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    if (1..=99).contains(&config.priority) {
        return Ok(());
    }
    let message = format!("`priority` is {}: SCHED_RR has 1 to 99", config.priority);
    Err(wrong("priority", message))
}

fn lc_first(
    config: &Config,
    machine: &Machine,
    apps: &[AppSpec],
) -> Result<FixedPlan, PolicyError> {
    if !config.throttle {
        require(ENTRY.name, &[Capability::RealTimeThrottle], machine)?;
    }
    let mut plan = Plan::keep();
    throttle(&mut plan, config.throttle, machine);
    for (app, spec) in numbered(apps) {
        let class = match spec.is_latency_critical() {
            true => Scheduling::RoundRobin { priority: config.priority },
            false => Scheduling::Normal { nice: 0 },
        };
        plan.set(Setting::Scheduling(app, class), Reason::Fixed);
    }
    Ok(FixedPlan(plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::{MemoryApp, MemoryPlant};
    use lull_control::{AppId, Assessor, Knob, Plant, Policy, Rng};
    use lull_measure::entropy::{RelativeImportance, SystemEntropy};
    use lull_measure::{Missing, Nanos, Percentile};
    use rand::SeedableRng;

    const EPOCH: Nanos = Nanos::from_millis(500);

    fn plant() -> MemoryPlant {
        let mut be = AppSpec::best_effort("be");
        be.solo_per_s = Some(4.0);
        let app = |spec, demand_cores| MemoryApp {
            spec,
            demand_cores,
            service: Nanos::from_millis(1),
            threads: 4,
        };
        let lc = AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(10));
        MemoryPlant::new(4, vec![app(lc, 2.5), app(be, 0.0)])
    }

    fn build(plant: &MemoryPlant, config: &str) -> Result<Box<dyn Policy>, PolicyError> {
        ENTRY.build(&config.parse().unwrap(), plant.machine(), plant.apps())
    }

    fn entropy(plant: &mut MemoryPlant) -> SystemEntropy {
        let seen = plant.observe(EPOCH).unwrap();
        Assessor::new(plant.apps(), RelativeImportance::default()).assess(&seen).entropy
    }

    fn plan(plant: &mut MemoryPlant, config: &str) -> Plan {
        let mut policy = build(plant, config).unwrap();
        policy.decide(&plant.observe(EPOCH).unwrap(), &mut Rng::seed_from_u64(1))
    }

    #[test]
    fn latency_critical_apps_are_real_time_and_best_effort_ones_are_not() {
        let plan = plan(&mut plant(), "priority = 5");
        let class = |app| plan.setting(Knob::Scheduling(AppId(app))).cloned();
        let wanted = Setting::Scheduling(AppId(0), Scheduling::RoundRobin { priority: 5 });
        assert_eq!(class(0), Some(wanted));
        let normal = Setting::Scheduling(AppId(1), Scheduling::Normal { nice: 0 });
        assert_eq!(class(1), Some(normal));
        assert_eq!(plan.setting(Knob::Cores(AppId(0))), None, "cores are not its business");
    }

    #[test]
    fn the_latency_critical_part_of_entropy_falls_and_the_other_rises() {
        let mut plant = plant();
        let before = entropy(&mut plant);
        let settings: Vec<_> =
            plan(&mut plant, "").steps().map(|step| step.setting.clone()).collect();
        assert!(plant.apply(&settings).outcomes.iter().all(|one| one.in_force().is_some()));
        let after = entropy(&mut plant);
        assert!(after.lc < before.lc && after.be > before.be, "{before:?} {after:?}");
    }

    #[test]
    fn the_throttle_stays_on_unless_configured_and_possible() {
        let throttle = |plan: &Plan| plan.setting(Knob::RealTimeThrottle).cloned();
        let on = Some(Setting::RealTimeThrottle(true));
        assert_eq!(throttle(&plan(&mut plant(), "")), on);
        let off = Some(Setting::RealTimeThrottle(false));
        assert_eq!(throttle(&plan(&mut plant(), "throttle = false")), off);
        let mut bare = plant().without(Capability::RealTimeThrottle, "no sysctl");
        assert_eq!(throttle(&plan(&mut bare, "")), None, "on is the kernel's own default");
        let refused = build(&bare, "throttle = false").err();
        let why = Missing::because("no sysctl");
        let capability = Capability::RealTimeThrottle;
        assert_eq!(refused, Some(PolicyError::Lacks { policy: "lc-first", capability, why }));
    }

    #[test]
    fn a_priority_that_does_not_exist_is_refused() {
        for config in ["priority = 0", "priority = 100"] {
            let refused = build(&plant(), config).err();
            let named =
                matches!(&refused, Some(PolicyError::Config { key, .. }) if key == "priority");
            assert!(named, "{config}: {refused:?}");
        }
    }
}
