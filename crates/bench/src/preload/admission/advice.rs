//! The report of `lull advise` on the bare server under a load, before its gate is compared.

use super::super::super::process::{Running, printed};
use super::super::super::report::Report;
use super::super::super::stats::Summary;
use super::client::{Site, Transactions};
use super::printing::Printing;
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const WATCH_S: u32 = 20;
/// Between two reports of the client, the first of which end its start.
const INTERVAL_S: u32 = 4;
const WARM_UP_INTERVALS: u32 = 4;
const LONGEST: Duration = Duration::from_secs(120);
/// A limit that gains less does not help, as in `lull advise`.
const HELPS: f64 = 1.05;

/// The parts of its JSON that are compared.
#[derive(Debug, Deserialize)]
pub(super) struct Advice {
    verdict: String,
    reason: String,
    gain: Option<Gain>,
}

#[derive(Debug, Deserialize)]
struct Gain {
    low: f64,
    high: f64,
}

/// Watches a bare server under a load.
///
/// # Errors
/// If the client or `lull advise` fails.
pub(super) fn advise(
    lull: &Path,
    server: &Running,
    transactions: Transactions,
    connections: u32,
    site: &Site,
) -> Result<Advice> {
    let mut client = Printing::start(transactions.command(connections, INTERVAL_S, site)?)?;
    for _ in 0..WARM_UP_INTERVALS {
        client.wait_for(|line| transactions.is_interval(line), LONGEST)?;
    }
    let mut command = Command::new(lull);
    command.arg("advise").arg(server.pid().to_string());
    let text = printed(command.args(["--json", "--seconds", &WATCH_S.to_string()]))?.text;
    serde_json::from_str(&text).with_context(|| format!("lull advise printed another form: {text}"))
}

impl Advice {
    /// Adds rows on the advice beside the measured gain of the best limit, if limits took part, and
    /// a note with its reason.
    pub(super) fn rows(&self, title: &str, gain: Option<f64>, report: &mut Report) {
        let Self { verdict, reason, .. } = self;
        report.note(format!(
            "{title}: `lull advise` watched the bare server for {WATCH_S} s: {verdict}: {reason}."
        ));
        let mut row = |what: &str, value: f64, bound| {
            let (what, value) = (format!("{title}: {what}"), exactly(value));
            match bound {
                Some(bound) => report.bounded(&what, value, "ratio", bound),
                None => report.reported(&what, value, "ratio"),
            }
        };
        if let Some(Gain { low, high }) = self.gain {
            row("gain by lull advise, lower end", low, None);
            row("gain by lull advise, upper end", high, None);
        }
        let Some(gain) = gain else { return };
        match (verdict.as_str(), &self.gain) {
            ("likely-helps", Some(Gain { low, .. })) => {
                let what = "gain of the best limit / lower end of lull advise";
                row(what, gain / low, Some(1.0..=f64::INFINITY));
            }
            ("unlikely-to-help", _) => {
                row("gain of the best limit, which lull advise denies", gain, Some(0.0..=HELPS));
            }
            _ => {}
        }
    }
}

fn exactly(value: f64) -> Summary {
    Summary { median: value, low: value, high: value }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::machine::Machine;
    use super::*;

    fn page(json: &str, gain: Option<f64>) -> String {
        let advice: Advice = serde_json::from_str(json).unwrap();
        let mut report = Report::default();
        advice.rows("load", gain, &mut report);
        report.markdown("name", "About", &Machine::here(&xtask::root()))
    }

    #[test]
    fn advice_is_missed_where_the_measured_gain_is_outside_what_it_claims() {
        let likely = r#"{"verdict": "likely-helps", "reason": "why", "pid": 1,
                         "gain": {"low": 1.5, "high": 3.5, "by_cpu_time": 2.0}}"#;
        assert!(page(likely, Some(1.8)).contains("| 1.20 | 1.20 .. 1.20 | ratio | >= 1.00 | kept"));
        assert!(page(likely, Some(1.2)).contains("| ratio | >= 1.00 | missed |"));
        assert!(page(likely, None).contains("lower end | 1.50 |"));
        let unlikely = r#"{"verdict": "unlikely-to-help", "reason": "why", "gain": null}"#;
        assert!(page(unlikely, Some(1.0)).contains("| <= 1.05 | kept |"));
        assert!(page(unlikely, Some(1.2)).contains("| <= 1.05 | missed |"));
        let open = r#"{"verdict": "cannot-tell", "reason": "constant", "gain": null}"#;
        let page = page(open, Some(2.0));
        assert!(page.contains("cannot-tell: constant.") && !page.contains("missed"), "{page}");
    }
}
