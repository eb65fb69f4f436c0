//! Small apps for `lull`: they do real work, and push what it took to the agent.

use lull_measure::push::{LatencyWindow, Message};
use lull_measure::{Latency, Nanos};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Length of a window that is pushed.
pub(crate) const WINDOW: Nanos = Nanos::from_millis(100);
/// Rounds of arithmetic in a request: about 1 ms in an emulator.
const ROUNDS: u32 = 20_000;

pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// An app's line to whichever agent listens; agents come and go.
pub(crate) struct Push {
    socket: PathBuf,
    app: String,
    stream: Option<UnixStream>,
    begun: Nanos,
}

impl Push {
    pub(crate) fn new(socket: &Path, app: &str) -> Self {
        Self { socket: socket.to_owned(), app: app.to_owned(), stream: None, begun: now() }
    }

    /// Whether a window has passed since the last one was pushed.
    pub(crate) fn is_due(&self) -> bool {
        now() >= self.begun + WINDOW
    }

    /// Pushes the window that ends now; without an agent it is forgotten.
    pub(crate) fn window(&mut self, due: u64, histogram: Latency) {
        let (start_ns, end) = (self.begun, now());
        self.begun = end;
        let window = LatencyWindow {
            app: self.app.clone(),
            start_ns,
            length_ns: end - start_ns,
            due,
            sent: due,
            completed: histogram.count(),
            errors: due.saturating_sub(histogram.count()),
            histogram,
            ..LatencyWindow::default()
        };
        let mut line = Vec::new();
        Message::Latency(Box::new(window)).encode(&mut line).unwrap();
        if self.stream.is_none() {
            self.stream = UnixStream::connect(&self.socket).ok();
        }
        if self.stream.as_mut().is_some_and(|stream| stream.write_all(&line).is_err()) {
            self.stream = None;
        }
    }
}

fn work() {
    let mut sum = 1u64;
    for round in 0..ROUNDS {
        sum = black_box(sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round.into()));
    }
}

/// The role of a server with some threads. `pause` holds the microseconds between
/// two requests of each; with 0 there is always one waiting.
pub(crate) fn serve(threads: usize, pause: &Path, (socket, app): (&Path, &str)) -> ! {
    let seen = Arc::new(Mutex::new(Latency::default()));
    for _ in 0..threads {
        let (seen, pause) = (Arc::clone(&seen), pause.to_owned());
        std::thread::spawn(move || answer(&pause, &seen));
    }
    let mut push = Push::new(socket, app);
    loop {
        std::thread::sleep(Duration::from_nanos(WINDOW.0));
        let histogram = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        push.window(histogram.count(), histogram);
    }
}

fn answer(pause: &Path, seen: &Mutex<Latency>) -> ! {
    let mut due = now();
    loop {
        let pause = read_pause(pause);
        // A worker that is far behind skips the requests that it missed.
        due = (due + pause).max(now().saturating_sub(WINDOW));
        if pause == Nanos::ZERO {
            due = now();
        }
        std::thread::sleep(Duration::from_nanos(due.0.saturating_sub(now().0)));
        work();
        seen.lock().unwrap_or_else(PoisonError::into_inner).record(now() - due);
    }
}

fn read_pause(file: &Path) -> Nanos {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    Nanos::from_micros(text.trim().parse().unwrap_or(1000))
}
