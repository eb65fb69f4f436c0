//! Reads the request of each open connection at short intervals, for a dispatcher of threads.
//!
//! A page has room for thousands of connections, and reading all of them every millisecond would
//! take a good part of a core. So the open ones are remembered. Records are offered to new
//! connections in turn, so that only those offered since the last reading can be new. A
//! connection that claims its record late is found by a look at all records, once in a while.
//! Servers count the offers, so a faulty one must not cause such a look at each reading.

use crate::sys::page::SharedPage;
use lull_oncall::{CONNECTIONS, GateEntry, Id, Page, Record};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Readings between two checks of all records.
const READINGS_BETWEEN_SWEEPS: u32 = 1000;
/// The same after more than [`OFFERS_MAX`] offers between two readings: a tenth of a second for a
/// dispatcher.
const READINGS_BETWEEN_SWEEPS_MIN: u32 = 100;
/// Offers between two readings whose records are checked one by one.
const OFFERS_MAX: u32 = 1000;

/// The request of a connection, as in the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestSeen {
    /// The connection's number in the page.
    pub id: Id,
    /// Its place among the connections that have had this number.
    pub generation: u32,
    /// The process that serves it; 0 if it is closed.
    pub pid: u32,
    /// The thread that read its last request.
    pub tid: u32,
    /// When its pending request arrived, on the monotonic clock.
    pub since_ns: Option<u64>,
    /// Whether that request waits at the gate now.
    pub waits: bool,
    /// Its requests that were answered, and the sum of their latencies; both wrap.
    pub queries: u64,
    /// See `queries`. Waits at the gate are a part of it.
    pub latency_ns: u64,
    /// The sum of its waits at the gate that have ended; it wraps.
    pub parked_ns: u64,
}

impl RequestSeen {
    fn read(page: &Page, id: Id, record: &Record) -> Self {
        // The generation first: if another connection gets the record meanwhile, the sums of the
        // former one must not count as where the new one began.
        let generation = record.generation();
        // Then the sums: a request that ends between the loads is not pending and not among the
        // answers. The next reading has its answer.
        let (queries, latency_ns) = (record.queries(), record.latency_sum_ns());
        let since_ns = record.pending_since_ns();
        Self {
            id,
            generation,
            pid: record.pid(),
            tid: record.tid(),
            since_ns,
            // Read after the arrival, which a worker notes before it waits.
            waits: page.gate().entry(id).is_some_and(GateEntry::is_waiting),
            queries,
            latency_ns,
            parked_ns: record.parked_ns(),
        }
    }
}

/// A reader of the requests of all open connections.
#[derive(Debug)]
pub struct LiveRequests {
    page: Arc<SharedPage>,
    live: BTreeSet<Id>,
    /// Records that were offered before the last reading and had no connection by then.
    unclaimed: Vec<Id>,
    /// The number of offers at the last reading.
    offers: u32,
    readings_since_sweep: u32,
    /// Whether offers since the last check of all records were too many to check one by one.
    is_behind: bool,
    read: Vec<RequestSeen>,
}

impl LiveRequests {
    pub(super) fn new(page: Arc<SharedPage>) -> Self {
        let offers = page.header().offers();
        let (live, unclaimed, read) = (BTreeSet::new(), Vec::new(), Vec::new());
        // The first reading checks all records.
        let readings_since_sweep = READINGS_BETWEEN_SWEEPS;
        Self { page, live, unclaimed, offers, readings_since_sweep, is_behind: false, read }
    }

    /// Reads the request of each open connection, and once more each connection that was closed
    /// since the last reading.
    pub fn read(&mut self) -> &[RequestSeen] {
        self.find_new();
        self.read.clear();
        for id in &self.live {
            let Some(record) = self.page.record(*id) else { continue };
            self.read.push(RequestSeen::read(&self.page, *id, record));
        }
        for closed in self.read.iter().filter(|seen| seen.pid == 0) {
            self.live.remove(&closed.id);
        }
        &self.read
    }

