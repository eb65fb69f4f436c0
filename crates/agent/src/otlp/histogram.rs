//! A histogram's data point as checked counts by bucket, and its difference from an earlier one.

use super::wire::{ExplicitPoint, ExponentialBuckets, ExponentialPoint};
use lull_measure::push::{COUNT_MAX, SPAN_MAX};
use lull_measure::{Buckets, Nanos};

/// Most buckets of one data point, and most bounds.
const BUCKETS_MAX: usize = 1_024;
/// The scales that OpenTelemetry's data model allows in practice; beyond them a bucket is
/// narrower than a float, or wider than all of them.
const SCALES: std::ops::RangeInclusive<i32> = -10..=20;

/// The unit of a histogram, as seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unit(f64);

impl Unit {
    /// Parses a unit of time in UCUM, OpenTelemetry's notation; seconds if there is none.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" | "s" => Ok(Self(1.0)),
            "ms" => Ok(Self(1e-3)),
            "us" => Ok(Self(1e-6)),
            "ns" => Ok(Self(1e-9)),
            other => Err(format!("its unit `{other}` is none of s, ms, us and ns")),
        }
    }

    /// A bound in this unit; too long a one has no end.
    fn nanos(self, bound: f64) -> Option<Nanos> {
        let nanos = bound * self.0 * 1e9;
        (nanos <= SPAN_MAX.0 as f64).then(|| Nanos(nanos.round().max(0.0) as u64))
    }
}

/// How the buckets of a histogram lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Layout {
    /// Upper bounds; one more bucket has no end.
    Explicit(Box<[f64]>),
    /// A bucket for zero and below a threshold, and buckets of base 2^(2^-scale) from an index on.
    Exponential { scale: i32, zero_threshold: f64, offset: i32 },
}

/// Counts by bucket.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Histogram {
    layout: Layout,
    /// The count of the bucket for zero, which explicit histograms do not have.
    zero: u64,
    counts: Box<[u64]>,
}

impl Histogram {
    /// Checks a point with explicit bounds.
    pub(super) fn explicit(point: ExplicitPoint) -> Result<Self, String> {
        let ExplicitPoint { count, bucket_counts, explicit_bounds: bounds, .. } = point;
        let most = bucket_counts.len().max(bounds.len());
        if most > BUCKETS_MAX {
            return Err(format!("{most} buckets or bounds are more than {BUCKETS_MAX}"));
        }
        if bucket_counts.is_empty() && count > 0 {
            return Err("it has no buckets: a view with a histogram is needed".to_owned());
        }
        // A point without requests may leave the buckets out.
        let is_whole = bucket_counts.len() == bounds.len() + 1;
        if !is_whole && !bucket_counts.is_empty() {
            let (buckets, bounds) = (bucket_counts.len(), bounds.len());
            return Err(format!("{buckets} buckets do not fit {bounds} bounds"));
        }
        if bounds.iter().any(|bound| !bound.is_finite() || *bound < 0.0) {
            return Err("a bound is negative or not finite".to_owned());
        }
        if !bounds.is_sorted_by(|one, next| one < next) {
            return Err("its bounds do not ascend".to_owned());
        }
        // Bounds without counts bound nothing.
        let bounds = if bucket_counts.is_empty() { Vec::new() } else { bounds };
        let layout = Layout::Explicit(bounds.into());
        Self { layout, zero: 0, counts: bucket_counts.into() }.checked(count)
    }

    /// Checks a point with exponential buckets.
    pub(super) fn exponential(point: ExponentialPoint) -> Result<Self, String> {
        let ExponentialPoint { count, scale, zero_count, zero_threshold, .. } = point;
        let ExponentialBuckets { offset, bucket_counts } = point.positive.unwrap_or_default();
        if bucket_counts.len() > BUCKETS_MAX {
            return Err(format!("{} buckets are more than {BUCKETS_MAX}", bucket_counts.len()));
        }
        if point.negative.is_some_and(|it| it.bucket_counts.iter().any(|count| *count > 0)) {
            return Err("it has negative values, which no latency has".to_owned());
        }
        if !SCALES.contains(&scale) {
            return Err(format!("its scale {scale} is outside -10 to 20"));
        }
        if !(0.0..f64::INFINITY).contains(&zero_threshold) {
            return Err("its zero threshold is negative or not finite".to_owned());
        }
        if offset.checked_add(bucket_counts.len() as i32 + 1).is_none() {
            return Err(format!("its offset {offset} is out of range"));
        }
        let layout = Layout::Exponential { scale, zero_threshold, offset };
        Self { layout, zero: zero_count, counts: bucket_counts.into() }.checked(count)
    }

