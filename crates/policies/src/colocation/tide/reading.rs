//! Tails and entropy of one period, with their confidence intervals.

use lull_control::{
    AppAssessment, AppId, AppObservation, AppSpec, Assessment, Observation, numbered,
};
use lull_measure::entropy::RelativeImportance;
use lull_measure::{Latency, Percentile};

/// A value and the interval in which it would lie by chance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounded {
    pub(super) low: f64,
    pub(super) value: f64,
    pub(super) high: f64,
}

/// One latency-critical app that is at work: its tail over its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    pub(super) app: AppId,
    pub(super) tail: Bounded,
}

/// The latency-critical apps that live and have requests.
pub(super) fn readings(
    apps: &[AppSpec],
    seen: &Observation,
    assessment: &Assessment,
    chance: f64,
) -> Vec<Reading> {
    let each = numbered(apps).zip(&assessment.apps);
    let read = |((app, spec), stand): ((AppId, &AppSpec), &AppAssessment)| {
        let now = seen.app(app).filter(|now| now.alive && spec.is_latency_critical())?;
        Some(Reading { app, tail: tail(spec, now, stand, chance)? })
    };
    each.filter_map(read).collect()
}

/// The tail over the bound; `None` for an app that is idle or cannot be read.
fn tail(
    spec: &AppSpec,
    now: &AppObservation,
    stand: &AppAssessment,
    chance: f64,
) -> Option<Bounded> {
    let (percentile, bound) = spec.tail()?;
    let latency = now.latency.as_ref().ok()?;
    let tail = stand.tail?;
    let over = |nanos: lull_measure::Nanos| nanos.as_secs_f64() / bound.as_secs_f64();
    let value = over(tail.latency);
    if tail.stale {
        // Requests wait and none was answered: their age is no matter of chance.
        let sure = Bounded { low: value, value, high: value };
        return (latency.outstanding > 0).then_some(sure);
    }
    let at = |deviations: f64| quantile(&latency.window, percentile, deviations).map(over);
    let (low, high) = (at(-chance)?, at(chance)?);
    Some(Bounded { low: low.min(value), value, high: high.max(value) })
}

/// The order statistic this many standard deviations of a binomial count from
/// a percentile (David and Nagaraja, "Order Statistics", section 7.1).
fn quantile(
    window: &Latency,
    percentile: Percentile,
    deviations: f64,
) -> Option<lull_measure::Nanos> {
    let share = percentile.fraction();
    let count = window.count().max(1) as f64;
    let moved = share + deviations * (share * (1.0 - share) / count).sqrt();
    // A percentile of 0 or 100 is the least or the most there was.
    let percent = (100.0 * moved).clamp(1e-3, 100.0 - 1e-6);
    window.quantile(Percentile::new(percent).ok()?)
}

/// E_S with the interval that the tails' intervals give it. Without progress
/// of best-effort apps it is E_LC alone.
pub(super) fn entropy_of(
    all: &[Reading],
    assessment: &Assessment,
    importance: RelativeImportance,
) -> Bounded {
    let missed = |tail: f64| if tail > 1.0 { 1.0 - 1.0 / tail } else { 0.0 };
    let mean = |of: fn(&Bounded) -> f64| {
        all.iter().map(|one| missed(of(&one.tail))).sum::<f64>() / all.len().max(1) as f64
    };
    let join = |lc: f64| match assessment.entropy.be {
        Some(be) => importance.value() * lc + (1.0 - importance.value()) * be,
        None => lc,
    };
    Bounded {
        low: join(mean(|tail| tail.low)),
        value: join(mean(|tail| tail.value)),
        high: join(mean(|tail| tail.high)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Nanos;

    fn uniform(count: u64) -> Latency {
        (1..=count).map(Nanos::from_micros).collect()
    }

    #[test]
    fn a_tail_is_known_to_the_ranks_of_a_binomial_count() {
        // p95 of 1,000: ranks 950 ± 1.96 sqrt(1000 0.05 0.95) = 936.5 and 963.5.
        let at = |deviations| quantile(&uniform(1_000), Percentile::P95, deviations).unwrap();
        let near = |got: Nanos, micros: f64| (got.as_micros_f64() / micros - 1.0).abs() < 0.003;
        assert!(near(at(0.0), 950.0) && near(at(-1.96), 937.0) && near(at(1.96), 964.0));
    }

    #[test]
    fn few_requests_know_little() {
        let window = uniform(10);
        let at =
            |deviations| quantile(&window, Percentile::P95, deviations).unwrap().as_micros_f64();
        assert!(at(-1.96) < 9.1 && at(1.96) > 9.9, "{} {}", at(-1.96), at(1.96));
    }

    #[test]
    fn the_interval_of_entropy_covers_tails_on_both_sides_of_the_bound() {
        let tail = Bounded { low: 0.8, value: 0.9, high: 1.25 };
        let all = [Reading { app: AppId(0), tail }];
        let entropy =
            lull_measure::entropy::combine(None, Some(0.5), RelativeImportance::default());
        let assessment = Assessment { apps: Vec::new(), entropy };
        let got = entropy_of(&all, &assessment, RelativeImportance::default());
        assert!((got.value - 0.1).abs() < 1e-12 && got.low == got.value);
        assert!((got.high - (0.8 * 0.2 + 0.1)).abs() < 1e-12, "{got:?}");
    }
}
