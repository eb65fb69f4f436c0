//! The limits of an app's on-call gate as knobs.
//!
//! Settings are written to the control page that the agent shares with the app's
//! workers, and the gate applies them from the next turn on. They are not in the
//! ledger: the page is the agent's own memory, no kernel keeps it, and a gate
//! whose agent has died opens 70 ms later, whatever its limits were. Only this
//! process writes the page's settings, so changes by other writers are not checked for.

use super::HostPlant;
use super::app::RunningApp;
use crate::oncall::{GATE_MEANS, Watch, describe_bypass, gate_control};
use lull_control::{AppId, AppSpec, Knob, KnobScope, Machine, Setting, numbered};
use lull_measure::Nanos;
use lull_oncall::Settings;

/// The machine with the gates of its apps.
pub(super) fn with_gates(machine: Machine, specs: &[AppSpec], apps: &[RunningApp]) -> Machine {
    let both = numbered(specs).zip(apps);
    let gated = both.filter(|(_, app)| app.gated().is_some());
    let gates = gated.map(|((id, spec), _)| gate_control(id, spec.threads));
    machine.with_gates(gates.collect(), GATE_MEANS)
}

impl HostPlant {
    /// A number of a gate as it is now; `None` for other knobs, or without a gate.
    pub(super) fn gate_setting(&self, knob: Knob) -> Option<Setting> {
        let app = knob.app()?;
        let now = self.apps.get(app.index())?.gated()?.gate()?;
        match knob {
            Knob::GateCap(_) => Some(Setting::GateCap(app, now.cap)),
            Knob::GateBatch(_) => Some(Setting::GateBatch(app, now.batch)),
            Knob::GateDelay(_) => Some(Setting::GateDelay(app, Nanos(now.isr_delay_ns))),
            _ => None,
        }
    }

    /// Sets one number of a gate that is there.
    pub(super) fn write_gate(&self, app: AppId, wanted: &Setting) {
        let watch = self.apps.get(app.index()).and_then(RunningApp::gated);
        let Some((watch, now)) = watch.and_then(|watch| Some((watch, watch.gate()?))) else {
            return;
        };
        watch.set_gate(&changed(now, wanted));
    }

    /// Refuses values that no gate of this machine can have; other knobs pass.
    pub(super) fn check_gate(&self, wanted: &Setting) -> Result<(), String> {
        let (Setting::GateCap(app, _) | Setting::GateBatch(app, _) | Setting::GateDelay(app, _)) =
            wanted
        else {
            return Ok(());
        };
        let watch = self.apps.get(app.index()).and_then(RunningApp::gated);
        if let Some(since_s) = watch.and_then(Watch::bypassed_since_s) {
            return Err(describe_bypass(since_s));
        }
        match self.machine.gate(*app) {
            Some(gate) => gate.check(wanted),
            None => Err(format!("app number {} has no gate", app.0)),
        }
    }

    /// Restores the original settings of the gates.
    pub(super) fn put_back_gates(&self) {
        for was in self.originals.values().filter(|was| was.knob().row().scope == KnobScope::Gate) {
            if let Some(app) = was.knob().app() {
                self.write_gate(app, was);
            }
        }
    }
}

fn changed(now: Settings, wanted: &Setting) -> Settings {
    match *wanted {
        Setting::GateCap(_, cap) => Settings { cap, ..now },
        Setting::GateBatch(_, batch) => Settings { batch, ..now },
        Setting::GateDelay(_, delay) => Settings { isr_delay_ns: delay.0, ..now },
        _ => now,
    }
}
