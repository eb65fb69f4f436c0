//! The histogram of latency that `/metrics` has of each app.

/// The histogram of latency, whose buckets are [`LATENCY_BOUNDS_NS`].
pub const LATENCY_HISTOGRAM: &str = "lull_request_latency_seconds";
/// A summary in one sentence.
pub const LATENCY_HELP: &str =
    "Latencies of all requests since the agent started, where the latency source counts requests.";

/// Upper bounds of the classic buckets of latency, in nanoseconds: three a decade, from 10 us to
/// 100 s.
pub const LATENCY_BOUNDS_NS: [u64; 22] = {
    let (mut bounds, mut at, mut decade) = ([0; 22], 0, 10_000);
    while at < 22 {
        bounds[at] = match at % 3 {
            0 => decade,
            1 => 2 * decade,
            _ => 5 * decade,
        };
        at += 1;
        decade *= if at % 3 == 0 { 10 } else { 1 };
    }
    bounds
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_from_ten_microseconds_to_a_hundred_seconds() {
        assert!(LATENCY_BOUNDS_NS.is_sorted_by(|one, next| one < next));
        assert_eq!((LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[21]), (10_000, 100_000_000_000));
        assert_eq!(LATENCY_BOUNDS_NS[1..4], [20_000, 50_000, 100_000]);
    }
}
