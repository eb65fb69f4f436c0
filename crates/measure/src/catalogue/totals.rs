//! Metrics that only grow: counters, and histograms of latency.
//!
//! Gauges of many machines cannot be added up after the fact, because a value between two
//! scrapes is lost. Totals can: the difference of two scrapes is exact, over any number of
//! machines. They count from the start of the agent.

/// The histogram of latency, whose buckets are [`LATENCY_BOUNDS_NS`].
pub const LATENCY_HISTOGRAM: &str = "lull_request_latency_seconds";
/// What it is, in one sentence.
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

metrics! {
    "Every counter there is, in the order of the docs.", TOTALS, Counter;

    REQUESTS = "requests", Count, App,
        "Requests answered.", "the app's latency source";
    LATE_REQUESTS = "late_requests", Count, App,
        "Requests answered later than the bound of the app's first tail objective.",
        "the app's latency source";
    FAILED_REQUESTS = "failed_requests", Count, App,
        "Requests that failed.", "the app's latency source";
    JUDGED_TIME = "judged_time", Seconds, App,
        "Time of the epochs with a tail latency that can be compared with its bound.",
        "`tail_latency_seconds`";
    MISSED_TIME = "missed_time", Seconds, App,
        "Time of the epochs whose tail latency is above its bound.", "`tail_latency_seconds`";
    SILENT_TIME = "silent_time", Seconds, App,
        "Time of the epochs in which the latency of a latency-critical app is missing while it \
         runs.",
        "the app's latency source";
    WORK = "work", Count, App,
        "Work done by a best-effort app, in its own unit.", "`progress_per_second`";
    CPU_TIME = "cpu_time", Seconds, App, "CPU time used.", "`cpu_ratio`";
    CLIENT_TURNS = "client_turns", Count, ClientClass,
        "Turns that a class of clients began at the gate.", "`client_turns_per_second`";
    CLIENT_WAITS = "client_waits", Count, ClientClass,
        "Turns of a class of clients that waited at the gate before they began.",
        "the page of the on-call runtime";
    ACCOUNT_WAITS = "account_waits", Count, ClientAccount,
        "Turns of a user with a database that waited at the gate before they began.",
        "the page of the on-call runtime";
    CONSUMED_ENERGY = "consumed_energy", Joules, Machine,
        "Energy of all epochs whose energy is known.", "`energy_joules`";
    EPOCHS = "epochs", Count, Machine, "Epochs.", "the control loop";
    OBSERVED_TIME = "observed_time", Seconds, Machine, "Time of all epochs.", "`epoch_seconds`";
    SAFE_TIME = "safe_time", Seconds, Machine,
        "Time of the epochs in the SLO-safe state.", "the control loop";
    SAFE_STATES = "safe_states", Count, Machine,
        "How often the SLO-safe state began.", "the journal";
    SETTINGS = "settings", Count, Machine,
        "Settings that took effect.", "the journal";
    REFUSED_SETTINGS = "refused_settings", Count, Machine,
        "Settings that the kernel refused.", "the journal";
    HELD_SETTINGS = "held_settings", Count, Machine,
        "Settings that were wanted and not applied: a limit, or a dry run.", "the journal";
    FOREIGN_CHANGES = "foreign_changes", Count, Machine,
        "Changes of a knob by another program.", "the journal";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::ALL;
    use std::collections::BTreeSet;

    #[test]
    fn no_counter_has_the_name_of_a_gauge_or_of_another_counter() {
        let gauges = ALL.iter().map(|metric| metric.prometheus_name());
        let counters = TOTALS.iter().map(|total| total.family());
        let all: Vec<String> =
            gauges.chain(counters).chain([LATENCY_HISTOGRAM.to_owned()]).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(TOTALS.iter().all(|total| total.help.ends_with('.')));
        assert_eq!(LATE_REQUESTS.prometheus_name(), "lull_late_requests_total");
        assert_eq!(CONSUMED_ENERGY.prometheus_name(), "lull_consumed_energy_joules_total");
    }

    #[test]
    fn bounds_ascend_from_ten_microseconds_to_a_hundred_seconds() {
        assert!(LATENCY_BOUNDS_NS.is_sorted_by(|one, next| one < next));
        assert_eq!((LATENCY_BOUNDS_NS[0], LATENCY_BOUNDS_NS[21]), (10_000, 100_000_000_000));
        assert_eq!(LATENCY_BOUNDS_NS[1..4], [20_000, 50_000, 100_000]);
    }
}
