//! Request latency as a mergeable HDR histogram.

mod counts;
mod few;

use crate::{Nanos, Percentile};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use counts::Counts;
use few::Few;
use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer, V2Serializer};
use std::borrow::Cow;
use std::fmt;
use std::io::Read;

/// Shortest and longest latency that are distinguished; values outside are clamped.
const SHORTEST_NS: u64 = 100;
const LONGEST_NS: u64 = 1_000_000_000_000;
/// Three digits: every quantile is within 0.1 % of the true order statistic.
const SIGNIFICANT_DIGITS: u8 = 3;

/// The cookie of an encoded histogram (V2) with DEFLATE.
const DEFLATE_COOKIE: u32 = 0x1c84_9314;
/// Bytes of a V2 header, before the counts.
const V2_HEADER: usize = 40;
/// Most bytes of a plain encoded histogram: more than nine for each count of three digits
/// over the range that is kept.
const PLAIN_MAX: usize = 256 * 1024;

/// A set of request latencies: 100 ns to 1000 s, within 0.1 %.
///
/// It takes memory by its requests: an empty one none, one of more than 64 requests 200 kB.
#[derive(Clone)]
pub struct Latency(Held);

/// How the requests are held. A set becomes a histogram by its requests and stays one, so that
/// one that is cleared and filled again keeps its memory.
#[derive(Clone)]
enum Held {
    Few(Few),
    Many(Box<Counts>),
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
        Self(Held::Few(Few::default()))
    }
}

impl PartialEq for Latency {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Held::Many(ours), Held::Many(theirs)) => ours.histogram == theirs.histogram,
            _ => self.count() == other.count() && self.buckets().eq(other.buckets()),
        }
    }
}

impl Latency {
    /// Adds one request.
    #[inline]
    pub fn record(&mut self, latency: Nanos) {
        match &mut self.0 {
            Held::Few(few) if few.has_room(1) => few.record(latency),
            Held::Few(_) => self.histogram_mut().record(latency),
            Held::Many(counts) => counts.record(latency),
        }
    }

    /// Adds `count` requests of one latency.
    pub fn record_many(&mut self, latency: Nanos, count: u64) {
        match &mut self.0 {
            // The histogram would take the latency of no request for its longest.
            _ if count == 0 => {}
            Held::Few(few) if few.has_room(count) => (0..count).for_each(|_| few.record(latency)),
            _ => self.histogram_mut().record_many(latency, count),
        }
    }

    /// Adds all requests of another set.
    pub fn merge(&mut self, other: &Self) {
        match &other.0 {
            Held::Few(few) => {
                few.buckets().for_each(|(latency, count)| self.record_many(latency, count));
            }
            Held::Many(counts) => self.histogram_mut().merge(counts),
        }
    }

    /// Returns the histogram of the set, which it is from now on.
    fn histogram_mut(&mut self) -> &mut Counts {
        if let Held::Few(few) = &self.0 {
            self.0 = Held::Many(Box::new(histogram_of(few)));
        }
        match &mut self.0 {
            Held::Many(counts) => counts,
            Held::Few(_) => unreachable!("the set has just become a histogram"),
        }
    }

    /// Forgets all requests, keeping the memory.
    pub fn clear(&mut self) {
        match &mut self.0 {
            Held::Few(few) => few.clear(),
            Held::Many(counts) => counts.clear(),
        }
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        match &self.0 {
            Held::Few(few) => few.count(),
            Held::Many(counts) => counts.histogram.len(),
        }
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The latency that `at` percent of the requests do not exceed; `None` without requests.
    pub fn quantile(&self, at: Percentile) -> Option<Nanos> {
        let rank = ((at.fraction() * self.count() as f64).ceil() as u64).max(1);
        // High quantiles of a few requests are the longest of them, which is known.
        if rank >= self.count() {
            return self.max();
        }
        match &self.0 {
            Held::Few(few) => few.ranked(rank),
            Held::Many(counts) => counts.ranked(rank),
        }
    }

    /// Mean latency; `None` without requests.
    pub fn mean(&self) -> Option<Nanos> {
        let mean_ns = || match &self.0 {
            Held::Few(few) => few.mean_ns(),
            Held::Many(counts) => counts.mean_ns(),
        };
        (!self.is_empty()).then(|| Nanos(mean_ns().round() as u64))
    }

    /// Longest latency; `None` without requests.
    pub fn max(&self) -> Option<Nanos> {
        match &self.0 {
            Held::Few(few) => few.max(),
            Held::Many(counts) => (!self.is_empty()).then(|| Nanos(counts.histogram.max())),
        }
    }

    /// Number of requests that took longer than `bound`.
    pub fn count_above(&self, bound: Nanos) -> u64 {
        match &self.0 {
            Held::Few(few) => few.count_above(bound),
            Held::Many(counts) => self.count() - counts.histogram.count_between(0, bound.0),
        }
    }

    /// Latencies with their counts, ascending; each is its bucket's highest value.
    pub fn buckets(&self) -> Box<dyn Iterator<Item = (Nanos, u64)> + '_> {
        match &self.0 {
            Held::Few(few) => Box::new(few.buckets()),
            Held::Many(counts) => Box::new(
                counts
                    .histogram
                    .iter_recorded()
                    .map(|bucket| (Nanos(bucket.value_iterated_to()), bucket.count_at_value())),
            ),
        }
    }

