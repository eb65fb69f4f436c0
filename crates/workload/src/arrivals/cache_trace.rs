//! Rates over time from a recording of a cache's requests.
//!
//! The form is that of the public cache traces of Twitter
//! (<https://github.com/twitter/cache-trace>): a line a request, without a
//! heading, in order of time,
//!
//! ```text
//! timestamp (s), key, key size, value size, client, operation, TTL
//! ```
//!
//! A key may contain commas, so that the last fields are counted from the end.
//! The result is the mean rate of each bin of time, which is the form of the rate
//! traces that loads read. The BayOp paper (section 5.2) bins a day by the hour and
//! scales it so that the busiest hour is the peak rate of its server.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};

/// Fields of a row at least; a key with commas has more.
const FIELDS: usize = 7;
/// Position of the operation, counted from the end.
const OPERATION: usize = 1;
/// Most bins of one result.
const BINS_MAX: f64 = 1e6;

/// How a recording is binned.
#[derive(Debug, Clone, PartialEq)]
pub struct Binning {
    /// Seconds that are skipped at its beginning.
    pub from_s: f64,
    /// Seconds that are binned; a recording that ends before is refused.
    pub span_s: f64,
    /// Length of a bin.
    pub bin_s: f64,
    /// The rate that the busiest bin is scaled to; as recorded if absent.
    pub peak_per_s: Option<f64>,
    /// Operations that count, such as `get`; all if empty.
    pub operations: BTreeSet<String>,
}

/// Why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheTraceError {
    /// The trace cannot be read.
    #[error("cannot read the recording {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A row cannot be used.
    #[error(
        "{}:{line}: {problem}; each row is timestamp,key,key size,value size,client,operation,TTL",
        file.display()
    )]
    Row {
        /// The file.
        file: PathBuf,
        /// The row's line, from 1.
        line: u64,
        /// The fault.
        problem: String,
    },
    /// The trace ends before the span does.
    #[error(
        "{} ends after {there_s} s, and {wanted_s} s are requested: shorten the span, or use a \
         longer recording",
        file.display()
    )]
    Short {
        /// The file.
        file: PathBuf,
        /// Seconds that it has.
        there_s: f64,
        /// Seconds that were requested.
        wanted_s: f64,
    },
    /// No request counts.
    #[error("{} has no such request in this span: is the operation right?", file.display())]
    Nothing {
        /// The file.
        file: PathBuf,
    },
    /// The bins make no sense.
    #[error("{0}")]
    Binning(String),
}

/// Returns the mean rate of each bin: seconds from the first bin, and requests per second.
///
/// Reading ends with the span: the rest of a long recording costs nothing.
///
/// # Errors
/// [`CacheTraceError`], which names the line that cannot be used.
pub fn bin(
    recording: impl BufRead,
    file: &Path,
    binning: &Binning,
) -> Result<Vec<(f64, f64)>, CacheTraceError> {
    let mut counts = vec![0_u64; binning.bins()?];
    let wanted_s = binning.from_s + binning.span_s;
    let (mut first_s, mut last_s) = (None, 0.0);
    for (line, text) in (1..).zip(recording.lines()) {
        let text =
            text.map_err(|source| CacheTraceError::Read { file: file.to_owned(), source })?;
        if text.trim().is_empty() {
            continue;
        }
        let refuse = |problem| CacheTraceError::Row { file: file.to_owned(), line, problem };
        let (time_s, operation) = row(&text).map_err(refuse)?;
        let since_s = time_s - *first_s.get_or_insert(time_s);
        if since_s < last_s {
            return Err(refuse(format!("time {time_s} s is before that of a row above")));
        }
        last_s = since_s;
        if since_s >= wanted_s {
            break;
        }
        if since_s >= binning.from_s && binning.has(operation) {
            let at = ((since_s - binning.from_s) / binning.bin_s) as usize;
            counts[at] += 1;
        }
    }
    // Timestamps are whole seconds: a request in the last second of the span shows that
    // the recording covers it.
    if last_s + 1.0 < wanted_s {
        let there_s = if first_s.is_some() { last_s + 1.0 } else { 0.0 };
        return Err(CacheTraceError::Short { file: file.to_owned(), there_s, wanted_s });
    }
    let most = counts.iter().copied().max().filter(|most| *most > 0);
    let most = most.ok_or_else(|| CacheTraceError::Nothing { file: file.to_owned() })?;
    let scale = binning.peak_per_s.map_or(1.0 / binning.bin_s, |peak| peak / most as f64);
    let rates = counts.into_iter().enumerate();
    Ok(rates.map(|(at, count)| (at as f64 * binning.bin_s, count as f64 * scale)).collect())
}

