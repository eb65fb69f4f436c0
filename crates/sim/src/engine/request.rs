//! Requests in flight: a slab of records linked into queues by index.

use std::hint::select_unpredictable;

/// No request, no lane, no server.
pub(crate) const NONE: u32 = u32::MAX;

/// Amounts of work and visits that a record has room for; further ones live elsewhere.
const INLINE: usize = 6;

/// Most records that are reserved in advance: 32 MB of address space.
const ROOM_MAX: usize = 1 << 18;

/// A request in flight, in two adjacent cache lines: with many thousand in
/// flight a request has left the cache before each of its turns. The first line has
/// what every turn uses, the second the amounts of work.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(128))]
pub(crate) struct Request {
    /// When its present work arrived at its server.
    pub(crate) queued_ns: u64,
    /// Next operation of its program.
    pub(crate) next_op: u32,
    /// The one behind it in the queue where it waits, or in the free list.
    link: u32,
    /// Servers of its first visits.
    servers: [u32; INLINE],
    /// When it arrived.
    pub(crate) started_ns: u64,
    /// Lane of which it holds a core without computing.
    pub(crate) held_lane: u32,
    /// The app.
    pub(crate) app: u16,
    /// Dense priority class; 0 goes first.
    pub(crate) class: u8,
    /// Whether it keeps its core when its present work is done.
    pub(crate) keeps_core: bool,
    /// Written by [`Requests::expect`] alone, as is `expected_too`.
    expected: u64,
    /// Its first amounts of work.
    amounts: [f64; INLINE],
    /// Work of its present operation; the rest of it after an interruption.
    pub(crate) work_ns: f64,
    expected_too: u64,
}

/// All requests.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    records: Vec<Request>,
    /// Amounts and servers beyond those in the records, this many per request.
    more_amounts: Vec<f64>,
    more_servers: Vec<u32>,
    amounts_each: usize,
    servers_each: usize,
    free: u32,
    live: u32,
}

/// First in, first out, linked through the requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fifo {
    /// The first, or [`NONE`].
    head: u32,
    /// The last, if there is one.
    tail: u32,
}

impl Requests {
    /// Creates a slab with room for `requests`, each with at most this many amounts of
    /// work and visits. Reserved room costs address space only, while growing copies
    /// all records and has them in memory twice for a moment.
    pub(crate) fn new(requests: usize, amounts: usize, visits: usize) -> Self {
        Self {
            records: Vec::with_capacity(requests.min(ROOM_MAX)),
            more_amounts: Vec::new(),
            more_servers: Vec::new(),
            amounts_each: amounts.saturating_sub(INLINE),
            servers_each: visits.saturating_sub(INLINE),
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
        let (link, held_lane) = (self.free, NONE);
        self.records.push(Request { link, held_lane, ..Request::default() });
        self.free = self.records.len() as u32 - 1;
        self.more_amounts.resize(self.records.len() * self.amounts_each, 0.0);
        self.more_servers.resize(self.records.len() * self.servers_each, 0);
    }

    /// Ends a request, whose index may be used again; returns its last record.
    #[inline(always)]
    pub(crate) fn drop(&mut self, request: u32) -> &Request {
        debug_assert!(self.live > 0, "only a request in flight ends");
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

    /// Prefetches a record that will soon be used: with many requests in flight it has
    /// left the cache, and the work before its turn hides the latency of memory. It is
    /// a write because later instructions would wait for a read to complete.
    #[inline(always)]
    pub(crate) fn expect(&mut self, request: u32) {
        if let Some(record) = self.records.get_mut(request as usize) {
            record.expected = 1;
            record.expected_too = 1;
        }
    }

    /// Its class, without a claim to change it.
    pub(crate) fn class(&self, request: u32) -> u8 {
        self.records[request as usize].class
    }

    /// Its amounts of work: those in its record, then the others.
    #[inline(always)]
    pub(crate) fn amounts(&mut self, request: u32) -> impl Iterator<Item = &mut f64> {
        let more = request as usize * self.amounts_each;
        let more = &mut self.more_amounts[more..more + self.amounts_each];
        self.records[request as usize].amounts.iter_mut().chain(more)
    }

    /// Its amount of work number `which`.
    #[inline(always)]
    pub(crate) fn amount(&mut self, request: u32, which: usize) -> &mut f64 {
        let inline = &mut self.records[request as usize].amounts;
        if which < INLINE {
            return &mut inline[which];
        }
        &mut self.more_amounts[request as usize * self.amounts_each + which - INLINE]
    }

    /// Server of its visit number `which`.
    #[inline(always)]
    pub(crate) fn server(&mut self, request: u32, which: usize) -> &mut u32 {
        let inline = &mut self.records[request as usize].servers;
        if which < INLINE {
            return &mut inline[which];
        }
        &mut self.more_servers[request as usize * self.servers_each + which - INLINE]
    }
}

impl Fifo {
    /// An empty queue.
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE };

    /// Appends without a branch: in a busy queue, whether it is empty cannot be
    /// predicted.
    #[inline(always)]
    pub(crate) fn push(&mut self, requests: &mut Requests, request: u32) {
        let is_first = self.head == NONE;
        // The first request links to itself here; the next line sets its link to NONE.
        let before = select_unpredictable(is_first, request, self.tail);
        requests.records[before as usize].link = request;
        requests.records[request as usize].link = NONE;
        self.head = select_unpredictable(is_first, request, self.head);
        self.tail = request;
    }

    /// Adds before the first.
    pub(crate) fn push_front(&mut self, requests: &mut Requests, request: u32) {
        requests.records[request as usize].link = self.head;
        if self.head == NONE {
            self.tail = request;
        }
        self.head = request;
    }

    /// Removes the first request and returns it with the work of its present operation.
    #[inline(always)]
    pub(crate) fn pop(&mut self, requests: &Requests) -> Option<(u32, f64)> {
        let first = self.head;
        if first == NONE {
            return None;
        }
        let record = &requests.records[first as usize];
        self.head = record.link;
        Some((first, record.work_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::mem::{offset_of, size_of};

    #[test]
    fn a_record_is_two_cache_lines_with_the_amounts_in_the_second() {
        assert_eq!(size_of::<Request>(), 128);
        assert_eq!(offset_of!(Request, amounts), 64);
    }

    proptest! {
        #[test]
        fn a_queue_through_the_slab_is_first_in_first_out(
            moves in prop::collection::vec(0u8..4, 0..200),
        ) {
            let mut requests = Requests::new(0, 1, 1);
            let (mut queue, mut model) = (Fifo::EMPTY, VecDeque::new());
            for kind in moves {
                let fresh = requests.take(0, 0, 0);
                match kind {
                    0 | 1 => { queue.push(&mut requests, fresh); model.push_back(fresh); }
                    2 => { queue.push_front(&mut requests, fresh); model.push_front(fresh); }
                    _ => {
                        requests.drop(fresh);
                        let first = queue.pop(&requests).map(|(first, _)| first);
                        prop_assert_eq!(first, model.pop_front());
                        first.into_iter().for_each(|index| { requests.drop(index); });
                    }
                }
                prop_assert_eq!(requests.live() as usize, model.len());
            }
        }
    }
}
