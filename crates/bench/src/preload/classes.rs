//! A class of clients with nine tenths of the turns, beside many others: what it gains, and what
//! is left to the others.

use super::super::stats::{Summary, interleave};
use super::Report;
use super::contest::{CAP_16, Setting, in_turn};
use super::database;
use super::promises::{OTHERS, PROMISED, RUN_S, figures, run};
use super::tls::{Costs, QueryProgram};
use anyhow::Result;
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

const SETTINGS: [Setting; 2] = [CAP_16, CLASSES];

/// Throughput of the others that classes may cost, over that behind the same cap.
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

/// What classes of clients cost a query whose connection does not wait: tracked only, and behind
/// a gate with free slots.
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

/// Both settings in turn.
///
/// # Errors
/// If a server or its clients fail.
pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    let servers = database::start_in_memory(lull, place.path(), &SETTINGS)?;
    let seen = in_turn(ROUNDS, &SETTINGS, &servers, |server| run(server, RUN_S))?;
    for (setting, seen) in SETTINGS.iter().zip(&seen) {
        figures(setting, seen, report);
    }
    let [capped, classed] = seen.as_slice() else { return Ok(()) };
    let pairs = || classed.iter().zip(capped);
    let tail = pairs()
        .map(|(one, other)| one.promised.quantile_ms(0.99) / other.promised.quantile_ms(0.99));
    report.bounded("few: p99, classes / cap 16", Summary::new(tail), "ratio", 0.0..=1.0);
    let left = pairs().map(|(one, other)| one.others.queries_per_s / other.others.queries_per_s);
    let bound = LEFT_MIN..=f64::INFINITY;
    report.bounded("others: queries/s, classes / cap 16", Summary::new(left), "ratio", bound);
    report.note(format!(
        "MariaDB in memory, sysbench on the same cores: {} connections with {} (rows `promised`) \
         beside {} with {}; with classes the former have a weight of 9, by the port that they come \
         through. {ROUNDS} rounds of {RUN_S} s in turn after one to warm up.",
        PROMISED.connections, PROMISED.script, OTHERS.connections, OTHERS.script
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_comes_through_the_port_that_it_names() {
        let port = database::PREFERRED_PORT.to_string();
        let names = |all: &[&str]| all.iter().any(|text| text.contains(&port));
        assert!(names(CLASSES.exec.unwrap()) && names(CLASSES.options));
    }
}
