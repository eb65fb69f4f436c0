//! Checks of an app of event loops, which has a machine of uncoupled cores to itself.

use crate::machine::event_loops::EventLoops;
use crate::machine::model::{Activity, MachineApp, MachineModel, MemoryUse};
use crate::machine::parts::DEFAULT_CONNECTIONS;
use crate::machine::presence::Presence;
use crate::model::{Checked, above_0, check_shape, conflict, refuse_if};
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
        let Some(card) = &self.card else {
            return conflict(
                "card",
                "event loops need a network card: give the machine a `[card]`",
            );
        };
        let sleep = "event loops sleep between requests: give at least one `[[idle]]`";
        refuse_if(self.idle.is_empty(), "idle", sleep)?;
        let cycles =
            "event loops have the cost of packets in cycles, in `stack`: write \"0s\" here";
        for (cost, what) in
            [(card.interrupt, "interrupt"), (card.receive, "receive"), (card.clean, "clean")]
        {
            refuse_if(cost > Nanos::ZERO, format!("card.{what}"), cycles)?;
        }
        let is_own = [DEFAULT_CONNECTIONS, loops.traffic.connections()].contains(&card.connections);
        let traffic = "event loops have their connections in `traffic`: leave this key out";
        refuse_if(!is_own, "card.connections", traffic)?;
        let alone = "an app of event loops has all cores to itself: leave the other apps out";
        refuse_if(self.app.len() > 1, "app", alone)?;
        let threads = "event loops are one thread for each core";
        refuse_if(app.threads != u32::from(self.cores), format!("{key}.threads"), threads)?;
        let is_plain = app.presence == Presence::default() && app.memory == MemoryUse::default();
        let plain = "an app of event loops is present for the whole run and needs no cache or \
                     memory: leave `presence` and `memory` out";
        refuse_if(!is_plain, key, plain)?;
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
            (!self.gate.is_empty(), "gate"),
            (self.dispatch.is_some(), "dispatch"),
            (self.scaling.as_ref().is_some_and(|it| has_latency(it.latency)), "scaling.latency"),
        ];
        let alike = "cores of event loops are alike and step on their own: leave it out";
        coupling.into_iter().try_for_each(|(is_there, key)| refuse_if(is_there, key, alike))
    }
}
