//! Replay against reality: predictions of `lull replay` for real servers, beside later
//! measurements. One command, one page.
//!
//! For each scene of examples/live one record is made in which the policies
//! take turns (`lull compare`), so that what else the machine does meanwhile
//! favours no policy. The blocks of the first policy are replayed; those of the
//! others are what the predictions are compared with, by `lull replay` itself:
//! its reproduction of their own part shows what was measured there.

use crate::{here, live, release, test};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The scenes of examples/live.
const SCENES: [&str; 3] = ["memcached", "nginx", "options"];

/// The policy that is replayed, then those that are predicted.
const POLICIES: [&str; 3] = ["unmanaged", "even", "lc-first"];

/// The bound, as a multiple of the app's tail alone.
const ROOM: &str = "2";

/// An error, in percent, above any that there is: the page shows predictions that would be refused,
/// and marks them.
const ANY_ERROR: &str = "1e12";

/// The largest error at which `lull replay` answers by default, as a share.
const ANSWERED: f64 = 0.25;

const INTRO: &str = "# Predicted and measured

Written by `cargo xtask validate`; do not edit. `lull compare` runs the policies in
turn on the scenes of `examples/live`; `lull replay` sees the blocks of the first
policy and predicts the others ([replay.md](replay.md)). Ratios are predicted
over measured. Where the first policy itself was not reproduced within 25 %,
`lull replay` would have refused to answer by default; the table is shown all the
same, with what it was off by.
";

/// Blocks a policy in each scene, and their length: nine minutes in all, and three around them.
const ROUNDS: u32 = 6;
const BLOCK_S: u32 = 10;

/// The arguments of `cargo xtask validate`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Blocks a policy in each scene
    #[arg(long, default_value_t = ROUNDS)]
    pub(crate) rounds: u32,
    /// Length of a block in seconds
    #[arg(long, default_value_t = BLOCK_S)]
    pub(crate) block_s: u32,
    /// Write the page here instead
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
    /// Predict from the record of an earlier run instead of measuring a scene
    #[arg(long = "record", value_name = "SCENE=FILE")]
    pub(crate) records: Vec<String>,
}

impl Options {
    /// Returns the time of all blocks together.
    const fn blocks_s(&self) -> u32 {
        (SCENES.len() * POLICIES.len()) as u32 * self.rounds * self.block_s
    }
}

/// Records every scene, predicts, compares, and writes the page.
///
/// # Errors
/// If a server is missing, Lull does not build, or a scene fails.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    test::provide_all()?;
    let lull = release::binary(root, "lull-cli", "lull")?;
    println!("== {} s of blocks, and some seconds a scene around them", options.blocks_s());
    let mut page = format!(
        "{INTRO}\n{} {} blocks of {} s a policy and scene.\n",
        here::describe_machine(),
        options.rounds,
        options.block_s
    );
    for scene in SCENES {
        println!("== {scene}");
        let record = match earlier(&options.records, scene) {
            Some(file) => file.to_owned(),
            None => recorded(root, &lull, scene, options)?,
        };
        page.push_str(&validate(root, &lull, scene, &record)?);
        live::clear_leftovers();
    }
    let file = options.page.clone().unwrap_or_else(|| root.join("docs/replay-validated.md"));
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    println!("written: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// The record that replaces a scene, if one was given.
fn earlier<'a>(records: &'a [String], scene: &str) -> Option<&'a str> {
    let mut pairs = records.iter().filter_map(|record| record.split_once('='));
    pairs.find(|(name, _)| *name == scene).map(|(_, file)| file)
}

/// Runs a scene under all policies in turn; the path of its record.
fn recorded(root: &Path, lull: &Path, scene: &str, options: &Options) -> Result<String> {
    let block = format!("{}s", options.block_s);
    let config = format!("examples/live/{scene}.toml");
    let compared = json(Command::new(lull).current_dir(root).arg("compare").arg(config).args([
        "--policies",
        &POLICIES.join(","),
        "--room",
        ROOM,
        "--block",
        &block,
        "--rounds",
        &options.rounds.to_string(),
        "--json",
    ]))?;
    let record = compared["record"].as_str().context("lull compare names no record")?;
    Ok(record.to_owned())
}

/// Predicts and compares one scene; its section.
fn validate(root: &Path, lull: &Path, scene: &str, record: &str) -> Result<String> {
    let replay = |part: &str, others: &[&str]| {
        let mut command = Command::new(lull);
        command.current_dir(root).args(["replay", record, "--part", part, "--json"]);
        command.args(["--max-error", ANY_ERROR]);
        others.iter().for_each(|other| {
            command.args(["--policy", other]);
        });
        json(&mut command)
    };
    let predictions = replay(POLICIES[0], &POLICIES[1..])?;
    let mut section = format!("\n## {scene}\n\n{}", judged(&predictions)?);
    section.push_str(&rows(POLICIES[0], &predictions, |figure| figure["replayed"].as_f64()));
    for policy in &POLICIES[1..] {
        let recorded = replay(policy, &[policy])?;
        let predicted_value =
            |figure: &Value| predicted(&predictions, policy, figure["figure"].as_str()?);
        section.push_str(&rows(policy, &recorded, predicted_value));
    }
    Ok(section)
}

