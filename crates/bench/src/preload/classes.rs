//! A class of clients with nine tenths of the turns, also on cores of its own, or with a promise to
//! each of its connections, beside many others: what it gains, and what is left to the others.

use super::super::stats::{Summary, interleave};
use super::Report;
use super::contest::{CAP_16, Served as _, Setting, in_turn};
use super::database;
use super::promises::{BOUND_MS, MixedRun, OTHERS, PROMISED, RUN_S, SETTLING_S, figures, run};
use super::tls::{Costs, QueryProgram};
use anyhow::Result;
use lull_measure::Nanos;
use lull_measure::compliance::Patience;
use std::cell::RefCell;
use std::path::Path;

const ROUNDS: usize = 7;

const CLASSES: Setting = Setting {
    name: "classes 9:1, cap 16",
    exec: Some(&[
        "--concurrency",
        "16",
        "--client-class",
        "name = \"few\", weight = 9, match = [{ port = 27617 }]",
    ]),
    options: &["--extra-port=27617", "--extra-max-connections=8"],
};

/// The same class, each of whose connections has a promise.
const PSLO: Setting = Setting {
    name: "pslo by class, cap 16",
    exec: Some(&[
        "--concurrency",
        "pslo",
        "--key",
        "cap=16",
        "--client-class",
        "name = \"few\", match = [{ port = 27618 }]",
        "--promise",
        "client_class = \"few\", connections = 4, objective = { p95 = \"20ms\" }",
    ]),
    options: &["--extra-port=27618", "--extra-max-connections=8"],
};

/// The same by the share of users that waiting may drive away.
const UTSLO: Setting = Setting {
    name: "utslo by class, cap 16",
    exec: Some(&[
        "--concurrency",
        "utslo",
        "--key",
        "cap=16",
        "--client-class",
        "name = \"few\", match = [{ port = 27619 }]",
        "--promise",
        "client_class = \"few\", connections = 4, objective = { disengagement = 0.001 }",
    ]),
    options: &["--extra-port=27619", "--extra-max-connections=8"],
};

/// The same weights, and areas of cores that `qos-wc` draws.
const AREAS: Setting = Setting {
    name: "classes 9:1 and areas, cap 16",
    exec: Some(&[
        "--concurrency",
        "16",
        "--client-class",
        "name = \"few\", weight = 9, match = [{ port = 27620 }]",
        "--area",
        "client_class = \"few\", connections = 4, objective = { p95 = \"20ms\" }",
    ]),
    options: &["--extra-port=27620", "--extra-max-connections=8"],
};

/// The settings in the order of the rows. All servers run at a time, so each has a port of its own
/// for the class.
const SETTINGS: [Setting; 5] = [CAP_16, CLASSES, PSLO, UTSLO, AREAS];

/// The objective under [`UTSLO`].
const DISENGAGEMENT: f64 = 0.001;

/// Throughput of the others that classes or promises may cost, over that behind the same cap.
const LEFT_MIN: f64 = 0.9;

/// Rounds of the cost of a query.
const QUERY_ROUNDS: usize = 9;
/// Bound of the design for a query that is tracked, in nanoseconds over a bare one.
const TRACKED_MAX_NS: f64 = 100.0;
/// Two classes, of which the second has the client by its port; no port is 1.
const TWO_CLASSES: [&str; 4] = [
    "--client-class",
    "name = \"none\", match = [{ port = 1 }]",
    "--client-class",
    "name = \"rest\", weight = 4",
];

/// Measures the cost of classes of clients to a query whose connection does not wait: tracked only,
/// and behind a gate with free slots.
///
/// # Errors
/// If the program cannot be built, or fails.
pub(super) fn measure_query(lull: &Path, root: &Path, report: &mut Report) -> Result<()> {
    let program = QueryProgram::build(root)?;
    let (tracked, gated) = (["--protocol", "mysql"], ["--concurrency", "16"]);
    let settings = [
        None,
        Some(tracked.to_vec()),
        Some([&tracked[..], &TWO_CLASSES].concat()),
        Some([&tracked[..], &gated].concat()),
        Some([&tracked[..], &gated, &TWO_CLASSES].concat()),
    ];
    let seen = settings.each_ref().map(|_| RefCell::new(Vec::<Costs>::new()));
    let take = |at: usize| {
        seen[at].borrow_mut().push(program.run(lull, settings[at].as_deref())?);
        Ok(0.0)
    };
    interleave(
        QUERY_ROUNDS,
        &mut [&mut || take(0), &mut || take(1), &mut || take(2), &mut || take(3), &mut || take(4)],
    )?;
    // The first round warms up.
    let beyond = |at: usize, base: usize| {
        let (of, base) = (seen[at].borrow(), seen[base].borrow());
        let pairs = of.iter().zip(base.iter()).skip(1);
        Summary::new(pairs.map(|(of, base)| of.plain.beyond_ns - base.plain.beyond_ns))
    };
    report.reported("query, tracked, beyond bare", beyond(1, 0), "ns");
    let range = f64::NEG_INFINITY..=TRACKED_MAX_NS;
    report.bounded("query, tracked with classes, beyond bare", beyond(2, 0), "ns", range);
    report.reported("query, tracked with classes, beyond without", beyond(2, 1), "ns");
    report.reported("query at a gate that is not full, beyond bare", beyond(3, 0), "ns");
    report.reported("query at that gate with classes, beyond without", beyond(4, 3), "ns");
    Ok(())
}

