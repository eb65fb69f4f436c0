//! Work of tiers whose servers are machines with cores, which run outside the engine.
//!
//! A piece of work leaves the engine at the instant at which it reaches its server, and comes
//! back at the instant at which the machine has done it. The request continues from there; what
//! it holds meanwhile (threads of tiers, permits of pools) it keeps.

use super::Engine;

/// A piece of work for a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AwayWork {
    /// Index of its server in the engine.
    pub(crate) server: u32,
    /// The request, by which the machine returns it.
    pub(crate) request: u32,
    /// Work, in nanoseconds alone.
    pub(crate) work_ns: f64,
}

impl Engine {
    /// Whether there is work for machines that has not been taken.
    pub(crate) fn has_away(&self) -> bool {
        !self.away.is_empty()
    }

    /// Takes the work that reached servers that are machines, in order.
    pub(crate) fn take_away(&mut self) -> Vec<AwayWork> {
        std::mem::take(&mut self.away)
    }

    /// Sends a piece of work to a server that is a machine; the request continues at `then`.
    #[inline(never)]
    pub(super) fn send_away(&mut self, request: u32, visit: u8, amount: u16, then: u32) {
        let server = *self.requests.server(request, visit.into());
        let work_ns = *self.requests.amount(request, amount.into());
        let record = self.requests.get(request);
        record.next_op = then;
        record.queued_ns = self.now_ns;
        self.servers[server as usize].count_arrival(self.now_ns);
        self.away.push(AwayWork { server, request, work_ns });
        // The run stops after this event, so that the machine receives the work now.
        self.pause_at = 0;
    }

    /// A machine has done a piece of work, now.
    pub(crate) fn work_returns(&mut self, server: u32, request: u32) {
        let record = self.requests.get(request);
        let (next_op, queued_ns) = (record.next_op, record.queued_ns);
        self.servers[server as usize].count_departure(self.now_ns, queued_ns);
        self.events += 1;
        self.proceed(request, next_op);
        self.drain_ready();
    }
}
