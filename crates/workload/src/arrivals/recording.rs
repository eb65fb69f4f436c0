//! Due times from a recording of requests.
//!
//! One request a line, whose first column is its time in seconds. Times ascend and count from the
//! first one. Further columns, a first line that begins with a letter, empty lines and what
//! follows a `#` are skipped, so that access logs and cache traces in CSV can be used as they are.

use lull_measure::Nanos;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The due times of all requests of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording(Arc<[Nanos]>);

/// Why a recording cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file cannot be read.
    #[error("cannot read the recording {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A row cannot be used.
    #[error("{}:{line}: {problem}; each row begins with a time in seconds", file.display())]
    Row {
        /// The file.
        file: PathBuf,
        /// The row's line, from 1.
        line: usize,
        /// The fault.
        problem: String,
    },
    /// The recording has no request.
    #[error("the recording {} has no request", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// [`RecordingError`] names the line that cannot be used.
    pub fn read(file: &Path) -> Result<Self, RecordingError> {
        let read = |source| RecordingError::Read { file: file.to_owned(), source };
        Self::parse(BufReader::new(File::open(file).map_err(read)?), file)
    }

    /// Reads the rows of a file of this name.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn parse(text: impl BufRead, file: &Path) -> Result<Self, RecordingError> {
        let (mut times, mut first_s, mut last_s) = (Vec::new(), None, f64::NEG_INFINITY);
        for (index, line) in text.lines().enumerate() {
            let read = |source| RecordingError::Read { file: file.to_owned(), source };
            let line = line.map_err(read)?;
            let text = time_column(&line);
            let is_heading = index == 0 && text.starts_with(char::is_alphabetic);
            if text.is_empty() || is_heading {
                continue;
            }
            let time_s = read_time(text, last_s).map_err(|problem| RecordingError::Row {
                file: file.to_owned(),
                line: index + 1,
                problem,
            })?;
            last_s = time_s;
            times.push(Nanos::from_secs_f64(time_s - *first_s.get_or_insert(time_s)));
        }
        match times.is_empty() {
            true => Err(RecordingError::Empty { file: file.to_owned() }),
            false => Ok(Self(times.into())),
        }
    }

    /// The due times, ascending, from the first one on, which is 0.
    pub fn times(&self) -> impl Iterator<Item = Nanos> + Send + use<> {
        let times = Arc::clone(&self.0);
        (0..times.len()).map(move |at| times[at])
    }
}

fn time_column(line: &str) -> &str {
    let row = line.split('#').next().unwrap_or_default();
    row.split(',').next().unwrap_or_default().trim()
}

fn read_time(text: &str, last_s: f64) -> Result<f64, String> {
    let time_s: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if !time_s.is_finite() || time_s < last_s {
        return Err(format!("time {text} s does not follow the row before"));
    }
    Ok(time_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read(text: &str) -> Result<Recording, RecordingError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Recording::read(file.path())
    }

    #[test]
    fn times_count_from_the_first_and_other_columns_are_skipped() {
        let text = "time,path\n1700000000.5,/a\n\n1700000000.5,/b # twice\n1700000002,/c,x\n";
        let times: Vec<_> = read(text).unwrap().times().collect();
        assert_eq!(times, [Nanos::ZERO, Nanos::ZERO, Nanos::from_millis(1_500)]);
    }

    #[test]
    fn a_row_that_is_no_time_or_goes_back_is_named_by_its_line() {
        let cases = [
            ("0\nsoon\n", ":2: `soon` is not a number"),
            ("time\ntime\n", ":2: `time` is not a number"),
            ("0\n5,a\n4,a\n", ":3: time 4 s does not follow"),
            ("0\ninf\n", ":2: time inf s does not follow"),
            ("# nothing\n", "has no request"),
            ("", "has no request"),
        ];
        for (text, wanted) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text:?}: {error}");
        }
        let gone = Recording::read(Path::new("/nonexistent/times.csv")).unwrap_err();
        assert!(gone.to_string().contains("/nonexistent/times.csv"));
    }
}