/// All settings in turn.
///
/// # Errors
/// If a server or its clients fail.
pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    let servers = database::start_in_memory(lull, place.path(), &SETTINGS)?;
    for server in servers.iter().filter(|server| [PSLO, UTSLO, AREAS].contains(&server.setting())) {
        run(server, SETTLING_S)?;
    }
    let seen = in_turn(ROUNDS, &SETTINGS, &servers, |server| run(server, RUN_S))?;
    for (setting, seen) in SETTINGS.iter().zip(&seen) {
        figures(setting, seen, report);
    }
    let [capped, classed, pslo, utslo, areas] = seen.as_slice() else { return Ok(()) };
    let pairs = classed.iter().zip(capped);
    let tail =
        pairs.map(|(one, other)| one.promised.quantile_ms(0.99) / other.promised.quantile_ms(0.99));
    report.bounded("few: p99, classes / cap 16", Summary::new(tail), "ratio", 0.0..=1.0);
    let late = Summary::new(pslo.iter().map(|one| one.promised.quantile_ms(0.95)));
    report.bounded("few: p95, pslo by class", late, "ms", 0.0..=BOUND_MS);
    let gone = Summary::new(utslo.iter().map(disengagement));
    report.bounded("few: disengagement, utslo by class", gone, "ratio", 0.0..=DISENGAGEMENT);
    for (what, ours) in [("classes", classed), ("pslo by class", pslo), ("utslo by class", utslo)] {
        let pairs = ours.iter().zip(capped);
        let left = pairs.map(|(one, other)| one.others.queries_per_s / other.others.queries_per_s);
        let what = format!("others: queries/s, {what} / cap 16");
        report.bounded(&what, Summary::new(left), "ratio", LEFT_MIN..=f64::INFINITY);
    }
    compare_areas(classed, areas, report);
    report.note(format!(
        "MariaDB in memory, sysbench on the same cores: {} connections with {} (rows `promised`) \
         beside {} with {}. The former are a class by the port that they come through: with a \
         weight of 9, also with areas of cores by qos-wc (a p95 of {BOUND_MS} ms for the few, \
         nothing for the others), or each with a promise of that p95 (pslo) or of at most \
         {DISENGAGEMENT} of its users that waiting drives away (utslo). {ROUNDS} rounds of {RUN_S} \
         s in turn after one to warm up.",
        PROMISED.connections, PROMISED.script, OTHERS.connections, OTHERS.script
    ));
    Ok(())
}

/// Adds rows on the effect of areas where the few have nine tenths of the turns already. Where
/// cores are few, areas cost the others throughput: a core of the few is idle whenever they are.
fn compare_areas(classed: &[MixedRun], areas: &[MixedRun], report: &mut Report) {
    let pairs = || areas.iter().zip(classed);
    let tail = pairs()
        .map(|(one, other)| one.promised.quantile_ms(0.99) / other.promised.quantile_ms(0.99));
    report.reported("few: p99, classes and areas / classes", Summary::new(tail), "ratio");
    let late = Summary::new(areas.iter().map(|one| one.promised.quantile_ms(0.95)));
    report.bounded("few: p95, classes and areas", late, "ms", 0.0..=BOUND_MS);
    let left = pairs().map(|(one, other)| one.others.queries_per_s / other.others.queries_per_s);
    let what = "others: queries/s, classes and areas / classes";
    report.reported(what, Summary::new(left), "ratio");
}

/// The share of users that the latencies of a run drive away.
fn disengagement(run: &MixedRun) -> f64 {
    run.promised.mean_of(|latency_ms| Patience::OURS.gone(Nanos::from_secs_f64(latency_ms / 1e3)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_class_comes_through_the_port_that_it_names_and_no_other_server_has() {
        let ports: Vec<String> = SETTINGS[1..]
            .iter()
            .map(|setting| {
                let port = setting.extra_port().unwrap().to_string();
                let names = setting.exec.unwrap().iter().any(|text| text.contains(&port));
                assert!(names, "{}", setting.name);
                port
            })
            .collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
        assert!(UTSLO.exec.unwrap().iter().any(|text| text.contains(&DISENGAGEMENT.to_string())));
    }
}
