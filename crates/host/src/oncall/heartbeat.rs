//! The heartbeat: a thread that renews the agent's lease of a gate.

use super::{now, pump};
use crate::sys::page::SharedPage;
use lull_oncall::{Mode, Settings};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// The thread, which runs until this is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat {
    ends: Arc<AtomicBool>,
    /// When the gate opens unless this was put off; `u64::MAX` if it does not.
    expires_ns: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(super) fn start(page: Arc<SharedPage>) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let expires_ns = Arc::new(AtomicU64::new(u64::MAX));
        let until_ns = Arc::clone(&expires_ns);
        let thread = std::thread::Builder::new().name("lull-beat".to_owned()).spawn(move || {
            // Without the privilege the thread keeps the usual priority.
            let _ = rustix::process::setpriority_process(None, NICE);
            while !seen.load(Ordering::Relaxed) {
                beat(&page, until_ns.load(Ordering::Relaxed));
                std::thread::park_timeout(period(&page));
            }
        })?;
        Ok(Self { ends, expires_ns, thread: Some(thread) })
    }

    /// Sets when the gate opens unless this is called again; `u64::MAX` for never.
    pub(super) fn expire_at(&self, at_ns: u64) {
        self.expires_ns.store(at_ns, Ordering::Relaxed);
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

fn beat(page: &SharedPage, until_ns: u64) {
    let (control, now_ns) = (page.control(), now().0);
    if now_ns > until_ns && control.mode().gates() {
        control.set(&Settings { mode: Mode::Stats, ..control.settings() });
    }
    control.beat(now_ns);
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
