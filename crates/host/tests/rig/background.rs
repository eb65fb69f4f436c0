//! A thread that runs in the background of a test until the test ends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The thread; dropping it waits for its end.
pub(crate) struct BackgroundThread<T> {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<T>>,
}

/// Lets the thread continue.
pub(crate) struct Going(Arc<AtomicBool>);

impl Going {
    pub(crate) fn is_on(&self) -> bool {
        !self.0.load(Ordering::Relaxed)
    }
}

impl<T: Send + 'static> BackgroundThread<T> {
    pub(crate) fn start(run: impl FnOnce(&Going) -> T + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let going = Going(Arc::clone(&over));
        Self { over, thread: Some(std::thread::spawn(move || run(&going))) }
    }

    /// Ends the thread and returns its result.
    pub(crate) fn end(mut self) -> T {
        self.join().unwrap()
    }
}

impl<T> BackgroundThread<T> {
    fn join(&mut self) -> Option<T> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl<T> Drop for BackgroundThread<T> {
    fn drop(&mut self) {
        let _ = self.join();
    }
}
