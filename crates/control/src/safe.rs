//! The SLO-safe state: everything that a latency-critical app could want.
//!
//! It is taken when the policy cannot be followed (the latency source is silent), and by the guard
//! before it restores. Each knob's row says whether its safe value is the most that the machine
//! has (cores, ways, bandwidth, frequency) or the value that it had before Lull wrote it.

use crate::{AppSpec, KNOBS, Machine, Plan, Reason, Setting, Standard};

/// The SLO-safe state of the knobs that a machine has, for a stated cause; `original` is the state
/// of the knobs before Lull wrote any.
pub fn safe_plan(machine: &Machine, apps: &[AppSpec], original: &[Setting], cause: &str) -> Plan {
    let mut plan = Plan::keep();
    let mut want = |setting| plan.set(setting, Reason::Safe { cause: cause.to_owned() });
    let most = |standard| standard == Standard::Most;
    let offered = |row: &&crate::KnobRow| machine.capabilities.has(row.capability);
    for row in KNOBS.iter().filter(|row| most(row.safe)).filter(offered) {
        for knob in machine.knobs(row, apps.len()) {
            if let Some(setting) = machine.most(knob).and_then(|value| knob.set_to(value)) {
                want(setting);
            }
        }
    }
    let kept = |setting: &&Setting| !most(setting.knob().row().safe);
    original.iter().filter(kept).cloned().for_each(want);
    plan
}
