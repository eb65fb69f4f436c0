//! Assignment of requests to cores, and the common pace.

use super::{DispatchSimulation, NO_CORE_TYPE};

impl DispatchSimulation {
    /// Starts a request on a core of a type, from the queue or another core.
    pub(super) fn go(&mut self, slot: u32, kind: usize) {
        let mut request = self.slots[slot as usize];
        let left = self.work_left(&request);
        let mut cost = 0.0;
        if request.kind == NO_CORE_TYPE {
            self.take(kind);
            request.at = self.running.len();
            self.running.push(slot);
            self.ends.push(f64::INFINITY);
        } else {
            self.counts.moves += 1;
            cost = self.model.move_cost.0 as f64;
            self.busy[request.kind] -= 1;
            if !self.ladder.scales() {
                self.free[request.kind] += 1;
                self.free[kind] -= 1;
            }
            self.busy[kind] += 1;
        }
        request.kind = kind;
        request.left = left;
        request.end = self.virtual_ns + cost + left / self.speeds[kind];
        self.ends[request.at] = request.end;
        self.slots[slot as usize] = request;
        self.changed();
    }

    /// Removes a request from the list of running requests.
    pub(super) fn stop(&mut self, at: usize) {
        self.running.swap_remove(at);
        self.ends.swap_remove(at);
        if let Some(moved) = self.running.get(at) {
            self.slots[*moved as usize].at = at;
        }
    }

    fn take(&mut self, kind: usize) {
        debug_assert!(self.free[kind] > 0, "a core of this type is free");
        self.busy[kind] += 1;
        self.count_free(kind, |free| free - 1);
    }

    pub(super) fn give_back(&mut self, kind: usize) {
        debug_assert!(self.busy[kind] > 0, "a core of this type is busy");
        self.busy[kind] -= 1;
        self.count_free(kind, |free| free + 1);
    }

    fn count_free(&mut self, kind: usize, change: impl Fn(u32) -> u32) {
        if self.ladder.scales() {
            self.free.iter_mut().for_each(|free| *free = change(*free));
        } else {
            self.free[kind] = change(self.free[kind]);
        }
    }

    /// Recomputes pace and power after cores started, stopped or changed.
    pub(super) fn changed(&mut self) {
        let each = self.busy.iter().zip(self.ladder.types());
        let (mut speed, mut watts) = (0.0, 0.0);
        for (busy, one) in each {
            speed += f64::from(*busy) * one.speed;
            watts += f64::from(*busy) * one.watts.0;
        }
        self.pace = 1.0 / (1.0 + self.model.interference * (speed - 1.0).max(0.0));
        self.watts = watts + self.static_watts;
    }
}
