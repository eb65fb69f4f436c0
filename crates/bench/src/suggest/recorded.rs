//! Surfaces that were recorded on a live server: rows of `lull sweep` for a grid of settings.
//!
//! Each file is one that `lull sweep --out` has written for an objective at the p99. Tails are
//! scaled so that the bound of the objective is that of all surfaces. A trial is one of the rows
//! of its setting, at random; the truth of a setting is the mean of its rows, of the logarithm for
//! the tail.

use super::surfaces::{BOUND_US, Surface, Truth};
use anyhow::{Context as _, Result, bail};
use lull_control::Capability;
use lull_measure::Nanos;
use lull_policies::search::{Reading, SearchPoint, Space};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The directory of the records, from the root of the repository.
pub(super) const DIRECTORY: &str = "traces/sweeps";
/// The first words of the file of a running server's sweep.
const MARK: &str = "# lull sweep of a running server: ";
/// The first of the columns behind those of the knobs.
const FIRST_BEHIND: &str = "rate_per_s";

/// The first line of a file.
#[derive(Debug, Deserialize)]
struct Head {
    app: String,
    objective: String,
}

/// Reads all records of a directory; none if there is no such directory.
///
/// # Errors
/// If a file is not a whole sweep with an objective at the p99 that one of its settings meets.
pub(super) fn surfaces(directory: &Path) -> Result<Vec<Surface>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry?.path());
    }
    paths.retain(|path| path.extension().is_some_and(|it| it == "csv"));
    paths.sort();
    let read = |path: &Path| -> Result<Surface> { parse(&std::fs::read_to_string(path)?) };
    paths.iter().map(|path| read(path).with_context(|| path.display().to_string())).collect()
}

fn parse(text: &str) -> Result<Surface> {
    let parts = text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n'));
    let (head, rows) = parts.context("not the rows of `lull sweep` on a running server")?;
    let head: Head = serde_json::from_str(head).context("its first line is damaged")?;
    let bound = head.objective.strip_prefix("p99 < ");
    let bound = bound.with_context(|| format!("its objective is {}, not a p99", head.objective))?;
    let bound_us = bound.parse::<Nanos>().map_err(anyhow::Error::msg)?.as_micros_f64();
    let (knobs, trials) = read_rows(rows, BOUND_US / bound_us)?;
    let values =
        |axis: usize| -> Vec<f64> { trials.iter().map(|(values, _)| values[axis]).collect() };
    let axes = knobs.iter().enumerate().map(|(axis, knob)| (*knob, values(axis)));
    let space = Space::from_values(&axes.collect::<Vec<_>>())?;
    let mut by_point: BTreeMap<SearchPoint, Vec<Reading>> = BTreeMap::new();
    for (values, reading) in &trials {
        by_point.entry(space.nearest(values)).or_default().push(*reading);
    }
    let mut readings = Vec::new();
    for point in space.points() {
        let of = by_point.remove(&point);
        readings.push(of.with_context(|| format!("no row has {}", space.describe(&point)))?);
    }
    let truths: Vec<Truth> = readings.iter().map(|of| truth(of)).collect();
    if !truths.iter().any(|it| it.tail_us <= BOUND_US) {
        bail!("no setting meets its bound, {}: take a higher one", head.objective);
    }
    let name = format!("record of {}, {} settings", head.app, space.size());
    Ok(Surface::from_readings(name, space, truths, readings))
}

/// The knobs of a sweep, and the values and the reading of each trial.
type Rows = (Vec<Capability>, Vec<(Vec<f64>, Reading)>);

