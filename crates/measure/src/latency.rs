//! Request latency as a mergeable HDR histogram.

use crate::{Nanos, Percentile};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer, V2Serializer};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// Shortest and longest latency that are distinguished; values outside are clamped.
const SHORTEST_NS: u64 = 100;
const LONGEST_NS: u64 = 1_000_000_000_000;
/// Requests of a bucket up to which each is searched for, instead of reading its thousand counts.
const FEW: u64 = 4;
/// Three digits: every quantile is within 0.1 % of the true order statistic.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The histogram's first bucket ends here (2048 counts of 64 ns each, from the
/// bounds above); each further one is twice as long as the one before.
const FIRST_BUCKET_BITS: u32 = 17;
const BUCKETS: usize = (LONGEST_NS.ilog2() - FIRST_BUCKET_BITS) as usize + 2;

/// The cookie of an encoded histogram (V2) with DEFLATE.
const DEFLATE_COOKIE: u32 = 0x1c84_9314;
/// Bytes of a V2 header, before the counts.
const V2_HEADER: usize = 40;
/// Most bytes of a plain encoded histogram: more than nine for each count of three digits
/// over the range that is kept.
const PLAIN_MAX: usize = 256 * 1024;

/// A set of request latencies: 100 ns to 1000 s, within 0.1 %.
#[derive(Clone, PartialEq)]
pub struct Latency {
    histogram: Histogram<u64>,
    /// Requests by bucket, so that a quantile need not add up 200 kB of counts:
    /// every policy asks for tails in every epoch.
    by_bucket: [u64; BUCKETS],
}

/// The bucket that a latency is counted in.
const fn bucket_of(latency_ns: u64) -> usize {
    let clamped = if latency_ns > LONGEST_NS { LONGEST_NS } else { latency_ns };
    // The lowest bit set makes everything in the first bucket count as its last value.
    ((clamped >> (FIRST_BUCKET_BITS - 1)) | 1).ilog2() as usize
}

/// Where a bucket begins and ends (exclusive), in nanoseconds.
const fn bounds_of(bucket: usize) -> (u64, u64) {
    let end = 1 << (FIRST_BUCKET_BITS as usize + bucket);
    if bucket == 0 { (0, end) } else { (end / 2, end) }
}

/// Why a latency histogram could not be packed or unpacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an HDR histogram (V2, base64): {0}")]
pub struct LatencyError(String);

impl fmt::Debug for Latency {
    /// Writes the few numbers that distinguish sets, not 25,000 counters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latency")
            .field("count", &self.count())
            .field("p50", &self.quantile(Percentile::P50))
            .field("max", &self.max())
            .finish()
    }
}

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, SIGNIFICANT_DIGITS);
        let histogram = histogram.expect("the constant bounds are legal");
        Self { histogram, by_bucket: [0; BUCKETS] }
    }
}

impl Latency {
    /// Adds one request.
    #[inline]
    pub fn record(&mut self, latency: Nanos) {
        self.histogram.saturating_record(latency.0.max(SHORTEST_NS));
        let bucket = &mut self.by_bucket[bucket_of(latency.0)];
        *bucket = bucket.saturating_add(1);
    }

    /// Adds `count` requests of one latency.
    pub fn record_many(&mut self, latency: Nanos, count: u64) {
        // The histogram would take the latency of no request for its longest.
        if count == 0 {
            return;
        }
        self.histogram.saturating_record_n(latency.0.max(SHORTEST_NS), count);
        let bucket = &mut self.by_bucket[bucket_of(latency.0)];
        *bucket = bucket.saturating_add(count);
    }

