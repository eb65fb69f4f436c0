//! Objectives of a few connections of a database that many others keep busy: how late
//! they are answered, and the throughput that is left to the others (REEF, section 5.1).

use super::super::stats::Summary;
use super::Report;
use super::contest::{BARE, CAP_16, Load, Served, Setting, in_turn};
use super::database::{self, Database};
use super::ran::LoadRun;
use anyhow::{Context as _, Result, anyhow};
use std::path::Path;
use std::time::Duration;

const ROUNDS: usize = 7;
pub(super) const RUN_S: u32 = 10;
/// The others are there before and after.
const AROUND: Duration = Duration::from_secs(2);
/// Time that the admission controller has before it is measured.
pub(super) const SETTLING_S: u32 = 25;

pub(super) const OTHERS: Load = Load { script: "oltp_read_write", connections: 128 };
pub(super) const PROMISED: Load = Load { script: "oltp_point_select", connections: 4 };
pub(super) const BOUND_MS: f64 = 20.0;

const PSLO: Setting = Setting {
    name: "pslo, cap 16",
    exec: Some(&[
        "--concurrency",
        "pslo",
        "--key",
        "cap=16",
        "--promise",
        "port = 27617, connections = 4, objective = { p95 = \"20ms\" }",
    ]),
    options: &["--extra-port=27617", "--extra-max-connections=8"],
};

/// The bare server is the first.
pub(super) const SETTINGS: [Setting; 3] = [BARE, CAP_16, PSLO];

/// Throughput of the others that the promises may cost, over that behind the same cap.
const LEFT_MIN: f64 = 0.9;

/// A run of the connections with objectives, and of the others at the same time.
pub(super) struct MixedRun {
    pub(super) promised: LoadRun,
    pub(super) others: LoadRun,
}

/// All settings in turn.
///
/// # Errors
/// If a server or its clients fail.
pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let place = tempfile::tempdir()?;
    let servers = database::start_in_memory(lull, place.path(), &SETTINGS)?;
    let pslo = servers.iter().find(|server| server.setting().name == PSLO.name);
    run(pslo.context("no server has promises")?, SETTLING_S)?;
    let seen = in_turn(ROUNDS, &SETTINGS, &servers, |server| run(server, RUN_S))?;
    for (setting, seen) in SETTINGS.iter().zip(&seen) {
        figures(setting, seen, report);
    }
    let [_, capped, kept] = seen.as_slice() else { return Ok(()) };
    let late = Summary::new(kept.iter().map(|one| one.promised.quantile_ms(0.95)));
    report.bounded("promised: p95, pslo, cap 16", late, "ms", 0.0..=BOUND_MS);
    let left = kept.iter().zip(capped);
    let left = left.map(|(one, other)| one.others.queries_per_s / other.others.queries_per_s);
    let what = "others: queries/s, pslo, cap 16 / cap 16";
    report.bounded(what, Summary::new(left), "ratio", LEFT_MIN..=f64::INFINITY);
    report.note(format!(
        "MariaDB in memory, sysbench on the same cores: {} connections with {} beside {} with {}, \
         each of which was promised a p95 of {BOUND_MS} ms behind pslo, by the port that they come \
         through; {ROUNDS} rounds of {RUN_S} s in turn after one to warm up. Latency is that of a \
         query (promised) or transaction (others) as its client sees it.",
        OTHERS.connections, OTHERS.script, PROMISED.connections, PROMISED.script
    ));
    Ok(())
}

/// Promised clients for this many seconds, and the others around them.
pub(super) fn run(server: &Database, seconds: u32) -> Result<MixedRun> {
    let (promised, others) = std::thread::scope(|scope| {
        let around = seconds + 2 * AROUND.as_secs() as u32;
        let others = scope.spawn(move || server.load(OTHERS, around));
        std::thread::sleep(AROUND);
        (server.load_promised(PROMISED, seconds), others.join())
    });
    let others = others.map_err(|_| anyhow!("loading beside a run panicked"))?;
    Ok(MixedRun { promised: promised?, others: others? })
}

pub(super) fn figures(setting: &Setting, seen: &[MixedRun], report: &mut Report) {
    let mut row = |figure: &str, unit: &'static str, of: &dyn Fn(&MixedRun) -> f64| {
        let what = format!("{figure}, {}", setting.name);
        report.reported(&what, Summary::new(seen.iter().map(of)), unit);
    };
    row("promised: queries/s (sysbench)", "1/s", &|one| one.promised.queries_per_s);
    row("promised: p50 (sysbench)", "ms", &|one| one.promised.quantile_ms(0.5));
    row("promised: p95 (sysbench)", "ms", &|one| one.promised.quantile_ms(0.95));
    row("promised: p99 (sysbench)", "ms", &|one| one.promised.quantile_ms(0.99));
    row("others: queries/s (sysbench)", "1/s", &|one| one.others.queries_per_s);
    row("others: p99 (sysbench)", "ms", &|one| one.others.quantile_ms(0.99));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_clients_come_through_the_port_that_the_promise_names() {
        let port = PSLO.extra_port().unwrap().to_string();
        assert!(PSLO.exec.unwrap().iter().any(|text| text.contains(&port)));
        assert_eq!(SETTINGS[0].name, BARE.name);
    }
}