/// Runs a command and parses its JSON output.
fn json(command: &mut Command) -> Result<Value> {
    let output = command.output().context("cannot start lull")?;
    // A replay that is refused for its error has been printed before.
    if !output.status.success() && output.stdout.is_empty() {
        bail!("lull ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("lull prints no JSON")
}

/// How well the first policy was reproduced, and the table's head.
fn judged(predictions: &Value) -> Result<String> {
    let error = predictions["error"].as_f64().context("no error was reported")?;
    let of = predictions["error_of"].as_str().unwrap_or_default();
    let verdict = if error <= ANSWERED { "answered" } else { "refused by default" };
    Ok(format!(
        "`{}` is reproduced to {:.0} % ({of}): {verdict}.\n\n\
         | policy | figure | unit | predicted | measured | ratio |\n|---|---|---|---|---|---|\n",
        POLICIES[0],
        100.0 * error
    ))
}

/// A row a figure of a policy: predicted as `predicted_value` has it, measured as recorded.
fn rows(policy: &str, recorded: &Value, predicted_value: impl Fn(&Value) -> Option<f64>) -> String {
    let mut rows = String::new();
    for figure in recorded["reproduction"].as_array().into_iter().flatten() {
        let (predicted_value, recorded) = (predicted_value(figure), figure["measured"].as_f64());
        let text =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"));
        // Figures that may be zero have no useful ratio.
        let ratio = predicted_value.zip(recorded).filter(|(_, recorded)| *recorded > 0.0);
        let ratio = ratio.map_or_else(
            || "-".to_owned(),
            |(predicted_value, recorded)| format!("{:.2}", predicted_value / recorded),
        );
        let of = |key: &str| figure[key].as_str().unwrap_or_default();
        let (figure, unit) = (of("figure"), of("unit"));
        let _ = writeln!(
            rows,
            "| {policy} | {figure} | {unit} | {} | {} | {ratio} |",
            text(predicted_value),
            text(recorded)
        );
    }
    rows
}

/// The predicted mean of a figure of a policy.
fn predicted(predictions: &Value, policy: &str, figure: &str) -> Option<f64> {
    let policies = predictions["prediction"]["policies"].as_array()?.iter().skip(1);
    let mut own = policies.filter(|it| it["policy"] == policy);
    let figures = own.next()?["figures"].as_array()?;
    figures.iter().find(|it| it["figure"] == figure)?["mean"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn with_the_defaults_it_ends_within_twelve_minutes() {
        let (page, records) = (None, Vec::new());
        let options = Options { rounds: ROUNDS, block_s: BLOCK_S, page, records };
        // References alone take 20 s a scene, replays as long again.
        assert!(options.blocks_s() + 3 * 60 <= 12 * 60, "{}", options.blocks_s());
    }

    #[test]
    fn an_earlier_record_holds_for_its_scene_alone() {
        let records = ["nginx=/tmp/a.db".to_owned()];
        assert_eq!(earlier(&records, "nginx"), Some("/tmp/a.db"));
        assert_eq!(earlier(&records, "options"), None);
    }

    #[test]
    fn predictions_are_those_of_the_policy_and_not_of_the_recorded_one() {
        let figures = |mean: f64| json!([{ "figure": "p95[x]", "mean": mean }]);
        let predictions = json!({ "prediction": { "policies": [
            { "policy": "even", "figures": figures(1.0) },
            { "policy": "lc-first", "figures": figures(2.0) },
            { "policy": "even", "figures": figures(3.0) },
        ]}});
        assert_eq!(predicted(&predictions, "even", "p95[x]"), Some(3.0));
        assert_eq!(predicted(&predictions, "even", "p99[x]"), None);
        assert_eq!(predicted(&predictions, "arq", "p95[x]"), None);
    }

    #[test]
    fn a_row_has_the_predicted_beside_the_measured_value() {
        let recorded = json!({ "reproduction": [
            { "figure": "p95[x]", "unit": "ms", "measured": 4.0 },
            { "figure": "be-entropy", "unit": "1", "measured": 0.0 },
        ]});
        let text = rows("even", &recorded, |_| Some(3.0));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| even | p95[x] | ms | 3.000 | 4.000 | 0.75 |");
        assert_eq!(lines[1], "| even | be-entropy | 1 | 3.000 | 0.000 | - |");
    }
}
