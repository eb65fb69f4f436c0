//! oha, which cargo builds once, as a client at a rate.

use super::{CONNECTIONS, ClientRun, SECONDS};
use crate::process::{Printed, printed};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = "1.16.0";

/// Returns oha, which is built from crates.io into the cache if it is not there yet: some minutes.
///
/// # Errors
/// If it cannot be fetched or does not build.
pub(super) fn provide() -> Result<PathBuf> {
    let place = xtask::cache().join(format!("oha-{VERSION}"));
    let program = place.join("bin/oha");
    if !program.is_file() {
        let mut install = Command::new("cargo");
        install.args(["install", "oha", "--quiet", "--locked", "--version", VERSION, "--root"]);
        super::succeeded(install.arg(&place)).context("oha does not build")?;
    }
    Ok(program)
}

/// A recording of when oha sends: what falls due within a millisecond, at its end. One line for
/// each request, with its time in seconds.
pub(super) fn arrivals(rate: u32) -> String {
    let requests = u64::from(rate) * u64::from(SECONDS);
    let due_ms = (0..requests).map(|number| (1_000 * number).div_ceil(u64::from(rate)));
    due_ms.map(|ms| format!("{}.{:03}\n", ms / 1_000, ms % 1_000)).collect()
}

/// Loads a page at a rate, with latencies from when a request was due.
pub(super) fn load(oha: &Path, url: &str, rate: u32) -> Result<ClientRun> {
    let mut oha = Command::new(oha);
    oha.args(["--no-tui", "--output-format", "json", "--latency-correction"]);
    oha.args(["-c", &CONNECTIONS.to_string(), "-z", &format!("{SECONDS}s")]);
    read(&printed(oha.args(["-q", &rate.to_string(), url]))?)
}

/// The parts of oha's JSON that are read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OhaReport {
    summary: OhaSummary,
    /// Seconds by `p50`, `p99` and others.
    latency_percentiles: BTreeMap<String, Option<f64>>,
    status_code_distribution: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OhaSummary {
    requests_per_sec: f64,
}

fn read(printed: &Printed) -> Result<ClientRun> {
    let report: OhaReport = serde_json::from_str(&printed.text).context("oha: other output")?;
    let codes = &report.status_code_distribution;
    let requests: u64 = codes.values().sum();
    if requests == 0 || codes.keys().any(|code| code != "200") {
        bail!("requests of oha failed: {codes:?}");
    }
    let ms = |name: &str| -> Result<f64> {
        let seconds = report.latency_percentiles.get(name).copied().flatten();
        Ok(seconds.with_context(|| format!("oha printed no {name}"))? * 1e3)
    };
    let p50_ms = ms("p50")?;
    Ok(ClientRun {
        p50_ms,
        p50_since_due_ms: p50_ms,
        p99_ms: ms("p99")?,
        per_s: report.summary.requests_per_sec,
        cpu_us: printed.cpu_s * 1e6 / requests as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_at_the_ends_of_milliseconds() {
        let all = arrivals(3_000);
        assert!(all.starts_with("0.000\n0.001\n0.001\n0.001\n0.002\n"), "{all}");
        assert_eq!(all.lines().count(), 3_000 * SECONDS as usize);
        assert!(arrivals(500).starts_with("0.000\n0.002\n0.004\n"));
    }

    #[test]
    fn the_report_of_oha_is_read_and_failures_end_the_benchmark() {
        let text = r#"{"summary": {"successRate": 1.0, "requestsPerSec": 3000.5},
            "latencyPercentiles": {"p50": 0.002, "p99": 0.004, "p99.99": null},
            "statusCodeDistribution": {"200": 1000}}"#;
        let printed = |text: String| Printed { text, cpu_s: 0.05 };
        let seen = read(&printed(text.to_owned())).unwrap();
        assert_eq!((seen.p50_ms, seen.p99_ms, seen.per_s), (2.0, 4.0, 3000.5));
        assert!((seen.cpu_us - 50.0).abs() < 1e-9, "{seen:?}");
        for (old, new) in [("\"200\"", "\"503\""), (": 1000", ": 0"), ("p50", "p51")] {
            assert!(read(&printed(text.replace(old, new))).is_err(), "{new}");
        }
    }
}
