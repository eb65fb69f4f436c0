//! The open-loop client: sends when requests are due, whatever the server does.
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
//! second one, off the critical path, sums up windows and pushes them to the agent.
//! With `spin` set, the client does not sleep through the last stretch before a
//! due time; that buys tens of microseconds of lag for a busy core, which on a
//! machine shared with the server hurts more than it helps, so it is off.
//!
//! A request that is not finished after `timeout` counts as timed out and enters
//! the latencies with its age then, found at the end of a window: leaving it out
//! would hide the worst. A lost connection fails the requests on it and is
//! made anew with growing pauses.

mod config;
mod connection;
mod engine;
mod ledger;
mod report;
mod reporter;

pub use config::{ConfigError, LoadConfig};
pub use report::{LoadError, LoadReport, WindowReport};

use crate::Generator;
use crate::target;
use engine::Engine;
use rand::SeedableRng;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Puts a load on a server until its duration is over or `stop` is set.
///
/// # Errors
/// If the configuration makes no sense, the server cannot be reached at the
/// start, or the system refuses what the client needs. Errors during the run
/// are counted, not returned.
pub fn run(config: &LoadConfig, stop: &AtomicBool) -> Result<LoadReport, LoadError> {
    run_watched(config, stop, |_| {})
}

/// As [`run`], and shows every window to `watch` when it is over, on another thread.
///
/// # Errors
/// As [`run`].
pub fn run_watched(
    config: &LoadConfig,
    stop: &AtomicBool,
    watch: impl FnMut(&WindowReport) + Send,
) -> Result<LoadReport, LoadError> {
    config.check()?;
    let schedule = config.rate.schedule()?;
    let target = config.target.build()?;
    let server = reach(config)?;
    let rng = Generator::seed_from_u64(config.seed);
    if config.preload && config.target.address.protocol() == target::Protocol::Memcached {
        // Its own stream: with and without it the same requests follow.
        let mut values = rng.clone();
        values.long_jump();
        target::preload(server, &config.target.memcached()?, &mut values, stop)?;
    }
    let (reporting, desk) = reporter::open();
    std::thread::scope(|scope| {
        let push = config.push.as_ref();
        let builder = std::thread::Builder::new().name("lull-report".to_owned());
        let reporter = builder
            .spawn_scoped(scope, move || desk.work(push, watch))
            .map_err(|source| LoadError::System { what: "start a thread", source })?;
        let engine = Engine::new(config, target, server, schedule, rng, reporting)?;
        let ran = engine.run(stop);
        // The engine has gone and with it the reporter's last work.
        let windows = reporter.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(LoadReport::new(config, server, ran?, windows))
    })
}

/// The first of the host's addresses that takes a connection.
fn reach(config: &LoadConfig) -> Result<SocketAddr, LoadError> {
    let mut last = None;
    for address in config.target.address.resolve()? {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(_) => return Ok(address),
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| std::io::ErrorKind::NotFound.into());
    Err(LoadError::Unreachable { address: config.target.address.clone(), source })
}
