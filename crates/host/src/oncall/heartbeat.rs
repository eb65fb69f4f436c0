//! The heartbeat: a thread that renews the agent's lease of a gate.

use super::{now, pump};
use crate::sys::page::SharedPage;
use lull_oncall::{Mode, Settings};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Three beats fit the agent's lease. A beat costs 10 to 50 us of the core that it wakes, mostly
/// for cold caches.
const PERIOD: Duration = Duration::from_millis(20);
/// With a pause between rounds the thread also ends the pauses.
const PERIOD_WITH_PAUSE: Duration = Duration::from_millis(1);
/// At an open gate no worker depends on the lease.
const PERIOD_OPEN: Duration = Duration::from_secs(1);
/// A machine that is busy with the server's own threads must not delay the heartbeat beyond
/// its lease.
const NICE: i32 = -20;

/// When the gate opens unless this is put off; `u64::MAX` if it does not. The lock is held while
/// the gate is opened, so that a gate whose limit was put off stays as its controller sets it.
#[derive(Debug)]
struct TimeLimit(Mutex<u64>);

impl TimeLimit {
    fn put_off(&self, until_ns: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until_ns;
    }

    /// Opens the gate if its time is over.
    fn enforce(&self, page: &SharedPage, now_ns: u64) {
        let until_ns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let control = page.control();
        if now_ns > *until_ns && control.mode().gates() {
            control.set(&Settings { mode: Mode::Stats, ..control.settings() });
        }
    }
}

/// The thread, which runs until this is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat {
    ends: Arc<AtomicBool>,
    limit: Arc<TimeLimit>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(super) fn start(page: Arc<SharedPage>) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let limit = Arc::new(TimeLimit(Mutex::new(u64::MAX)));
        let present = Arc::clone(&limit);
        let thread = std::thread::Builder::new().name("lull-beat".to_owned()).spawn(move || {
            // Without the privilege the thread keeps the usual priority.
            let _ = rustix::process::setpriority_process(None, NICE);
            while !seen.load(Ordering::Relaxed) {
                beat(&page, &present);
                std::thread::park_timeout(period(&page));
            }
        })?;
        Ok(Self { ends, limit, thread: Some(thread) })
    }

    /// Sets when the gate opens unless this is called again; `u64::MAX` for never. A former time
    /// opens no gate after this returns.
    pub(super) fn expire_at(&self, at_ns: u64) {
        self.limit.put_off(at_ns);
    }

    /// Wakes the thread, since its period depends on the settings.
    pub(super) fn settings_changed(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

fn period(page: &SharedPage) -> Duration {
    if !page.control().mode().gates() {
        PERIOD_OPEN
    } else if page.control().settings().pause_ns() > 0 {
        PERIOD_WITH_PAUSE
    } else {
        PERIOD
    }
}

fn beat(page: &SharedPage, limit: &TimeLimit) {
    let now_ns = now().0;
    limit.enforce(page, now_ns);
    page.control().beat(now_ns);
    // No worker may pump when a lease or a pause expires.
    pump(page);
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_whose_time_limit_was_put_off_stays_as_it_is_set() {
        let (page, limit) = (SharedPage::create().unwrap(), TimeLimit(Mutex::new(u64::MAX)));
        let closed = Settings { mode: Mode::Post, ..Settings::default() };
        let ends = AtomicBool::new(false);
        let opened = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    limit.enforce(&page, 1);
                }
            });
            page.control().set(&closed);
            limit.put_off(0);
            while page.control().mode() == Mode::Post {
                std::thread::yield_now();
            }
            let mut opened = 0;
            for _ in 0..100_000 {
                limit.put_off(u64::MAX);
                page.control().set(&closed);
                std::hint::spin_loop();
                opened += u32::from(page.control().mode() != Mode::Post);
                limit.put_off(0);
            }
            ends.store(true, Ordering::Relaxed);
            opened
        });
        assert_eq!(opened, 0);
    }
}
