//! Rates over time, and the conversion from operational to real time.

/// A stretch of time over which the rate is constant or changes evenly.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Segment {
    /// Infinite for a rate that holds for good.
    length_s: f64,
    /// Requests per second at its start and end.
    from: f64,
    to: f64,
}

/// A rate for every instant from 0 on, in requests per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    segments: Vec<Segment>,
    /// Starts over after the last segment; else the last one is infinite.
    cyclic: bool,
}

/// Why rates are not a valid schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A rate is negative, not a number, or beyond the clock's resolution.
    #[error("a rate must lie between 0 and 1e9 requests/s (the clock counts nanoseconds)")]
    Rate,
    /// A length or time is negative or not a number, or times go back.
    #[error("times must be finite, not negative, and ascending")]
    Time,
    /// No request would ever be due.
    #[error("the rate is 0 throughout: no request would ever be due")]
    Idle,
}

impl Schedule {
    /// Returns a constant rate.
    ///
    /// # Errors
    /// If the rate is 0 or not valid.
    pub fn constant(rate_per_s: f64) -> Result<Self, ScheduleError> {
        let all = Segment { length_s: f64::INFINITY, from: rate_per_s, to: rate_per_s };
        Self { segments: vec![all], cyclic: false }.check()
    }

    /// High for `high_s` seconds, low for `low_s` seconds, and so on; begins high.
    ///
    /// # Errors
    /// If both rates are 0, one is not a rate, or a length is not above 0.
    pub fn burst(high: f64, high_s: f64, low: f64, low_s: f64) -> Result<Self, ScheduleError> {
        if !(high_s > 0.0 && low_s > 0.0) {
            return Err(ScheduleError::Time);
        }
        let flat = |length_s, rate| Segment { length_s, from: rate, to: rate };
        Self { segments: vec![flat(high_s, high), flat(low_s, low)], cyclic: true }.check()
    }

    /// Rates as `(time_s, rate_per_s)`; each holds until the next, the last for good.
    ///
    /// Times count from the first one, whatever it is.
    ///
    /// # Errors
    /// If a rate is not a rate, times do not ascend, or all rates are 0.
    pub fn steps(points: &[(f64, f64)]) -> Result<Self, ScheduleError> {
        Self::through(points, |from, _| from)
    }

    /// As [`Schedule::steps`], with the rate changing linearly from point to point.
    ///
    /// Two points of one time make a jump.
    ///
    /// # Errors
    /// As [`Schedule::steps`].
    pub fn ramps(points: &[(f64, f64)]) -> Result<Self, ScheduleError> {
        Self::through(points, |_, to| to)
    }

    fn through(points: &[(f64, f64)], end: fn(f64, f64) -> f64) -> Result<Self, ScheduleError> {
        let last = points.last().ok_or(ScheduleError::Idle)?.1;
        let mut segments: Vec<_> = points
            .windows(2)
            .map(|pair| {
                let ((start_s, from), (end_s, to)) = (pair[0], pair[1]);
                Segment { length_s: end_s - start_s, from, to: end(from, to) }
            })
            .collect();
        segments.push(Segment { length_s: f64::INFINITY, from: last, to: last });
        Self { segments, cyclic: false }.check()
    }

    fn check(self) -> Result<Self, ScheduleError> {
        let legal = |rate: f64| (0.0..=1e9).contains(&rate);
        if self.segments.iter().any(|segment| !legal(segment.from) || !legal(segment.to)) {
            return Err(ScheduleError::Rate);
        }
        if self.segments.iter().any(|segment| segment.length_s.is_nan() || segment.length_s < 0.0) {
            return Err(ScheduleError::Time);
        }
        if self.segments.iter().all(|segment| segment.requests() == 0.0) {
            return Err(ScheduleError::Idle);
        }
        Ok(self)
    }

    /// The rate at an instant, in requests per second.
    pub fn rate_at(&self, time_s: f64) -> f64 {
        let mut left = time_s;
        if self.cyclic {
            left %= self.segments.iter().map(|segment| segment.length_s).sum::<f64>();
        }
        for segment in &self.segments {
            if left < segment.length_s {
                return segment.from + segment.slope() * left;
            }
            left -= segment.length_s;
        }
        // Rounding may leave a rest beyond the last segment of a cycle.
        self.segments.last().map_or(0.0, |segment| segment.to)
    }

    /// The stretches in order: length in seconds (infinite for one that holds
    /// for good), and the rates per second at its start and end.
    pub fn stretches(&self) -> impl Iterator<Item = (f64, [f64; 2])> + '_ {
        self.segments.iter().map(|segment| (segment.length_s, [segment.from, segment.to]))
    }

    /// The highest rate ever reached, in requests per second.
    pub fn peak(&self) -> f64 {
        self.segments.iter().map(|segment| segment.from.max(segment.to)).fold(0.0, f64::max)
    }
}

impl Segment {
    /// Change of the rate per second.
    fn slope(&self) -> f64 {
        if self.from == self.to { 0.0 } else { (self.to - self.from) / self.length_s }
    }

    /// Mean number of requests in it.
    fn requests(&self) -> f64 {
        let mean = (self.from + self.to) / 2.0;
        // An infinite stretch of rate 0 holds nothing, where inf * 0 is NaN.
        if mean == 0.0 { 0.0 } else { mean * self.length_s }
    }

    /// Requests from `at` seconds after its start to its end.
    fn left(&self, at: f64) -> f64 {
        let rest = Self { length_s: self.length_s - at, from: self.rate(at), to: self.to };
        rest.requests().max(0.0)
    }

