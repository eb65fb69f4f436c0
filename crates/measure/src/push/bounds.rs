//! The range of every number in a push message.
//!
//! The decoder rejects values outside these ranges, so that no later arithmetic on a message
//! overflows, divides by zero, or does work in proportion to a value that a client chose.

use super::{LatencyWindow, Progress, PushError, SAMPLE_MAX};
use crate::{Nanos, RequestSample, SampledRequest};

/// The shortest window: one microsecond.
pub const LENGTH_MIN: Nanos = Nanos::from_micros(1);
/// The longest window, that of a client that was stopped meanwhile: an hour.
pub const LENGTH_MAX: Nanos = Nanos::from_secs(3_600);
/// Most requests in one window (2^40), in each counter, the histogram and `one_in`.
pub const COUNT_MAX: u64 = 1 << 40;
/// The longest latency, age or wait: a year.
pub const SPAN_MAX: Nanos = Nanos::from_secs(365 * 86_400);
/// The largest total of progress.
pub const TOTAL_MAX: f64 = 1e21;

/// One key with its value and the largest value that it may have.
type Bound = (&'static str, u64, u64);

const TOO_MANY: &str = "above 1099511627776 (2^40): send fewer requests in a window";
const TOO_LONG: &str = "above 31536000000000000 (one year in nanoseconds)";

/// Checks the numbers of a window.
pub(super) fn check_window(window: &LatencyWindow) -> Result<(), PushError> {
    if !(LENGTH_MIN..=LENGTH_MAX).contains(&window.length_ns) {
        return refuse("length_ns", "outside 1000 to 3600000000000 (1 us to 1 h)");
    }
    let counts: [Bound; 6] = [
        ("due", window.due, COUNT_MAX),
        ("sent", window.sent, COUNT_MAX),
        ("completed", window.completed, COUNT_MAX),
        ("errors", window.errors, COUNT_MAX),
        ("outstanding", window.outstanding, COUNT_MAX),
        ("histogram", window.histogram.count(), COUNT_MAX),
    ];
    let spans: [Bound; 2] = [
        ("oldest_ns", window.oldest_ns.0, SPAN_MAX.0),
        ("lag_p99_ns", window.lag_p99_ns.0, SPAN_MAX.0),
    ];
    check_bounds(&counts, TOO_MANY)?;
    check_bounds(&spans, TOO_LONG)?;
    let end = window.start_ns.saturating_add(window.length_ns);
    window.sample.as_ref().map_or(Ok(()), |sample| check_sample(sample, end))
}

/// Checks the numbers of a progress report.
pub(super) fn check_progress(progress: &Progress) -> Result<(), PushError> {
    if !(0.0..=TOTAL_MAX).contains(&progress.total) {
        return refuse("total", "that is negative, not a number, or above 1e21");
    }
    Ok(())
}

/// Checks a sample of requests that finished in a window with this end.
fn check_sample(sample: &RequestSample, end: Nanos) -> Result<(), PushError> {
    if sample.requests.len() > SAMPLE_MAX {
        return refuse("sample", "of more than 64 requests");
    }
    if !(1..=COUNT_MAX).contains(&sample.one_in) {
        return refuse("sample", "whose `one_in` is outside 1 to 1099511627776 (2^40)");
    }
    sample.requests.iter().try_for_each(|request| check_request(request, end))
}

fn check_request(request: &SampledRequest, end: Nanos) -> Result<(), PushError> {
    if request.due_ns > end {
        return refuse("sample", "of a request that is due after the end of its window");
    }
    let spans: [Bound; 2] = [
        ("wait_ns", request.wait_ns.0, SPAN_MAX.0),
        ("latency_ns", request.latency_ns.0, SPAN_MAX.0),
    ];
    check_bounds(&spans, TOO_LONG)
}

fn check_bounds(values: &[Bound], problem: &'static str) -> Result<(), PushError> {
    match values.iter().find(|(_, value, most)| value > most) {
        Some((key, ..)) => refuse(key, problem),
        None => Ok(()),
    }
}

const fn refuse(key: &'static str, problem: &'static str) -> Result<(), PushError> {
    Err(PushError::Value { key, problem })
}
