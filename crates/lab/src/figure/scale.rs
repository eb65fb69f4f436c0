//! A linear or logarithmic axis and its ticks.

use super::Axis;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use std::ops::Range;

/// Most numbers that are written on an axis of the range's own choice.
const MOST_TICKS: f64 = 7.0;

/// One axis made ready for drawing.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    pub(super) ticks: Vec<f64>,
}

impl Scale {
    /// The scale of an axis on which these values shall be seen.
    pub(super) fn fit(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let usable = |value: &f64| value.is_finite() && (!axis.log || *value > 0.0);
        let mut ends = values.filter(usable).fold(None, |ends: Option<[f64; 2]>, value| {
            let [low, high] = ends.unwrap_or([value, value]);
            Some([low.min(value), high.max(value)])
        });
        if let Some([low, high]) = axis.bounds {
            ends = Some([low, high]);
        }
        let [mut low, mut high] = ends.unwrap_or([1.0, 1.0]);
        if axis.bounds.is_none() {
            [low, high] = if axis.log { [low / 1.15, high * 1.15] } else { roomy(low, high) };
        }
        if high <= low {
            high = low + 1.0;
        }
        let own = || if axis.log { log_ticks(low, high) } else { linear_ticks(low, high) };
        let ticks = axis.ticks.clone().unwrap_or_else(own);
        let ticks = ticks.into_iter().filter(|tick| (low..=high).contains(tick)).collect();
        Self { low, high, log: axis.log, ticks }
    }

    /// How far along the axis a value lies, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let share = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }
}

/// Returns a range from 0 (or below) to a little above the highest value.
fn roomy(low: f64, high: f64) -> [f64; 2] {
    let low = low.min(0.0);
    [low, high + 0.06 * (high - low)]
}

fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / MOST_TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
    let first = (low / step).ceil() as i64;
    let last = (high / step).floor() as i64;
    (first..=last).map(|count| count as f64 * step).collect()
}

fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let wide = high / low > 1e3;
    let within: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
    decades.flat_map(|decade| within.iter().map(move |step| step * 10f64.powi(decade))).collect()
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let length = f64::from(pixels.1 - pixels.0);
        pixels.0 + (self.share(*value) * length).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// A tick's number: no more digits than it needs.
pub(super) fn tick_text(value: f64) -> String {
    let rounded = format!("{value:.6}");
    let short = rounded.trim_end_matches('0').trim_end_matches('.');
    let (whole, rest) = short.split_once('.').map_or((short, None), |(a, b)| (a, Some(b)));
    let grouped = group_thousands(whole);
    rest.map_or(grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

/// Thin spaces between groups of three from five digits on.
fn group_thousands(digits: &str) -> String {
    if digits.trim_start_matches('-').len() < 5 {
        return digits.to_owned();
    }
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && !text.ends_with('-') {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_starts_at_zero_and_has_round_numbers() {
        let scale = Scale::fit(&Axis::linear("x"), [100.0, 1886.0].into_iter());
        assert_eq!(scale.ticks, [0.0, 500.0, 1000.0, 1500.0]);
        assert_eq!(scale.map(&0.0, (0, 100)), 0);
    }

    #[test]
    fn equal_ratios_are_equally_far_apart_on_a_log_axis() {
        let scale = Scale::fit(&Axis::log("x").between(1.0, 100.0), [1.0].into_iter());
        assert_eq!([1.0, 10.0, 100.0].map(|x| scale.map(&x, (0, 200))), [0, 100, 200]);
        assert_eq!(scale.ticks, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn values_that_cannot_be_drawn_do_not_break_the_axis() {
        for values in [vec![], vec![f64::NAN], vec![0.0], vec![f64::INFINITY, -1.0]] {
            for axis in [Axis::linear("x"), Axis::log("x")] {
                let scale = Scale::fit(&axis, values.iter().copied());
                assert!(scale.high > scale.low && scale.ticks.len() < 50, "{scale:?}");
            }
        }
    }

    #[test]
    fn numbers_are_written_short() {
        let texts = [0.0, 0.1, 0.125, 2000.0, 14000.0, -14000.5].map(tick_text);
        assert_eq!(texts, ["0", "0.1", "0.125", "2000", "14\u{2009}000", "-14\u{2009}000.5"]);
    }
}
