//! Counts and latencies of requests, by window and in total.

use crate::target::{ErrorCode, RequestKind};
use lull_measure::{Latency, Nanos, RequestSample, SampledRequest, Sampler};
use serde::Serialize;
use std::collections::BTreeMap;
use std::iter::Sum;
use std::ops::AddAssign;

/// Numbers of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) due: u64,
    pub(super) sent: u64,
    pub(super) completed: u64,
    /// Among the completed: the server had no such key.
    pub(super) missed: u64,
    /// Answered with an error, or lost with the connection.
    pub(super) failed: u64,
    pub(super) timed_out: u64,
    /// Tries that a deadlock or serialization failure ended and that were repeated.
    pub(super) retried: u64,
    /// Sendings of requests that the server did not take and that were sent again.
    pub(super) resent: u64,
}

/// Numbers of handshakes of TLS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Handshakes {
    pub(super) completed: u64,
    /// Among them: a session of an earlier connection continued.
    pub(super) resumed: u64,
}

impl AddAssign for Handshakes {
    fn add_assign(&mut self, other: Self) {
        self.completed += other.completed;
        self.resumed += other.resumed;
    }
}

impl Sum for Handshakes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        let mut total = Self::default();
        all.for_each(|one| total += one);
        total
    }
}

/// One window of the run, as the reporter receives it.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Its place in the run, by which those of several threads are put together.
    pub(super) number: u64,
    pub(super) start: Nanos,
    pub(super) length: Nanos,
    /// Whether it began before the warm-up was over.
    pub(super) warmup: bool,
    pub(super) counts: Counts,
    pub(super) outstanding: u64,
    pub(super) oldest: Nanos,
    pub(super) latency: Latency,
    pub(super) lag: Latency,
    pub(super) sample: RequestSample,
}

/// Most requests of a window that are reported one by one.
const SAMPLE_MAX: usize = 16;

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.due += other.due;
        self.sent += other.sent;
        self.completed += other.completed;
        self.missed += other.missed;
        self.failed += other.failed;
        self.timed_out += other.timed_out;
        self.retried += other.retried;
        self.resent += other.resent;
    }
}

impl Window {
    /// Adds the same window of another thread.
    pub(super) fn merge(&mut self, other: &Self) {
        self.start = self.start.min(other.start);
        self.length = self.length.max(other.length);
        self.warmup |= other.warmup;
        self.counts += other.counts;
        self.outstanding += other.outstanding;
        self.oldest = self.oldest.max(other.oldest);
        self.latency.merge(&other.latency);
        self.lag.merge(&other.lag);
        self.sample.merge(&other.sample);
        self.sample.thin(SAMPLE_MAX);
    }

    /// Clears all counts and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.counts = Counts::default();
        self.latency.clear();
        self.lag.clear();
        self.sample.requests.clear();
    }
}

/// Errors of one code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ErrorCount {
    /// Requests that ended with it.
    pub(super) failed: u64,
    /// Tries that ended with it and were repeated.
    pub(super) retried: u64,
    /// The server's message with the first of them.
    pub(super) message: String,
}

/// Requests of one kind.
#[derive(Debug, Default)]
pub(super) struct KindTotal {
    pub(super) completed: u64,
    /// Among them: the server had no such key.
    pub(super) missed: u64,
    /// Latencies of the completed requests, and the ages of those that timed out.
    pub(super) latency: Latency,
}

/// The whole run without its warm-up.
#[derive(Debug, Default)]
pub(super) struct Total {
    /// Errors that a database reported.
    pub(super) errors: BTreeMap<ErrorCode, ErrorCount>,
    pub(super) counts: Counts,
    /// Requests by kind, where there are several.
    pub(super) kinds: BTreeMap<RequestKind, KindTotal>,
    pub(super) latency: Latency,
    pub(super) service: Latency,
    pub(super) wait: Latency,
    pub(super) lag: Latency,
}

