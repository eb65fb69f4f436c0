//! Self-serving workers: threads that look for their turn by themselves.
//!
//! A worker whose query has to wait at the gate sleeps for a while, wakes up, looks, and
//! sleeps again; its turn begins with the first look after the gate has admitted it. Such
//! threads cost core time without serving anything, and they end the rests of idle cores.
//! REEF (Li et al., SoCC 2025, sections 2.1 and 3.3) replaces them by on-call threads, which
//! sleep until they are signalled.

use super::gated::{ConnectionId, Stage, Wait};
use super::parts::Polling;
use super::{MachineSimulation, Timer};
use crate::model::{Checked, range};
use lull_measure::Nanos;

/// Shortest sleep between two looks. The simulator spends an event or more on each look.
const SHORTEST_SLEEP: Nanos = Nanos::from_micros(10);

/// Refuses workers that look so often that a run never ends, or that mostly look.
pub(super) fn check(polling: &Polling) -> Checked {
    let (every_ns, key) = (polling.every.0 as f64, ".polling.every");
    range(every_ns, polling.every >= SHORTEST_SLEEP, "at least 10 us", key)?;
    range(every_ns, polling.every > polling.work, "longer than a look (`work`)", key)
}

impl MachineSimulation {
    /// Begins the looks of a self-serving worker if its query has to wait.
    pub(super) fn begin_looks(&mut self, id: ConnectionId) {
        let gated = self.gated_mut(id.gate);
        let Some(polling) = gated.model.polling else { return };
        if gated.gate.waiting[id.index] == 0 {
            return;
        }
        gated.connections[id.index].wait = Wait::Looks;
        let at_ns = self.now_ns + polling.every.0;
        self.set_query_timer(at_ns, Timer::Look, id);
    }

    /// The gate has admitted a connection. Returns whether its worker has to see that first.
    pub(super) fn waits_for_look(&mut self, id: ConnectionId) -> bool {
        let wait = &mut self.gated_mut(id.gate).connections[id.index].wait;
        if *wait == Wait::None {
            return false;
        }
        *wait = Wait::Due;
        true
    }

    /// A worker wakes up to look.
    pub(super) fn look(&mut self, id: ConnectionId) {
        let gated = self.gated_mut(id.gate);
        let Some(polling) = gated.model.polling else { return };
        gated.connections[id.index].stage = Stage::Look;
        gated.runnable += 1;
        let thread = gated.connections[id.index].thread;
        self.threads[thread].left_ns = polling.work.0 as f64;
        self.place(thread, true);
    }

    /// A worker has looked.
    pub(super) fn looked(&mut self, id: ConnectionId) {
        let gated = self.gated_mut(id.gate);
        let connection = &mut gated.connections[id.index];
        connection.stage = Stage::Outside;
        if connection.wait == Wait::Due {
            connection.wait = Wait::None;
            return self.begin_query(id, Nanos::ZERO);
        }
        let Some(polling) = gated.model.polling else { return };
        let at_ns = self.now_ns + polling.every.0;
        self.set_query_timer(at_ns, Timer::Look, id);
    }
}
