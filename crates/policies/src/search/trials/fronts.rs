//! The front of power and tail: its next candidate, and its settings.

use super::super::front::{Front, Point, front_of};
use super::super::separate::{Models, View};
use super::super::space::Place;
use super::proposals::SURE;
use super::{Next, Search};
use serde::{Deserialize, Serialize};

/// A tried setting of the front.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrontSetting {
    /// The setting.
    pub place: Place,
    /// Predicted tail, in microseconds.
    pub tail_us: f64,
    /// Predicted power, in watts.
    pub watts: f64,
}

impl Search {
    /// Returns the tried settings that no other one beats in predicted power and tail together,
    /// by ascending power. Empty before the second reading.
    pub fn front(&self) -> Vec<FrontSetting> {
        let Some(models) = self.models() else { return Vec::new() };
        let tried = self.tried_views(&models);
        let points: Vec<Point> = tried.iter().map(|(_, view)| point(view)).collect();
        let setting = |at: usize| FrontSetting {
            place: tried[at].0.clone(),
            tail_us: tried[at].1.tail_us(self.rules().bound_us),
            watts: tried[at].1.watts.mean.exp(),
        };
        front_of(&points).into_iter().map(setting).collect()
    }

    /// The candidate that is expected to add most to the hypervolume between front and bound.
    ///
    /// Power and tail are logarithms, so that equal areas are equal ratios. The reference point
    /// is the bound at the largest power measured.
    pub(super) fn explore_front(&mut self, models: &Models) -> Option<Next> {
        let points: Vec<Point> =
            self.tried_views(models).iter().map(|(_, view)| point(view)).collect();
        let most = self.readings().map(|(_, it)| it.watts.ln()).fold(f64::MIN, f64::max);
        let front = Front::new(&points, [most, 0.0]);
        let views = models.at_all(&self.space, &self.candidates);
        let is_harmed = self.harm() > self.rules.harm_max;
        let score = |view: &View| match is_harmed && view.meets() < SURE {
            true => f64::NEG_INFINITY,
            false => front.expected_improvement([view.watts, view.tail]).ln(),
        };
        let all = match front.hypervolume {
            none if none <= 0.0 => 1.0,
            some => some,
        };
        self.propose(views.iter().map(|view| score(view) - all.ln()))
    }

    /// The tried settings with their predictions, each once.
    fn tried_views(&self, models: &Models) -> Vec<(Place, View)> {
        let mut places: Vec<_> = self.readings().map(|(place, _)| place.clone()).collect();
        places.sort_unstable();
        places.dedup();
        let view = |place: Place| {
            let view = models.at(self.space(), &place);
            (place, view)
        };
        places.into_iter().map(view).collect()
    }
}

/// The predicted logarithms of power and of tail over bound.
fn point(view: &View) -> Point {
    [view.watts.mean, view.tail.mean]
}

#[cfg(test)]
mod tests {
    use super::super::super::rules::{Method, Rules};
    use super::super::super::space::Space;
    use super::*;
    use crate::search::Reading;
    use crate::testing::{lc_spec, machine};
    use lull_control::{Capability, Rng};
    use lull_measure::statistics::paired_difference;
    use rand::{RngExt, SeedableRng};

    const BOUND_US: f64 = 500.0;

    fn space() -> Space {
        let knobs = [Capability::Coalescing, Capability::Cores];
        Space::from_machine(&machine(18), &[lc_spec("a")], &knobs).unwrap()
    }

    /// A server whose front is known: every core saves tail and costs power, and so does every
    /// microsecond of delay less.
    fn server(values: &[f64]) -> Reading {
        let (delay, cores) = (values[0], values[1]);
        let tail_us = 0.8 * delay + 900.0 / cores;
        let watts = 20.0 + 3.0 * cores + 900.0 / (delay + 20.0);
        let late = if tail_us > BOUND_US { 50 } else { 0 };
        Reading { tail_us, watts, requests: 1000, late }
    }

    fn logs(reading: &Reading) -> Point {
        [reading.watts.ln(), (reading.tail_us / BOUND_US).ln()]
    }

    /// The exact hypervolume of the settings that a search has tried, as a share of all.
    fn reached(method: Method, seed: u64) -> f64 {
        let mut search = Search::new(space(), Rules::new(method, BOUND_US, 20));
        let mut rng = Rng::seed_from_u64(seed);
        while let Some(next) = search.ask(&mut rng) {
            let exact = server(&search.space().values(&next.place));
            let noise = 1.0 + 0.02 * (rng.random::<f64>() - 0.5);
            search.tell(next.place, Ok(Reading { tail_us: exact.tail_us * noise, ..exact }));
        }
        let exact = |place: &Place| logs(&server(&search.space().values(place)));
        let tried: Vec<Point> = search.trials().iter().map(|it| exact(&it.place)).collect();
        let all: Vec<Point> = search.space().places().map(|place| exact(&place)).collect();
        let most = all.iter().map(|it| it[0]).fold(f64::MIN, f64::max);
        let volume = |points: &[Point]| Front::new(points, [most, 0.0]).hypervolume;
        volume(&tried) / volume(&all)
    }

    #[test]
    fn twenty_trials_reach_more_of_a_known_front_than_trials_by_chance() {
        let of = |method| -> Vec<f64> { (0..8).map(|seed| reached(method, seed)).collect() };
        let (ours, chance) = (of(Method::Front), of(Method::Random));
        let more = paired_difference(&ours, &chance).unwrap();
        assert!(more.mean > more.half_width, "{more:?}: {ours:?} {chance:?}");
        // Ten of the trials confirm the answer.
        assert!(ours.iter().all(|share| *share > 0.8), "{ours:?}");
    }

    #[test]
    fn the_front_has_no_setting_that_another_beats_and_names_no_setting_twice() {
        let mut search = Search::new(space(), Rules::new(Method::Front, BOUND_US, 20));
        assert!(search.front().is_empty(), "nothing is known before the second reading");
        let mut rng = Rng::seed_from_u64(4);
        while let Some(next) = search.ask(&mut rng) {
            let exact = server(&search.space().values(&next.place));
            search.tell(next.place, Ok(exact));
        }
        let front = search.front();
        assert!(front.len() >= 3, "{front:?}");
        for pair in front.windows(2) {
            assert!(pair[0].watts < pair[1].watts && pair[0].tail_us > pair[1].tail_us, "{pair:?}");
        }
        assert!(search.choice().unwrap().meets, "the last trials confirm an answer");
    }

    #[test]
    fn a_front_that_has_done_enough_harm_tries_what_is_nearly_sure() {
        let rules = Rules { harm_max: 0.0, ..Rules::new(Method::Front, BOUND_US, 20) };
        let mut careful = Search::new(space(), rules);
        let mut rng = Rng::seed_from_u64(5);
        while let Some(next) = careful.ask(&mut rng) {
            let came = server(&careful.space().values(&next.place));
            careful.tell(next.place, Ok(came));
        }
        let over = careful.readings().filter(|(_, it)| it.tail_us > BOUND_US).count();
        assert!(over <= 1, "{over}");
    }
}
