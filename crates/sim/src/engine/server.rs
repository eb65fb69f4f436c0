//! Servers: a queue in front of lanes of cores, and their counts.

use super::request::{Fifo, NONE};
use crate::model::Discipline;
use std::collections::VecDeque;

/// One server, in two adjacent cache lines.
#[derive(Debug, Clone)]
#[repr(align(128))]
pub(crate) struct Server {
    /// First of its lanes, and how many.
    pub(crate) first_lane: u32,
    pub(crate) lanes: u32,
    /// Requests that wait for a core, where there are no priorities.
    pub(crate) queue: Fifo,
    /// First of its queues by priority class, where there are.
    pub(crate) first_queue: u32,
    /// Its threads, an index of a pool, or [`NONE`].
    pub(crate) threads: u32,
    /// The tier.
    pub(crate) tier: u32,
    /// Requests that chose it and have not left.
    pub(crate) pending: u32,
    /// Order in which cores serve.
    pub(crate) discipline: Discipline,
    /// The counts.
    pub(crate) counts: Counts,
}

/// The counts of a server; zeroed when the warm-up ends.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Sum of departure times minus sum of arrival times. With `now` times the number
    /// present added, it is the exact integral over time of the number present, for
    /// one addition per arrival and departure.
    pub(crate) moments_ns: i128,
    /// Requests at the cores when counting began.
    stayed: u64,
    /// Pieces of work that arrived, and that left.
    pub(crate) arrivals: u64,
    pub(crate) departures: u64,
    /// Sum of the times between coming and leaving.
    pub(crate) response_ns: u128,
    /// Calls answered.
    pub(crate) answers: u64,
}

impl Server {
    /// A piece of work arrives.
    #[inline(always)]
    pub(crate) fn count_arrival(&mut self, now_ns: u64) {
        self.counts.arrivals += 1;
        self.counts.moments_ns -= i128::from(now_ns);
    }

    /// A piece of work that arrived at `queued_ns` leaves.
    #[inline(always)]
    pub(crate) fn count_departure(&mut self, now_ns: u64, queued_ns: u64) {
        self.counts.departures += 1;
        self.counts.moments_ns += i128::from(now_ns);
        self.counts.response_ns += u128::from(now_ns - queued_ns);
    }

    /// Requests at its cores: waiting, running, or holding a core.
    pub(crate) fn present(&self) -> u32 {
        debug_assert!(
            self.counts.stayed + self.counts.arrivals >= self.counts.departures,
            "only work that arrived departs"
        );
        (self.counts.stayed + self.counts.arrivals - self.counts.departures) as u32
    }

    /// Restarts all counts.
    pub(crate) fn forget(&mut self, now_ns: u64) {
        let stayed = self.present();
        let moments_ns = -i128::from(now_ns) * i128::from(stayed);
        self.counts = Counts { stayed: stayed.into(), moments_ns, ..Counts::default() };
    }

    /// Integral of the number present since counting began.
    pub(crate) fn area_ns(&self, now_ns: u64) -> u128 {
        (self.counts.moments_ns + i128::from(now_ns) * i128::from(self.present())) as u128
    }

    /// The queue in which a request of this class waits.
    pub(crate) fn queue_of<'q>(&'q mut self, queues: &'q mut [Fifo], class: u8) -> &'q mut Fifo {
        if self.has_classes() {
            &mut queues[self.first_queue as usize + class as usize]
        } else {
            &mut self.queue
        }
    }

    /// Whether priorities matter here.
    pub(crate) fn has_classes(&self) -> bool {
        matches!(self.discipline, Discipline::Priority | Discipline::Preemptive)
    }
}

/// Permits, and the requests that wait for one.
#[derive(Debug, Clone)]
pub(crate) struct Permits {
    /// Free permits.
    pub(crate) free: u32,
    /// How many may wait; [`NONE`] is no limit.
    backlog: u32,
    /// Indices in a buffer, not links through the requests: those at the end
    /// of a long queue have left the cache, and would be touched to link one more.
    waiting: VecDeque<u32>,
    /// Requests refused.
    pub(crate) refused: u64,
}

/// The result of requesting a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermitOutcome {
    Granted,
    Waits,
    Refused,
}

impl Permits {
    /// A pool with all permits free.
    pub(crate) fn new(size: u32, backlog: Option<u32>) -> Self {
        let backlog = backlog.unwrap_or(NONE);
        Self { free: size, backlog, waiting: VecDeque::new(), refused: 0 }
    }

    /// Takes a permit, or queues, or is refused.
    #[inline]
    pub(crate) fn ask(&mut self, request: u32) -> PermitOutcome {
        if self.free > 0 {
            self.free -= 1;
            return PermitOutcome::Granted;
        }
        if self.waiting.len() as u64 >= u64::from(self.backlog) {
            self.refused += 1;
            return PermitOutcome::Refused;
        }
        self.waiting.push_back(request);
        PermitOutcome::Waits
    }

    /// Gives a permit back; it goes to the request that waited longest, if any.
    #[inline]
    pub(crate) fn give_back(&mut self) -> Option<u32> {
        let next = self.waiting.pop_front();
        self.free += u32::from(next.is_none());
        next
    }

    /// Returns the request that gets the next permit to be given back.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.waiting.front().copied()
    }
}
