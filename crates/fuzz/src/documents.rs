//! Files and texts: config, scenario, core mix, trace, script, record, histogram, names.

use crate::trees::file_result;
use lull_agent::config::Config;
use lull_agent::located::Located;
use lull_agent::recorded::{Run, Series, open};
use lull_lab::scenario::{AnyFile, AnyScenario, Choice, Kind};
use lull_lab::server::ServerFile;
use lull_measure::catalogue::{ENTROPY_SYSTEM, TAIL_LATENCY};
use lull_measure::{Latency, Percentile, escape};
use lull_workload::arrivals::{Recording, Steps, parse_trace};
use lull_workload::target::{ScriptSource, TargetConfig};
use std::io;
use std::path::Path;
use tempfile::TempDir;

/// A refused config is located by file and line.
pub(crate) fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(error) = Config::from_located(Located::embedded("fuzz.toml", text)) {
        assert!(error.to_string().starts_with("fuzz.toml"), "{error}");
    }
}

/// A scenario of any kind, which is checked and not run.
pub(crate) fn scenario(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(table) = text.parse::<toml::Table>() else { return };
    if let Ok(file) = read_scenario(&table, text) {
        // Files that a scenario names do not exist there.
        let _ = AnyScenario::new(file, Path::new("/nonexistent"), &Choice::default());
    }
    let _ = toml::from_str::<ServerFile>(text);
}

fn read_scenario(table: &toml::Table, text: &str) -> Result<AnyFile, toml::de::Error> {
    Ok(match Kind::from_table(table) {
        Kind::Tiers => AnyFile::Tiers(toml::from_str(text)?),
        Kind::Node => AnyFile::Node(toml::from_str(text)?),
        Kind::Dispatch => AnyFile::Dispatch(toml::from_str(text)?),
        Kind::Gated => AnyFile::Gated(Box::new(toml::from_str(text)?)),
        Kind::NetServer => AnyFile::NetServer(Box::new(toml::from_str(text)?)),
    })
}

/// A mix that is read has cores and a finite power.
pub(crate) fn core_mix(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(mix) = lull_lab::mix::parse(text) {
        assert!(!mix.cores.is_empty() && mix.peak_watts.0.is_finite(), "{mix:?}");
    }
}

/// A trace that is read has a finite rate at any time, and the times of a recording ascend.
pub(crate) fn trace(bytes: &[u8]) {
    if let Ok(recording) = Recording::parse(bytes, Path::new("fuzz.csv")) {
        assert!(recording.times().is_sorted(), "times that go back");
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for steps in [Steps::Hold, Steps::Linear] {
        if let Ok(schedule) = parse_trace(text, Path::new("fuzz.csv"), steps) {
            for time_s in [0.0, 1.0, 1e12] {
                assert!(schedule.rate_at(time_s).is_finite(), "at {time_s} s");
            }
        }
    }
}

/// A script of `lull load` is read, its numbers are drawn, and no request is sent.
pub(crate) fn script(bytes: &[u8]) {
    let directory = file_result(directory_with("fuzz.sql", bytes));
    let address = "postgres://user@host/test".parse().expect("it is an address");
    let mut config = TargetConfig::new(address);
    config.database.script = ScriptSource::File(directory.path().join("fuzz.sql"));
    let _ = config.build();
}

fn directory_with(name: &str, bytes: &[u8]) -> io::Result<TempDir> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join(name), bytes)?;
    Ok(directory)
}

/// A record is read as `lull report` reads it.
pub(crate) fn record(bytes: &[u8]) {
    let directory = file_result(directory_with("fuzz.db", bytes));
    let file = directory.path().join("fuzz.db");
    if let (Ok(run), Ok(record)) = (Run::read(&file), open(&file)) {
        let _ = Series::read(&record, &run, &[TAIL_LATENCY, ENTROPY_SYSTEM]);
    }
}

/// A histogram that is read can be written and read again.
pub(crate) fn histogram(bytes: &[u8]) {
    let Ok(latency) = Latency::from_deflated(bytes) else { return };
    let again = Latency::from_deflated(&latency.to_deflated());
    assert_eq!(again.ok().as_ref(), Some(&latency));
    assert_eq!(latency.quantile(Percentile::P99).is_some(), !latency.is_empty());
}

/// Escaped text has no hidden character, and escaping it again changes nothing.
pub(crate) fn escape(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let line = escape::visible_line(&text);
    assert!(!line.contains(escape::is_hidden), "{line:?}");
    assert_eq!(escape::visible_line(&line), line);
    let html = escape::html(&text);
    assert!(!html.contains(['<', '>', '"', '\'']), "{html:?}");
    let label = escape::prometheus_label(&text);
    let unescaped = label.replace("\\\\", "").replace("\\\"", "");
    assert!(!unescaped.contains(['"', '\n']), "{label:?}");
    let cell = escape::csv_text(&text);
    assert!(!cell.starts_with(['=', '+', '-', '@', '\t']), "{cell:?}");
}
