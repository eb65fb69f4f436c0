//! The random order of the blocks of a round.

use rand::Rng;
use rand::seq::SliceRandom;

/// Draws the order of the blocks of one round: each number below `count` once.
pub(crate) fn draw_order(count: usize, rng: &mut impl Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(rng);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Rng as Generator;
    use rand::SeedableRng;
    use std::collections::BTreeMap;

    #[test]
    fn each_order_is_as_likely_as_any_other_and_follows_from_the_seed() {
        let mut rng = Generator::seed_from_u64(1);
        let mut times: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
        for _ in 0..600 {
            *times.entry(draw_order(3, &mut rng)).or_default() += 1;
        }
        assert_eq!(times.len(), 6, "{times:?}");
        assert!(times.values().all(|times| (60..=140).contains(times)), "{times:?}");
        let rounds = |seed| {
            let mut rng = Generator::seed_from_u64(seed);
            [(); 8].map(|()| draw_order(6, &mut rng))
        };
        assert_eq!(rounds(7), rounds(7));
        assert_ne!(rounds(7), rounds(8));
    }
}
