//! The output of sysbench, as figures.

use super::ran::LoadRun;
use anyhow::{Context as _, Result};

/// Reads the output of a run with `--histogram=on`.
///
/// # Errors
/// If it has another form.
pub(super) fn read(text: &str) -> Result<LoadRun> {
    let line = text.lines().find(|line| line.trim_start().starts_with("queries:"));
    let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let number = |at: usize| -> Option<f64> {
        words.get(at).and_then(|word| word.trim_start_matches('(').parse().ok())
    };
    let both = number(1).zip(number(2));
    let (queries, queries_per_s) = both.context("sysbench printed no number of queries")?;
    let histogram: Vec<(f64, u64)> = text.lines().filter_map(bucket).collect();
    histogram.first().context("sysbench printed no histogram")?;
    Ok(LoadRun::new(queries_per_s, queries, histogram))
}

/// `   0.123 |*****      42`.
fn bucket(line: &str) -> Option<(f64, u64)> {
    let (latency_ms, rest) = line.split_once('|')?;
    let count = rest.trim_start_matches('*').trim();
    Some((latency_ms.trim().parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       1.000 |**                                       10
       2.000 |*****************************************80
      40.000 |*                                        9
      90.000 |                                         1

SQL statistics:
    transactions:                        100    (10.00 per sec.)
    queries:                             2000   (200.50 per sec.)
";

    #[test]
    fn throughput_and_quantiles_are_read() {
        let ran = read(PRINTED).unwrap();
        assert_eq!((ran.queries, ran.queries_per_s), (2000.0, 200.5));
        let quantiles = [0.05, 0.5, 0.9, 0.95, 0.99, 0.999].map(|share| ran.quantile_ms(share));
        assert_eq!(quantiles, [1.0, 2.0, 2.0, 40.0, 40.0, 90.0]);
        assert_eq!(ran.mean_of(|ms| ms), (10.0 + 160.0 + 360.0 + 90.0) / 100.0);
    }

    #[test]
    fn what_is_no_run_is_refused() {
        assert!(read("FATAL: unable to connect").is_err());
        assert!(read("queries: 5 (1.0 per sec.)").is_err());
    }
}