impl Binning {
    /// Number of whole bins.
    fn bins(&self) -> Result<usize, CacheTraceError> {
        let refuse = |why: String| Err(CacheTraceError::Binning(why));
        let bins = self.span_s / self.bin_s;
        let is_time = |time: f64| time.is_finite() && time > 0.0;
        if !is_time(self.span_s) || !is_time(self.bin_s) || !self.from_s.is_finite() {
            return refuse("the span and the bin must each be longer than 0 s".to_owned());
        }
        if (bins - bins.round()).abs() > 1e-9 || bins < 1.0 {
            let (span_s, bin_s) = (self.span_s, self.bin_s);
            return refuse(format!("{span_s} s is not a whole number of bins of {bin_s} s"));
        }
        if bins > BINS_MAX {
            return refuse(format!("{bins} bins are too many: {BINS_MAX} at most"));
        }
        Ok(bins.round() as usize)
    }

    fn has(&self, operation: &str) -> bool {
        self.operations.is_empty() || self.operations.contains(operation)
    }
}

/// Time and operation of a row.
fn row(text: &str) -> Result<(f64, &str), String> {
    let fields = text.split(',').count();
    if fields < FIELDS {
        return Err(format!("has {fields} fields and not {FIELDS}"));
    }
    let time = text.split(',').next().unwrap_or_default().trim();
    let time_s = time.parse::<f64>().ok().filter(|time_s| time_s.is_finite());
    let time_s = time_s.ok_or_else(|| format!("`{time}` is not a time in seconds"))?;
    let operation = text.rsplit(',').nth(OPERATION).unwrap_or_default().trim();
    Ok((time_s, operation))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(span_h: f64) -> Binning {
        Binning {
            from_s: 0.0,
            span_s: span_h * 3600.0,
            bin_s: 3600.0,
            peak_per_s: None,
            operations: BTreeSet::new(),
        }
    }

    fn rates(text: &str, binning: &Binning) -> Result<Vec<(f64, f64)>, String> {
        bin(text.as_bytes(), Path::new("c.csv"), binning).map_err(|error| error.to_string())
    }

    /// This many requests in each second, from time 100 on.
    fn recording(by_second: impl IntoIterator<Item = usize>) -> String {
        let row = |(second, count): (usize, usize)| {
            format!("{},a,b,1,10,0,get,0\n", 100 + second).repeat(count)
        };
        by_second.into_iter().enumerate().map(row).collect()
    }

    #[test]
    fn requests_are_counted_by_hour_from_the_first_on() {
        let text = recording((0..7200).map(|second| if second < 3600 { 1 } else { 3 }));
        assert_eq!(rates(&text, &hours(2.0)), Ok(vec![(0.0, 1.0), (3600.0, 3.0)]));
        let late = Binning { from_s: 3600.0, ..hours(1.0) };
        assert_eq!(rates(&text, &late), Ok(vec![(0.0, 3.0)]));
    }

    #[test]
    fn the_busiest_bin_is_the_requested_peak() {
        let text = recording((0..7200).map(|second| if second < 3600 { 1 } else { 4 }));
        let scaled = Binning { peak_per_s: Some(750e3), ..hours(2.0) };
        assert_eq!(rates(&text, &scaled), Ok(vec![(0.0, 187_500.0), (3600.0, 750e3)]));
    }

    #[test]
    fn only_the_requested_operations_count_whatever_the_key_holds() {
        let text = "5,k,ey,2,10,1,get,0\n5,key,3,10,1,set,30\n6,key,3,10,1,get,0\n";
        let operations = BTreeSet::from(["get".to_owned()]);
        let gets = Binning { span_s: 2.0, bin_s: 2.0, operations, ..hours(1.0) };
        assert_eq!(rates(text, &gets), Ok(vec![(0.0, 1.0)]));
        let none = Binning { operations: BTreeSet::from(["cas".to_owned()]), ..gets };
        assert!(rates(text, &none).unwrap_err().contains("is the operation right?"));
    }

    #[test]
    fn bad_rows_and_short_recordings_are_refused_with_their_place() {
        let cases = [
            ("0,k,3,10,1,get\n", "c.csv:1: has 6 fields and not 7"),
            ("0,k,3,10,1,get,0\nx,k,3,10,1,get,0\n", "c.csv:2: `x` is not a time"),
            ("9,k,3,10,1,get,0\n8,k,3,10,1,get,0\n", "c.csv:2: time 8 s is before"),
            ("0,k,3,10,1,get,0\n", "ends after 1 s, and 3600 s are requested"),
            ("", "ends after 0 s"),
        ];
        for (text, wanted) in cases {
            let error = rates(text, &hours(1.0)).unwrap_err();
            assert!(error.contains(wanted), "{text:?}: {error}");
        }
        let uneven = Binning { bin_s: 1000.0, ..hours(1.0) };
        assert!(rates("", &uneven).unwrap_err().contains("not a whole number of bins"));
    }
}
