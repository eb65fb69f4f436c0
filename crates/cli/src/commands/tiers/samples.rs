//! Samples of the front tier's pool of connections, as a file has them.

use crate::commands::UsageError;
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// One sample. It is written by the front tier, so that the time is that of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct TimedSample {
    /// Milliseconds since 1970.
    pub(super) unix_ms: u64,
    /// Frequency of the back tier's core.
    pub(super) back_khz: u64,
    /// Threads that wait for a connection.
    pub(super) waiting: u32,
    /// Connections that a thread has.
    pub(super) in_use: u32,
}

/// Reads a file of samples.
pub(super) fn read(file: &Path) -> Result<Vec<TimedSample>, UsageError> {
    let refuse = |why: String| UsageError(format!("--samples {}: {why}", file.display()));
    let opened = File::open(file).map_err(|error| refuse(error.to_string()))?;
    parse(opened).map_err(|error| {
        refuse(format!("{error}; it needs the columns unix_ms, back_khz, waiting and in_use"))
    })
}

fn parse(text: impl Read) -> Result<Vec<TimedSample>, csv::Error> {
    csv::Reader::from_reader(text).deserialize().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_by_their_names_and_others_are_skipped() {
        let text = "unix_ms,served,in_use,waiting,back_khz\n5,9,50,7,1197000\n";
        let sample = TimedSample { unix_ms: 5, back_khz: 1_197_000, waiting: 7, in_use: 50 };
        assert_eq!(parse(text.as_bytes()).unwrap(), [sample]);
    }

    #[test]
    fn half_a_row_is_refused() {
        let text = "unix_ms,back_khz,waiting,in_use\n5,1197000\n";
        assert!(parse(text.as_bytes()).is_err());
        let missing = read(Path::new("/no/such/samples.csv")).unwrap_err().to_string();
        assert!(missing.contains("/no/such/samples.csv"), "{missing}");
    }
}