    /// Adds all requests of another set.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds by construction, so this cannot fail.
        self.histogram.add(&other.histogram).expect("equal bounds");
        for (ours, theirs) in self.by_bucket.iter_mut().zip(other.by_bucket) {
            *ours = ours.saturating_add(theirs);
        }
    }

    /// Forgets all requests, keeping the memory.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.by_bucket = [0; BUCKETS];
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// The latency that `at` percent of the requests do not exceed; `None` without requests.
    pub fn quantile(&self, at: Percentile) -> Option<Nanos> {
        let rank = (at.fraction() * self.count() as f64).ceil() as u64;
        let mut left = rank.max(1);
        // High quantiles of a few requests are the longest of them, which is known.
        if left >= self.count() {
            return self.max();
        }
        for (bucket, count) in self.by_bucket.iter().enumerate() {
            if left <= *count {
                return Some(self.ranked_in(bucket, left));
            }
            left -= count;
        }
        None
    }

    /// The latency of this rank (from 1) among those of one bucket, which has as many.
    fn ranked_in(&self, bucket: usize, mut rank: u64) -> Nanos {
        let (mut low, mut high) = bounds_of(bucket);
        while self.histogram.lowest_equivalent(high - 1) > low {
            let middle = low + (high - low) / 2;
            let below = self.histogram.count_between(low, middle - 1);
            if rank <= below {
                high = middle;
            } else {
                rank -= below;
                low = middle;
            }
        }
        Nanos(self.histogram.highest_equivalent(low))
    }

    /// Mean latency; `None` without requests.
    pub fn mean(&self) -> Option<Nanos> {
        (!self.is_empty()).then(|| Nanos(self.mean_ns().round() as u64))
    }

    /// The histogram's own mean, to the bit, without a look at the counts of empty buckets.
    fn mean_ns(&self) -> f64 {
        let (all, mut mean) = (self.count() as f64, 0.0);
        let mut add = |value, here: u64| {
            mean += self.histogram.median_equivalent(value) as f64 * here as f64 / all;
        };
        for (bucket, count) in self.by_bucket.iter().enumerate() {
            if *count <= FEW {
                self.look_up(bucket, *count, &mut add);
            } else {
                self.scan(bucket, *count, &mut add);
            }
        }
        mean
    }

    /// Calls `add` with each latency of a bucket and its count, in order, by searching for each.
    fn look_up(&self, bucket: usize, count: u64, add: &mut impl FnMut(u64, u64)) {
        let mut found = 0;
        while found < count {
            let value = self.ranked_in(bucket, found + 1).0;
            let here = self.histogram.count_at(value).max(1);
            add(value, here);
            found += here;
        }
    }

    /// The same by reading all counts of the bucket.
    fn scan(&self, bucket: usize, count: u64, add: &mut impl FnMut(u64, u64)) {
        let (mut left, (mut value, end)) = (count, bounds_of(bucket));
        while left > 0 && value < end {
            let here = self.histogram.count_at(value);
            if here > 0 {
                add(value, here);
                left = left.saturating_sub(here);
            }
            value = self.histogram.next_non_equivalent(value);
        }
    }

    /// Longest latency; `None` without requests.
    pub fn max(&self) -> Option<Nanos> {
        (!self.is_empty()).then(|| Nanos(self.histogram.max()))
    }

    /// Number of requests that took longer than `bound`.
    pub fn count_above(&self, bound: Nanos) -> u64 {
        self.count() - self.histogram.count_between(0, bound.0)
    }

    /// Latencies with their counts, ascending; each is its bucket's highest value.
    pub fn buckets(&self) -> impl Iterator<Item = (Nanos, u64)> + '_ {
        self.histogram
            .iter_recorded()
            .map(|bucket| (Nanos(bucket.value_iterated_to()), bucket.count_at_value()))
    }

    /// The set as base64 of the HDR V2 format, which other HDR tools read.
    pub fn to_base64(&self) -> String {
        let mut bytes = Vec::new();
        let packed = V2Serializer::new().serialize(&self.histogram, &mut bytes);
        packed.expect("writing to memory cannot fail");
        BASE64.encode(bytes)
    }

    /// The set in the HDR V2 format with DEFLATE, the shortest there is.
    pub fn to_deflated(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let packed = V2DeflateSerializer::new().serialize(&self.histogram, &mut bytes);
        packed.expect("writing to memory cannot fail");
        bytes
    }

    /// Reads what [`Latency::to_deflated`] or another HDR tool wrote.
    ///
    /// # Errors
    /// If the bytes are no HDR V2 histogram of integers, finer than three significant digits, or
    /// larger than a histogram can be.
    pub fn from_deflated(bytes: &[u8]) -> Result<Self, LatencyError> {
        let plain = plain_v2(bytes)?;
        check_plain(&plain)?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut &*plain)
            .map_err(|error| LatencyError(error.to_string()))?;
        Ok(Self::from_histogram(read))
    }

    fn from_histogram(foreign: Histogram<u64>) -> Self {
        // A histogram of another Lull process has the same buckets and is used as it is;
        // copying it would take ten times as long.
        if has_our_buckets(&foreign) {
            return Self { by_bucket: by_bucket(&foreign), histogram: foreign };
        }
        let mut ours = Self::default();
        for bucket in foreign.iter_recorded() {
            ours.record_many(Nanos(bucket.value_iterated_to()), bucket.count_at_value());
        }
        ours
    }

    /// Reads what [`Latency::to_base64`] or another HDR tool wrote.
    ///
    /// # Errors
    /// If the text is not base64, of a deflated histogram, or as [`Latency::from_deflated`].
    pub fn from_base64(text: &str) -> Result<Self, LatencyError> {
        let bytes = BASE64.decode(text).map_err(|error| LatencyError(error.to_string()))?;
        if field(&bytes, 0) == Some(DEFLATE_COOKIE) {
            return Err(LatencyError("it is deflated: send it uncompressed".to_owned()));
        }
        Self::from_deflated(&bytes)
    }
}

