//! Long computations on a thread of their own, so that the interpreter stays responsive.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Time between two checks for signals while a computation runs.
const SIGNALS: Duration = Duration::from_millis(20);

/// How many milliseconds the end of the interpreter waits for the calls of policies.
const LAST_CALLS_MS: u32 = 2000;

/// Calls into the interpreter that are under way on threads of computations.
static CALLS: AtomicIsize = AtomicIsize::new(0);

/// Whether the interpreter is about to end.
static ENDING: AtomicBool = AtomicBool::new(false);

/// State that a computation and the policies in it share: the request to stop, and the exception
/// that a policy has raised.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    stop: AtomicBool,
    raised: Mutex<Option<PyErr>>,
}

impl Shared {
    /// The request to stop.
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// Whether the computation is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Keeps the first exception of a policy, and stops the computation.
    pub(crate) fn raise(&self, error: PyErr) {
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        raised.get_or_insert(error);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The exception of a policy, if one was raised.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Calls `work` with the interpreter's lock, or returns `None` if the interpreter ends.
///
/// The interpreter ends a thread that wants its lock after that, and that would abort the
/// process: the thread has frames that must not be unwound.
pub(crate) fn attach<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _under_way = Call::begin();
    match ENDING.load(Ordering::SeqCst) {
        true => None,
        false => Python::try_attach(work),
    }
}

/// A call that is under way, counted until it is dropped.
struct Call;

impl Call {
    fn begin() -> Self {
        CALLS.fetch_add(1, Ordering::SeqCst);
        Self
    }

    /// Begins a call; if the interpreter ends, it blocks the thread until the process has ended.
    fn begin_or_block() -> Self {
        let call = Self::begin();
        if ENDING.load(Ordering::SeqCst) {
            drop(call);
            loop {
                thread::park();
            }
        }
        call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets no further call of [`attach`] begin, and waits for those under way.
#[pyfunction]
pub(crate) fn end_calls(py: Python<'_>) {
    ENDING.store(true, Ordering::SeqCst);
    py.detach(|| {
        for _ in 0..LAST_CALLS_MS {
            if CALLS.load(Ordering::SeqCst) <= 0 {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Forgets the calls under way: the threads of the parent are not in a forked process.
#[pyfunction]
pub(crate) fn forget_calls() {
    CALLS.store(0, Ordering::SeqCst);
}

/// Makes a pool of threads of its own, because those of the global one do not survive a fork.
///
/// # Errors
/// If there are too many threads.
pub(crate) fn pool(threads: Option<usize>) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build()
}

/// The same for work that calls policies: each of its threads keeps one state of the interpreter.
///
/// Otherwise every [`attach`] makes a state and a stack for calls and destroys them, which takes
/// longer than a small policy. `threading.local` also keeps its values between the calls.
///
/// # Errors
/// If there are too many threads.
pub(crate) fn policy_pool(threads: Option<usize>) -> Result<ThreadPool, ThreadPoolBuildError> {
    let spawn = |worker: ThreadBuilder| {
        let spawned = thread::Builder::new().spawn(move || keep_thread_state(|| worker.run()));
        spawned.map(drop)
    };
    ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).spawn_handler(spawn).build()
}

/// Runs `work` without the interpreter's lock on a thread that has a state of the interpreter
/// until `work` ends.
fn keep_thread_state(work: impl FnOnce() + Send) {
    let entering = Call::begin();
    if ENDING.load(Ordering::SeqCst) {
        drop(entering);
        work();
        return;
    }
    // To destroy the state takes the lock, which is a call as those of `attach`.
    let leaving = Python::try_attach(|py| {
        py.detach(|| {
            drop(entering);
            work();
            Call::begin_or_block()
        })
    });
    drop(leaving);
}

/// Runs `work` on a thread of its own without the interpreter's lock.
///
/// # Errors
/// The exception of a signal's handler, such as `KeyboardInterrupt`, immediately: the thread ends
/// by itself when it finds the request to stop. Otherwise the exception of a policy.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    let of_thread = Arc::clone(shared);
    let spawned = thread::Builder::new().name("lull".to_owned()).spawn(move || {
        // After an interrupt the result has no receiver.
        let _ = sender.send(work(&of_thread));
    });
    spawned?;
    loop {
        let (received, back) = py.detach(move || (receiver.recv_timeout(SIGNALS), receiver));
        receiver = back;
        match received {
            Ok(result) => return shared.take().map_or(Ok(result), Err),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let message = "the computation panicked; the reason is on standard error";
                return Err(shared.take().unwrap_or_else(|| PyRuntimeError::new_err(message)));
            }
        }
        if let Err(signal) = py.check_signals() {
            shared.stop.store(true, Ordering::Relaxed);
            return Err(signal);
        }
    }
}
