//! A lane: equal cores of one server in one frequency domain.
//!
//! All running requests of a lane progress at the same pace, so one *virtual
//! clock* that counts the work done per request serves them all: a request
//! that starts at virtual time `v` with work `w` ends at `v + w`, whatever
//! happens to the pace meanwhile. A change of frequency or of the number of
//! sharers therefore touches the pace and no request.

use crate::heap::MinHeap;
use crate::order::{NEVER_NS, round_ns};

/// Running requests and the virtual clock of a group of cores. All of it in two
/// adjacent cache lines: with thousands of lanes each use reads it from memory.
#[derive(Debug, Clone, Default)]
#[repr(align(128))]
pub(crate) struct Lane {
    /// The running request that ends first, or [`Job::NONE`].
    first: Job,
    /// The other running requests by (virtual end, order of start).
    others: MinHeap<Job>,
    /// Number of running requests.
    running: u32,
    /// Virtual time: work per request since the lane was last empty, in work-nanoseconds.
    virtual_ns: f64,
    /// Progress of each request per nanosecond, and its inverse.
    pace: f64,
    inverse: f64,
    /// Real time of the last change.
    at_ns: u64,
    /// Cores.
    pub(crate) cores: u32,
    /// Cores held by requests that wait for room elsewhere.
    pub(crate) held: u32,
    /// Order of starts since the lane was last empty.
    starts: u32,
    /// Work per nanosecond of one core at the present frequency.
    speed: f64,
    /// Work per nanosecond of all cores, and the inverse.
    capacity: f64,
    inverse_capacity: f64,
    /// Core-nanoseconds of computing.
    pub(crate) busy_ns: u64,
    /// The server.
    pub(crate) server: u32,
    /// Whether requests share all cores evenly rather than having one each.
    shared: bool,
}

/// A running request: (virtual end, order of start, request) in one integer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Job(u128);

impl Job {
    /// Ends after every request.
    const NONE: Self = Self(u128::MAX);

    /// `end_ns` is never negative, so its bits order as the number does.
    fn new(end_ns: f64, start: u32, request: u32) -> Self {
        let low = u64::from(start) << 32 | u64::from(request);
        Self(u128::from(end_ns.to_bits()) << 64 | u128::from(low))
    }

    fn end_ns(self) -> f64 {
        f64::from_bits((self.0 >> 64) as u64)
    }

    fn start(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn request(self) -> u32 {
        self.0 as u32
    }
}

impl Lane {
    /// An idle lane.
    pub(crate) fn new(server: u32, cores: u32, speed: f64, shared: bool) -> Self {
        let mut lane = Self { first: Job::NONE, cores, server, shared, ..Self::default() };
        lane.set_speed(speed);
        lane
    }

    /// Brings clock and busy time up to now.
    #[inline(always)]
    pub(crate) fn advance(&mut self, now_ns: u64) {
        debug_assert!(now_ns >= self.at_ns, "time never goes back");
        let passed = now_ns - self.at_ns;
        self.at_ns = now_ns;
        self.busy_ns += passed * u64::from(self.busy());
        self.virtual_ns += passed as i64 as f64 * self.pace;
    }

    /// Cores that compute.
    #[inline(always)]
    fn busy(&self) -> u32 {
        self.running.min(self.cores)
    }

    /// Core-nanoseconds of computing up to a time not before the last change.
    pub(crate) fn busy_at(&self, now_ns: u64) -> u64 {
        self.busy_ns + (now_ns - self.at_ns) * u64::from(self.busy())
    }

    /// Requests that run or hold a core.
    #[inline(always)]
    pub(crate) fn occupied(&self) -> u32 {
        self.running + self.held
    }

    /// Whether a request could start at once on a core of its own.
    #[inline(always)]
    pub(crate) fn has_free_core(&self) -> bool {
        self.occupied() < self.cores
    }

    /// Pace that one more request would get.
    pub(crate) fn pace_of_next(&self) -> f64 {
        let sharers = f64::from(self.running + 1);
        self.speed * (f64::from(self.cores) / sharers).min(1.0)
    }

    /// Work per nanosecond of one core.
    pub(crate) fn speed(&self) -> f64 {
        self.speed
    }

    /// Starts a request; the lane must be advanced to now.
    #[inline(always)]
    pub(crate) fn start(&mut self, request: u32, work_ns: f64) {
        if self.running == 0 {
            self.start_alone(request, work_ns);
        } else {
            let job = Job::new(self.virtual_ns + work_ns, self.starts, request);
            let (first, other) =
                if job < self.first { (job, self.first) } else { (self.first, job) };
            self.first = first;
            self.others.push(other);
            self.starts = self.starts.wrapping_add(1);
        }
        self.running += 1;
        self.changed();
    }

    /// Starts a request where no other runs.
    #[inline(always)]
    fn start_alone(&mut self, request: u32, work_ns: f64) {
        // Restarting at 0 whenever the lane is empty keeps the virtual clock precise:
        // an f64 has nanosecond resolution only up to 2^53 ns.
        self.virtual_ns = 0.0;
        self.first = Job::new(work_ns, 0, request);
        self.starts = 1;
    }

