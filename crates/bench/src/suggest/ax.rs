//! Ax, which the study used: the cost of its suggestions, and the result of its searches.

use super::{BOUND_US, Found, TRIALS, server, space};
use crate::python::Python;
use anyhow::{Context as _, Result};
use lull_control::Rng;
use rand::SeedableRng;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

/// A point that Ax requests to try.
#[derive(Debug, Deserialize)]
struct Request {
    #[serde(rename = "place")]
    point: [f64; 2],
}

/// The result of its search.
#[derive(Debug, Deserialize)]
struct Ended {
    took_ms: f64,
    chosen: [f64; 2],
}

/// Runs one search by Ax on the same server, whose noise has this seed.
///
/// # Errors
/// If it does not run or its output is not understood.
pub(super) fn search(python: &Python, seed: u64) -> Result<Found> {
    let mut command = python.script("ax_search.py");
    command.args([TRIALS.to_string(), seed.to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut to = child.stdin.take().context("no pipe to Ax")?;
    let mut from = BufReader::new(child.stdout.take().context("no pipe from Ax")?);
    let ended = talk(&mut to, &mut from, seed);
    // Without answers to its questions the process ends by itself.
    drop((to, from));
    child.wait()?;
    let ended = ended?;
    Ok(Found { took_ms: ended.took_ms, chosen: ended.chosen })
}

fn talk(to: &mut ChildStdin, from: &mut BufReader<ChildStdout>, seed: u64) -> Result<Ended> {
    let levels = space();
    let values = |number: usize| -> Vec<f64> {
        levels.dimensions()[number].levels.iter().map(|level| level.value).collect()
    };
    let knobs = json!({"delays": values(0), "frequencies": values(1), "bound_us": BOUND_US});
    writeln!(to, "{knobs}")?;
    let mut rng = Rng::seed_from_u64(seed);
    for _ in 0..TRIALS {
        let request: Request = line(from)?;
        let reading = server(&request.point, &mut rng);
        writeln!(to, "{}", json!({"tail_us": reading.tail_us, "watts": reading.watts}))?;
    }
    line(from)
}

fn line<T: DeserializeOwned>(from: &mut BufReader<ChildStdout>) -> Result<T> {
    let mut text = String::new();
    from.read_line(&mut text)?;
    serde_json::from_str(&text).with_context(|| format!("Ax's side ended, or answered {text:?}"))
}