/// The result of a whole run: what the engine returns and the report shows.
pub(super) struct RunResult {
    pub(super) total: Total,
    /// The time from the end of the warm-up to the last due time.
    pub(super) measured: Nanos,
    /// Requests due and not finished at the end, and the age of the oldest.
    pub(super) outstanding: u64,
    pub(super) oldest: Nanos,
    /// Connections lost or not made, and why the last of them was.
    pub(super) losses: u64,
    pub(super) last_loss: Option<String>,
    /// Connections whose end the server had announced.
    pub(super) announced: u64,
    pub(super) handshakes: Handshakes,
    /// Windows that the reporter was too slow to take.
    pub(super) dropped_windows: u64,
}

impl Total {
    fn merge(&mut self, other: Self) {
        for (code, count) in other.errors {
            let all = self.errors.entry(code).or_default();
            all.failed += count.failed;
            all.retried += count.retried;
            if all.message.is_empty() {
                all.message = count.message;
            }
        }
        for (kind, total) in other.kinds {
            let all = self.kinds.entry(kind).or_default();
            all.completed += total.completed;
            all.missed += total.missed;
            all.latency.merge(&total.latency);
        }
        self.counts += other.counts;
        self.latency.merge(&other.latency);
        self.service.merge(&other.service);
        self.wait.merge(&other.wait);
        self.lag.merge(&other.lag);
    }
}

impl RunResult {
    /// Adds the result of another thread of the same run.
    pub(super) fn merge(&mut self, other: Self) {
        self.total.merge(other.total);
        self.measured = self.measured.max(other.measured);
        self.outstanding += other.outstanding;
        self.oldest = self.oldest.max(other.oldest);
        self.losses += other.losses;
        self.announced += other.announced;
        self.handshakes += other.handshakes;
        self.last_loss = self.last_loss.take().or(other.last_loss);
        self.dropped_windows += other.dropped_windows;
    }
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// Its intended send time.
    pub(super) due: Nanos,
    /// When it was due and a connection was free for it.
    pub(super) ready: Nanos,
    /// When it was written to the connection.
    pub(super) sent: Nanos,
    pub(super) kind: RequestKind,
    /// Whether it has been counted as timed out: its reply is then dropped.
    pub(super) timed_out: bool,
}

/// Records every event in the current window and, after the warm-up, in the total.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Requests due from here on are reported.
    measured_from: Nanos,
    pub(super) window: Box<Window>,
    pub(super) total: Total,
    sampler: Sampler,
}

impl Ledger {
    pub(super) fn new(measured_from: Nanos, window: Box<Window>) -> Self {
        let sampler = Sampler::new(SAMPLE_MAX);
        Self { measured_from, window, total: Total::default(), sampler }
    }

    fn count(&mut self, due: Nanos, change: impl Fn(&mut Counts)) {
        change(&mut self.window.counts);
        if due >= self.measured_from {
            change(&mut self.total.counts);
        }
    }

    pub(super) fn due(&mut self, due: Nanos) {
        self.count(due, |counts| counts.due += 1);
    }

    pub(super) fn sent(&mut self, request: &Request) {
        self.count(request.due, |counts| counts.sent += 1);
        let lag = request.sent.saturating_sub(request.ready);
        self.window.lag.record(lag);
        if request.due >= self.measured_from {
            self.total.lag.record(lag);
            self.total.wait.record(request.ready.saturating_sub(request.due));
        }
    }

    /// Notes that a request was sent for nothing: it is sent again.
    pub(super) fn untaken(&mut self, due: Nanos) {
        self.count(due, |counts| {
            counts.sent = counts.sent.saturating_sub(1);
            counts.resent += 1;
        });
    }

    pub(super) fn completed(&mut self, request: &Request, now: Nanos, missed: bool) {
        self.count(request.due, |counts| {
            counts.completed += 1;
            counts.missed += u64::from(missed);
        });
        self.latency(request.due, now);
        self.sampler.see(|| SampledRequest {
            due_ns: request.due,
            wait_ns: request.sent.saturating_sub(request.due),
            latency_ns: now.saturating_sub(request.due),
        });
        if request.due >= self.measured_from {
            self.total.service.record(now.saturating_sub(request.sent));
        }
        if let Some(total) = self.of_kind(request) {
            total.completed += 1;
            total.missed += u64::from(missed);
            total.latency.record(now.saturating_sub(request.due));
        }
    }

