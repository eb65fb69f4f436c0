//! The thread that takes its share of a core, period by period.

use super::Emulated;
use crate::sys::sched::{RESET_ON_FORK, SchedState, set_affinity, set_scheduling};
use lull_measure::Nanos;
use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Priority among real-time threads: above those that take the lowest by habit,
/// below the kernel's own (50 and 99).
const PRIORITY: u32 = 40;
/// The interval at which a pausing cycler checks whether to continue.
const PAUSE: Duration = Duration::from_millis(2);

/// A running duty cycler; ends with its owner.
#[derive(Debug)]
pub struct Cycler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Busy time of a period; 0 is a pause.
    busy_ns: AtomicU64,
    /// Time taken from the core so far.
    taken_ns: AtomicU64,
}

impl Cycler {
    /// Starts a cycler that pauses.
    ///
    /// # Errors
    /// If the kernel refuses the thread, its core or its class.
    pub(super) fn start(plan: Emulated) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (sender, started) = channel();
        let ours = Arc::clone(&shared);
        let thread = Builder::new()
            .name("lull-cycler".to_owned())
            .spawn(move || cycle(plan, &ours, &sender))?;
        let cycler = Self { shared, thread: Some(thread) };
        let gone = |_| io::Error::other("the thread ended before it began");
        started.recv().map_err(gone)??;
        Ok(cycler)
    }

    /// Sets the busy time of each period; zero pauses.
    pub fn set_busy(&self, busy: Nanos) {
        self.shared.busy_ns.store(busy.0, Ordering::Relaxed);
    }

    /// Time taken from the core so far.
    pub fn taken(&self) -> Nanos {
        Nanos(self.shared.taken_ns.load(Ordering::Relaxed))
    }
}

impl Drop for Cycler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing, and a panic in it has freed the core too.
            let _ = thread.join();
        }
    }
}

fn cycle(plan: Emulated, shared: &Shared, sender: &Sender<io::Result<()>>) {
    let prepared = prepare(plan);
    let refused = prepared.is_err();
    // Fails only if the starter has gone, which then drops the cycler as well.
    let _ = sender.send(prepared);
    if refused {
        return;
    }
    let period = Duration::from(plan.period);
    let mut next = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let busy_ns = shared.busy_ns.load(Ordering::Relaxed);
        if busy_ns == 0 {
            sleep(PAUSE);
            next = Instant::now();
            continue;
        }
        shared.taken_ns.fetch_add(take(Duration::from_nanos(busy_ns)), Ordering::Relaxed);
        next += period;
        match next.checked_duration_since(Instant::now()) {
            Some(left) => sleep(left),
            // Held up for a whole period: periods missed are not made up for.
            None => next = Instant::now(),
        }
    }
}

/// Pins this thread and makes it real-time; its children would not be.
fn prepare(plan: Emulated) -> io::Result<()> {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    set_affinity(me, &[plan.core].into_iter().collect())?;
    let policy = libc::SCHED_FIFO.cast_unsigned() | RESET_ON_FORK;
    set_scheduling(me, SchedState { policy, rt_priority: PRIORITY, nice: 0 })
}

/// Is busy for a while; for how long, in nanoseconds.
fn take(busy: Duration) -> u64 {
    let begin = Instant::now();
    loop {
        let spent = begin.elapsed();
        if spent >= busy {
            return spent.as_nanos() as u64;
        }
        spin_loop();
    }
}
