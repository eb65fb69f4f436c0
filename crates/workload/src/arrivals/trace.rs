//! Rates over time from a CSV file.
//!
//! One row a line, `time_s,rate_per_s`, times ascending; a first line that is
//! no numbers is a heading, empty lines and lines from `#` on are skipped.
//! Times count from the first row's, so that a cut from a long recording can be
//! used as it is. The last row's rate holds for good.

use super::schedule::{Schedule, ScheduleError};
use std::path::{Path, PathBuf};

/// The course of a rate between two rows of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Steps {
    /// The rate holds until the next row.
    #[default]
    Hold,
    /// The rate changes linearly towards the next row's.
    Linear,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the rate trace {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A row cannot be used.
    #[error("{}:{line}: {problem}; each row is time_s,rate_per_s", file.display())]
    Row {
        /// The file.
        file: PathBuf,
        /// The row's line, from 1.
        line: usize,
        /// The fault.
        problem: String,
    },
    /// The rows together make no schedule.
    #[error("rate trace {}: {source}", file.display())]
    Rows {
        /// The file.
        file: PathBuf,
        /// The fault.
        source: ScheduleError,
    },
}

/// Reads a trace file.
pub(super) fn read(file: &Path, steps: Steps) -> Result<Schedule, TraceError> {
    let text = std::fs::read_to_string(file)
        .map_err(|source| TraceError::Read { file: file.to_owned(), source })?;
    parse(&text, file, steps)
}

/// The schedule of a trace that was read already, of this name.
///
/// # Errors
/// [`TraceError`] names the line that cannot be used.
pub fn parse(text: &str, file: &Path, steps: Steps) -> Result<Schedule, TraceError> {
    let points = read_points(text).map_err(|(line, problem)| TraceError::Row {
        file: file.to_owned(),
        line,
        problem,
    })?;
    let made = match steps {
        Steps::Hold => Schedule::steps(&points),
        Steps::Linear => Schedule::ramps(&points),
    };
    made.map_err(|source| TraceError::Rows { file: file.to_owned(), source })
}

fn read_points(text: &str) -> Result<Vec<(f64, f64)>, (usize, String)> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut heading_may_come = true;
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let heading = std::mem::replace(&mut heading_may_come, false) && is_heading(line);
        if !heading {
            let point = read_point(line, points.last()).map_err(|problem| (index + 1, problem))?;
            points.push(point);
        }
    }
    Ok(points)
}

/// A heading has no digit at the start of either column.
fn is_heading(line: &str) -> bool {
    line.split(',').all(|field| field.trim().starts_with(|c: char| c.is_alphabetic()))
}

fn read_point(line: &str, previous: Option<&(f64, f64)>) -> Result<(f64, f64), String> {
    let (time, rate) = line.split_once(',').ok_or_else(|| format!("`{line}` has no comma"))?;
    let number = |text: &str| {
        let text = text.trim();
        text.parse::<f64>().map_err(|_| format!("`{text}` is not a number"))
    };
    let (time_s, rate_per_s) = (number(time)?, number(rate)?);
    if !time_s.is_finite() || previous.is_some_and(|(before, _)| time_s < *before) {
        return Err(format!("time {time_s} s does not follow the row before"));
    }
    if !(0.0..=1e9).contains(&rate_per_s) {
        return Err(format!("rate {rate_per_s} is not between 0 and 1e9 requests/s"));
    }
    Ok((time_s, rate_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read_text(text: &str, steps: Steps) -> Result<Schedule, TraceError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        read(file.path(), steps)
    }

    #[test]
    fn rows_count_from_the_first_time_and_hold_or_ramp() {
        let text = "time_s,rate_per_s\n# morning\n3600, 100\n\n3610,200 # peak\n";
        let hold = read_text(text, Steps::Hold).unwrap();
        assert_eq!([0.0, 9.0, 10.0, 1e6].map(|at| hold.rate_at(at)), [100.0, 100.0, 200.0, 200.0]);
        assert_eq!(read_text(text, Steps::Linear).unwrap().rate_at(5.0), 150.0);
    }

    #[test]
    fn a_bad_row_is_named_by_file_and_line() {
        let cases = [
            ("0,10\n1;20\n", ":2: `1;20` has no comma"),
            ("0,10\n1,twenty\n", ":2: `twenty` is not a number"),
            ("time,rate\ntime,rate\n", ":2: `time` is not a number"),
            ("0,10\n5,1\n4,1\n", ":3: time 4 s does not follow"),
            ("0,-10\n", ":1: rate -10 is not between"),
            ("0,1,2\n", ":1: `1,2` is not a number"),
        ];
        for (text, wanted) in cases {
            let error = read_text(text, Steps::Hold).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_trace_without_requests_or_without_file_is_refused() {
        assert!(matches!(read_text("0,0\n", Steps::Hold), Err(TraceError::Rows { .. })));
        assert!(matches!(read_text("", Steps::Hold), Err(TraceError::Rows { .. })));
        let gone = read(Path::new("/nonexistent/rates.csv"), Steps::Hold).unwrap_err();
        assert!(gone.to_string().contains("/nonexistent/rates.csv"));
    }
}
