//! The test of a switchback whose blocks are treated by the toss of a coin, which may be looked
//! at after every block.
//!
//! Whether a block is treated is drawn with probability 1/2 before it begins. If treatment shifts
//! every block's outcome by `shift`, the outcome less the shift does not depend on the coin. A
//! gambler who names a level before the block, and wins the share
//! `tanh(rate (outcome - level))` of the capital if the block is treated, and loses it otherwise,
//! then gains nothing in the mean, whatever the level, the noise, and what earlier blocks did. By
//! Ville's inequality the capital exceeds `1 / alpha` *at any time* with probability `alpha` at
//! most. If treatment shifts outcomes by less than `shift`, the gambler loses in the mean.
//!
//! Each block at most doubles the capital, where [`super::SignTest`] needs a pair of blocks for
//! that: a large effect is shown in half the time. A small effect needs about as many blocks.
//!
//! The level follows the outcomes: the middle between treated and untreated blocks, which moves
//! with the load. Blocks that were not drawn, such as the second of a pair, move the level and
//! are not bet on.
//!
//! Source: the bet of [`super::SignTest`] on a randomisation of single blocks; Ramdas, Grünwald,
//! Vovk and Shafer 2023 (Game-theoretic statistics and safe anytime-valid inference), section 4.

use super::sign_test::{RATES, Side, log_mean_capital, log_stake};

/// Weight of the last block in the level of all blocks.
const NEW: f64 = 0.25;

/// One block of a switchback.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// Whether it was treated.
    pub is_treated: bool,
    /// Whether that was drawn with probability 1/2.
    pub is_drawn: bool,
    /// The outcome.
    pub outcome: f64,
}

/// A test whether treatment shifts outcomes to one side of a shift.
#[derive(Debug, Clone)]
pub struct SwitchTest {
    shift: f64,
    side: Side,
    scale: f64,
    log_capitals: [f64; RATES as usize],
    /// Mean outcomes less the shift, and their number, of untreated and treated blocks.
    means: [(f64, f64); 2],
    /// The middle of both, as the last blocks show it.
    level: Option<f64>,
}

impl SwitchTest {
    /// Creates the test. `scale` is the largest difference that matters, in the unit of outcomes.
    /// It affects the power, not the error probability.
    pub fn new(shift: f64, side: Side, scale: f64) -> Self {
        debug_assert!(scale > 0.0, "{scale}");
        let log_capitals = [0.0; RATES as usize];
        Self { shift, side, scale, log_capitals, means: [(0.0, 0.0); 2], level: None }
    }

    /// Takes the next block.
    pub fn push(&mut self, block: Block) {
        let shift = if block.is_treated { self.shift } else { 0.0 };
        let outcome = block.outcome - shift;
        if let Some(level) = self.level.filter(|_| block.is_drawn) {
            let side = if self.side == Side::Above { 1.0 } else { -1.0 };
            let coin = if block.is_treated { side } else { -side };
            let beyond = coin * (outcome - level) / self.scale;
            for (power, capital) in (0..RATES).zip(&mut self.log_capitals) {
                *capital += log_stake(f64::from(power).exp2() * beyond);
            }
        }
        self.learn(block.is_treated, outcome);
    }

    /// Moves the level towards an outcome, less half of the effect that is known so far.
    fn learn(&mut self, is_treated: bool, outcome: f64) {
        // One stall counts as far off, and no further.
        let far = 2.0 * self.scale;
        let outcome = self.level.map_or(outcome, |it| outcome.clamp(it - far, it + far));
        let (mean, count) = &mut self.means[usize::from(is_treated)];
        *count += 1.0;
        *mean += (outcome - *mean) / *count;
        let is_first = *count == 1.0;
        let [(untreated, untreated_count), (treated, treated_count)] = self.means;
        let is_known = untreated_count > 0.0 && treated_count > 0.0;
        let half = if is_known { 0.5 * (treated - untreated) } else { 0.0 };
        let middle = if is_treated { outcome - half } else { outcome + half };
        let weight = NEW.max(1.0 / (untreated_count + treated_count));
        self.level = Some(match self.level {
            // The first block of the second kind shows the middle of both for the first time.
            Some(_) if is_first && is_known => 0.5 * (treated + untreated),
            Some(level) => level + weight * (middle - level),
            None => middle,
        });
    }

    /// Returns the logarithm of the capital.
    pub fn log_capital(&self) -> f64 {
        log_mean_capital(&self.log_capitals)
    }

