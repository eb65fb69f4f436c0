//! The SLO-safe state: settings that limit no app.
//!
//! It is taken when the policy cannot be followed (the latency source is silent). Each knob's row
//! says whether its safe value is the most that the machine has (ways, bandwidth, frequency within
//! the owner's bounds) or the value that it had before Lull wrote it. It never gives an app more
//! than its owner did: an app that its owner had pinned gets those cores and not all.

use crate::{AppSpec, KNOBS, Knob, Machine, Plan, Reason, Setting, Standard};

/// The SLO-safe state of the knobs that a machine has, for a stated cause; `original` is the state
/// of the knobs before Lull wrote any.
pub fn safe_plan(machine: &Machine, apps: &[AppSpec], original: &[Setting], cause: &str) -> Plan {
    let mut plan = Plan::keep();
    let mut want = |setting| plan.set(setting, Reason::Safe { cause: cause.to_owned() });
    let most = |standard| standard == Standard::Most;
    let offered = |row: &&crate::KnobRow| machine.capabilities.has(row.capability);
    for row in KNOBS.iter().filter(|row| most(row.safe)).filter(offered) {
        for knob in machine.knobs(row, apps.len()) {
            let owners = || original.iter().find(|setting| setting.knob() == knob);
            if let Some(pinned) = matches!(knob, Knob::Cores(_)).then(owners).flatten() {
                want(pinned.clone());
            } else if let Some(setting) = machine.most(knob).and_then(|most| knob.set_to(most)) {
                want(setting);
            }
        }
    }
    let kept = |setting: &&Setting| !most(setting.knob().row().safe);
    original.iter().filter(kept).cloned().for_each(want);
    plan
}
