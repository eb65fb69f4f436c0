//! Requests that were already waiting when the settings changed.
//!
//! A request that queued under the previous settings is late whatever the new ones are, so its
//! latency must not be attributed to them.

use lull_control::{AppId, AppSpec, Observation};
use lull_measure::Nanos;

/// Returns whether one of these apps still has late requests that arrived before `since`.
pub(super) fn has_backlog<'a>(
    mut apps: impl Iterator<Item = (AppId, &'a AppSpec)>,
    seen: &Observation,
    since: Nanos,
) -> bool {
    let is_late = |app: AppId, spec: &AppSpec| {
        let oldest = seen.app(app)?.latency.as_ref().ok()?.oldest?;
        let (_, bound) = spec.tail()?;
        Some(oldest > bound && seen.time.saturating_sub(oldest) < since)
    };
    apps.any(|(app, spec)| is_late(app, spec).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BOUND, be, be_spec, lc, lc_spec, observation};
    use lull_control::numbered;

    #[test]
    fn only_late_requests_that_arrived_before_count() {
        let specs = [lc_spec("a"), be_spec("be")];
        let second = Nanos::from_secs(1);
        let behind = |age: Option<Nanos>, since| {
            let mut app = lc(5.0);
            app.latency.as_mut().unwrap().oldest = age;
            has_backlog(
                numbered(&specs),
                &observation(second * 9, second, vec![app, be(1.0)]),
                since,
            )
        };
        assert!(behind(Some(second * 3), second * 7));
        assert!(!behind(Some(second * 3), second * 6), "it arrived at that very moment");
        assert!(!behind(Some(BOUND), second * 9), "in time so far");
        assert!(!behind(None, second * 9));
    }
}
