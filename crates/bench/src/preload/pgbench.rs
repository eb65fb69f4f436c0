//! The output and log of pgbench, as figures.

use super::ran::LoadRun;
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;

/// Queries in its usual transaction: BEGIN, five statements, END.
pub(super) const QUERIES: f64 = 7.0;

/// Reads what a run printed, and its logs of single transactions (`--log`).
///
/// # Errors
/// If they have another form, or a transaction failed.
pub(super) fn read(text: &str, logs: &[String]) -> Result<LoadRun> {
    let after = |words: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(words));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        number.with_context(|| format!("pgbench printed no `{words}`"))
    };
    let transactions = after("number of transactions actually processed:")?;
    let transactions_per_s = after("tps =")?;
    if after("number of failed transactions:")? > 0.0 {
        bail!("transactions of pgbench failed: {text}");
    }
    let mut by_latency = BTreeMap::new();
    for line in logs.iter().flat_map(|log| log.lines()) {
        *by_latency.entry(latency_us(line)?).or_insert(0) += 1;
    }
    by_latency.first_key_value().context("pgbench logged no transaction")?;
    let in_ms = by_latency.into_iter().map(|(us, count)| (us as f64 / 1e3, count));
    Ok(LoadRun::new(transactions_per_s * QUERIES, transactions * QUERIES, in_ms.collect()))
}

/// `client transaction latency_us script seconds microseconds`.
fn latency_us(line: &str) -> Result<u64> {
    let word = line.split_whitespace().nth(2).and_then(|word| word.parse().ok());
    word.with_context(|| format!("pgbench logged another form: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
transaction type: <builtin: TPC-B (sort of)>
number of transactions actually processed: 100
number of failed transactions: 0 (0.000%)
latency average = 25.6 ms
tps = 10.5 (without initial connection time)
";
    const LOGS: [&str; 2] =
        ["0 1 4000 0 1700000000 1\n0 2 1000 0 1700000000 2\n", "1 1 2000 0 1 1\n"];

    fn logs() -> Vec<String> {
        LOGS.map(str::to_owned).to_vec()
    }

    #[test]
    fn throughput_and_quantiles_are_read() {
        let ran = read(PRINTED, &logs()).unwrap();
        assert_eq!((ran.queries, ran.queries_per_s), (700.0, 73.5));
        assert_eq!([0.3, 0.5, 0.99].map(|share| ran.quantile_ms(share)), [1.0, 2.0, 4.0]);
    }

    #[test]
    fn what_is_no_run_is_refused() {
        assert!(read("FATAL: the database system is starting up", &logs()).is_err());
        assert!(read(PRINTED, &[]).is_err());
        assert!(read(PRINTED, &["0 1 soon".to_owned()]).is_err());
        assert!(
            read(&PRINTED.replace("failed transactions: 0", "failed transactions: 3"), &logs())
                .is_err()
        );
    }
}
