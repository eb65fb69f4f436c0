//! The state that PARTIES has for each app and for the action in progress.

use lull_control::AppId;
use lull_measure::Nanos;
use std::collections::VecDeque;

/// The direction in which an app's wheel turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// The position of an app's wheel: an index into the kinds of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wheel {
    pub(super) direction: Direction,
    pub(super) at: usize,
}

/// The state of a latency-critical app; its index is that of its holder.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) app: AppId,
    pub(super) wheel: Option<Wheel>,
    /// The time before which it is not downsized.
    pub(super) rests_until: Nanos,
    /// The last slacks, for the script's mean.
    pub(super) recent: VecDeque<f64>,
}

/// One client that can be read now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) holder: usize,
    pub(super) tail: Nanos,
    pub(super) slack: f64,
    pub(super) mean: f64,
    pub(super) active: bool,
}

/// An action whose effect is not known yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Action {
    pub(super) holder: usize,
    pub(super) direction: Direction,
    /// The tail before it.
    pub(super) before: Nanos,
    pub(super) samples_left: u32,
    pub(super) votes: i32,
}

/// The phase of the loop.
#[derive(Debug, Clone, Copy)]
pub(super) enum Phase {
    Free,
    Watching(Action),
    /// After an undo: samples left, votes, and whether this is the last round.
    Settling {
        samples_left: u32,
        votes: i32,
        last: bool,
    },
}

pub(super) const fn vote(helped: bool) -> i32 {
    if helped { 1 } else { -1 }
}

/// The first reading with the least value.
pub(super) fn least<'a>(
    readings: impl Iterator<Item = &'a Reading>,
    value: impl Fn(&Reading) -> f64,
) -> Option<&'a Reading> {
    readings.min_by(|a, b| value(a).total_cmp(&value(b)))
}
