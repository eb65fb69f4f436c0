//! Requests in flight: a slab of records linked into queues by index.

/// No request, no lane, no server.
pub(crate) const NONE: u32 = u32::MAX;

/// A request in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// When it arrived.
    pub(crate) started_ns: u64,
    /// When its present work came to its server.
    pub(crate) queued_ns: u64,
    /// Next operation of its program.
    pub(crate) next_op: u32,
    /// The one behind it in the queue where it waits, or in the free list.
    link: u32,
    /// Lane of which it holds a core without computing.
    pub(crate) held_lane: u32,
    /// Work of its present operation; what is left of it after an interruption.
    pub(crate) work_ns: f64,
    /// Which app.
    pub(crate) app: u16,
    /// Dense priority class; 0 goes first.
    pub(crate) class: u8,
    /// Whether it keeps its core when its present work is done.
    pub(crate) keeps_core: bool,
}

/// One call of a request: which server, since when.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Visit {
    /// When the server was chosen.
    pub(crate) called_ns: u64,
    /// The server.
    pub(crate) server: u32,
}

/// All requests, with the same number of amounts of work and of visits each.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    records: Vec<Request>,
    amounts: Vec<f64>,
    visits: Vec<Visit>,
    /// Binary logarithms of how many amounts and visits each has room for.
    amounts_shift: u32,
    visits_shift: u32,
    free: u32,
    live: u32,
}

/// First in, first out, linked through the requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
}

impl Requests {
    /// No requests yet.
    pub(crate) fn new(amounts_each: usize, visits_each: usize) -> Self {
        Self {
            records: Vec::new(),
            amounts: Vec::new(),
            visits: Vec::new(),
            amounts_shift: amounts_each.next_power_of_two().trailing_zeros(),
            visits_shift: visits_each.next_power_of_two().trailing_zeros(),
            free: NONE,
            live: 0,
        }
    }

    /// Requests in flight.
    #[inline(always)]
    pub(crate) fn live(&self) -> u32 {
        self.live
    }

    /// A fresh request of an app.
    #[inline(always)]
    pub(crate) fn take(&mut self, app: u16, class: u8, now_ns: u64) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        self.live += 1;
        let index = self.free;
        let record = &mut self.records[index as usize];
        self.free = record.link;
        record.started_ns = now_ns;
        record.app = app;
        record.class = class;
        index
    }

    /// Adds a free record.
    #[cold]
    fn grow(&mut self) {
        self.records.push(Request {
            started_ns: 0,
            queued_ns: 0,
            next_op: 0,
            link: self.free,
            held_lane: NONE,
            work_ns: 0.0,
            app: 0,
            class: 0,
            keeps_core: false,
        });
        self.free = self.records.len() as u32 - 1;
        self.amounts.resize(self.records.len() << self.amounts_shift, 0.0);
        self.visits.resize(self.records.len() << self.visits_shift, Visit::default());
    }

    /// Ends a request, whose index may be used again; returns its last record.
    #[inline(always)]
    pub(crate) fn drop(&mut self, request: u32) -> &Request {
        let record = &mut self.records[request as usize];
        record.link = self.free;
        self.free = request;
        self.live -= 1;
        record
    }

    /// Its record.
    #[inline(always)]
    pub(crate) fn get(&mut self, request: u32) -> &mut Request {
        &mut self.records[request as usize]
    }

    /// Its class, without a claim to change it.
    pub(crate) fn class(&self, request: u32) -> u8 {
        self.records[request as usize].class
    }

    /// Its amount of work number `which`.
    #[inline(always)]
    pub(crate) fn amount(&mut self, request: u32, which: usize) -> &mut f64 {
        &mut self.amounts[((request as usize) << self.amounts_shift) + which]
    }

    /// Its visit number `which`.
    #[inline(always)]
    pub(crate) fn visit(&mut self, request: u32, which: usize) -> &mut Visit {
        &mut self.visits[((request as usize) << self.visits_shift) + which]
    }
}

impl Fifo {
    /// An empty queue.
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// Adds behind the last.
    #[inline(always)]
    pub(crate) fn push(&mut self, requests: &mut Requests, request: u32) {
        requests.records[request as usize].link = NONE;
        if self.tail == NONE {
            self.head = request;
        } else {
            requests.records[self.tail as usize].link = request;
        }
        self.tail = request;
    }

    /// Adds before the first.
    pub(crate) fn push_front(&mut self, requests: &mut Requests, request: u32) {
        requests.records[request as usize].link = self.head;
        self.head = request;
        if self.tail == NONE {
            self.tail = request;
        }
    }

    /// Takes the first.
    #[inline(always)]
    pub(crate) fn pop(&mut self, requests: &Requests) -> Option<u32> {
        let first = self.head;
        if first == NONE {
            return None;
        }
        self.head = requests.records[first as usize].link;
        if self.head == NONE {
            self.tail = NONE;
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn a_queue_through_the_slab_is_first_in_first_out(
            moves in prop::collection::vec(0u8..4, 0..200),
        ) {
            let mut requests = Requests::new(1, 1);
            let (mut queue, mut model) = (Fifo::EMPTY, VecDeque::new());
            for kind in moves {
                let fresh = requests.take(0, 0, 0);
                match kind {
                    0 | 1 => { queue.push(&mut requests, fresh); model.push_back(fresh); }
                    2 => { queue.push_front(&mut requests, fresh); model.push_front(fresh); }
                    _ => {
                        requests.drop(fresh);
                        let first = queue.pop(&requests);
                        prop_assert_eq!(first, model.pop_front());
                        first.into_iter().for_each(|index| { requests.drop(index); });
                    }
                }
                prop_assert_eq!(requests.live() as usize, model.len());
            }
        }
    }
}
