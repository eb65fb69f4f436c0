//! A sweep of a running server: every setting of a grid, in random order, block by block.
//!
//! A block tries every setting once, in an order of its own: what drifts during the sweep then
//! hits all settings alike, and settings are compared within blocks. A sweep proposes trials
//! ([`Sweep::next_trial`]) and receives their results ([`Sweep::tell`]); its caller measures.
//! It can be rebuilt from its trials.
//!
//! A knob level that was refused is not proposed again. Trials are stored as [`rows`]. What they
//! say is in [`analysis`]: means with intervals, the front, which knobs had an effect, and the
//! best setting with its evidence.

pub mod analysis;
pub mod rows;

use lull_control::Capability;
use lull_policies::search::{
    Dimension, Reading, Refusal, Rules, SearchPoint, Space, has_level, refused_levels,
};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use std::collections::BTreeSet;

/// The measurements of one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Tail, power and requests.
    pub reading: Reading,
    /// Requests that arrived per second.
    pub rate_per_s: f64,
    /// Requests that were answered per second.
    pub completed_per_s: f64,
}

/// One trial of a setting.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepTrial {
    /// The number of its block, from 0.
    pub block: usize,
    /// The setting.
    pub point: SearchPoint,
    /// The measurements, or why there are none.
    pub outcome: Result<Measured, Refusal>,
}

/// A sweep in progress.
#[derive(Debug, Clone)]
pub struct Sweep {
    space: Space,
    rules: Rules,
    blocks: usize,
    seed: u32,
    trials: Vec<SweepTrial>,
}

impl Sweep {
    /// Creates a sweep of all settings of a space, each in this many blocks.
    ///
    /// `rules` state the evidence needed to show that a setting meets the bound.
    pub fn new(space: Space, rules: &Rules, blocks: usize, seed: u32) -> Self {
        // All trials of a setting are its evidence.
        let rules =
            Rules { confirm: blocks.saturating_sub(1), trials: 4 * blocks, ..rules.clone() };
        Self { space, rules, blocks, seed, trials: Vec::new() }
    }

    /// Returns the settings that are swept.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the rules for meeting the bound.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns all trials, in order.
    pub fn trials(&self) -> &[SweepTrial] {
        &self.trials
    }

    /// Returns the seed of the order.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Returns how many trials there are in all.
    pub fn length(&self) -> usize {
        self.blocks * self.space.size()
    }

    /// Records a trial.
    pub fn tell(&mut self, trial: SweepTrial) {
        self.trials.push(trial);
    }

    /// Returns the block and the setting of the next trial; `None` at the end.
    pub fn next_trial(&self) -> Option<(usize, SearchPoint)> {
        let done: BTreeSet<_> = self.trials.iter().map(|it| (it.block, &it.point)).collect();
        let refused = self.refused_levels();
        for block in 0..self.blocks {
            let mut left =
                self.order(block).into_iter().filter(|point| !has_level(point, &refused));
            if let Some(point) = left.find(|point| !done.contains(&(block, point))) {
                return Some((block, point));
            }
        }
        None
    }

    /// Returns the knobs that were refused at two levels or more and set at one level at most,
    /// which may be the one that was in force before the sweep.
    pub fn useless_knobs(&self) -> Vec<Capability> {
        let refused = self.refused_levels();
        let is_useless = |axis: usize| {
            let set = self.trials.iter().filter(|trial| trial.outcome.is_ok());
            let levels: BTreeSet<u16> = set.map(|trial| trial.point.0[axis]).collect();
            levels.len() < 2 && refused.iter().filter(|level| level.0 == axis).count() > 1
        };
        let dimensions = self.space.dimensions().iter().enumerate();
        dimensions.filter(|(axis, _)| is_useless(*axis)).map(|(_, it)| it.knob).collect()
    }

    /// Returns the settings of a block in the order of their trials. The order depends on the seed
    /// and the number of the block only, so that a sweep can be resumed or extended.
    fn order(&self, block: usize) -> Vec<SearchPoint> {
        let mut points: Vec<_> = self.space.points().collect();
        let seed = (u64::from(self.seed) << 32) | block as u64;
        points.shuffle(&mut lull_control::Rng::seed_from_u64(seed));
        points
    }

    /// The dimensions and levels that a knob has refused and that were never set.
    fn refused_levels(&self) -> BTreeSet<(usize, u16)> {
        let trials = self.trials.iter().map(|it| (&it.point, it.outcome.as_ref().err()));
        refused_levels(&self.space, &trials)
    }
}