/// Requests by bucket of a histogram with our bounds.
fn by_bucket(histogram: &Histogram<u64>) -> [u64; BUCKETS] {
    let mut counts = [0; BUCKETS];
    let used = bucket_of(histogram.max()) + 1;
    for (bucket, count) in counts.iter_mut().enumerate().take(used) {
        let (begin, end) = bounds_of(bucket);
        *count = histogram.count_between(begin, end - 1);
    }
    counts
}

fn has_our_buckets(other: &Histogram<u64>) -> bool {
    (other.low(), other.high(), other.sigfig()) == (SHORTEST_NS, LONGEST_NS, SIGNIFICANT_DIGITS)
}

/// Returns an encoded histogram as plain V2: one with DEFLATE is inflated, but only as far as
/// a histogram of three digits can need, because a kilobyte may inflate to a megabyte.
fn plain_v2(bytes: &[u8]) -> Result<Cow<'_, [u8]>, LatencyError> {
    if field(bytes, 0) != Some(DEFLATE_COOKIE) {
        return Ok(bytes.into());
    }
    // Behind the cookie and the length of what is deflated.
    let deflated = bytes.get(8..).unwrap_or_default();
    let mut plain = Vec::new();
    let inflated = ZlibDecoder::new(deflated).take(PLAIN_MAX as u64 + 1).read_to_end(&mut plain);
    inflated.map_err(|error| LatencyError(error.to_string()))?;
    Ok(plain.into())
}

/// Checks the header of a plain histogram before memory is allocated by it: five digits over
/// the full range take 50 MB, and a payload may state a length of 4 GB.
fn check_plain(plain: &[u8]) -> Result<(), LatencyError> {
    let refuse = |why: String| Err(LatencyError(why));
    if plain.len() > PLAIN_MAX {
        return refuse(format!("longer than the {PLAIN_MAX} bytes that a histogram can take"));
    }
    // V2 header, big-endian: cookie, payload length, offset, then the digits.
    let (length, digits) = (field(plain, 4), field(plain, 12));
    let payload = plain.get(V2_HEADER..).unwrap_or_default();
    if length.is_some_and(|length| length as usize > payload.len()) {
        return refuse("it is cut off".to_owned());
    }
    if let Some(digits) = digits.filter(|digits| *digits > u32::from(SIGNIFICANT_DIGITS)) {
        let kept = SIGNIFICANT_DIGITS;
        return refuse(format!("{digits} significant digits, at most {kept} are kept"));
    }
    // The number of zeros that is the least i64 cannot be negated by the deserializer.
    if payload.windows(9).any(|number| number == [0xff; 9]) {
        return refuse("a count is out of range".to_owned());
    }
    Ok(())
}