    fn checked(self, count: u64) -> Result<Self, String> {
        let sum = self.count();
        if sum > COUNT_MAX {
            return Err(format!("its counts are above {COUNT_MAX} (2^40)"));
        }
        if sum != count {
            return Err(format!("its buckets hold {sum} requests, and its count is {count}"));
        }
        Ok(self)
    }

    /// Number of requests.
    pub(super) fn count(&self) -> u64 {
        self.counts.iter().fold(self.zero, |sum, count| sum.saturating_add(*count))
    }

    /// Number of counters and bounds that it keeps.
    pub(super) fn len(&self) -> usize {
        let bounds = match &self.layout {
            Layout::Explicit(bounds) => bounds.len(),
            Layout::Exponential { .. } => 0,
        };
        self.counts.len() + bounds
    }

    /// Returns the difference from an earlier point of the same series; `None` if a counter went
    /// back or the buckets differ, so that the histogram was reset.
    pub(super) fn since(&self, earlier: &Self) -> Option<Self> {
        match (&self.layout, &earlier.layout) {
            _ if earlier.count() == 0 => Some(self.clone()),
            (Layout::Explicit(ours), Layout::Explicit(theirs)) if ours == theirs => {
                let counts = self.counts.iter().zip(&earlier.counts);
                let counts: Option<_> = counts.map(|(now, then)| now.checked_sub(*then)).collect();
                let is_whole = self.counts.len() == earlier.counts.len();
                is_whole.then_some(Self { counts: counts?, ..self.clone() })
            }
            (
                Layout::Exponential { scale, zero_threshold, .. },
                Layout::Exponential { scale: before, zero_threshold: zero_before, .. },
            ) if scale <= before && zero_threshold == zero_before => {
                self.since_exponential(&earlier.at_scale(*scale))
            }
            _ => None,
        }
    }

    fn since_exponential(&self, earlier: &Self) -> Option<Self> {
        let (Layout::Exponential { offset, .. }, Layout::Exponential { offset: before, .. }) =
            (&self.layout, &earlier.layout)
        else {
            return None;
        };
        let mut counts = self.counts.clone();
        for (at, then) in (i64::from(*before)..).zip(&earlier.counts).filter(|it| *it.1 > 0) {
            let place = usize::try_from(at - i64::from(*offset)).ok()?;
            let now = counts.get_mut(place)?;
            *now = now.checked_sub(*then)?;
        }
        let zero = self.zero.checked_sub(earlier.zero)?;
        Some(Self { layout: self.layout.clone(), zero, counts })
    }

    /// The histogram at a lower scale, at which each bucket joins 2^n buckets of this one.
    fn at_scale(&self, wanted: i32) -> Self {
        let Layout::Exponential { scale, zero_threshold, offset } = self.layout else {
            return self.clone();
        };
        // The data model's rule: an index halves, rounded down, with each step of the scale.
        let steps = (scale - wanted).clamp(0, 31);
        let begin = offset >> steps;
        let mut counts = vec![0_u64; self.counts.len()];
        for (at, count) in (i64::from(offset)..).zip(&self.counts) {
            let place = (at >> steps) - i64::from(begin);
            if let Some(sum) = usize::try_from(place).ok().and_then(|place| counts.get_mut(place)) {
                *sum += count;
            }
        }
        let layout = Layout::Exponential { scale: wanted, zero_threshold, offset: begin };
        Self { layout, zero: self.zero, counts: counts.into() }
    }

    /// Adds its requests to others, with the bounds of their buckets in time.
    pub(super) fn add_to(&self, buckets: &mut Buckets, unit: Unit) {
        match &self.layout {
            Layout::Explicit(bounds) => {
                let mut low = Nanos::ZERO;
                for (at, count) in self.counts.iter().enumerate() {
                    let high = bounds.get(at).and_then(|bound| unit.nanos(*bound));
                    buckets.add(low, high, *count);
                    low = high.unwrap_or(SPAN_MAX);
                }
            }
            Layout::Exponential { scale, zero_threshold, offset } => {
                buckets.add(Nanos::ZERO, unit.nanos(*zero_threshold), self.zero);
                let base_log2 = f64::from(-scale).exp2();
                let bound = |index: i64| unit.nanos((index as f64 * base_log2).exp2());
                for (at, count) in (i64::from(*offset)..).zip(&self.counts) {
                    buckets.add(bound(at).unwrap_or(SPAN_MAX), bound(at + 1), *count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
