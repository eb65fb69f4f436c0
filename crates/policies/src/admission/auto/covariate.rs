//! The part of a figure that a covariate explains, such as that of the throughput by the number of
//! connections.
//!
//! Blocks with more connections differ from those with fewer, whatever the gate does. One slope is
//! fitted through the blocks of the reference and those of the setting, each about their own mean,
//! and what it explains is subtracted from the next block. The slope is known before that block is
//! drawn, and its setting does not move the covariate, so that bets on the block stay fair
//! ([`lull_measure::statistics::SwitchTest`]).
//!
//! Source: regression adjustment (Lin 2013, Agnostic notes on regression adjustments to
//! experimental data), with a slope from earlier blocks only.

/// Prior of the slope: zero, with a standard deviation of one at a scatter of a tenth. It is added
/// to the sum of squares of the covariate.
const PRIOR: f64 = 0.01;
/// The steepest slope: one stall may come with another number of connections.
const STEEPEST: f64 = 2.0;

/// Means of some blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Means {
    blocks: f64,
    covariate: f64,
    outcome: f64,
}

/// The slope of a figure over a covariate, both as logarithms.
#[derive(Debug, Clone, Default)]
pub(super) struct Covariate {
    /// The covariate of the first block, at which nothing is subtracted.
    centre: Option<f64>,
    /// The means of the reference and of the setting.
    means: [Means; 2],
    /// Sums of squares of the covariate, and of its products with outcomes, about these means.
    squares: f64,
    products: f64,
}

impl Covariate {
    /// Takes a block, and returns its outcome without what earlier blocks show to be explained.
    pub(super) fn adjust(&mut self, is_treated: bool, value: f64, outcome: f64) -> f64 {
        let centre = *self.centre.get_or_insert(value);
        let slope = (self.products / (self.squares + PRIOR)).clamp(-STEEPEST, STEEPEST);
        let means = &mut self.means[usize::from(is_treated)];
        let (off, outcome_off) = (value - means.covariate, outcome - means.outcome);
        means.blocks += 1.0;
        means.covariate += off / means.blocks;
        means.outcome += outcome_off / means.blocks;
        self.squares += off * (value - means.covariate);
        self.products += off * (outcome - means.outcome);
        outcome - slope * (value - centre)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slope_is_found_beside_an_effect_of_the_setting_and_subtracted() {
        let mut covariate = Covariate::default();
        let mut adjusted = [0.0; 2];
        for at in 0..40u32 {
            let is_treated = 0x5a3c_96e1_u32.rotate_left(at) & 1 == 1;
            let value = f64::from(at * 7 % 11) / 10.0;
            let effect = if is_treated { 0.3 } else { 0.0 };
            adjusted[usize::from(is_treated)] =
                covariate.adjust(is_treated, value, 0.8 * value + effect);
        }
        let [reference, treated] = adjusted;
        assert!(reference.abs() < 0.02 && (treated - 0.3).abs() < 0.02, "{adjusted:?}");
    }

    #[test]
    fn a_covariate_that_does_not_change_changes_no_outcome() {
        let mut covariate = Covariate::default();
        for at in 0..40u32 {
            let outcome = f64::from(at * 7 % 11).ln_1p();
            assert_eq!(covariate.adjust(at.is_multiple_of(3), 64.0_f64.ln(), outcome), outcome);
        }
    }

    #[test]
    fn one_stall_with_few_connections_makes_no_slope_steep() {
        let mut covariate = Covariate::default();
        for (value, outcome) in [(0.0, 0.0), (-0.1, -3.0), (-0.1, 0.0)] {
            let adjusted = covariate.adjust(false, value, outcome);
            assert!((adjusted - outcome).abs() <= 0.1 * STEEPEST + 1e-12, "{adjusted}");
        }
    }
}
