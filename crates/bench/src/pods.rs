//! How soon pods of a kubelet are managed, and what an agent of 250 pods costs, as the tests with a
//! whole node and with an API server record it.

use super::process::printed;
use super::stats::Summary;
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

pub(super) const BENCH: Bench = Bench {
    name: "pods",
    about: "How soon an agent that steers manages a new pod of a kubelet, and what an agent costs \
            that watches 250 pods of which ten change each second; \
            `LULL_FLEET_KUBELET=1 cargo xtask kubernetes` has built what it needs",
    run,
};

/// Names the file to which tests append their measurements (`lull_testing::figure`).
const FIGURES_FILE: &str = "LULL_TEST_FIGURES";
const ROUNDS: usize = 3;
/// Above this, a short job has run unmanaged for a good part of its time.
const MANAGED_S_MAX: f64 = 1.0;
/// What an agent may cost a node.
const CORE_PERCENT_MAX: f64 = 1.0;
const MEMORY_MB_MAX: f64 = 40.0;

/// A test that records figures.
struct FigureTest {
    /// The test program.
    target: &'static str,
    /// A part of the test's name.
    filter: &'static str,
    setting: (&'static str, &'static str),
}

const TESTS: [FigureTest; 2] = [
    FigureTest {
        target: "kubelet",
        filter: "pods_of_a_kubelet",
        setting: ("LULL_FLEET_KUBELET", "1"),
    },
    FigureTest {
        target: "cluster",
        filter: "sees_the_pods",
        setting: ("LULL_FLEET_SECONDS", "40"),
    },
];

/// The values of one figure, with their unit.
#[derive(Debug, PartialEq)]
struct Figure {
    values: Vec<f64>,
    unit: &'static str,
}

fn run(context: &Context) -> Result<Report> {
    let lull = context.program_with("fleet")?;
    let mut report = Report::default();
    for test in &TESTS {
        let text = test.run(context, &lull)?;
        for (what, figure) in figures(&text)? {
            report_figure(&mut report, what, figure);
        }
    }
    report.note(format!(
        "{ROUNDS} runs of `crates/fleet/tests/kubelet.rs`, whose pods are of containerd and runc: \
         creation, scheduling by name, the start of the container and its discovery by NRI. \
         {ROUNDS} runs of `crates/fleet/tests/cluster.rs`, each with 40 s of changes: the agent \
         watches and sets nothing (`--dry-run`, epochs of 2 s), and the pods' processes sleep. \
         Metrics are of the last epoch, so that a pod is in them up to one epoch after it is \
         managed."
    ));
    Ok(report)
}

impl FigureTest {
    /// Runs it some times and returns the lines that it has recorded.
    fn run(&self, context: &Context, lull: &Path) -> Result<String> {
        let place = tempfile::tempdir_in(context.target())?;
        let file = place.path().join("figures");
        let (name, value) = self.setting;
        for _ in 0..ROUNDS {
            let mut test = Command::new("cargo");
            test.current_dir(&context.root).args(["test", "--quiet", "--package", "lull-fleet"]);
            test.args(["--test", self.target, "--", self.filter]).env(name, value);
            printed(test.env("LULL_PROGRAM", lull).env(FIGURES_FILE, &file))?;
        }
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        ensure!(
            !text.is_empty(),
            "the test was skipped: run it as `cargo test -p lull-fleet --test {} -- --nocapture` \
             with {name}={value} to see why",
            self.target
        );
        Ok(text)
    }
}

/// Adds a figure with its bound. Of times the longest must keep it.
fn report_figure(report: &mut Report, what: &str, figure: Figure) {
    let Figure { values, unit } = figure;
    let Some(bound) = bound(what, unit) else {
        return report.reported(what, Summary::new(values), unit);
    };
    if unit != "s" {
        return report.bounded(what, Summary::new(values), unit, bound);
    }
    let longest = values.iter().copied().fold(0.0, f64::max);
    let of_all = format!("{what}: the longest of {}", values.len());
    report.reported(what, Summary::new(values), unit);
    report.bounded(&of_all, Summary::new([longest]), unit, bound);
}

/// The bound of a figure; none of those that are only reported.
fn bound(what: &str, unit: &str) -> Option<RangeInclusive<f64>> {
    let most = match unit {
        // A pod is in the metrics once the epoch has ended.
        "s" if what.ends_with("in the metrics") => return None,
        "s" => MANAGED_S_MAX,
        "%" => CORE_PERCENT_MAX,
        "MB" if what.ends_with("shared pages counted once") => MEMORY_MB_MAX,
        _ => return None,
    };
    Some(0.0..=most)
}

/// The values of each figure.
fn figures(text: &str) -> Result<BTreeMap<&str, Figure>> {
    let mut all: BTreeMap<&str, Figure> = BTreeMap::new();
    for line in text.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let [what, value, unit] = parts[..] else { bail!("`{line}` is no figure") };
        let value: f64 = value.parse().context("a figure is not a number")?;
        let unit = unit_of(unit)?;
        let figure = all.entry(what).or_insert_with(|| Figure { values: Vec::new(), unit });
        ensure!(figure.unit == unit, "`{what}` has two units");
        figure.values.push(value);
    }
    Ok(all)
}

/// A unit that tests record.
fn unit_of(text: &str) -> Result<&'static str> {
    let unit = ["s", "%", "MB"].into_iter().find(|unit| *unit == text);
    unit.with_context(|| format!("a figure has the unknown unit `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_several_runs_are_put_together() {
        let all = figures("a\t0.5\ts\nb\t2\tMB\na\t0.25\ts\n").unwrap();
        let times = Figure { values: vec![0.5, 0.25], unit: "s" };
        let sizes = Figure { values: vec![2.0], unit: "MB" };
        assert_eq!(all, BTreeMap::from([("a", times), ("b", sizes)]));
        for wrong in ["a\tsoon\ts\n", "a\t1\n", "a", "a\t1\tkg", "a\t1\ts\na\t1\t%"] {
            assert!(figures(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_shares_and_memory_have_the_bounds_of_the_aims() {
        let most = |what, unit| bound(what, unit).map(|bound| *bound.end());
        assert_eq!(most("from the creation of a pod until it is managed", "s"), Some(1.0));
        assert_eq!(most("from the creation of a pod until it is in the metrics", "s"), None);
        assert_eq!(most("250 pods, share of a core", "%"), Some(1.0));
        assert_eq!(most("250 pods, resident with shared pages counted once", "MB"), Some(40.0));
        assert_eq!(most("250 pods, resident", "MB"), None);
    }
}
