//! A bounded, systematic sample of single requests: every n-th, and n is stated.
//!
//! A histogram holds how long requests took, not when they arrived. Replaying a
//! run needs both for some requests, and all requests are too many to keep.

use crate::Nanos;
use serde::{Deserialize, Serialize};

/// One request of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampledRequest {
    /// When it was due.
    pub due_ns: Nanos,
    /// How long it waited in its client for a connection.
    pub wait_ns: Nanos,
    /// Time from when it was due to its answer.
    pub latency_ns: Nanos,
}

/// Every n-th of some requests, in the order of their answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestSample {
    /// The sample has one request of this many.
    pub one_in: u64,
    /// The requests.
    pub requests: Vec<SampledRequest>,
}

/// No requests, of which every one is in the sample.
impl Default for RequestSample {
    fn default() -> Self {
        Self { one_in: 1, requests: Vec::new() }
    }
}

impl RequestSample {
    /// Whether it has no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds another sample; the finer of both is thinned to the rate of the coarser.
    pub fn merge(&mut self, other: &Self) {
        let one_in = self.one_in.max(other.one_in);
        self.thin_to(one_in);
        let mut other = other.clone();
        other.thin_to(one_in);
        // The rate of both is `one_in`, or finer by less than one request where it does
        // not divide: the rates of clients are powers of two.
        self.requests.append(&mut other.requests);
        self.one_in = one_in;
    }

    /// Leaves out every other request until there are at most `most`.
    pub fn thin(&mut self, most: usize) {
        // Each round halves the requests, also where `one_in` cannot grow any more: the number
        // of rounds depends on the number of requests and not on `one_in`.
        while self.requests.len() > most.max(1) {
            self.keep_every(2);
            self.one_in = self.one_in.saturating_mul(2);
        }
    }

    fn thin_to(&mut self, one_in: u64) {
        let step = usize::try_from(one_in / self.one_in.max(1)).unwrap_or(usize::MAX);
        if step > 1 {
            self.keep_every(step);
            self.one_in = one_in;
        }
    }

    fn keep_every(&mut self, step: usize) {
        self.requests = self.requests.iter().copied().step_by(step).collect();
    }

    /// Instants counted from `begin` on.
    pub fn since(mut self, begin: Nanos) -> Self {
        for request in &mut self.requests {
            request.due_ns = request.due_ns.saturating_sub(begin);
        }
        self
    }
}

/// Takes the sample of one window after the other, at most this many requests each.
#[derive(Debug)]
pub struct Sampler {
    most: usize,
    /// Requests ever seen: the phase continues from window to window, so that the first request of
    /// a window, which ends a longer gap than most, is not always taken.
    seen: u64,
    one_in: u64,
    taken: Vec<(u64, SampledRequest)>,
}

impl Sampler {
    /// Creates a sample of at most `most` requests a window.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), seen: 0, one_in: 1, taken: Vec::with_capacity(most) }
    }

    /// A request was answered.
    #[inline]
    pub fn see(&mut self, request: impl FnOnce() -> SampledRequest) {
        let number = self.seen;
        self.seen += 1;
        if !number.is_multiple_of(self.one_in) {
            return;
        }
        if self.taken.len() == self.most {
            self.one_in = self.one_in.saturating_mul(2);
            let one_in = self.one_in;
            self.taken.retain(|(number, _)| number.is_multiple_of(one_in));
            if !number.is_multiple_of(one_in) {
                return;
            }
        }
        self.taken.push((number, request()));
    }

    /// The sample since the last call. The next one begins at twice its
    /// density, so that a load that falls is sampled as densely as it can be.
    pub fn take(&mut self) -> RequestSample {
        let requests = self.taken.drain(..).map(|(_, request)| request).collect();
        let one_in = self.one_in;
        self.one_in = (one_in / 2).max(1);
        RequestSample { one_in, requests }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64) -> SampledRequest {
        SampledRequest {
            due_ns: Nanos(number),
            wait_ns: Nanos::ZERO,
            latency_ns: Nanos::from_micros(50),
        }
    }

    fn window(sampler: &mut Sampler, requests: std::ops::Range<u64>) -> RequestSample {
        requests.for_each(|number| sampler.see(|| request(number)));
        sampler.take()
    }

    #[test]
    fn a_sample_is_every_nth_request_and_bounded() {
        let mut sampler = Sampler::new(16);
        let mut first = 0;
        for count in [3, 16, 17, 1000, 1000, 40, 0, 5] {
            let sample = window(&mut sampler, first..first + count);
            first += count;
            assert!(sample.requests.len() <= 16 && sample.one_in.is_power_of_two());
            let expected = count.div_ceil(sample.one_in);
            assert!(expected.abs_diff(sample.requests.len() as u64) <= 1, "{count}: {sample:?}");
            assert!(sample.requests.iter().all(|one| one.due_ns.0 % sample.one_in == 0));
        }
    }

    #[test]
    fn few_requests_are_all_in_the_sample_again_after_many() {
        let mut sampler = Sampler::new(4);
        window(&mut sampler, 0..1000);
        (0..10).for_each(|_| drop(sampler.take()));
        assert_eq!(window(&mut sampler, 0..3).requests.len(), 3);
    }

    #[test]
    fn merged_samples_have_the_rate_that_they_state() {
        let mut fine = RequestSample { one_in: 1, requests: (0..32).map(request).collect() };
        let coarse = RequestSample { one_in: 8, requests: (0..5).map(request).collect() };
        fine.merge(&coarse);
        assert_eq!((fine.one_in, fine.requests.len()), (8, 4 + 5));
        fine.thin(4);
        assert_eq!((fine.one_in, fine.requests.len()), (32, 3));
        fine.thin(0);
        assert_eq!(fine.requests.len(), 1, "thinning comes to an end");
    }

    /// With `one_in` = 2^63 and 17 requests, thinning to 16 never ended.
    #[test]
    fn thinning_ends_at_any_rate() {
        for one_in in [0, 1, 3, 1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX] {
            let sample = RequestSample { one_in, requests: (0..17).map(request).collect() };
            let mut merged = RequestSample::default();
            merged.merge(&sample);
            merged.thin(16);
            assert_eq!(merged.requests.len(), 9, "one in {one_in}");
            merged.merge(&RequestSample { one_in: 5, ..sample });
            merged.thin(1);
            assert_eq!(merged.requests.len(), 1, "one in {one_in}");
        }
    }

    #[test]
    fn instants_before_the_run_are_its_begin() {
        let sample = RequestSample { one_in: 1, requests: vec![request(5), request(20)] };
        let due: Vec<_> = sample.since(Nanos(10)).requests.iter().map(|one| one.due_ns.0).collect();
        assert_eq!(due, [0, 10]);
    }
}