    /// The set as a histogram, to be encoded.
    fn counts(&self) -> Cow<'_, Counts> {
        match &self.0 {
            Held::Few(few) => Cow::Owned(histogram_of(few)),
            Held::Many(counts) => Cow::Borrowed(counts),
        }
    }

    /// The set as base64 of the HDR V2 format, which other HDR tools read.
    pub fn to_base64(&self) -> String {
        let mut bytes = Vec::new();
        let packed = V2Serializer::new().serialize(&self.counts().histogram, &mut bytes);
        packed.expect("writing to memory cannot fail");
        BASE64.encode(bytes)
    }

    /// The set in the HDR V2 format with DEFLATE, the shortest there is.
    pub fn to_deflated(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let packed = V2DeflateSerializer::new().serialize(&self.counts().histogram, &mut bytes);
        packed.expect("writing to memory cannot fail");
        bytes
    }

    /// Reads what [`Latency::to_deflated`] or another HDR tool wrote.
    ///
    /// # Errors
    /// If the bytes are not HDR V2 histogram of integers, finer than three significant digits, or
    /// larger than a histogram can be.
    pub fn from_deflated(bytes: &[u8]) -> Result<Self, LatencyError> {
        let plain = plain_v2(bytes)?;
        check_plain(&plain)?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut &*plain)
            .map_err(|error| LatencyError(error.to_string()))?;
        Ok(Self::from_histogram(read))
    }

    fn from_histogram(read: Histogram<u64>) -> Self {
        if has_our_buckets(&read) && read.len() > few::FEW_MAX as u64 {
            return Self(Held::Many(Box::new(Counts::from_histogram(read))));
        }
        let mut ours = Self::default();
        for bucket in read.iter_recorded() {
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

fn histogram_of(few: &Few) -> Counts {
    let mut counts = Counts::default();
    few.add_to(&mut counts);
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
    // The data follow the cookie and the length.
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
    use super::counts::{BUCKETS, bounds_of};
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
            let counts = set.counts();
            prop_assert_eq!(counts.mean_ns().to_bits(), counts.histogram.mean().to_bits());
            if let Held::Few(few) = &set.0 {
                prop_assert_eq!(few.mean_ns().to_bits(), counts.histogram.mean().to_bits());
            }
        }
    }

    /// A set that holds the same as `few`, but as a histogram.
    fn as_histogram(few: &Latency) -> Latency {
        Latency(Held::Many(Box::new(few.counts().into_owned())))
    }

    #[test]
    fn an_empty_set_takes_no_memory_and_a_large_one_is_a_histogram() {
        let mut set = Latency::default();
        assert!(matches!(&set.0, Held::Few(few) if few.count() == 0));
        (1..=few::FEW_MAX as u64).for_each(|step| set.record(Nanos::from_millis(step)));
        assert!(matches!(set.0, Held::Few(_)), "so many are few");
        set.record(Nanos::from_millis(1));
        assert!(matches!(set.0, Held::Many(_)), "one more is not");
        assert_eq!(set.count(), few::FEW_MAX as u64 + 1);
    }

    proptest! {
        #[test]
        fn a_few_requests_read_as_their_histogram(
            mut nanos in prop::collection::vec((0_u32..44, any::<u64>()), 0..=few::FEW_MAX),
            percent in 1_u32..1000,
            bound in (0_u32..44, any::<u64>()),
        ) {
            let spread = |(shift, bits): (u32, u64)| Nanos(bits & ((2 << shift) - 1));
            nanos.push(nanos.first().copied().unwrap_or_default());
            nanos.truncate(few::FEW_MAX);
            let set: Latency = nanos.into_iter().map(spread).collect();
            let many = as_histogram(&set);
            prop_assert!(matches!(set.0, Held::Few(_)));
            let at = Percentile::new(f64::from(percent) / 10.0).unwrap();
            prop_assert_eq!(set.quantile(at), many.quantile(at));
            prop_assert_eq!(set.mean(), many.mean());
            prop_assert_eq!(set.max(), many.max());
            let bound = spread(bound);
            prop_assert_eq!(set.count_above(bound), many.count_above(bound));
            prop_assert!(set.buckets().eq(many.buckets()));
            prop_assert_eq!(&set, &many);
        }

        #[test]
        fn sets_merge_the_same_however_they_are_held(
            ours in prop::collection::vec(0_u64..1 << 42, 0..90),
            theirs in prop::collection::vec(0_u64..1 << 42, 0..90),
        ) {
            let (ours, theirs) = (ours.into_iter(), theirs.into_iter());
            let (ours, theirs): (Latency, Latency) =
                (ours.map(Nanos).collect(), theirs.map(Nanos).collect());
            let (mut merged, mut histogram) = (ours.clone(), as_histogram(&ours));
            merged.merge(&theirs);
            histogram.merge(&as_histogram(&theirs));
            prop_assert_eq!(&merged, &histogram);
            prop_assert_eq!(merged.to_deflated(), histogram.to_deflated());
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
        V2Serializer::new().serialize(&Counts::default().histogram, &mut bytes).unwrap();
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
            let long = set.counts().histogram.value_at_quantile(at.fraction());
            prop_assert_eq!(set.quantile(at), Some(Nanos(long)));
        }

        #[test]
        fn packing_keeps_every_request(nanos in prop::collection::vec(100u64..1 << 39, 0..200)) {
            let set: Latency = nanos.into_iter().map(Nanos).collect();
            let back = Latency::from_base64(&set.to_base64()).unwrap();
            prop_assert_eq!(back.count(), set.count());
            prop_assert_eq!(back.counts().by_bucket, set.counts().by_bucket);
            prop_assert_eq!(&back, &set);
            prop_assert_eq!(back.quantile(Percentile::P99), set.quantile(Percentile::P99));
        }
    }
}
