//! Why a dispatcher cannot be built.

use crate::PolicyError;
use lull_measure::{Nanos, Percentile};

/// Why a dispatcher cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DispatcherError {
    /// Its name or config.
    #[error(transparent)]
    Config(#[from] PolicyError),
    /// The tail of the profile misses the target on the fastest core.
    #[error(
        "the target of {target} cannot be met: the profile's {percentile} takes {best} on the \
         fastest core, without any queueing; ask for more than that, or for faster cores"
    )]
    Unreachable {
        /// The target that was requested.
        target: Nanos,
        /// The best that can be reached.
        best: Nanos,
        /// The percentile.
        percentile: Percentile,
    },
    /// The profile says too little about the percentile.
    #[error(
        "the profile has {found} requests, and {percentile} needs {needed}: with fewer than five \
         beyond it a percentile is noise; record more requests"
    )]
    Profile {
        /// Requests it has.
        found: usize,
        /// Requests needed.
        needed: usize,
        /// The percentile.
        percentile: Percentile,
    },
    /// The dispatcher steers cores in a way that these do not offer.
    #[error("dispatcher `{dispatcher}` needs {wanted}; {advice}")]
    Cores {
        /// Its name.
        dispatcher: &'static str,
        /// The required form.
        wanted: &'static str,
        /// The alternative.
        advice: &'static str,
    },
    /// The solver of the thresholds gave up.
    #[error("no thresholds were found: {0}; give them in the config instead")]
    Unsolved(String),
}