    /// Adds the connections that were opened since the last reading.
    fn find_new(&mut self) {
        let offers = self.page.header().offers();
        let new = offers.wrapping_sub(std::mem::replace(&mut self.offers, offers));
        let is_open = |record: &Record| record.pid() != 0;
        self.is_behind |= new > OFFERS_MAX;
        self.readings_since_sweep += 1;
        let between = match self.is_behind {
            true => READINGS_BETWEEN_SWEEPS_MIN,
            false => READINGS_BETWEEN_SWEEPS,
        };
        if self.readings_since_sweep >= between {
            (self.readings_since_sweep, self.is_behind) = (0, false);
            let open = self.page.records().filter(|(_, record)| is_open(record));
            self.live.extend(open.map(|(id, _)| id));
            self.unclaimed.clear();
            return;
        }
        if new > OFFERS_MAX {
            return;
        }
        let late = std::mem::take(&mut self.unclaimed);
        let offered = (1..=new).map(|back| Id(offers.wrapping_sub(back) % CONNECTIONS as u32));
        let offered: Vec<Id> = offered.collect();
        let is_claimed = |id: &Id| self.page.record(*id).is_some_and(is_open);
        self.live.extend(late.into_iter().filter(is_claimed));
        let (open, unclaimed): (Vec<Id>, Vec<Id>) = offered.into_iter().partition(is_claimed);
        self.live.extend(open);
        self.unclaimed = unclaimed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oncall::{Rules, Runtime};
    use crate::testing::NoWake;
    use lull_oncall::{Mode, Peer, Settings};

    fn runtime() -> Runtime {
        Runtime::start(&Settings::default(), &Rules::default()).unwrap()
    }

    fn open(runtime: &Runtime) -> Id {
        let id = runtime.page.header().offer_record();
        assert!(runtime.page.record(id).unwrap().claim(7, 3, Peer::default(), 0));
        id
    }

    fn ids(requests: &mut LiveRequests) -> Vec<(u32, u32)> {
        requests.read().iter().map(|seen| (seen.id.0, seen.pid)).collect()
    }

    #[test]
    fn open_connections_are_read_and_closed_ones_once_more() {
        let runtime = runtime();
        let first = open(&runtime);
        let mut requests = runtime.live_requests();
        assert_eq!(ids(&mut requests), [(first.0, 7)], "open before the reader was made");
        let second = open(&runtime);
        assert_eq!(ids(&mut requests), [(first.0, 7), (second.0, 7)]);
        assert!(runtime.page.record(first).unwrap().release(7));
        assert_eq!(ids(&mut requests), [(first.0, 0), (second.0, 7)]);
        assert_eq!(ids(&mut requests), [(second.0, 7)]);
    }

    #[test]
    fn a_record_that_is_claimed_late_is_found() {
        let runtime = runtime();
        let mut requests = runtime.live_requests();
        requests.read();
        let [soon, late] = [0, 1].map(|_| runtime.page.header().offer_record());
        let claim = |id: Id| runtime.page.record(id).unwrap().claim(7, 3, Peer::default(), 0);
        assert!(requests.read().is_empty());
        assert!(claim(soon));
        assert_eq!(ids(&mut requests), [(soon.0, 7)], "at the next reading");
        assert!(claim(late));
        for _ in 0..READINGS_BETWEEN_SWEEPS {
            requests.read();
        }
        assert_eq!(ids(&mut requests), [(soon.0, 7), (late.0, 7)], "by a look at all records");
    }

    #[test]
    fn any_number_of_offers_is_read_by_few_looks_at_all_records() {
        let runtime = runtime();
        let mut requests = runtime.live_requests();
        requests.read();
        let all: Vec<Id> =
            (0..CONNECTIONS + 5).map(|_| runtime.page.header().offer_record()).collect();
        assert!(runtime.page.record(all[9]).unwrap().claim(7, 3, Peer::default(), 0));
        for _ in 1..READINGS_BETWEEN_SWEEPS_MIN {
            assert!(requests.read().is_empty(), "looked at all records too soon");
        }
        assert_eq!(ids(&mut requests), [(all[9].0, 7)]);
    }

    #[test]
    fn a_request_that_waits_at_the_gate_is_known_as_such() {
        let runtime = runtime();
        let agent_lease_ns = 1_000_000_000;
        let closed = Settings { mode: Mode::Post, cap: 1, agent_lease_ns, ..Settings::default() };
        runtime.set(&closed);
        let mut requests = runtime.live_requests();
        for id in [open(&runtime), open(&runtime)] {
            let now_ns = super::super::now().0;
            runtime.page.record(id).unwrap().query_arrived(5, now_ns);
            runtime.page.gate().arrive(id, false, now_ns, &NoWake);
        }
        let waits: Vec<bool> = requests.read().iter().map(|seen| seen.waits).collect();
        assert_eq!(waits, [false, true]);
    }
}
