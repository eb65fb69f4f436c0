//! Checks of an app of event loops, which has a machine of uncoupled cores to itself.

use crate::machine::event_loops::EventLoops;
use crate::machine::model::{Activity, MachineApp, MachineModel, MemoryUse};
use crate::machine::parts::DEFAULT_CONNECTIONS;
use crate::machine::presence::Presence;
use crate::model::{Checked, Problem, above_0, check_shape, fail};
use lull_measure::Nanos;

/// Checks the numbers of the app; `key` is where it is written, with a dot at its end.
pub(super) fn check(loops: &EventLoops, key: &str) -> Checked {
    above_0(loops.cycles, &format!("{key}cycles"))?;
    check_shape(loops.shape, &format!("{key}shape"))?;
    loops.stack.check(&format!("{key}stack."))?;
    above_0(loops.frame.as_secs_f64(), &format!("{key}frame"))?;
    loops.traffic.check(&format!("{key}traffic."))
}

impl MachineModel {
    /// An app of event loops needs a card and idle states, a thread a core, and no part that
    /// couples cores.
    pub(super) fn check_event_loops(&self, app: &MachineApp, key: &str) -> Checked {
        let Activity::EventLoops(loops) = &app.activity else { return Ok(()) };
        let conflict = |key: String, problem| fail(key, Problem::Conflict(problem));
        let Some(card) = &self.card else {
            let problem = "event loops need a network card: give the machine a `[card]`";
            return conflict("card".to_owned(), problem);
        };
        if self.idle.is_empty() {
            let problem = "event loops sleep between requests: give at least one `[[idle]]`";
            return conflict("idle".to_owned(), problem);
        }
        let costs =
            [(card.interrupt, "interrupt"), (card.receive, "receive"), (card.clean, "clean")];
        if let Some((_, what)) = costs.iter().find(|(cost, _)| *cost > Nanos::ZERO) {
            let problem = "event loops state what packets cost in cycles, as `stack`: write \"0s\"";
            return conflict(format!("card.{what}"), problem);
        }
        if ![DEFAULT_CONNECTIONS, loops.traffic.connections()].contains(&card.connections) {
            let problem = "event loops have their connections in `traffic`: leave this key out";
            return conflict("card.connections".to_owned(), problem);
        }
        if self.app.len() > 1 {
            let problem = "an app of event loops has all cores to itself: leave the other apps out";
            return conflict("app".to_owned(), problem);
        }
        if app.threads != u32::from(self.cores) {
            return conflict(format!("{key}.threads"), "event loops are one thread for each core");
        }
        let is_plain = app.presence == Presence::default() && app.memory == MemoryUse::default();
        if !is_plain {
            let problem = "an app of event loops is present for the whole run and needs no cache \
                           or memory: leave `presence` and `memory` out";
            return conflict(key.to_owned(), problem);
        }
        self.check_uncoupled()
    }

    /// No part lets cores depend on each other within an event.
    fn check_uncoupled(&self) -> Checked {
        let has_latency = |latency: Nanos| latency > Nanos::ZERO;
        let coupling = [
            (self.core_types.is_some(), "core-types"),
            (self.interference > 0.0, "interference"),
            (self.duty_cycle.is_some(), "duty-cycle"),
            (self.run_queues.is_some(), "run-queues"),
            (self.cache.is_some(), "cache"),
            (self.memory.is_some(), "memory"),
            (self.gate.is_some(), "gate"),
            (self.dispatch.is_some(), "dispatch"),
            (self.scaling.as_ref().is_some_and(|it| has_latency(it.latency)), "scaling.latency"),
        ];
        match coupling.iter().find(|(is_there, _)| *is_there) {
            None => Ok(()),
            Some((_, key)) => {
                let problem = "cores of event loops are alike and step on their own: leave it out";
                fail(*key, Problem::Conflict(problem))
            }
        }
    }
}
