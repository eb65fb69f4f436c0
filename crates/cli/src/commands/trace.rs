//! `lull lab trace`: rates for a load from a recording of a cache's requests.

use super::UsageError;
use super::save::{self, Destination};
use crate::cli::TraceArgs;
use lull_workload::arrivals::{Binning, CacheTraceError, Rate, bin};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;

pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let peak_per_s = args.peak.as_ref().map(constant).transpose()?;
    let binning = Binning {
        from_s: args.from.as_secs_f64(),
        span_s: args.span.as_secs_f64(),
        bin_s: args.bin.as_secs_f64(),
        peak_per_s,
        operations: args.operations.iter().cloned().collect(),
    };
    let is_stdin = args.recording.as_path() == Path::new("-");
    let read: &Path = if is_stdin { Path::new("/dev/stdin") } else { &args.recording };
    let out = args.out.as_deref().map(|out| Destination::new(out)?.apart_from(&[read]));
    let out = out.transpose()?;
    let rates = if is_stdin {
        binned(std::io::stdin().lock(), Path::new("standard input"), &binning)?
    } else {
        let path = args.recording.as_path();
        let file = File::open(path);
        let file = file.map_err(|error| UsageError(format!("{}: {error}", path.display())))?;
        binned(BufReader::new(file), path, &binning)?
    };
    let text = text(&args.recording, &rates);
    match &out {
        Some(to) => save::all(&[(to, text.into_bytes())]),
        None => Ok(std::io::stdout().write_all(text.as_bytes())?),
    }
}

/// The rate of the busiest stretch.
fn constant(rate: &Rate) -> Result<f64, UsageError> {
    match rate {
        Rate::Constant { per_s } => Ok(*per_s),
        _ => Err(UsageError(format!("--peak {rate}: give one rate, such as 750000/s"))),
    }
}

/// Classifies an error: an unusable recording is bad input, a failed read is not.
fn binned(
    recording: impl BufRead,
    name: &Path,
    binning: &Binning,
) -> anyhow::Result<Vec<(f64, f64)>> {
    bin(recording, name, binning).map_err(|error| match error {
        CacheTraceError::Read { .. } => error.into(),
        _ => UsageError(error.to_string()).into(),
    })
}

fn text(recording: &Path, rates: &[(f64, f64)]) -> String {
    let mut text = format!("# lull lab trace {}\ntime_s,rate_per_s\n", recording.display());
    for (time_s, rate_per_s) in rates {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{time_s},{rate_per_s}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_workload::arrivals::{Steps, parse_trace};

    #[test]
    fn what_is_written_is_a_trace_that_loads_take() {
        let text = text(Path::new("c.csv"), &[(0.0, 187_500.0), (3600.0, 0.1)]);
        let schedule = parse_trace(&text, Path::new("x"), Steps::Hold).unwrap();
        assert_eq!([0.0, 4000.0].map(|at| schedule.rate_at(at)), [187_500.0, 0.1]);
    }

    #[test]
    fn a_peak_is_one_rate() {
        assert_eq!(constant(&"750000/s".parse().unwrap()).unwrap(), 750e3);
        let burst = "burst:12000,4000,2s".parse().unwrap();
        assert!(constant(&burst).unwrap_err().to_string().contains("--peak"));
    }
}
