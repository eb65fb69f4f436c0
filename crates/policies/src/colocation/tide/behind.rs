//! Requests that a change of settings finds waiting.
//!
//! What queued up under the settings before is late whatever the new ones are;
//! who judges them by it judges the wrong ones.

use lull_control::{AppId, AppSpec, Observation};
use lull_measure::Nanos;

/// Whether one of these apps still has late requests that came before a moment.
pub(super) fn is_behind<'a>(
    mut apps: impl Iterator<Item = (AppId, &'a AppSpec)>,
    seen: &Observation,
    since: Nanos,
) -> bool {
    let is_behind = |app: AppId, spec: &AppSpec| {
        let oldest = seen.app(app)?.latency.as_ref().ok()?.oldest?;
        let (_, bound) = spec.tail()?;
        Some(oldest > bound && seen.time.saturating_sub(oldest) < since)
    };
    apps.any(|(app, spec)| is_behind(app, spec).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BOUND, be, be_spec, lc, lc_spec, observation};
    use lull_control::numbered;

    #[test]
    fn only_what_is_late_and_came_before_counts() {
        let specs = [lc_spec("a"), be_spec("be")];
        let second = Nanos::from_secs(1);
        let behind = |age: Option<Nanos>, since| {
            let mut app = lc(5.0);
            app.latency.as_mut().unwrap().oldest = age;
            is_behind(numbered(&specs), &observation(second * 9, second, vec![app, be(1.0)]), since)
        };
        assert!(behind(Some(second * 3), second * 7));
        assert!(!behind(Some(second * 3), second * 6), "it came at that very moment");
        assert!(!behind(Some(BOUND), second * 9), "in time so far");
        assert!(!behind(None, second * 9));
    }
}
