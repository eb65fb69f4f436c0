//! What the gate does.

use lull_measure::Nanos;
use lull_measure::ideal_batch::C6_BREAK_EVEN;

/// What the gate does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    Open,
    /// This many at a time, with this many transactions a turn.
    Flow {
        cap: u32,
        batch: u32,
    },
    /// Workers rest, and are called so long after the last round.
    Rests {
        pause: Nanos,
    },
}

impl Setting {
    /// The setting in words.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Open => "open".to_owned(),
            Self::Flow { cap, batch: 1 } => format!("{cap} at a time"),
            Self::Flow { cap, batch } => format!("{cap} at a time, turns of {batch}"),
            Self::Rests { pause } => format!("rests of {pause}"),
        }
    }

    /// Half a rest, if that pays.
    pub(super) fn half_rest(pause: Nanos) -> Self {
        let half = Nanos(pause.0 / 2);
        if half < C6_BREAK_EVEN { Self::Open } else { Self::Rests { pause: half } }
    }
}
