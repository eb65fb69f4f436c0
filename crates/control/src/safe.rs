//! The SLO-safe state: everything a latency-critical app could want.
//!
//! Taken when the policy cannot be followed (the latency source is silent),
//! and by the guard before it restores. All cores for all apps, no priority
//! games, all ways, full bandwidth, full frequency.

use crate::{AppSpec, Capability, Knob, Machine, Plan, Reason, Setting, WayMask, numbered};

/// The SLO-safe state of the knobs that a machine has, for a stated cause.
///
/// Scheduling classes, the real-time throttle, coalescing and the numbers of
/// gates are not chosen: what they were before Lull came is the safe state, and
/// `original` is where to find it.
pub fn safe_plan(machine: &Machine, apps: &[AppSpec], original: &[Setting], cause: &str) -> Plan {
    let mut plan = Plan::keep();
    let mut want = |setting| plan.set(setting, Reason::Safe { cause: cause.to_owned() });
    let has = |capability| machine.capabilities.has(capability);
    for (app, _) in numbered(apps) {
        if has(Capability::Cores) {
            want(Setting::Cores(app, machine.all_cores()));
        }
        if let Some(cache) = machine.cache.as_ref().filter(|_| has(Capability::CacheWays)) {
            want(Setting::CacheWays(app, WayMask::run(0, cache.ways)));
        }
        if has(Capability::MemoryBandwidth) {
            want(Setting::MemoryBandwidth(app, 100));
        }
    }
    for domain in machine.domains.iter().filter(|_| has(Capability::Frequency)) {
        if let Some(highest) = domain.steps.last() {
            want(Setting::Frequency(domain.id, *highest));
        }
    }
    let kept = |knob| {
        let of_gate = matches!(knob, Knob::GateCap(_) | Knob::GateBatch(_) | Knob::GateDelay(_));
        let other =
            matches!(knob, Knob::Scheduling(_) | Knob::RealTimeThrottle | Knob::Coalescing(_));
        of_gate || other
    };
    original.iter().filter(|setting| kept(setting.knob())).cloned().for_each(want);
    plan
}
