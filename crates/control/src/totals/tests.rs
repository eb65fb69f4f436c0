//! What an epoch adds, and what it does not.

use super::*;
use crate::journal::{Decision, Entry};
use crate::{
    AppId, Assessment, CoreSet, LatencyObservation, Observation, Outcome, Plan, Progress,
    ProgressSource, Reason, ReportedTail, Setting, Tail,
};
use lull_measure::entropy::SystemEntropy;
use lull_measure::{Missing, Percentile};

fn apps() -> [AppSpec; 2] {
    let bound = Nanos::from_millis(10);
    [AppSpec::latency_critical("lc", Percentile::P95, bound), AppSpec::best_effort("be")]
}

/// An epoch of two seconds.
fn epoch(latency: lull_measure::Gauge<LatencyObservation>, tail: Option<Tail>) -> Epoch {
    let why = Missing::because("test");
    let progress = Progress { per_s: 100.0, source: ProgressSource::Instructions };
    let unknown = || AppObservation { alive: true, ..AppObservation::unknown(&why) };
    let none = AppAssessment { tail: None, lc: None, be: None };
    Epoch {
        number: 0,
        seen: Observation {
            apps: vec![
                AppObservation { latency, ..unknown().with_reading(CPU, Ok(1.5)) },
                AppObservation { progress: Ok(progress), ..unknown() },
            ],
            ..Observation::unknown(Nanos::from_secs(2), Nanos::from_secs(2), &why)
        },
        assessment: Assessment {
            apps: vec![AppAssessment { tail, ..none }, none],
            entropy: SystemEntropy { lc: None, be: None, system: 0.0 },
        },
        plan: Plan::default(),
        entries: Vec::new(),
        safe: false,
    }
}

fn millis(all: &[u64]) -> LatencyObservation {
    let window = all.iter().copied().map(Nanos::from_millis).collect();
    LatencyObservation { window, errors_per_s: 0.5, ..LatencyObservation::default() }
}

fn count(totals: &Totals, total: &Metric, of: &str) -> Option<f64> {
    totals.counts(total).find(|(label, _)| *label == of).map(|(_, count)| count)
}

#[test]
fn requests_are_counted_and_those_beyond_the_bound_are_late() {
    let mut totals = Totals::default();
    let tail = Some(Tail { latency: Nanos::from_millis(20), stale: false });
    for _ in 0..3 {
        totals.add(&apps(), &epoch(Ok(millis(&[1, 5, 20])), tail));
    }
    let of_lc = |total| count(&totals, total, "lc");
    assert_eq!(of_lc(rows::REQUESTS), Some(9.0));
    assert_eq!(of_lc(rows::LATE_REQUESTS), Some(3.0));
    assert_eq!(of_lc(rows::FAILED_REQUESTS), Some(3.0));
    assert_eq!((of_lc(rows::JUDGED_TIME), of_lc(rows::MISSED_TIME)), (Some(6.0), Some(6.0)));
    assert_eq!((of_lc(rows::CPU_TIME), of_lc(rows::SILENT_TIME)), (Some(9.0), Some(0.0)));
    assert_eq!(count(&totals, rows::WORK, "be"), Some(600.0));
    assert_eq!(count(&totals, rows::REQUESTS, "be"), None);
    assert_eq!(count(&totals, rows::OBSERVED_TIME, ""), Some(6.0));
    assert_eq!(count(&totals, rows::CONSUMED_ENERGY, ""), None, "no meter");
    let (app, latencies) = totals.latencies().next().unwrap();
    assert_eq!((app, latencies.count), ("lc", 9));
    assert_eq!(latencies.classic.iter().sum::<u64>(), 9);
    assert_eq!(latencies.native.values().sum::<u64>(), 9);
    assert!((latencies.sum_s - 0.078).abs() < 1e-4, "{}", latencies.sum_s);
    // 5 ms lie in the native bucket up to 2^(-61/8) s = 5.07 ms.
    assert_eq!(latencies.native.get(&-61), Some(&3));
}

