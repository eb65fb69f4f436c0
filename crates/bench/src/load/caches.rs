//! The open-loop client on memcached and Redis at 100,000 requests/s: its CPU time and its lag.
//!
//! Client and server have a core each. Where a server does not answer that many requests from one
//! core, the highest rate of [`RATES_PER_S`] that it answers is measured: a request costs the
//! client no less there, because fewer replies are ready at a time.

use super::super::pinned::{Pinned, PinnedServer, usable_core};
use super::super::stats::Summary;
use super::super::{Bench, Context, report::Report};
use super::{CONNECTIONS, Loaded, MEASURED_S, QUANTILES, Server, WARMUP_S, load, memcached, redis};
use anyhow::{Result, bail};
use std::path::Path;
use xtask::packages::on_path;

pub(in super::super) const BENCH: Bench = Bench {
    name: "load-caches",
    about: "`lull load` at 100,000 requests/s on memcached and Redis, or at the highest rate that \
            one core of this machine answers: CPU time for a request, and lag of the client",
    run,
};

const ROUNDS: usize = 5;
/// Tried in this order until the server answers them all.
const RATES_PER_S: [u32; 4] = [100_000, 80_000, 60_000, 40_000];
const TRIAL_S: u64 = 3;
/// Median latency above which the server does not keep up, so that its queue grows.
const KEEPS_UP_MAX_S: f64 = 10e-3;
const ANSWERED_MIN: f64 = 0.999;
/// Bounds of the design.
const CPU_MAX_US: f64 = 10.0;
const LAG_P99_MAX_US: f64 = 100.0;

/// Starts a server and stores the keys.
type Start = fn(&Path, &Path) -> Result<Server>;

const SERVERS: [(&str, Start); 2] = [("memcached", memcached), ("redis-server", redis)];

fn run(context: &Context) -> Result<Report> {
    let lull = context.build("lull-cli", "lull")?;
    let mut report = Report::default();
    for (program, start) in SERVERS {
        match on_path(program) {
            Some(path) => measure(&lull, &start(&lull, &path)?, &mut report)?,
            None => report.note(format!("{program} is not installed: apt-get install {program}.")),
        }
    }
    report.note(format!(
        "{ROUNDS} runs of {MEASURED_S} s after {WARMUP_S} s, Poisson, {CONNECTIONS} connections on \
         one thread, keys and values of the ETC mix; the server on one core and the client on the \
         other. CPU time is that of the client's whole process. Lag is how late the client was in \
         sending. Rates are tried from {} downwards; one counts as answered if {ANSWERED_MIN} of \
         its requests are, with a median latency of at most {} ms.",
        RATES_PER_S[0],
        KEEPS_UP_MAX_S * 1e3
    ));
    Ok(report)
}

fn measure(lull: &Path, server: &Server, report: &mut Report) -> Result<()> {
    let other = usable_core(1)?;
    let _server = PinnedServer::to(server.process.pid(), other)?;
    let _client = Pinned::to_core(0)?;
    let rate_per_s = highest_rate(|rate| load(lull, server, rate, TRIAL_S, server.options))?;
    let runs = (0..ROUNDS).map(|_| load(lull, server, rate_per_s, MEASURED_S, server.options));
    rows(report, &format!("{}, {rate_per_s}/s", server.what), &runs.collect::<Result<Vec<_>>>()?);
    Ok(())
}

/// Returns the highest rate that the server answers.
fn highest_rate(run: impl Fn(u32) -> Result<Loaded>) -> Result<u32> {
    for rate in RATES_PER_S {
        match run(rate) {
            Ok(loaded) if keeps_up(&loaded) => return Ok(rate),
            Ok(_) => {}
            // Requests of a rate that is far too high time out.
            Err(error) => eprintln!("{rate} requests/s: {error:#}"),
        }
    }
    let [.., least] = RATES_PER_S;
    bail!("the server does not answer {least} requests/s on this machine")
}

fn keeps_up(loaded: &Loaded) -> bool {
    let is_prompt = loaded.latency.p50_seconds.is_some_and(|median| median <= KEEPS_UP_MAX_S);
    loaded.answered() >= ANSWERED_MIN && is_prompt
}

fn rows(report: &mut Report, title: &str, runs: &[Loaded]) {
    let of = |figure: fn(&Loaded) -> f64| Summary::new(runs.iter().map(figure));
    let what = |figure: &str| format!("{title}: {figure}");
    let answered = of(Loaded::answered);
    report.bounded(&what("answered / due"), answered, "ratio", ANSWERED_MIN..=f64::INFINITY);
    let cpu = of(Loaded::cpu_us);
    report.bounded(&what("CPU of the client for a request"), cpu, "us", 0.0..=CPU_MAX_US);
    let us = |seconds: Option<f64>| seconds.unwrap_or(f64::NAN) * 1e6;
    for (name, quantile) in QUANTILES {
        let lag = Summary::new(runs.iter().map(|one| us(quantile(&one.lag))));
        let what = what(&format!("lag {name}"));
        match name {
            "p99" => report.bounded(&what, lag, "us", 0.0..=LAG_P99_MAX_US),
            _ => report.reported(&what, lag, "us"),
        }
    }
    for (name, quantile) in &QUANTILES[..2] {
        let latency = Summary::new(runs.iter().map(|one| us(quantile(&one.latency))));
        report.reported(&what(&format!("latency {name}")), latency, "us");
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spread;
    use super::*;

    fn loaded(completed: u64, median_s: f64) -> Loaded {
        let spread = |median| Spread {
            p50_seconds: Some(median),
            p99_seconds: Some(5e-5),
            max_seconds: Some(1e-3),
        };
        Loaded {
            measured_seconds: 2.0,
            due_requests: 1_000,
            sent_requests: 1_000,
            completed_requests: completed,
            failed_requests: 0,
            timed_out_requests: 0,
            latency: spread(median_s),
            lag: spread(1e-6),
            cores: 0.004,
        }
    }

    #[test]
    fn the_highest_rate_that_is_answered_without_a_queue_is_measured() {
        let up_to =
            |most: u32| move |rate: u32| Ok(loaded(1_000, if rate <= most { 1e-4 } else { 0.5 }));
        assert_eq!(highest_rate(up_to(200_000)).unwrap(), 100_000);
        assert_eq!(highest_rate(up_to(65_000)).unwrap(), 60_000);
        let error = highest_rate(up_to(0)).unwrap_err().to_string();
        assert!(error.contains("40000 requests/s"), "{error}");
        assert!(highest_rate(|_| Ok(loaded(990, 1e-4))).is_err(), "requests without a reply");
    }

    #[test]
    fn cpu_time_and_lag_are_judged_by_the_request() {
        let mut report = Report::default();
        // 0.004 cores for 500 requests a second are 8 us for each.
        assert!((loaded(1_000, 1e-4).cpu_us() - 8.0).abs() < 1e-9);
        rows(&mut report, "title", &[loaded(1_000, 1e-4)]);
        assert_eq!(report.missed(), 0);
        rows(&mut report, "title", &[Loaded { cores: 0.006, ..loaded(1_000, 1e-4) }]);
        assert_eq!(report.missed(), 1);
    }
}
