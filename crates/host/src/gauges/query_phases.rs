//! The states of a running server's threads during its queries ([`PhaseWatch`]).

use super::queries::cores;
use crate::Roots;
use crate::bpf::{PhaseWatch, PhasesSeen};
use crate::listener::Listener;
use crate::monotonic;
use lull_measure::{Gauge, Missing, Nanos};

/// The phases of one server's queries.
#[derive(Debug)]
pub struct QueryPhases {
    watch: PhaseWatch,
}

impl QueryPhases {
    /// Begins to watch the server that listens there.
    ///
    /// # Errors
    /// If the kernel refuses it, or the roots are not those of the running kernel.
    pub fn begin(roots: &Roots, listener: &Listener) -> Gauge<Self> {
        if *roots != Roots::default() {
            return Err(Missing::because(
                "sockets can be observed on the running kernel only, not under other roots",
            ));
        }
        let watch = PhaseWatch::begin(cores(roots)?, listener.namespace, &listener.ports)?;
        Ok(Self { watch })
    }

    /// Reads the time, by `CLOCK_MONOTONIC`, and all that was seen until then.
    pub fn read(&self) -> (Nanos, PhasesSeen) {
        let now = monotonic();
        (now, self.watch.read(now))
    }
}