#[test]
fn silence_and_old_tails_are_no_judgement() {
    let mut totals = Totals::default();
    totals.add(&apps(), &epoch(Err(Missing::because("silent")), None));
    let tail = Some(Tail { latency: Nanos::from_millis(20), stale: true });
    totals.add(&apps(), &epoch(Ok(millis(&[])), tail));
    assert_eq!(count(&totals, rows::SILENT_TIME, "lc"), Some(2.0));
    assert_eq!(count(&totals, rows::JUDGED_TIME, "lc"), Some(0.0));
    assert_eq!(count(&totals, rows::MISSED_TIME, "lc"), Some(0.0));
}

#[test]
fn a_source_of_tails_counts_requests_by_its_load_and_none_as_late() {
    let mut totals = Totals::default();
    let reported = ReportedTail { at: Percentile::P95, tail: None, per_s: Some(50.0) };
    let seen = LatencyObservation { reported: Some(reported), ..LatencyObservation::default() };
    totals.add(&apps(), &epoch(Ok(seen), None));
    assert_eq!(count(&totals, rows::REQUESTS, "lc"), Some(100.0));
    assert_eq!(count(&totals, rows::LATE_REQUESTS, "lc"), None, "it is not known");
}

#[test]
fn what_the_journal_has_is_counted_and_zero_before() {
    let mut totals = Totals::default();
    totals.add(&apps(), &epoch(Ok(millis(&[])), None));
    assert_eq!(count(&totals, rows::REFUSED_SETTINGS, ""), Some(0.0));
    let cores = Setting::Cores(AppId(0), CoreSet::first(2));
    let decision = |got| {
        let outcome = Outcome { wanted: cores.clone(), got };
        let (from, limit, expected) = (None, None, None);
        Event::Decision(Decision { from, reason: Reason::Start, outcome, limit, expected })
    };
    let why = String::new();
    let events = [
        decision(ApplyOutcome::Done),
        decision(ApplyOutcome::Refused { why: why.clone() }),
        Event::Held { wanted: cores.clone(), reason: Reason::Start, why: why.clone() },
        Event::SafeBegins { cause: why },
        Event::SafeEnds,
    ];
    let entry = |event| Entry { time: Nanos::ZERO, event };
    let entries = events.into_iter().map(entry).collect();
    totals.add(&apps(), &Epoch { entries, safe: true, ..epoch(Ok(millis(&[])), None) });
    let of_machine = [
        (rows::SETTINGS, 1.0),
        (rows::REFUSED_SETTINGS, 1.0),
        (rows::HELD_SETTINGS, 1.0),
        (rows::SAFE_STATES, 1.0),
        (rows::FOREIGN_CHANGES, 0.0),
        (rows::SAFE_TIME, 2.0),
        (rows::EPOCHS, 2.0),
    ];
    for (total, wanted) in of_machine {
        assert_eq!(count(&totals, total, ""), Some(wanted), "{}", total.name);
    }
}

#[test]
fn turns_and_waits_of_classes_of_clients_are_counted() {
    let mut totals = Totals::default();
    let mut seen = epoch(Ok(millis(&[1])), None);
    let class = |name: &str, turns| crate::ClientClassObservation {
        name: name.to_owned(),
        turns,
        waits: 2,
        ..crate::ClientClassObservation::default()
    };
    seen.seen.apps[0].client_classes = vec![class("web", 5), class("others", 0)];
    totals.add(&apps(), &seen);
    totals.add(&apps(), &seen);
    assert_eq!(count(&totals, rows::CLIENT_TURNS_TOTAL, "lc/web"), Some(10.0));
    assert_eq!(count(&totals, rows::CLIENT_TURNS_TOTAL, "lc/others"), Some(0.0));
    assert_eq!(count(&totals, rows::CLIENT_WAITS, "lc/web"), Some(4.0));
    totals.forget("lc");
    assert_eq!(count(&totals, rows::CLIENT_TURNS_TOTAL, "lc/web"), None);
}