fn read_rows(rows: &str, scale: f64) -> Result<Rows> {
    let mut reader = csv::Reader::from_reader(rows.as_bytes());
    let names: Vec<String> = reader.headers()?.iter().map(str::to_owned).collect();
    let behind = names.iter().position(|name| name == FIRST_BEHIND);
    let behind = behind.filter(|at| *at > 1).context("it has no columns of knobs")?;
    let knob = |name: &String| {
        let found = Capability::ALL.into_iter().find(|it| it.name().replace('-', "_") == *name);
        found.with_context(|| format!("there is no knob `{name}`"))
    };
    let knobs: Vec<Capability> = names[1..behind].iter().map(knob).collect::<Result<_>>()?;
    let mut trials = Vec::new();
    for (number, row) in reader.records().enumerate() {
        let row = row?;
        let field = |at: usize| row.get(at).and_then(|text| text.parse::<f64>().ok());
        let values: Option<Vec<f64>> = (1..behind).map(field).collect();
        let measured: Option<Vec<f64>> = (behind + 2..behind + 6).map(field).collect();
        let (Some(values), Some(measured)) = (values, measured) else {
            bail!("row {} has no reading: a record has one of every setting", number + 1);
        };
        let reading = Reading {
            tail_us: scale * measured[0],
            watts: measured[1],
            requests: measured[2] as u64,
            late: measured[3] as u64,
            progress_per_s: None,
        };
        trials.push((values, reading));
    }
    Ok((knobs, trials))
}

fn truth(readings: &[Reading]) -> Truth {
    let count = readings.len() as f64;
    let log_tail = readings.iter().map(|it| it.tail_us.ln()).sum::<f64>() / count;
    let watts = readings.iter().map(|it| it.watts).sum::<f64>() / count;
    Truth { tail_us: log_tail.exp(), watts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Rng;
    use rand::SeedableRng;

    const COLUMNS: &str = "block,cores,gate_cap,rate_per_s,completed_per_s,tail_us,watts,requests,\
                           late,progress_per_s,refused_knob,why\n";

    fn file(objective: &str, rows: &str) -> String {
        format!("{MARK}{{\"app\":\"db\",\"objective\":\"{objective}\"}}\n{COLUMNS}{rows}")
    }

    /// Two blocks of four settings.
    fn whole() -> String {
        let row = |block: usize, cores: usize, cap: usize| {
            let tail_us = 1000 * block * cap / cores;
            format!("{block},{cores},{cap},90,90,{tail_us},{cores},1000,7,,,\n")
        };
        let pairs = [(1, 1), (1, 8), (2, 1), (2, 8)];
        let rows = [1, 2].into_iter().flat_map(|block| pairs.map(|(a, b)| row(block, a, b)));
        file("p99 < 50ms", &rows.collect::<String>())
    }

    #[test]
    fn a_record_has_the_mean_of_its_rows_and_its_trials_are_rows() {
        let surface = parse(&whole()).unwrap();
        assert_eq!(surface.space.size(), 4);
        let point = surface.space.nearest(&[1.0, 8.0]);
        // 8 and 16 ms of a bound of 50 are 80 and 160 us of 500.
        let truth = surface.truth(&point);
        assert!((truth.tail_us - 80.0 * 2f64.sqrt()).abs() < 1e-9, "{truth:?}");
        assert_eq!(truth.watts, 1.0);
        let mut rng = Rng::seed_from_u64(1);
        let tails: Vec<f64> = (0..20).map(|_| surface.trial(&point, &mut rng).tail_us).collect();
        assert!(tails.contains(&80.0) && tails.contains(&160.0), "{tails:?}");
        assert!(tails.iter().all(|tail| [80.0, 160.0].contains(tail)), "{tails:?}");
    }

    #[test]
    fn what_is_no_whole_record_is_refused() {
        let refused = |text: &str| parse(text).err().map(|error| format!("{error:#}"));
        assert!(refused("a,b\n").unwrap().contains("not the rows"));
        let other = whole().replace("p99", "p95");
        assert!(refused(&other).unwrap().contains("not a p99"));
        let text = whole();
        let kept = text.lines().filter(|line| !line[1..].starts_with(",2,8,"));
        let gap: String = kept.flat_map(|line| [line, "\n"]).collect();
        assert!(refused(&gap).unwrap().contains("no row has cores 2"), "{gap}");
        let hole = whole() + "3,1,1,,,,,,,,cores,not here\n";
        assert!(refused(&hole).unwrap().contains("row 9 has no reading"));
        // The fastest setting has 0.5 and 1 ms.
        let out_of_reach = text.replace("p99 < 50ms", "p99 < 600us");
        assert!(
            refused(&out_of_reach).unwrap().contains("no setting meets its bound, p99 < 600us")
        );
        assert!(refused(&text.replace("p99 < 50ms", "p99 < 800us")).is_none());
        assert!(surfaces(Path::new("/no/such/directory")).unwrap().is_empty());
    }
}