    fn rate(&self, at: f64) -> f64 {
        self.from + self.slope() * at
    }

    /// Returns the time in which `requests` are due, from `at` seconds after its start.
    fn time_for(&self, requests: f64, at: f64) -> f64 {
        let (rate, slope) = (self.rate(at), self.slope());
        // The positive root of slope/2 t² + rate t = requests, in the form that
        // neither cancels nor divides by a slope of 0.
        2.0 * requests / (rate + (rate * rate + 2.0 * slope * requests).max(0.0).sqrt())
    }
}

/// A position in a schedule, advanced in operational time.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    schedule: Schedule,
    index: usize,
    /// When the segment began, and how far into it we are.
    begun_s: f64,
    into_s: f64,
}

impl Cursor {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self { schedule, index: 0, begun_s: 0.0, into_s: 0.0 }
    }

    /// Advances by `requests` mean requests. Returns the instant in seconds, or `None`
    /// if the schedule has ended at rate 0.
    pub(super) fn advance(&mut self, mut requests: f64) -> Option<f64> {
        loop {
            let segment = self.schedule.segments[self.index];
            let left = segment.left(self.into_s);
            if requests < left {
                self.into_s += segment.time_for(requests, self.into_s);
                return Some(self.begun_s + self.into_s);
            }
            requests -= left;
            if segment.length_s.is_infinite() {
                return None;
            }
            self.begun_s += segment.length_s;
            self.into_s = 0.0;
            // A schedule that is not cyclic ends in an infinite segment.
            self.index = (self.index + 1) % self.schedule.segments.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_schedule_that_would_never_send_is_refused() {
        assert_eq!(Schedule::constant(0.0), Err(ScheduleError::Idle));
        assert_eq!(Schedule::burst(0.0, 1.0, 0.0, 1.0), Err(ScheduleError::Idle));
        assert_eq!(Schedule::steps(&[]), Err(ScheduleError::Idle));
        assert_eq!(Schedule::steps(&[(0.0, 0.0), (5.0, 0.0)]), Err(ScheduleError::Idle));
    }

    #[test]
    fn rates_and_times_that_cannot_be_are_refused() {
        for rate in [-1.0, f64::NAN, f64::INFINITY, 2e9] {
            assert_eq!(Schedule::constant(rate), Err(ScheduleError::Rate), "{rate}");
        }
        assert_eq!(Schedule::steps(&[(1.0, 5.0), (0.0, 5.0)]), Err(ScheduleError::Time));
        assert_eq!(Schedule::burst(5.0, 0.0, 1.0, 1.0), Err(ScheduleError::Time));
    }

    #[test]
    fn a_schedule_that_ends_at_rate_zero_ends() {
        let mut cursor = Cursor::new(Schedule::steps(&[(0.0, 2.0), (3.0, 0.0)]).unwrap());
        let times: Vec<_> = std::iter::from_fn(|| cursor.advance(1.0)).collect();
        assert_eq!(times, [0.5, 1.0, 1.5, 2.0, 2.5]);
    }

    #[test]
    fn a_schedule_has_a_rate_for_every_instant() {
        let burst = Schedule::burst(30.0, 1.0, 10.0, 3.0).unwrap();
        assert_eq!([0.5, 1.0, 3.9, 4.2].map(|at| burst.rate_at(at)), [30.0, 10.0, 10.0, 30.0]);
        let ramp = Schedule::ramps(&[(5.0, 0.0), (15.0, 100.0)]).unwrap();
        assert_eq!([0.0, 5.0, 99.0].map(|at| ramp.rate_at(at)), [0.0, 50.0, 100.0]);
        assert_eq!(ramp.peak(), 100.0);
        let stretches: Vec<_> = ramp.stretches().collect();
        assert_eq!(stretches, [(10.0, [0.0, 100.0]), (f64::INFINITY, [100.0, 100.0])]);
    }

    proptest! {
        #[test]
        fn real_time_runs_forward_and_covers_the_rate_exactly(
            points in prop::collection::vec((0.0f64..5.0, 0.0f64..100.0), 1..8),
            gaps in prop::collection::vec(0.0f64..20.0, 1..50),
        ) {
            let mut at = 0.0;
            let later = |(gap, rate): &(f64, f64)| { at += gap; (at, *rate) };
            let points: Vec<_> = points.iter().map(later).collect();
            let Ok(schedule) = Schedule::ramps(&points) else { return Ok(()) };
            let mut cursor = Cursor::new(schedule.clone());
            let mut previous = 0.0;
            for gap in gaps {
                let Some(now) = cursor.advance(gap) else { break };
                prop_assert!(now >= previous);
                let area = area_under(&schedule, previous, now);
                prop_assert!((area - gap).abs() < 1e-6 * (1.0 + gap) , "{} for {}", area, gap);
                previous = now;
            }
        }
    }

    /// The integral of a piecewise linear rate, segment by segment.
    fn area_under(schedule: &Schedule, from_s: f64, to_s: f64) -> f64 {
        let mut begun = 0.0;
        let mut area = 0.0;
        for segment in &schedule.segments {
            let (low, high) = (from_s.max(begun), to_s.min(begun + segment.length_s));
            if high > low {
                let mean = (segment.rate(low - begun) + segment.rate(high - begun)) / 2.0;
                area += mean * (high - low);
            }
            begun += segment.length_s;
        }
        area
    }
}