/// Returns the big-endian 32 bits at an offset.
fn field(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

impl FromIterator<Nanos> for Latency {
    fn from_iter<I: IntoIterator<Item = Nanos>>(latencies: I) -> Self {
        let mut all = Self::default();
        for latency in latencies {
            all.record(latency);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    #[test]
    fn a_deflated_histogram_is_refused_by_name() {
        let deflated = BASE64.encode(Latency::default().to_deflated());
        let refused = Latency::from_base64(&deflated).unwrap_err().to_string();
        assert!(refused.contains("deflated"), "{refused}");
    }

    #[test]
    fn an_empty_set_has_no_tail_rather_than_a_zero() {
        let none = Latency::default();
        assert_eq!(none.quantile(Percentile::P99), None);
        assert_eq!(none.mean(), None);
        assert_eq!(none.max(), None);
    }

    #[test]
    fn a_latency_that_no_request_had_is_not_the_longest() {
        let mut all = Latency::default();
        all.record_many(Nanos::from_secs(900), 0);
        assert_eq!(all, Latency::default());
        all.record(Nanos::from_millis(2));
        all.record_many(Nanos::from_secs(900), 0);
        assert!(all.max() < Some(Nanos::from_millis(3)), "{all:?}");
    }

    proptest! {
        #[test]
        fn the_mean_is_that_of_the_whole_histogram_to_the_bit(
            latencies in prop::collection::vec((0_u32..42, 0_u64..1 << 20), 1..200),
        ) {
            let spread = latencies.iter().map(|(shift, value)| Nanos((1 << shift) + value));
            let set: Latency = spread.collect();
            prop_assert_eq!(set.mean_ns().to_bits(), set.histogram.mean().to_bits());
        }
    }

    #[test]
    fn a_set_comes_back_from_its_shortest_form() {
        let set: Latency = (1..2_000).map(|step| Nanos(step * step * 100)).collect();
        let packed = set.to_deflated();
        assert!(packed.len() < set.to_base64().len());
        assert_eq!(Latency::from_deflated(&packed).unwrap(), set);
        assert!(Latency::from_deflated(&packed[..packed.len() / 2]).is_err());
        assert!(Latency::from_deflated(b"").is_err());
    }

    #[test]
    fn outliers_are_clamped_and_still_counted() {
        let set: Latency = [Nanos(0), Nanos::MAX].into_iter().collect();
        assert_eq!(set.count(), 2);
        assert!(set.max().unwrap() >= Nanos::from_secs(999));
    }

    #[test]
    fn a_set_is_printed_in_a_line() {
        let set: Latency = [Nanos::from_millis(2)].into_iter().collect();
        assert!(format!("{set:?}").len() < 100, "{set:?}");
    }

    #[test]
    fn counts_beyond_reason_saturate() {
        // Pushed by a client that lies; the agent must live on.
        let mut set = Latency::default();
        set.record_many(Nanos::from_millis(1), u64::MAX);
        set.record_many(Nanos::from_millis(1), 5);
        set.merge(&set.clone());
        set.record(Nanos::from_millis(1));
        assert!(set.quantile(Percentile::P99).is_some());
    }

    #[test]
    fn counts_what_missed_a_bound() {
        let set: Latency = (1..=100).map(Nanos::from_millis).collect();
        assert_eq!(set.count_above(Nanos::from_millis(95)), 5);
    }

    #[test]
    fn refuses_a_text_that_is_no_histogram() {
        for text in ["", "????", "SGVsbG8="] {
            assert!(Latency::from_base64(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn refuses_a_histogram_so_fine_that_it_would_fill_the_memory() {
        let fine = Histogram::<u64>::new(5).unwrap();
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&fine, &mut bytes).unwrap();
        let error = Latency::from_base64(&BASE64.encode(bytes)).unwrap_err();
        assert!(error.to_string().contains("5 significant digits"), "{error}");
        let mut deflated = Vec::new();
        V2DeflateSerializer::new().serialize(&fine, &mut deflated).unwrap();
        let error = Latency::from_deflated(&deflated).unwrap_err();
        assert!(error.to_string().contains("5 significant digits"), "{error}");
    }

    /// A plain histogram with these counts behind its header, which states another length.
    fn crafted(length: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&Latency::default().histogram, &mut bytes).unwrap();
        bytes.truncate(V2_HEADER);
        bytes[4..8].copy_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    fn deflated(plain: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(plain).unwrap();
        let packed = packed.finish().unwrap();
        let length = u32::try_from(packed.len()).unwrap();
        [&DEFLATE_COOKIE.to_be_bytes()[..], &length.to_be_bytes(), &packed].concat()
    }

    #[test]
    fn refuses_lengths_that_would_fill_the_memory() {
        let refusal = |plain: &[u8]| {
            let errors = [plain.to_vec(), deflated(plain)]
                .map(|bytes| Latency::from_deflated(&bytes).unwrap_err().to_string());
            assert_eq!(errors[0], errors[1]);
            errors[0].clone()
        };
        assert!(Latency::from_deflated(&deflated(&crafted(2, &[2, 2]))).is_ok());
        assert!(refusal(&crafted(u32::MAX, &[2, 2])).contains("cut off"));
        let zeros = vec![0; 64 << 20];
        assert!(deflated(&zeros).len() < 100_000);
        assert!(refusal(&crafted(zeros.len() as u32, &zeros)).contains("longer than"));
        assert!(refusal(&crafted(18, &[0xff; 18])).contains("out of range"));
    }

    #[test]
    fn the_largest_histogram_is_still_read() {
        let mut largest = Latency::default();
        let every = (0..BUCKETS).flat_map(|bucket| {
            let (begin, end) = bounds_of(bucket);
            (begin..end.min(LONGEST_NS)).step_by(((end - begin) / 2_048).max(1) as usize)
        });
        every.for_each(|value| largest.record_many(Nanos(value), 1 << 61));
        let packed = largest.to_deflated();
        assert!(plain_v2(&packed).unwrap().len() > 200_000, "not the largest");
        assert_eq!(Latency::from_deflated(&packed).unwrap().count(), largest.count());
    }

    proptest! {
        #[test]
        fn bytes_of_others_are_read_or_refused(
            low in any::<u64>(),
            high in any::<u64>(),
            digits in 0_u32..8,
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = crafted(payload.len() as u32, &payload);
            bytes[12..16].copy_from_slice(&digits.to_be_bytes());
            bytes[16..24].copy_from_slice(&(low >> (low % 64)).to_be_bytes());
            bytes[24..32].copy_from_slice(&(high >> (high % 64)).to_be_bytes());
            for bytes in [deflated(&bytes), bytes] {
                if let Ok(read) = Latency::from_deflated(&bytes) {
                    prop_assert!(digits <= 3);
                    let _ = (read.quantile(Percentile::P99), read.count());
                }
            }
        }

        #[test]
        fn a_quantile_is_within_a_thousandth_of_the_order_statistic(
            mut nanos in prop::collection::vec(100u64..1_000_000_000_000, 1..300),
            percent in 1u32..100,
        ) {
            let at = Percentile::new(f64::from(percent)).unwrap();
            let set: Latency = nanos.iter().copied().map(Nanos).collect();
            nanos.sort_unstable();
            let rank = (nanos.len() * percent as usize).div_ceil(100).max(1);
            let got = set.quantile(at).unwrap().0 as f64;
            // A rank that is a whole number may be rounded to its neighbour, and
            // below 64 us the histogram's own unit of 64 ns is the coarser limit.
            let (low, high) = (nanos[rank - 1] as f64, nanos[rank.min(nanos.len() - 1)] as f64);
            prop_assert!(got >= low * 0.999 - 64.0 && got <= high * 1.001 + 64.0, "{got}");
        }

        #[test]
        fn the_short_way_to_a_quantile_is_the_long_ways(
            nanos in prop::collection::vec(0u64..1 << 41, 1..200),
            others in prop::collection::vec(0u64..1 << 20, 0..200),
            percent in 1u32..1000,
        ) {
            let at = Percentile::new(f64::from(percent) / 10.0).unwrap();
            let mut set: Latency = nanos.into_iter().map(Nanos).collect();
            set.merge(&others.into_iter().map(Nanos).collect());
            let long = set.histogram.value_at_quantile(at.fraction());
            prop_assert_eq!(set.quantile(at), Some(Nanos(long)));
        }

        #[test]
        fn packing_keeps_every_request(nanos in prop::collection::vec(100u64..1 << 39, 0..200)) {
            let set: Latency = nanos.into_iter().map(Nanos).collect();
            let back = Latency::from_base64(&set.to_base64()).unwrap();
            prop_assert_eq!(back.count(), set.count());
            prop_assert_eq!(back.by_bucket, set.by_bucket);
            prop_assert_eq!(back.quantile(Percentile::P99), set.quantile(Percentile::P99));
        }
    }
}