/// Describes the levels of a space, by which a sweep recognises its own rows.
pub fn describe_levels(space: &Space) -> String {
    let values = |it: &Dimension| {
        let values: Vec<_> = it.levels.iter().map(|level| level.value.to_string()).collect();
        format!("{} {}", it.knob, values.join(" "))
    };
    space.dimensions().iter().map(values).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_policies::search::Method;

    fn sweep(blocks: usize, seed: u32) -> Sweep {
        let values =
            [(Capability::Cores, vec![1.0, 2.0, 4.0]), (Capability::Frequency, vec![1.0, 2.0])];
        let space = Space::from_values(&values).unwrap();
        Sweep::new(space, &Rules::new(Method::Apart, 500.0, 30), blocks, seed)
    }

    /// Plays a sweep to its end; `read` returns no reading where a knob refuses.
    fn play(mut sweep: Sweep, read: impl Fn(&[f64]) -> Result<(), Refusal>) -> Sweep {
        let reading =
            Reading { tail_us: 100.0, watts: 10.0, requests: 200, late: 0, progress_per_s: None };
        let measured = Measured { reading, rate_per_s: 200.0, completed_per_s: 200.0 };
        while let Some((block, point)) = sweep.next_trial() {
            let outcome = read(&sweep.space.values(&point)).map(|()| measured);
            sweep.tell(SweepTrial { block, point, outcome });
        }
        sweep
    }

    fn order(sweep: &Sweep) -> Vec<(usize, SearchPoint)> {
        sweep.trials.iter().map(|it| (it.block, it.point.clone())).collect()
    }

    #[test]
    fn every_block_has_every_setting_once_in_an_order_of_its_own() {
        let whole = play(sweep(3, 7), |_| Ok(()));
        assert_eq!((whole.trials.len(), whole.length()), (18, 18));
        let block = |number: usize| -> Vec<SearchPoint> {
            let of = whole.trials.iter().filter(|it| it.block == number);
            of.map(|it| it.point.clone()).collect()
        };
        let sorted = |number| {
            let mut all = block(number);
            all.sort_unstable();
            all
        };
        let all: Vec<_> = whole.space.points().collect();
        assert!((0..3).all(|number| sorted(number) == all));
        assert!(block(0) != block(1) && block(0) != all, "the order is random");
        assert_eq!(order(&whole), order(&play(sweep(3, 7), |_| Ok(()))));
        assert_ne!(order(&whole), order(&play(sweep(3, 8), |_| Ok(()))));
    }

    #[test]
    fn a_sweep_that_is_rebuilt_from_its_trials_goes_on_and_more_blocks_extend_it() {
        let whole = play(sweep(3, 7), |_| Ok(()));
        for kept in [0, 1, 9, 18] {
            let mut again = sweep(3, 7);
            whole.trials[..kept].iter().for_each(|trial| again.tell(trial.clone()));
            assert_eq!(order(&play(again, |_| Ok(()))), order(&whole), "{kept}");
        }
        let mut more = sweep(4, 7);
        whole.trials.iter().for_each(|trial| more.tell(trial.clone()));
        assert_eq!(order(&play(more, |_| Ok(())))[..18], order(&whole));
    }

    #[test]
    fn a_level_that_is_refused_is_not_tried_again_and_the_rest_is() {
        let refuses = |values: &[f64]| match values[0] == 2.0 {
            true => Err(Refusal::of_knob(Capability::Cores, "not here".to_owned())),
            false => Ok(()),
        };
        let swept = play(sweep(2, 7), refuses);
        let refused = swept.trials.iter().filter(|it| it.outcome.is_err()).count();
        assert_eq!(refused, 1, "one refusal is enough");
        assert_eq!(swept.trials.len() - refused, 8);
        assert!(swept.useless_knobs().is_empty(), "two levels were set");
        let refuses_most = |values: &[f64]| match values[0] > 1.0 {
            true => Err(Refusal::of_knob(Capability::Cores, "not here".to_owned())),
            false => Ok(()),
        };
        let swept_one = play(sweep(2, 7), refuses_most);
        assert_eq!(swept_one.useless_knobs(), [Capability::Cores]);
        // A level that was set before is refused for another reason, and tried again.
        let mut once = sweep(1, 7);
        let first = swept.trials.iter().find(|it| it.outcome.is_ok()).unwrap();
        once.tell(first.clone());
        let point = SearchPoint(vec![first.point.0[0], 1 - first.point.0[1]]);
        let outcome = Err(Refusal::of_knob(Capability::Cores, "busy".to_owned()));
        once.tell(SweepTrial { block: 0, point, outcome });
        assert!(once.refused_levels().is_empty());
    }
}