    /// Returns the running request that ends first.
    #[inline(always)]
    pub(crate) fn finished(&self) -> u32 {
        self.first.request()
    }

    /// Ends it and starts another, in one where it was alone; the lane must be
    /// advanced to now.
    #[inline(always)]
    pub(crate) fn succeed(&mut self, request: u32, work_ns: f64) {
        if self.running == 1 {
            self.start_alone(request, work_ns);
        } else {
            self.finish();
            self.start(request, work_ns);
        }
    }

    /// Ends the request that ends first; the lane must be advanced to now.
    #[inline(always)]
    pub(crate) fn finish(&mut self) -> u32 {
        debug_assert!(self.running > 0, "a request that ends was running");
        let job = self.first;
        // The event's time was rounded to a nanosecond; the work was not.
        self.virtual_ns = job.end_ns();
        self.first = self.next_first();
        self.running -= 1;
        self.changed();
        job.request()
    }

    /// The running request that ends first, where others run beside it: it may
    /// have been started long ago.
    #[inline(always)]
    pub(crate) fn ends_first(&self) -> Option<u32> {
        (self.running > 1).then(|| self.first.request())
    }

    #[inline(always)]
    fn next_first(&mut self) -> Job {
        if self.running == 1 { Job::NONE } else { self.others.pop().unwrap_or(Job::NONE) }
    }

    /// Removes a running request and returns its remaining work.
    pub(crate) fn interrupt(&mut self, request: u32) -> f64 {
        let mut taken = self.first;
        if taken.request() == request {
            self.first = self.next_first();
        } else {
            self.others.retain(|job| {
                let found = job.request() == request;
                taken = if found { *job } else { taken };
                !found
            });
        }
        debug_assert_eq!(taken.request(), request, "an interrupted request was running");
        self.running -= 1;
        self.changed();
        (taken.end_ns() - self.virtual_ns).max(0.0)
    }

    /// Running requests with the order of their starts, in no particular order.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let first = (self.running > 0).then_some(self.first);
        let others = self.others.iter().copied();
        first.into_iter().chain(others).map(|job| (job.request(), job.start()))
    }

    /// Sets the work per nanosecond of each core; 0 while the frequency changes.
    /// The lane must be advanced to now.
    pub(crate) fn set_speed(&mut self, speed: f64) {
        self.speed = speed;
        self.capacity = speed * f64::from(self.cores);
        self.inverse_capacity = 1.0 / self.capacity;
        if !self.shared {
            self.pace = speed;
            self.inverse = 1.0 / speed;
        }
        self.changed();
    }

    /// Returns when the next request ends; [`NEVER_NS`] if none runs or the cores are stopped.
    #[inline(always)]
    pub(crate) fn next_end_ns(&self) -> u64 {
        if self.running == 0 || self.speed == 0.0 {
            return NEVER_NS;
        }
        let left_ns = (self.first.end_ns() - self.virtual_ns) * self.inverse;
        self.at_ns + round_ns(left_ns.max(0.0))
    }

    /// Sets the pace to the share of each running request.
    #[inline(always)]
    fn changed(&mut self) {
        if self.shared {
            let sharers = f64::from(self.running.max(self.cores));
            self.inverse = sharers * self.inverse_capacity;
            self.pace = self.capacity / sharers;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequency_change_stretches_what_is_left_and_nothing_else() {
        let mut lane = Lane::new(0, 1, 1.0, false);
        lane.start(7, 1000.0);
        assert_eq!(lane.next_end_ns(), 1000);
        lane.advance(400);
        lane.set_speed(0.5);
        assert_eq!(lane.next_end_ns(), 1600);
        lane.advance(1600);
        assert_eq!(lane.finish(), 7);
        assert_eq!(lane.busy_ns, 1600);
    }

    #[test]
    fn sharers_slow_each_other_only_beyond_the_cores() {
        let mut lane = Lane::new(0, 2, 1.0, true);
        for request in 0..2 {
            lane.start(request, 1000.0);
        }
        assert_eq!(lane.next_end_ns(), 1000);
        lane.start(2, 1000.0);
        lane.start(3, 1000.0);
        assert_eq!(lane.next_end_ns(), 2000);
        lane.advance(2000);
        let order: Vec<u32> = (0..4).map(|_| lane.finish()).collect();
        assert_eq!(order, [0, 1, 2, 3], "equal ends go in the order of the starts");
        assert_eq!(lane.busy_ns, 4000);
    }

    #[test]
    fn a_lane_at_speed_zero_pauses_and_continues_later() {
        let mut lane = Lane::new(0, 1, 1.0, true);
        lane.start(1, 100.0);
        lane.advance(50);
        lane.set_speed(0.0);
        assert_eq!(lane.next_end_ns(), NEVER_NS);
        lane.advance(80);
        lane.set_speed(1.0);
        assert_eq!(lane.next_end_ns(), 130);
    }

    #[test]
    fn an_interrupted_request_keeps_its_remaining_work() {
        let mut lane = Lane::new(0, 1, 2.0, false);
        lane.start(1, 1000.0);
        lane.advance(100);
        assert_eq!(lane.interrupt(1), 800.0);
        assert_eq!(lane.next_end_ns(), NEVER_NS);
    }
}