    /// Moves the sample into the window, before the reporter receives it.
    pub(super) fn close_window(&mut self) {
        self.window.sample = self.sampler.take();
    }

    pub(super) fn failed(&mut self, due: Nanos) {
        self.count(due, |counts| counts.failed += 1);
    }

    /// Records an error that a database reported; `is_retried` if the request continues.
    pub(super) fn error(&mut self, due: Nanos, code: ErrorCode, is_retried: bool, message: &str) {
        let change = |counts: &mut Counts| match is_retried {
            true => counts.retried += 1,
            false => counts.failed += 1,
        };
        self.count(due, change);
        if due >= self.measured_from {
            let count = self.total.errors.entry(code).or_insert_with(|| ErrorCount {
                message: message.to_owned(),
                ..ErrorCount::default()
            });
            match is_retried {
                true => count.retried += 1,
                false => count.failed += 1,
            }
        }
    }

    /// The total of a request's kind, if it has one and the warm-up is over.
    fn of_kind(&mut self, request: &Request) -> Option<&mut KindTotal> {
        let is_counted = request.kind != RequestKind::Only && request.due >= self.measured_from;
        is_counted.then(|| self.total.kinds.entry(request.kind).or_default())
    }

    /// Records a request that was sent and became too old.
    pub(super) fn sent_timed_out(&mut self, request: &Request, now: Nanos) {
        self.timed_out(request.due, now);
        if let Some(total) = self.of_kind(request) {
            total.latency.record(now.saturating_sub(request.due));
        }
    }

    /// Records a request that became too old, before it was sent or after.
    pub(super) fn timed_out(&mut self, due: Nanos, now: Nanos) {
        self.count(due, |counts| counts.timed_out += 1);
        self.latency(due, now);
    }

    fn latency(&mut self, due: Nanos, now: Nanos) {
        let latency = now.saturating_sub(due);
        self.window.latency.record(latency);
        if due >= self.measured_from {
            self.total.latency.record(latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_is_in_the_windows_and_not_in_the_total() {
        let mut ledger = Ledger::new(Nanos::from_secs(1), Box::default());
        for due in [Nanos::from_millis(999), Nanos::from_millis(1000)] {
            let sent = due + Nanos::from_micros(30);
            let ready = due + Nanos::from_micros(10);
            let kind = RequestKind::Get;
            let request = Request { due, ready, sent, kind, timed_out: false };
            ledger.due(due);
            ledger.sent(&request);
            ledger.completed(&request, sent + Nanos::from_micros(100), due.0 > 0);
        }
        assert_eq!(ledger.window.counts.completed, 2);
        assert_eq!(ledger.window.latency.count(), 2);
        let total = &ledger.total;
        assert_eq!((total.counts.due, total.counts.missed, total.latency.count()), (1, 1, 1));
        let about = |set: &Latency, micros: u64| {
            let max = set.max().unwrap().as_micros_f64();
            assert!((max - micros as f64).abs() < 0.2, "{max} {micros}");
        };
        about(&total.wait, 10);
        about(&total.lag, 20);
        about(&total.service, 100);
        about(&total.latency, 130);
        let gets = &total.kinds[&RequestKind::Get];
        assert_eq!((gets.completed, gets.missed, gets.latency.count()), (1, 1, 1));
    }

    #[test]
    fn a_request_that_timed_out_is_in_the_tail() {
        let mut ledger = Ledger::new(Nanos::ZERO, Box::default());
        ledger.timed_out(Nanos::ZERO, Nanos::from_secs(10));
        assert_eq!(ledger.total.latency.count_above(Nanos::from_secs(9)), 1);
        assert_eq!(ledger.total.counts.completed, 0);
    }
}