    /// Returns whether the effect is shown to be on this side of the shift, with an error
    /// probability of at most `alpha` over all looks.
    pub fn is_shown(&self, alpha: f64) -> bool {
        self.log_capital() >= -alpha.ln()
    }
}

/// Returns the lower bound on the effect after these blocks: the largest shift that a
/// [`SwitchTest`] rejects, to a hundredth of the scale. Bounds that are looked at after every
/// block hold together with probability `1 - alpha`. Minus infinity with too few blocks.
pub fn switch_lower(blocks: &[Block], alpha: f64, scale: f64) -> f64 {
    let is_shown = |shift: f64| {
        let mut test = SwitchTest::new(shift, Side::Above, scale);
        blocks.iter().for_each(|block| test.push(*block));
        test.is_shown(alpha)
    };
    // Capital need not fall with the shift at every step, so that the bound is searched for
    // from below: all shifts up to it are rejected.
    let (mut low, step) = (-8.0 * scale, 0.125 * scale);
    if !is_shown(low) {
        return f64::NEG_INFINITY;
    }
    while low < 8.0 * scale && is_shown(low + step) {
        low += step;
    }
    let mut high = low + step;
    while high - low > 0.01 * scale {
        let middle = 0.5 * (low + high);
        match is_shown(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// Returns the upper bound on the effect; see [`switch_lower`].
pub fn switch_upper(blocks: &[Block], alpha: f64, scale: f64) -> f64 {
    let mirrored: Vec<Block> =
        blocks.iter().map(|block| Block { outcome: -block.outcome, ..*block }).collect();
    -switch_lower(&mirrored, alpha, scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(is_treated: bool, outcome: f64) -> Block {
        Block { is_treated, is_drawn: true, outcome }
    }

    #[test]
    fn the_capital_is_fair_exactly_even_where_blocks_depend_on_earlier_coins() {
        // All 2^9 tosses. What a block shows follows from the coins before it, not from its own.
        let capital = |tosses: u32| {
            let mut test = SwitchTest::new(0.0, Side::Above, 0.7);
            let mut carried = 0.0;
            for at in 0..9 {
                let is_treated = tosses >> at & 1 == 1;
                test.push(block(is_treated, carried + 0.1 * f64::from(at % 4)));
                carried = 0.5 * carried + if is_treated { 0.3 } else { -0.1 };
            }
            test.log_capital().exp()
        };
        let mean = (0..512).map(capital).sum::<f64>() / 512.0;
        assert!((mean - 1.0).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn a_large_effect_is_shown_in_half_the_blocks_of_pairs() {
        let blocks: Vec<Block> = [false, true, true, false, true, false, false, true]
            .into_iter()
            .cycle()
            .take(15)
            .map(|is_treated| block(is_treated, if is_treated { 0.5 } else { 0.0 }))
            .collect();
        let mut test = SwitchTest::new(0.0, Side::Above, 0.7);
        blocks.iter().for_each(|block| test.push(*block));
        assert!(test.is_shown(0.001), "{}", test.log_capital());
        let (low, high) = (switch_lower(&blocks, 0.001, 0.7), switch_upper(&blocks, 0.001, 0.7));
        assert!(0.0 < low && low < 0.5 && 0.5 < high, "{low} {high}");
        assert_eq!(switch_lower(&blocks[..8], 0.001, 0.7), f64::NEG_INFINITY);
    }

    #[test]
    fn blocks_that_were_not_drawn_are_not_bet_on() {
        let mut test = SwitchTest::new(0.0, Side::Above, 0.7);
        for at in 0..40 {
            let is_treated = at % 2 == 1;
            test.push(Block { is_drawn: false, ..block(is_treated, f64::from(at % 2)) });
        }
        assert_eq!(test.log_capital(), 0.0);
    }

    #[test]
    fn a_drift_of_the_load_hides_no_effect() {
        let mut test = SwitchTest::new(0.0, Side::Above, 0.7);
        for at in 0..40u32 {
            // Bits of a number without a pattern, and a load that halves meanwhile.
            let is_treated = 0x5a3c_96e1_u32.rotate_left(at) & 1 == 1;
            let drift = -0.7 * f64::from(at) / 40.0;
            test.push(block(is_treated, drift + if is_treated { 0.35 } else { 0.0 }));
        }
        assert!(test.is_shown(0.001), "{}", test.log_capital());
    }
}
