//! The thread that tells servers that the agent lives.

use super::{now, pump};
use crate::sys::page::SharedPage;
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
                let has_pause = page.control().settings().pause_ns() > 0;
                std::thread::sleep(if has_pause { PERIOD_WITH_PAUSE } else { PERIOD });
            }
        })?;
        Ok(Self { ends, thread: Some(thread) })
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
            // It sleeps for 20 ms at most; a panic of its own was told already.
            let _ = thread.join();
        }
    }
}
