//! How soon pods of a kubelet are managed, as the test with a whole node records it.

use super::process::printed;
use super::stats::Summary;
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::process::Command;

pub(super) const BENCH: Bench = Bench {
    name: "pods",
    about: "How soon an agent that steers manages a new pod of a kubelet, which \
            `LULL_FLEET_KUBELET=1 cargo xtask kubernetes` has built",
    run,
};

/// Names the file to which tests append their measurements (`lull_testing::figure`).
const FIGURES_FILE: &str = "LULL_TEST_FIGURES";
const ROUNDS: usize = 3;
/// Above this, a short job has run unmanaged for a good part of its time.
const MANAGED_S_MAX: f64 = 1.0;

fn run(context: &Context) -> Result<Report> {
    let lull = program(context)?;
    let place = tempfile::tempdir_in(context.target())?;
    let file = place.path().join("figures");
    for _ in 0..ROUNDS {
        let mut test = Command::new("cargo");
        test.current_dir(&context.root).args(["test", "--quiet", "--package", "lull-fleet"]);
        test.args(["--test", "kubelet"]).env("LULL_FLEET_KUBELET", "1");
        printed(test.env("LULL_PROGRAM", &lull).env(FIGURES_FILE, &file))?;
    }
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let figures = figures(&text)?;
    ensure!(
        !figures.is_empty(),
        "the test was skipped: run it as `cargo test -p lull-fleet --test kubelet -- --nocapture` \
         with LULL_FLEET_KUBELET=1 to see why"
    );
    let mut report = Report::default();
    for (what, seconds) in figures {
        let longest = seconds.iter().copied().fold(0.0, f64::max);
        let of_all = format!("{what}: the longest of {}", seconds.len());
        report.reported(what, Summary::new(seconds), "s");
        report.bounded(&of_all, Summary::new([longest]), "s", 0.0..=MANAGED_S_MAX);
    }
    report.note(format!(
        "{ROUNDS} runs of `crates/fleet/tests/kubelet.rs`, whose pods are of containerd and runc: \
         creation, scheduling by name, the start of the container and its discovery by NRI."
    ));
    Ok(report)
}

/// The program, optimised and with what watches pods.
fn program(context: &Context) -> Result<std::path::PathBuf> {
    let mut build = Command::new("cargo");
    build.current_dir(&context.root).args(["build", "--release", "--package", "lull-cli"]);
    printed(build.args(["--bin", "lull", "--features", "fleet"]))?;
    Ok(context.target().join("release/lull"))
}

/// The seconds of each figure.
fn figures(text: &str) -> Result<BTreeMap<&str, Vec<f64>>> {
    let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for line in text.lines() {
        let (what, seconds) = line.split_once('\t').context("a figure has no value")?;
        all.entry(what).or_default().push(seconds.parse().context("a figure is not a number")?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_several_runs_are_put_together() {
        let all = figures("a\t0.5\nb\t2\na\t0.25\n").unwrap();
        assert_eq!(all, BTreeMap::from([("a", vec![0.5, 0.25]), ("b", vec![2.0])]));
        assert!(figures("a\tsoon\n").is_err() && figures("a").is_err());
    }
}
