//! Requests of a live server, placed one by one on cores of several speeds.
//!
//! The live side of [`lull_control::dispatcher`]: the same dispatcher that
//! `lull_sim::dispatch` drives decides here for threads of this process. A
//! server says where a request begins and ends ([`Dispatch::begin`], the
//! [`Mark`]); between the two its thread is pinned to the core that the dispatcher
//! chose, moved when its age crosses a threshold, and made to wait while there
//! is no core for it. No other thread is involved: requests schedule themselves.
//!
//! ```text
//!   worker ──begin──▶ DispatchState (pure: placement, next decisions) ──▶ Dispatcher
//!                      ▲  │ orders: thread, core
//!   timer, at the ─────┘  ▼
//!   next age            sched_setaffinity, or the core's frequency
//! ```
//!
//! Where each core takes every speed, a request stays where it is and its core's
//! frequency changes ([`Speeds`]); idle cores are at the slowest. Old frequencies
//! are in the ledger first, and a guard puts them back should the process die.
//!
//! Instead of a check each millisecond (section 5.4 of EETL, MICRO-50) one
//! thread sleeps until the next age that a dispatcher named; a request that stays
//! below its threshold costs a begin and an end.
//!
//! It fails open. If the kernel refuses a core, a dispatcher panics or a request exceeds its
//! time limit, the thread runs where the server's threads may run; dispatching never loses a
//! request. At the end of its request a thread has the cores that it had before. The work that
//! a thread has done is not measured; it is computed from the thread's time on each core type.

mod own_cores;
mod pool;
mod runtime;
mod speeds;
#[cfg(test)]
mod speeds_tests;
mod state;
#[cfg(test)]
mod tests;
mod unmodified;

pub use runtime::{Dispatch, DispatchError, Mark};
pub use speeds::{Safety, Speeds, SpeedsError};
pub use state::{ActiveDispatcher, DispatchSetupError, DispatchState, Order, Spent, Tally};
pub use unmodified::{UnmodifiedDispatch, UnmodifiedTally, UnmodifiedThread};

use lull_control::dispatcher::Ladder;
use lull_control::{CoreId, CoreSet};
use lull_measure::Nanos;

/// The cores of each type, and when a request is given up on.
#[derive(Debug, Clone)]
pub struct Floor {
    /// Types, slowest first, with as many cores as `cores` has.
    pub ladder: Ladder,
    /// The cores of each type; one set where each core can run at every speed.
    pub cores: Vec<CoreSet>,
    /// Age at which a request loses its core: it then runs, unplaced, on the
    /// cores of the slowest type that has any.
    pub abandon: Nanos,
}

impl Floor {
    /// Checks that every core has one type, or every speed.
    ///
    /// # Errors
    /// [`DispatchSetupError`] where numbers do not go with cores or a core is in two types.
    pub fn check(&self) -> Result<(), DispatchSetupError> {
        let (sets, types) = (self.cores.len(), self.ladder.types().len());
        if self.ladder.scales() && sets != 1 {
            return Err(DispatchSetupError::OneSet(sets));
        }
        if !self.ladder.scales() && sets != types {
            return Err(DispatchSetupError::Types(sets, types));
        }
        let mut seen = CoreSet::default();
        for (kind, cores) in self.cores.iter().enumerate() {
            if cores.len() != self.ladder.cores(kind) {
                let name = self.ladder.types()[kind].name.clone();
                return Err(DispatchSetupError::Cores(name, cores.len(), self.ladder.cores(kind)));
            }
            if let Some(twice) = cores.iter().find(|core| seen.contains(*core)) {
                return Err(DispatchSetupError::Twice(twice));
            }
            seen = seen.union(cores);
        }
        Ok(())
    }

    /// Returns the cores for threads that have lost theirs.
    fn slowest(&self) -> &CoreSet {
        let has_any = self.cores.iter().find(|cores| !cores.is_empty());
        has_any.unwrap_or(&self.cores[0])
    }

    /// Every core.
    fn all(&self) -> impl Iterator<Item = (usize, CoreId)> + '_ {
        let of = |(kind, cores): (usize, &CoreSet)| {
            cores.iter().map(move |core| (kind, core)).collect::<Vec<_>>()
        };
        self.cores.iter().enumerate().flat_map(of)
    }
}
