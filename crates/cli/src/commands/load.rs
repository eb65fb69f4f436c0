//! `lull load`: a client in open or closed loop.

use crate::cli::LoadArgs;
use crate::progress;
use crate::signals;
use anyhow::Context;
use lull_agent::error::UsageError;
use lull_control::CoreSet;
use lull_host::sys::sched::{affinity_of, set_affinity};
use lull_measure::Nanos;
use lull_workload::apps::options::Demand;
use lull_workload::client::{LoadConfig, LoadError, LoadReport, run_watched};
use lull_workload::etc::EtcConfig;
use lull_workload::push::PushConfig;
use lull_workload::target::{DatabaseConfig, Protocol, Statements, TlsConfig};
use std::path::Path;

pub(crate) fn run(args: LoadArgs) -> anyhow::Result<()> {
    let (json, hdr, total) = (args.json, args.hdr.clone(), args.duration);
    if let Some(path) = &hdr {
        check_directory(path)?;
    }
    run_on(args.cores.as_ref())?;
    let config = config(args);
    let stop = signals::stop_flag()?;
    let bar = progress::seconds(total.unwrap_or(Nanos::ZERO).as_secs_f64() as u64);
    let mut elapsed = Nanos::ZERO;
    let report = run_watched(&config, &stop, |window, _| {
        elapsed += Nanos::from_secs_f64(window.length_seconds);
        bar.set_position(elapsed.as_secs_f64() as u64);
        let p95 = window.latency.p95_seconds.map(Nanos::from_secs_f64);
        let tail = p95.map_or_else(|| "no reply".to_owned(), |tail| format!("p95 {tail:.2}"));
        bar.set_message(format!("{tail}, {} due", window.due_requests));
    });
    bar.finish_and_clear();
    let report = report.map_err(refusal)?;
    let pushed = report.pushed.unwrap_or_default();
    super::note_unpushed(config.push.as_ref(), pushed.sent_messages, pushed.dropped_messages);
    if json {
        super::print_json(&report)?;
    } else {
        println!("{report}");
    }
    // Last, so that a full disk does not cost the report.
    if let Some(path) = hdr {
        std::fs::write(&path, &report.histogram)
            .with_context(|| format!("cannot write the histogram to {}", path.display()))?;
    }
    check_answers(&report)?;
    Ok(())
}

/// No request of a load was answered without an error; the program exits with status 3, so that
/// a script does not take the report for a measurement.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoAnswer(String);

fn check_answers(report: &LoadReport) -> Result<(), NoAnswer> {
    match report.due_requests > 0 && report.completed_requests == 0 {
        true => Err(NoAnswer(describe_failure(report))),
        false => Ok(()),
    }
}

/// Says what a load tried that got no answer, and what to check.
fn describe_failure(report: &LoadReport) -> String {
    let check = match (report.server_errors.first(), &report.last_connection_loss) {
        (Some(error), _) => format!(
            "the server reports error {}{}: check the path, database or script of the load",
            error.code,
            if error.message.is_empty() { String::new() } else { format!(" ({})", error.message) }
        ),
        (None, Some(loss)) => format!(
            "{} connections were lost, the last one because: {loss}; check the protocol and port \
             of the target, and the server's log",
            report.connection_losses
        ),
        (None, None) => "the server accepts connections and sends nothing: check whether it \
                         hangs, whether another program listens there, and whether --timeout and \
                         --for are longer than its latency"
            .to_owned(),
    };
    format!(
        "{} answered none of {} requests: of {} that were sent over {} connections to {}, {} \
         failed, {} timed out and {} have no answer yet; {check}",
        report.target,
        report.due_requests,
        report.sent_requests,
        report.connections,
        report.server,
        report.failed_requests,
        report.timed_out_requests,
        report.outstanding_requests,
    )
}

/// Marks an error as bad input, if it is that.
fn refusal(error: LoadError) -> anyhow::Error {
    if error.is_bad_input() { UsageError(error.to_string()).into() } else { error.into() }
}

/// Checks before the run that a file can be made at its end.
fn check_directory(path: &Path) -> Result<(), UsageError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        Some(parent) if !parent.is_dir() => {
            Err(UsageError(format!("--hdr {}: there is no such directory", path.display())))
        }
        _ => Ok(()),
    }
}

/// Keeps this thread, and those that it starts, on these cores, if any are given.
fn run_on(cores: Option<&CoreSet>) -> Result<(), UsageError> {
    let Some(cores) = cores else { return Ok(()) };
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let why = match set_affinity(me, cores).and_then(|()| affinity_of(me)) {
        Ok(now) if now == *cores => return Ok(()),
        Ok(now) => format!("only {now} of them can be used"),
        Err(error) => error.to_string(),
    };
    Err(UsageError(format!(
        "--cores {cores}: {why}: name cores that are online and that this process may use"
    )))
}

/// Returns the load that these arguments request.
pub(super) fn config(args: LoadArgs) -> LoadConfig {
    let password = match args.target.protocol() {
        Protocol::Mysql => std::env::var("MYSQL_PWD"),
        Protocol::Postgres => std::env::var("PGPASSWORD"),
        Protocol::Redis => std::env::var("REDISCLI_AUTH"),
        Protocol::Memcached | Protocol::Http | Protocol::Http2 | Protocol::Options => {
            Ok(String::new())
        }
    }
    .unwrap_or_default();
    let (rate, replay) = (args.rate, args.replay);
    let mut config = LoadConfig { rate, replay, ..LoadConfig::closed(args.target) };
    config.target.database = DatabaseConfig {
        script: args.script,
        scale: args.scale,
        statements: if args.simple { Statements::Simple } else { Statements::Prepared },
        tries: args.tries,
        password: password.clone(),
    };
    config.target.redis_password = password;
    config.target.tls = TlsConfig { ca: args.tls_ca, is_insecure: args.tls_insecure };
    config.target.etc =
        EtcConfig { records: args.records, set_share: args.set_share, ..EtcConfig::default() };
    config.target.demand = Demand { base_paths: args.base_paths, ..Demand::default() };
    config.process = args.arrivals;
    config.threads = args.threads;
    config.connections = args.connections;
    config.depth = args.depth;
    config.duration = args.duration;
    config.warmup = args.warmup;
    config.timeout = args.timeout;
    config.spin = args.spin;
    config.seed = args.seed;
    config.preload = !args.no_preload;
    config.push = args.push.zip(args.app).map(|(socket, app)| PushConfig { socket, app });
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_runs_on_its_cores_and_refuses_those_that_it_cannot_use() {
        // On a thread of its own: the affinity ends with it.
        let test = || {
            let me = rustix::thread::gettid().as_raw_nonzero().get();
            let first: CoreSet = affinity_of(me).unwrap().iter().take(1).collect();
            run_on(Some(&first)).unwrap();
            let inherited = std::thread::spawn(|| {
                affinity_of(rustix::thread::gettid().as_raw_nonzero().get()).unwrap()
            });
            assert_eq!(inherited.join().unwrap(), first);
            let absent: CoreSet = "900".parse().unwrap();
            let refused = run_on(Some(&absent)).unwrap_err().to_string();
            assert!(
                refused.starts_with("--cores 900: ") && refused.contains("online"),
                "{refused}"
            );
        };
        std::thread::spawn(test).join().unwrap();
    }
}
