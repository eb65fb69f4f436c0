//! Slack of latency-critical apps, and which apps a policy that uses tails accepts.

use lull_control::{AppAssessment, AppId, AppSpec, Assessment, Observation, PolicyError, numbered};
use lull_measure::Nanos;

/// One latency-critical app in one period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slack {
    pub(crate) app: AppId,
    /// Its tail latency, the last known one while it is idle.
    pub(crate) tail: Nanos,
    /// (bound - tail)/bound: 1 is idle, 0 is on the bound, below 0 is over it.
    pub(crate) slack: f64,
    /// Whether requests were answered or wait, so that it may be in need now.
    pub(crate) active: bool,
}

/// The latency-critical apps that live and have a tail.
pub(crate) fn slacks(apps: &[AppSpec], seen: &Observation, assessment: &Assessment) -> Vec<Slack> {
    let each = numbered(apps).zip(&assessment.apps);
    each.filter_map(|((app, spec), stand)| slack(app, spec, seen, stand)).collect()
}

fn slack(app: AppId, spec: &AppSpec, seen: &Observation, stand: &AppAssessment) -> Option<Slack> {
    let (_, bound) = spec.tail().filter(|_| spec.is_latency_critical())?;
    let tail = stand.tail?;
    let now = seen.app(app).filter(|now| now.alive)?;
    let waiting = now.latency.as_ref().is_ok_and(|latency| latency.outstanding > 0);
    let slack = 1.0 - tail.latency.as_secs_f64() / bound.as_secs_f64();
    Some(Slack { app, tail: tail.latency, slack, active: !tail.stale || waiting })
}

/// Refuses apps that a policy of tails cannot serve: latency-critical ones
/// without a bound, or with an ideal tail above it, whose tolerance A would be
/// negative.
///
/// # Errors
/// The first such app by name.
pub(crate) fn check_apps(policy: &'static str, apps: &[AppSpec]) -> Result<(), PolicyError> {
    for spec in apps.iter().filter(|spec| spec.is_latency_critical()) {
        let name = &spec.name;
        let message = match (spec.tail(), spec.ideal) {
            (None, _) => format!("`{name}` needs an objective such as {{ p95 = \"5ms\" }}"),
            (Some((percentile, bound)), Some(ideal)) if ideal > bound => format!(
                "the ideal {percentile} of `{name}`, {ideal}, is above its bound {bound}: no \
                 policy can meet it; raise the bound or measure the ideal again"
            ),
            _ => continue,
        };
        return Err(PolicyError::Apps { policy, message });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Percentile;

    #[test]
    fn an_ideal_above_the_bound_is_refused_with_the_app_and_both_numbers() {
        let bound = Nanos::from_millis(4);
        let lc = |name| AppSpec::latency_critical(name, Percentile::P95, bound);
        let mut apps = [lc("good"), lc("slow")];
        assert_eq!(check_apps("arq", &apps), Ok(()));
        apps[1].ideal = Some(Nanos::from_millis(5));
        let text = check_apps("arq", &apps).unwrap_err().to_string();
        assert!(text.contains("slow") && text.contains("5ms") && text.contains("4ms"), "{text}");
        apps[1].ideal = Some(bound);
        assert_eq!(check_apps("arq", &apps), Ok(()));
    }

    #[test]
    fn a_latency_critical_app_without_a_bound_is_refused_by_name() {
        let mut app = AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(1));
        app.objectives.clear();
        assert!(check_apps("arq", &[app]).unwrap_err().to_string().contains("`lc`"));
    }
}
