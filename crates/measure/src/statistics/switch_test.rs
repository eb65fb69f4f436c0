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
//! with the load, and by half of what the block before leaves to the next, treated or not. Blocks
//! that were not drawn, such as the second of a pair, move the level and are not bet on.
//!
//! Source: the bet of [`super::SignTest`] on a randomisation of single blocks; Ramdas, Grünwald,
//! Vovk and Shafer 2023 (Game-theoretic statistics and safe anytime-valid inference), section 4.

use super::sign_test::{Side, log_mean_capital, log_stake};

/// Rates of the bets, over the scale.
const RATES: [f64; 3] = [1.5, 4.0, 16.0];

/// Weight of the last block in the level of all blocks.
const NEW: f64 = 0.1;

/// Blocks whose number hardly shows the effect of one on the next.
const FEW: f64 = 4.0;

/// One block of a switchback.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Block {
    /// Whether it was treated.
    pub is_treated: bool,
    /// Whether that was drawn with probability 1/2.
    pub is_drawn: bool,
    /// Whether the block before it was treated.
    pub follows_treated: bool,
    /// The outcome.
    pub outcome: f64,
}

/// A test whether treatment shifts outcomes to one side of a shift.
#[derive(Debug, Clone)]
pub struct SwitchTest {
    shift: f64,
    side: Side,
    scale: f64,
    log_capitals: [f64; RATES.len()],
    /// Mean outcomes less the shift, and their number, by whether the block before was treated,
    /// and the block itself.
    means: [[(f64, f64); 2]; 2],
    /// The middle of all, as the last blocks show it.
    level: Option<f64>,
}

impl SwitchTest {
    /// Creates the test. `scale` is the largest difference that matters, in the unit of outcomes.
    /// It affects the power, not the error probability.
    pub fn new(shift: f64, side: Side, scale: f64) -> Self {
        debug_assert!(scale > 0.0, "{scale}");
        let log_capitals = [0.0; RATES.len()];
        Self { shift, side, scale, log_capitals, means: [[(0.0, 0.0); 2]; 2], level: None }
    }

    /// Takes the next block.
    pub fn push(&mut self, block: Block) {
        let shift = if block.is_treated { self.shift } else { 0.0 };
        let outcome = block.outcome - shift;
        if let Some(level) = self.level_after(block.follows_treated).filter(|_| block.is_drawn) {
            let side = if self.side == Side::Above { 1.0 } else { -1.0 };
            let coin = if block.is_treated { side } else { -side };
            let beyond = coin * (outcome - level) / self.scale;
            for (rate, capital) in RATES.iter().zip(&mut self.log_capitals) {
                *capital += log_stake(rate * beyond);
            }
        }
        self.learn(block, outcome);
    }

    /// The level before a block, which is known before the block is drawn.
    fn level_after(&self, follows_treated: bool) -> Option<f64> {
        let side = if follows_treated { 0.5 } else { -0.5 };
        self.level.map(|level| level + side * self.carried())
    }

    fn blocks(&self) -> f64 {
        self.means.iter().flatten().map(|(_, count)| count).sum()
    }

    /// Difference of the means of two cells; zero while one is empty.
    fn difference(&self, one: [usize; 2], other: [usize; 2]) -> Option<f64> {
        let cell =
            |at: [usize; 2]| Some(self.means[at[0]][at[1]]).filter(|(_, count)| *count > 0.0);
        Some(cell(one)?.0 - cell(other)?.0)
    }

    /// Returns the effect that a treated block has on the next, beside an untreated one. A few
    /// blocks hardly show it.
    fn carried(&self) -> f64 {
        let each = [self.difference([1, 0], [0, 0]), self.difference([1, 1], [0, 1])];
        let known = (1.0 - FEW / self.blocks()).max(0.0);
        known * mean_of(each.into_iter().flatten())
    }

    /// The effect on a block itself.
    fn effect(&self) -> Option<f64> {
        let each = [self.difference([0, 1], [0, 0]), self.difference([1, 1], [1, 0])];
        let any = each.iter().any(Option::is_some);
        let of_all = || {
            let [untreated, treated] = [0, 1].map(|own| {
                let count = self.means[0][own].1 + self.means[1][own].1;
                let sum = |before: usize| self.means[before][own].0 * self.means[before][own].1;
                (count > 0.0).then(|| (sum(0) + sum(1)) / count)
            });
            Some(treated? - untreated?)
        };
        if any { Some(mean_of(each.into_iter().flatten())) } else { of_all() }
    }

    /// Moves the level towards an outcome, less its known causes.
    fn learn(&mut self, block: Block, outcome: f64) {
        // One stall counts as this far off, and no further.
        let far = 2.0 * self.scale;
        let outcome = self.level.map_or(outcome, |it| outcome.clamp(it - far, it + far));
        let was_known = self.effect().is_some();
        let own = usize::from(block.is_treated);
        let (mean, count) = &mut self.means[usize::from(block.follows_treated)][own];
        *count += 1.0;
        *mean += (outcome - *mean) / *count;
        let effect = self.effect();
        let side = |is_treated: bool| if is_treated { 0.5 } else { -0.5 };
        let middle = outcome
            - side(block.is_treated) * effect.unwrap_or(0.0)
            - side(block.follows_treated) * self.carried();
        let weight = NEW.max(1.0 / self.blocks());
        self.level = Some(match (self.level, effect) {
            // The first block of the second kind shows the middle of both for the first time.
            (Some(level), Some(effect)) if !was_known => level - side(!block.is_treated) * effect,
            (Some(level), _) => level + weight * (middle - level),
            (None, _) => middle,
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

fn mean_of(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), one| (sum + one, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
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
        Block { is_treated, is_drawn: true, follows_treated: false, outcome }
    }

    #[test]
    fn the_capital_is_fair_exactly_even_where_blocks_depend_on_earlier_coins() {
        // All 2^9 tosses. What a block shows follows from the coins before it, not from its own.
        let capital = |tosses: u32| {
            let mut test = SwitchTest::new(0.0, Side::Above, 0.7);
            let (mut carried, mut follows_treated) = (0.0, false);
            for at in 0..9 {
                let is_treated = tosses >> at & 1 == 1;
                let block = block(is_treated, carried + 0.1 * f64::from(at % 4));
                test.push(Block { follows_treated, ..block });
                follows_treated = is_treated;
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
    fn what_one_block_leaves_to_the_next_hides_no_effect() {
        let [mut aware, mut blind] = [0, 1].map(|_| SwitchTest::new(0.0, Side::Above, 0.7));
        let mut follows_treated = false;
        for at in 0..40u32 {
            let is_treated = 0x5a3c_96e1_u32.rotate_left(at) & 1 == 1;
            let carried = if follows_treated { 0.3 } else { 0.0 };
            let outcome = carried + if is_treated { 0.2 } else { 0.0 };
            let block = block(is_treated, outcome);
            aware.push(Block { follows_treated, ..block });
            blind.push(block);
            follows_treated = is_treated;
        }
        let [aware, blind] = [aware, blind].map(|test| test.log_capital());
        assert!(aware > 2.0 * blind && aware > 10.0, "{aware} {blind}");
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
