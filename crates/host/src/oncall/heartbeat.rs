//! The thread that tells servers that the agent lives.

use super::{now, pump};
use crate::sys::page::SharedPage;
use lull_oncall::Settings;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Three beats fit the agent's lease. Each costs the core that it wakes from sleep
/// 10 to 50 us, mostly to find its caches cold.
const PERIOD: Duration = Duration::from_millis(20);
/// With a pause between rounds the pauses' ends are met, too.
const PERIOD_WITH_PAUSE: Duration = Duration::from_millis(1);
/// Nobody asks whether the agent lives where nobody is made to wait.
const PERIOD_OPEN: Duration = Duration::from_secs(1);
/// A machine that is full of the server's own threads must not make the agent
/// look dead.
const NICE: i32 = -20;

/// Beats until it is dropped.
#[derive(Debug)]
pub(super) struct Heartbeat {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(super) fn start(page: Arc<SharedPage>) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::Builder::new().name("lull-beat".to_owned()).spawn(move || {
            // Without the right to, it beats like everybody else.
            let _ = rustix::process::setpriority_process(None, NICE);
            while !seen.load(Ordering::Relaxed) {
                beat(&page);
                std::thread::park_timeout(period(&page.control().settings()));
            }
        })?;
        Ok(Self { ends, thread: Some(thread) })
    }

    /// What the gate does has changed, and with it how often to beat.
    pub(super) fn settings_changed(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

fn period(settings: &Settings) -> Duration {
    if !settings.mode.gates() {
        PERIOD_OPEN
    } else if settings.pause_ns() > 0 {
        PERIOD_WITH_PAUSE
    } else {
        PERIOD
    }
}

fn beat(page: &SharedPage) {
    page.control().beat(now().0);
    // For slots whose lease is over, and pauses: nobody else may come by.
    pump(page);
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of its own was told already.
            let _ = thread.join();
        }
    }
}
