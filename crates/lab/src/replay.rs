//! Predicts the results of another policy for a recorded run.
//!
//! A [`Recording`] holds what was observed of a run: arrivals, latencies, CPU time
//! and progress, epoch by epoch, under one policy. [`Replay::calibrate`] fits a
//! node of the simulator to it (see `calibrate.rs`), [`Replay::reproduce`]
//! runs the recorded policy on that node and reports the error, and
//! [`Replay::predict`] plays others: each meets the same requests with the same
//! work, so that differences are paired. What cannot be reproduced must not be
//! predicted: [`Replay::answer`] does all of it and keeps to that. Predictions go as
//! far up and down as the error of the demand takes them (`demand.rs`).
//!
//! Arrivals: the recorded rate of every epoch exactly, gaps as irregular as the
//! recorded sample shows. Demands: CPU time per request as recorded; how they
//! spread, and what a request takes besides, is fitted.

mod answer;
mod arrivals;
mod calibrate;
mod demand;
mod figures;
mod model;
mod play;
mod predict;
mod recording;
mod tally;
mod windows;

pub use answer::Answer;
pub use figures::Reproduced;
pub use model::{AppFit, Fit};
pub use play::{ReplayError, Steered};
pub use predict::Reproduction;
pub use recording::{RecordedAppEpoch, RecordedEpoch, Recording, Unfit};

use lull_control::{AppSpec, Machine};
use model::Known;

/// How much is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Replications of every policy.
    pub replications: u64,
    /// Most requests of one replication; a longer run is represented by a part of it.
    pub requests: u64,
    /// Most requests of one step of the calibration.
    pub calibration_requests: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for Effort {
    /// Five replications of at most 200 000 requests, so that two policies and
    /// the calibration take seconds; 80 000 requests have 800 beyond their p99.
    fn default() -> Self {
        Self { replications: 5, requests: 200_000, calibration_requests: 80_000, seed: 1 }
    }
}

/// A recording that can be replayed.
pub struct Replay<'a> {
    recording: &'a Recording,
    recorded: Steered,
    effort: Effort,
    known: Known,
    /// The apps with progress in the simulator's unit.
    specs: Vec<AppSpec>,
    /// The machine of both the run and the model.
    machine: Machine,
    stop: &'a (dyn Fn() -> bool + Sync),
}
