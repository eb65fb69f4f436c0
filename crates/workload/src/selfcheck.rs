//! Measures the error of the client with a server of known delay.
//!
//! The reference server answers every request after a busy wait of a known
//! length, one request at a time, on a thread of its own. Whatever latency the
//! client reports beyond that is the path there and back through the kernel and
//! the client's own error; at constant gaps longer than the delay nothing queues.

use crate::arrivals::{Process, Rate};
use crate::client::{self, LoadConfig, LoadError};
use crate::clock;
use crate::poller::{Events, Interest, Poller, wake_exactly};
use crate::summary::Summary;
use crate::target::Address;
use lull_measure::Nanos;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A pause of the whole server, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// Requests answered before it.
    pub after: u64,
    /// Its length.
    pub length: Nanos,
}

/// A server of the options protocol that prices nothing: one thread, one
/// request at a time, each answered a known time after it was read.
#[derive(Debug)]
pub struct ReferenceServer {
    listener: TcpListener,
    address: SocketAddr,
    delay: Nanos,
    stall: Option<Stall>,
}

const LISTENER: u64 = u64::MAX;
const REPLY: &[u8] = b"OK 0 0 0 0\n";

impl ReferenceServer {
    /// Listens on a free loopback port.
    ///
    /// # Errors
    /// If the system has none.
    pub fn bind(delay: Nanos, stall: Option<Stall>) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, delay, stall })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    /// If the system refuses descriptors.
    pub fn run(mut self, stop: &AtomicBool) -> std::io::Result<()> {
        wake_exactly()?;
        let (poller, mut events) = (Poller::new()?, Events::new());
        poller.add(&self.listener, LISTENER, Interest::Read)?;
        let mut clients: Vec<Option<TcpStream>> = Vec::new();
        let mut answered = 0;
        while !stop.load(Ordering::Relaxed) {
            poller.wait(&mut events, Duration::from_millis(20))?;
            let mut index = 0;
            while let Some(ready) = events.get(index) {
                index += 1;
                if ready.number == LISTENER {
                    self.take_all(&poller, &mut clients)?;
                } else if let Some(slot) = clients.get_mut(ready.number as usize) {
                    self.serve(slot, &mut answered);
                }
            }
        }
        Ok(())
    }

    fn take_all(
        &self,
        poller: &Poller,
        clients: &mut Vec<Option<TcpStream>>,
    ) -> std::io::Result<()> {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            poller.add(&stream, clients.len() as u64, Interest::Read)?;
            clients.push(Some(stream));
        }
        Ok(())
    }

    /// Answers one client's requests; a client that has disconnected frees its slot.
    fn serve(&mut self, slot: &mut Option<TcpStream>, answered: &mut u64) {
        let Some(stream) = slot else { return };
        let mut bytes = [0; 4096];
        let count = match stream.read(&mut bytes) {
            Ok(count @ 1..) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Ok(0) | Err(_) => {
                *slot = None;
                return;
            }
        };
        for _ in bytes[..count].iter().filter(|byte| **byte == b'\n') {
            self.stall_if_it_is_time(*answered);
            busy_wait(self.delay);
            *answered += 1;
            if stream.write_all(REPLY).is_err() {
                *slot = None;
                return;
            }
        }
    }

    fn stall_if_it_is_time(&mut self, answered: u64) {
        if let Some(stall) = self.stall.take_if(|stall| answered >= stall.after) {
            std::thread::sleep(stall.length.into());
        }
    }
}

fn busy_wait(length: Nanos) {
    let end = clock::now() + length;
    while clock::now() < end {
        std::hint::spin_loop();
    }
}

/// A measurement of the client.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfCheck {
    /// The server's known delay.
    pub delay: Nanos,
    /// Requests due per second.
    pub rate_per_s: f64,
    /// How the gaps vary.
    pub process: Process,
    /// Connections.
    pub connections: usize,
    /// Length of the measurement, after half a second of warm-up.
    pub duration: Nanos,
    /// See [`LoadConfig::spin`].
    pub spin: Nanos,
}

impl SelfCheck {
    /// The client's error: 1,000 requests/s at even gaps, each 300 us at work.
    pub const fn accuracy() -> Self {
        Self {
            delay: Nanos::from_micros(300),
            rate_per_s: 1_000.0,
            process: Process::Constant,
            connections: 16,
            duration: Nanos::from_secs(3),
            spin: Nanos::ZERO,
        }
    }

