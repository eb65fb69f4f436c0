//! When a watch begins again after an error: not before the server wants a request, which it states
//! by `Retry-After`, and after waits that grow up to 30 s and are drawn by each node for itself.
//!
//! Source: priority and fairness of the API server,
//! <https://kubernetes.io/docs/concepts/cluster-administration/flow-control/>.

use http::{Response, StatusCode, header};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest wait that a server may demand.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The time before which the server accepts no request. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Throttle {
    until: Arc<Mutex<Option<Instant>>>,
}

impl Throttle {
    /// Notes what a response demands.
    pub(super) fn note<B>(&self, response: &Response<B>, now: Instant) {
        let is_busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE]
            .contains(&response.status());
        let after = response.headers().get(header::RETRY_AFTER).filter(|_| is_busy);
        let seconds = after.and_then(|after| after.to_str().ok()?.trim().parse().ok());
        if let Some(seconds) = seconds {
            let until = now + Duration::from_secs(seconds).min(WAIT_MAX);
            let mut latest = self.until.lock().unwrap_or_else(PoisonError::into_inner);
            *latest = (*latest).max(Some(until));
        }
    }

    /// Returns for how long the server still accepts no request.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// The waits of one watch.
pub(super) struct PatientBackoff {
    throttle: Throttle,
    usual: DefaultBackoff,
    /// Events since the last error.
    events: u32,
}

impl PatientBackoff {
    pub(super) fn new(throttle: Throttle) -> Self {
        Self { throttle, usual: DefaultBackoff::default(), events: 0 }
    }
}

impl Iterator for PatientBackoff {
    type Item = Duration;

    /// The usual wait, which is random, begins when the server wants a request: of many nodes that
    /// received the same time, not all send one at once.
    fn next(&mut self) -> Option<Duration> {
        self.events = 0;
        let usual = self.usual.next()?;
        Some(self.throttle.remaining(Instant::now()) + usual)
    }
}

impl Backoff for PatientBackoff {
    /// Called with each event. The first one may be `Init`, which a watch makes by itself before
    /// each list: the waits between lists that fail would never grow.
    fn reset(&mut self) {
        self.events = self.events.saturating_add(1);
        if self.events > 1 {
            self.usual.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, after: &str) -> Response<()> {
        Response::builder().status(status).header("Retry-After", after).body(()).unwrap()
    }

    #[test]
    fn the_server_says_for_how_long_it_is_left_alone() {
        let now = Instant::now();
        let throttle = Throttle::default();
        throttle.note(&response(200, "60"), now);
        throttle.note(&response(429, "soon"), now);
        assert_eq!(throttle.remaining(now), Duration::ZERO);
        throttle.note(&response(429, "60"), now);
        throttle.note(&response(503, "5"), now);
        assert_eq!(throttle.remaining(now), Duration::from_secs(60), "the longest counts");
        assert_eq!(throttle.remaining(now + Duration::from_secs(61)), Duration::ZERO);
        throttle.note(&response(429, "999999999"), now);
        assert_eq!(throttle.remaining(now), WAIT_MAX);
    }

    #[test]
    fn waits_between_lists_that_fail_grow_until_the_server_answers_one() {
        let mut backoff = PatientBackoff::new(Throttle::default());
        let mut list_fails = || {
            backoff.reset();
            backoff.next().unwrap()
        };
        let waits: Vec<Duration> = (0..5).map(|_| list_fails()).collect();
        assert!(waits[4] > waits[0] * 3, "{waits:?}");
        // `Init` and `InitDone`.
        backoff.reset();
        backoff.reset();
        assert!(waits[4] > backoff.next().unwrap() * 3);
    }

    #[test]
    fn waits_grow_differ_and_begin_when_the_server_wants_a_request() {
        let throttle = Throttle::default();
        let waits = |throttle: &Throttle| -> Vec<Duration> {
            PatientBackoff::new(throttle.clone()).take(5).collect()
        };
        let (one, other) = (waits(&throttle), waits(&throttle));
        assert!(one[4] > one[0] * 3 && one != other, "{one:?} {other:?}");
        throttle.note(&response(429, "60"), Instant::now());
        assert!(waits(&throttle).iter().all(|wait| *wait > Duration::from_secs(60)));
    }
}
