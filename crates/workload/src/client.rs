//! The client: in open loop it sends requests when they are due, however slow the server is.
//!
//! A request's latency runs from its *intended* send time to the last byte of
//! its reply, so that a server that stalls is charged for every request that
//! fell due meanwhile, not only for the few that were under way (no coordinated
//! omission). It has three parts, each reported:
//!
//! - *wait*: until a connection was free (each carries `depth` requests at most);
//! - *lag*: how late this client then was in sending, its own fault;
//! - *service*: from the write to the last byte of the reply.
//!
//! One thread drives all connections with epoll and nanosecond time-outs. A
//! second one, off the critical path, summarises windows and pushes them to the agent.
//! With `spin` set, the client busy-waits through the last stretch before a due
//! time. That reduces lag by tens of microseconds and keeps a core busy, which hurts
//! more than it helps on a machine shared with the server; the default is off.
//!
//! Without a rate the loop is closed: each connection sends its next request when the last
//! one is answered. A slow request then delays those behind it, which are missing from the
//! latencies; the report adds the latencies corrected by the mean interval of a connection.
//!
//! A request that is not finished after `timeout` counts as timed out. It enters the
//! latencies with its age at the end of that window, because leaving it out would
//! hide the longest latencies. When a connection is lost, its requests fail and the
//! client reconnects after growing pauses.

mod config;
mod connection;
mod engine;
mod ledger;
mod parts;
mod report;
mod reporter;

pub use config::{ConfigError, LoadConfig};
pub use report::{KindReport, LoadError, LoadReport, ServerErrors, WindowReport};

use crate::target::{self, Endpoint, TargetError, TlsClient, Transport};
use crate::{Generator, clock};
use engine::{Engine, ServerAddress};
use ledger::RunResult;
use lull_measure::Latency;
use parts::DueTimes;
use rand::SeedableRng;
use std::io::ErrorKind;
use std::sync::atomic::AtomicBool;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// How long a server may take to answer before the run.
const PATIENCE: Duration = Duration::from_secs(5);

/// Loads a server until the configured duration is over or `stop` is set.
///
/// # Errors
/// If the configuration makes no sense, the server cannot be reached at the
/// start, or the system refuses what the client needs. Errors during the run
/// are counted, not returned.
pub fn run(config: &LoadConfig, stop: &AtomicBool) -> Result<LoadReport, LoadError> {
    run_watched(config, stop, |_, _| {})
}

/// As [`run`], and calls `watch` with every finished window and its latencies, on another
/// thread.
///
/// # Errors
/// As [`run`].
pub fn run_watched(
    config: &LoadConfig,
    stop: &AtomicBool,
    watch: impl FnMut(&WindowReport, &Latency) + Send,
) -> Result<LoadReport, LoadError> {
    config.check()?;
    let parts = parts::divide(config, &DueTimes::read(config)?)?;
    let tls = config.target.tls()?;
    let server = reach(config, tls.as_ref())?;
    set_up(config, &server, tls.as_ref(), stop)?;
    let (windows, reporter) = reporter::channels(config.threads);
    let part = |(part, windows)| {
        Engine::new(
            config,
            part,
            ServerAddress { server: server.clone(), tls: tls.clone() },
            windows,
        )
    };
    let engines = parts.into_iter().zip(windows).map(part).collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        let push = config.push.as_ref();
        let reporter = spawn(scope, "lull-report", move || reporter.run(push, watch))?;
        let result = run_all(engines, stop);
        // The engines are dropped, which closes their channels: the reporter ends.
        let windows = reporter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(LoadReport::new(config, server.clone(), result?, windows))
    })
}

/// Connects all engines, then runs them from the same instant, the first in this thread.
fn run_all(mut engines: Vec<Engine<'_>>, stop: &AtomicBool) -> Result<RunResult, LoadError> {
    for engine in &mut engines {
        engine.connect_all(stop)?;
    }
    let start = clock::now();
    let first = engines.remove(0);
    std::thread::scope(|scope| {
        let mut others = Vec::new();
        for engine in engines {
            others.push(spawn(scope, "lull-load", move || engine.run(start, stop))?);
        }
        let mut result = first.run(start, stop);
        for other in others {
            let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and_then(|mut all| {
                all.merge(other?);
                Ok(all)
            });
        }
        result
    })
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, LoadError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work);
    thread.map_err(|source| LoadError::System { what: "start a thread", source })
}

/// Stores keys, logs in or creates tables before the run.
fn set_up(
    config: &LoadConfig,
    server: &Endpoint,
    tls: Option<&TlsClient>,
    stop: &AtomicBool,
) -> Result<(), LoadError> {
    match (config.target.address.protocol(), server) {
        (protocol, Endpoint::Tcp(server)) if protocol.is_cache() && config.preload => {
            // Preloading draws from a stream of its own, so that the requests of the run
            // are the same with and without it.
            let mut values = Generator::seed_from_u64(config.seed);
            values.long_jump();
            target::preload(*server, tls, &mut config.target.cache()?, &mut values, stop)?;
        }
        (protocol, endpoint) if protocol.is_database() => {
            let server = target::Server { endpoint, tls };
            config.target.database()?.set_up_at(&server, config.preload, stop)?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns the first endpoint of the host that accepts a connection, under TLS if that is what
/// connections begin with.
fn reach(config: &LoadConfig, tls: Option<&TlsClient>) -> Result<Endpoint, LoadError> {
    let mut last = None;
    let address = &config.target.address;
    let wrong = |source| TargetError::Resolve { address: address.clone(), source };
    for endpoint in address.resolve().map_err(wrong)? {
        match try_to_reach(&endpoint, tls.filter(|_| !address.protocol().is_database())) {
            Ok(()) => return Ok(endpoint),
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| ErrorKind::NotFound.into());
    Err(LoadError::Unreachable { address: address.clone(), source })
}

fn try_to_reach(endpoint: &Endpoint, tls: Option<&TlsClient>) -> std::io::Result<()> {
    let mut transport = Transport::new(endpoint.connect(PATIENCE)?);
    let Some(tls) = tls else { return Ok(()) };
    transport.begin_tls(tls, Vec::new())?;
    transport.shake_hands().map_err(|error| match error.kind() {
        // A blocking read with a time-out ends like this.
        ErrorKind::WouldBlock => {
            let seconds = PATIENCE.as_secs();
            let what = format!("no answer to the handshake of TLS within {seconds} s");
            std::io::Error::new(ErrorKind::TimedOut, what)
        }
        _ => error,
    })
}
