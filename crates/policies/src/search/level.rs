//! The levels of one numeric knob.

use lull_control::Setting;

/// One level of a dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Its value: GHz, microseconds of delay or exit latency, cores, ways, workers, transactions,
    /// or 0 to 255 of an energy preference; -1 for the adaptive mode of coalescing.
    pub value: f64,
    /// Where it lies between the lowest, 0, and the highest, 1, on the scale
    /// on which its effect is smoothest: the square root for delays, the logarithm
    /// for counts.
    pub at: f64,
    /// The settings of the level.
    pub settings: Vec<Setting>,
}

/// Makes the levels of ascending values, with their positions on a scale.
pub(super) fn scaled(values: Vec<(f64, Vec<Setting>)>, scale: impl Fn(f64) -> f64) -> Vec<Level> {
    let low = values.first().map_or(0.0, |first| scale(first.0));
    let high = values.last().map_or(1.0, |last| scale(last.0));
    let span = (high - low).max(f64::MIN_POSITIVE);
    let level = |(value, settings)| Level { value, at: (scale(value) - low) / span, settings };
    values.into_iter().map(level).collect()
}