    /// The client's speed: 20,000 requests/s, Poisson, answered at once.
    pub const fn throughput() -> Self {
        Self {
            delay: Nanos::ZERO,
            rate_per_s: 20_000.0,
            process: Process::Poisson,
            ..Self::accuracy()
        }
    }
}

/// The result of a self-check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SelfCheckReport {
    /// The server's known delay.
    pub delay_seconds: f64,
    /// Requests that were due, and of them those written to a connection.
    pub due_requests: u64,
    /// Requests written to a connection.
    pub sent_requests: u64,
    /// Requests due per second.
    pub offered_requests_per_second: f64,
    /// Requests answered per second.
    pub completed_requests_per_second: f64,
    /// Latency from the intended send time.
    pub latency: Summary,
    /// Latency from the write.
    pub service: Summary,
    /// How late the client was.
    pub lag: Summary,
    /// Median latency beyond the delay: kernel path and client error together.
    pub median_beyond_delay_seconds: Option<f64>,
    /// CPU time of the client's thread, in cores.
    pub client_cpu_ratio: f64,
}

const WARMUP: Nanos = Nanos::from_millis(500);

/// Measures the client against a reference server in this process.
///
/// # Errors
/// If the system refuses a port or a thread, or the load cannot be put on.
pub fn measure(check: &SelfCheck) -> Result<SelfCheckReport, LoadError> {
    let failed = |what| move |source| LoadError::System { what, source };
    let server = ReferenceServer::bind(check.delay, None).map_err(failed("listen"))?;
    let mut config =
        LoadConfig::new(Address::options(server.address()), Rate::constant(check.rate_per_s));
    config.process = check.process;
    config.connections = check.connections;
    config.duration = Some(check.duration + WARMUP);
    config.warmup = WARMUP;
    config.spin = check.spin;
    // A long drain: a server that falls behind must show in the latencies, not as
    // missing requests.
    config.drain = Nanos::from_secs(20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("reference".to_owned());
        builder.spawn_scoped(scope, || server.run(&stop)).map_err(failed("start a thread"))?;
        let before = thread_cpu();
        let ran = client::run(&config, &stop);
        let cpu = thread_cpu().saturating_sub(before);
        stop.store(true, Ordering::Relaxed);
        let span = check.duration + WARMUP;
        ran.map(|report| SelfCheckReport {
            delay_seconds: check.delay.as_secs_f64(),
            due_requests: report.due_requests,
            sent_requests: report.sent_requests,
            offered_requests_per_second: report.offered_requests_per_second,
            completed_requests_per_second: report.completed_requests_per_second,
            median_beyond_delay_seconds: report
                .latency
                .p50_seconds
                .map(|median| median - check.delay.as_secs_f64()),
            latency: report.latency,
            service: report.service,
            lag: report.lag,
            client_cpu_ratio: cpu.as_secs_f64() / span.as_secs_f64(),
        })
    })
}

fn thread_cpu() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_latency_is_below_the_known_delay() {
        let delay = Nanos::from_micros(500);
        let report = measure(&SelfCheck {
            delay,
            rate_per_s: 200.0,
            process: Process::Constant,
            connections: 4,
            duration: Nanos::from_millis(500),
            spin: Nanos::ZERO,
        })
        .unwrap();
        assert_eq!((report.due_requests, report.sent_requests), (100, 100));
        // A histogram's bucket may lie a thousandth low.
        assert!(report.median_beyond_delay_seconds.unwrap() > -delay.as_secs_f64() / 500.0);
        assert!(report.client_cpu_ratio > 0.0);
    }

    /// Also prints the client's error and lag; on a quiet machine by
    /// `cargo test --release -p lull-workload --lib -- --ignored --nocapture selfcheck`.
    #[test]
    #[ignore = "slow: 15 s of load"]
    fn no_request_is_left_out_at_any_of_the_rates_that_are_measured() {
        let (exact, fast) = (SelfCheck::accuracy(), SelfCheck::throughput());
        let cases = [
            ("300 us, 1,000/s", exact.clone()),
            ("the same, spin 50us", SelfCheck { spin: Nanos::from_micros(50), ..exact }),
            ("20,000/s Poisson", fast.clone()),
            ("the same, 256 connections", SelfCheck { connections: 256, ..fast }),
        ];
        for (name, check) in cases {
            let report = measure(&check).unwrap();
            println!("{name}: cpu {:.2}", report.client_cpu_ratio);
            println!("  latency {}\n  service {}", report.latency, report.service);
            println!("  lag     {}", report.lag);
            assert_eq!(report.sent_requests, report.due_requests);
        }
    }
}
