//! Two small apps for policies: one serves and tells how long it took, one burns.

use crate::roles::start;
use lull_measure::push::{LatencyWindow, Message};
use lull_measure::{Latency, Nanos};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

/// Time between two requests, and between two messages.
const BETWEEN: Nanos = Nanos::from_millis(5);
const WINDOW: Nanos = Nanos::from_millis(50);
/// Rounds of arithmetic in a request: about 1 ms in an emulator.
const ROUNDS: u32 = 20_000;

/// Both apps, until it is dropped.
pub(crate) struct Workload {
    pub(crate) served: Child,
    pub(crate) burning: Child,
}

impl Workload {
    /// With so many threads that burn.
    pub(crate) fn start(socket: &Path, threads: u16) -> Self {
        let served = start("serve", &[socket.to_str().unwrap()]);
        Self { served, burning: start("burn", &[&threads.to_string()]) }
    }

    pub(crate) fn pids(&self) -> [i32; 2] {
        [&self.served, &self.burning].map(|child| child.id().cast_signed())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        for child in [&mut self.served, &mut self.burning] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn wait_until(due: Nanos) {
    std::thread::sleep(Duration::from_nanos(due.0.saturating_sub(now().0)));
}

fn work() {
    let mut sum = 1u64;
    for round in 0..ROUNDS {
        sum = black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round.into()));
    }
}

/// The role of an app that is asked every 5 ms, and pushes what its client sees.
pub(crate) fn serve(socket: &Path) -> ! {
    let mut agent = connect(socket);
    let mut due = now();
    loop {
        let message = window(&mut due);
        let mut line = Vec::new();
        message.encode(&mut line).unwrap();
        if agent.write_all(&line).is_err() {
            std::process::exit(0);
        }
    }
}

/// The agent listens once it has attached to this process.
fn connect(socket: &Path) -> UnixStream {
    loop {
        if let Ok(agent) = UnixStream::connect(socket) {
            return agent;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn window(due: &mut Nanos) -> Message {
    let start_ns = now();
    let (mut count, mut histogram) = (0, Latency::default());
    while now() < start_ns + WINDOW {
        wait_until(*due);
        work();
        histogram.record(now() - *due);
        // A client that has fallen behind by much gives up what it missed.
        *due = (*due + BETWEEN).max(now().saturating_sub(WINDOW));
        count += 1;
    }
    let length_ns = now() - start_ns;
    let app = "served".to_owned();
    let (due, sent, completed) = (count, count, count);
    let told = LatencyWindow {
        app,
        start_ns,
        length_ns,
        due,
        sent,
        completed,
        histogram,
        ..LatencyWindow::default()
    };
    Message::Latency(Box::new(told))
}

/// The role of an app that uses whatever it gets.
pub(crate) fn burn(threads: u16) -> ! {
    for _ in 1..threads {
        std::thread::spawn(|| {
            loop {
                work();
            }
        });
    }
    loop {
        work();
    }
}
