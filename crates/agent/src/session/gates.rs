//! The gates of the apps' servers, as viewers see them.

use crate::admission::{Changed, describe_gate};
use crate::live::GateState;
use lull_host::oncall::{Runtime, describe_bypass};
use std::sync::{Arc, Weak};

/// The gate of an app's server.
struct Gate {
    app: String,
    /// The runtime; gone once the plant has ended, which closes the page.
    runtime: Weak<Runtime>,
    /// As [`GateState::decision`].
    decision: String,
}

/// All gates, in the order of their apps.
#[derive(Default)]
pub(super) struct Gates(Vec<Gate>);

impl Gates {
    /// Adds the gate of an app; `admission` is the name of its admission controller.
    pub(super) fn add(&mut self, app: &str, runtime: &Arc<Runtime>, admission: Option<&str>) {
        let decision = admission.map(|name| format!("{name}: no decision yet"));
        self.0.push(Gate {
            app: app.to_owned(),
            runtime: Arc::downgrade(runtime),
            decision: decision.unwrap_or_default(),
        });
    }

    /// Stores what admission controllers have decided. A controller that reports no evidence, such
    /// as `manual`, is shown with its settings.
    pub(super) fn note(&mut self, changes: &[Changed]) {
        for Changed { app, admission, gate: settings, decision } in changes {
            let decision = decision.as_ref().unwrap_or(settings);
            for gate in self.0.iter_mut().filter(|gate| gate.app == *app) {
                gate.decision = format!("{admission}: {decision}");
            }
        }
    }

    /// Reads the state of each gate; `areas_of` describes the areas of an app.
    pub(super) fn read(&self, areas_of: &dyn Fn(&str) -> String) -> Vec<GateState> {
        self.0.iter().filter_map(|gate| gate.read(areas_of)).collect()
    }
}

impl Gate {
    fn read(&self, areas_of: &dyn Fn(&str) -> String) -> Option<GateState> {
        let runtime = self.runtime.upgrade()?;
        let limit = match runtime.bypassed_since_s() {
            Some(since_s) => describe_bypass(since_s),
            None => describe_gate(&runtime.settings()),
        };
        let counts = runtime.worker_counts();
        Some(GateState {
            app: self.app.clone(),
            limit,
            under_way: counts.under_way,
            waiting: counts.waiting,
            decision: self.decision.clone(),
            areas: areas_of(&self.app),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_host::oncall::Rules;
    use lull_oncall::{Mode, Settings};

    fn decided(app: &str, decision: Option<&str>) -> Changed {
        Changed {
            app: app.to_owned(),
            admission: "auto".to_owned(),
            gate: "3 transactions at a time".to_owned(),
            decision: decision.map(str::to_owned),
        }
    }

    #[test]
    fn a_gate_is_shown_as_it_is_now_with_the_last_decision_of_its_own_controller() {
        let settings = Settings { mode: Mode::Post, cap: 3, ..Settings::default() };
        let runtime = Arc::new(Runtime::start(&settings, &Rules::default()).unwrap());
        let mut gates = Gates::default();
        gates.add("db", &runtime, Some("auto"));
        gates.add("other", &runtime, None);
        let read = |gates: &Gates| gates.read(&|app| format!("fixed: areas of {app}"));
        let shown = |gates: &Gates| read(gates).into_iter().map(|gate| gate.decision).collect();
        let texts: Vec<String> = shown(&gates);
        assert_eq!(texts, ["auto: no decision yet", ""]);
        gates.note(&[decided("db", None), decided("nothing", Some("no"))]);
        let texts: Vec<String> = shown(&gates);
        assert_eq!(texts, ["auto: 3 transactions at a time", ""]);
        gates.note(&[decided("db", Some("3 at a time: throughput times 1.4"))]);
        let seen = read(&gates);
        assert_eq!(seen[0].decision, "auto: 3 at a time: throughput times 1.4");
        assert_eq!(seen[0].limit, "3 transactions at a time");
        assert_eq!((seen[0].under_way, seen[0].waiting), (0, 0));
        assert_eq!(
            [&*seen[0].areas, &*seen[1].areas],
            ["fixed: areas of db", "fixed: areas of other"]
        );
        runtime.set(&Settings { mode: Mode::Stats, ..settings });
        assert_eq!(read(&gates)[0].limit, "the gate is open");
        drop(runtime);
        assert_eq!(read(&gates), []);
    }
}
