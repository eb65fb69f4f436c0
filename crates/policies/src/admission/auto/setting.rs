//! The setting of the gate.

use lull_measure::Nanos;
use lull_measure::ideal_batch::C6_BREAK_EVEN;

/// The setting of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    Open,
    /// This many at a time, with this many transactions a turn.
    Flow {
        cap: u32,
        batch: u32,
    },
    /// Workers rest, and are called this long after the last round.
    Rests {
        pause: Nanos,
    },
}

impl Setting {
    /// Describes the setting.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Open => "open".to_owned(),
            Self::Flow { cap, batch: 1 } => format!("{cap} at a time"),
            Self::Flow { cap, batch } => format!("{cap} at a time, turns of {batch}"),
            Self::Rests { pause } => format!("rests of {pause}"),
        }
    }

    /// Returns rests of half the pause, or an open gate if that is below the break-even.
    pub(super) fn half_rest(pause: Nanos) -> Self {
        let half = Nanos(pause.0 / 2);
        if half < C6_BREAK_EVEN { Self::Open } else { Self::Rests { pause: half } }
    }
}
