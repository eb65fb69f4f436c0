//! Ctrl-C and SIGTERM: the first signal requests a stop, the second ends the process immediately,
//! and the guard restores the knobs.

use lull_host::plant::Stop;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// A flag that the first stop signal sets.
pub(crate) fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// As [`stop_request`], but SIGHUP nudges the agent to read its config again.
pub(crate) fn stop_or_reload() -> io::Result<Stop> {
    let stop = Stop::new()?;
    let seen = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&seen))?;
        flag::register(signal, Arc::clone(&seen))?;
        low_level::pipe::register(signal, stop.waker()?)?;
    }
    low_level::pipe::register(SIGHUP, stop.nudger()?)?;
    Ok(stop)
}

/// Returns a stop request that also ends the agent's wait for its epoch. Signals are caught
/// from this call on.
pub(crate) fn stop_request() -> io::Result<Stop> {
    let stop = Stop::new()?;
    // Only the second signal uses the flag.
    let _seen = stop_flag()?;
    for signal in SIGNALS {
        low_level::pipe::register(signal, stop.waker()?)?;
    }
    Ok(stop)
}
