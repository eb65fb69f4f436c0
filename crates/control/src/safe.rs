//! The SLO-safe state: settings that limit no app.
//!
//! It is taken when the policy cannot be followed (the latency source is silent). Every knob gets
//! the value that it had before Lull wrote it, so that an app never gets more than its owner gave
//! it. A knob that had none, such as the frequency of a domain whose governor chose, gets the most
//! that the machine has within the owner's bounds, if its row says so.

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
            let owners = original.iter().find(|setting| setting.knob() == knob).cloned();
            let most = || machine.most(knob).and_then(|most| knob.set_to(most));
            if let Some(setting) = owners.or_else(most) {
                want(setting);
            }
        }
    }
    let kept = |setting: &&Setting| !most(setting.knob().row().safe);
    original.iter().filter(kept).cloned().for_each(want);
    plan
}
