//! The front of power, tail and, with best-effort apps, their progress: its next candidate, and
//! its settings.

use super::super::front::{Boxes, Front, Point, Point3, front_of, front_of_three};
use super::super::separate::{Models, View};
use super::super::space::SearchPoint;
use super::proposals::SURE;
use super::{NextTrial, Search};
use serde::{Deserialize, Serialize};

/// A tried setting of the front.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FrontSetting {
    /// The setting.
    #[serde(rename = "place")]
    pub point: SearchPoint,
    /// Predicted tail, in microseconds.
    pub tail_us: f64,
    /// Predicted power, in watts.
    pub watts: f64,
    /// Predicted progress of the best-effort apps per second, if each reading has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_per_s: Option<f64>,
}

/// The front of the readings, in two objectives or three.
enum Known {
    Two(Front),
    Three(Boxes),
}

impl Known {
    fn hypervolume(&self) -> f64 {
        match self {
            Self::Two(front) => front.hypervolume,
            Self::Three(boxes) => boxes.hypervolume,
        }
    }

    /// Returns the expected improvement by a candidate.
    fn expected_improvement(&self, view: &View) -> f64 {
        match (self, view.lost) {
            (Self::Three(boxes), Some(lost)) => {
                boxes.expected_improvement([view.watts, view.tail, lost])
            }
            (Self::Two(front), _) => front.expected_improvement([view.watts, view.tail]),
            (Self::Three(_), None) => 0.0,
        }
    }
}

impl Search {
    /// Returns the tried settings within the bound that no other one beats in predicted power,
    /// tail and, if each reading has it, progress of best-effort apps, by ascending power. Empty
    /// before the second reading.
    pub fn front(&self) -> Vec<FrontSetting> {
        let Some(models) = self.models() else { return Vec::new() };
        let mut tried = self.tried_views(&models);
        tried.retain(|(_, view)| view.tail.mean <= 0.0);
        let views = || tried.iter().map(|(_, view)| view);
        let on_front = match views().map(three_objectives).collect::<Option<Vec<Point3>>>() {
            Some(points) => front_of_three(&points),
            None => front_of(&views().map(two_objectives).collect::<Vec<Point>>()),
        };
        let setting = |at: usize| FrontSetting {
            point: tried[at].0.clone(),
            tail_us: tried[at].1.tail_us(self.rules().bound_us),
            watts: tried[at].1.watts.mean.exp(),
            progress_per_s: models.progress_per_s(&tried[at].1),
        };
        let mut all: Vec<FrontSetting> = on_front.into_iter().map(setting).collect();
        all.sort_by(|a, b| a.watts.total_cmp(&b.watts));
        all
    }

    /// The candidate that is expected to add most to the hypervolume between front and bound.
    ///
    /// All objectives are logarithms, so that equal volumes are equal ratios. With two objectives
    /// the reference point is the bound at the largest power measured. With three, the settings
    /// of most power or least progress are ends of the front and count: the reference point is a
    /// tenth of the measured range beyond them.
    pub(super) fn explore_front(&mut self, models: &Models) -> Option<NextTrial> {
        let known = self.known_front(models);
        let views = models.views_at(&self.space, &self.candidates);
        let is_harmed = self.harm() > self.rules.harm_max;
        let may_be_tried =
            |view: &View| self.is_allowed(view) && (!is_harmed || view.meets() >= SURE);
        let score = |view: &View| match may_be_tried(view) {
            true => known.expected_improvement(view).ln(),
            false => f64::NEG_INFINITY,
        };
        let all = match known.hypervolume() {
            none if none <= 0.0 => 1.0,
            some => some,
        };
        let scores: Vec<f64> = views.iter().map(|view| score(view) - all.ln()).collect();
        self.propose(scores.into_iter())
    }

    fn known_front(&self, models: &Models) -> Known {
        let tried = self.tried_views(models);
        let views = || tried.iter().map(|(_, view)| view);
        let Some(points) = views().map(three_objectives).collect::<Option<Vec<Point3>>>() else {
            let most = self.readings().map(|(_, it)| it.watts.ln()).fold(f64::MIN, f64::max);
            return Known::Two(Front::new(
                &views().map(two_objectives).collect::<Vec<_>>(),
                [most, 0.0],
            ));
        };
        let beyond = |axis: usize| {
            let values = || points.iter().map(|point| point[axis]);
            let (least, most) =
                (values().fold(f64::INFINITY, f64::min), values().fold(f64::MIN, f64::max));
            most + BEYOND * (most - least).max(RANGE_MIN)
        };
        Known::Three(Boxes::new(&points, [beyond(0), 0.0, beyond(2)]))
    }

    /// The tried settings with their predictions, each once.
    fn tried_views(&self, models: &Models) -> Vec<(SearchPoint, View)> {
        let mut points: Vec<_> = self.readings().map(|(point, _)| point.clone()).collect();
        points.sort_unstable();
        points.dedup();
        let view = |point: SearchPoint| {
            let view = models.at(self.space(), &point);
            (point, view)
        };
        points.into_iter().map(view).collect()
    }
}

/// Share of the measured range by which the reference point of three objectives is beyond it.
const BEYOND: f64 = 0.1;
/// The least range of a logarithm, where all settings are alike.
const RANGE_MIN: f64 = 0.01;

/// The predicted logarithms of power, of tail over bound and of lost progress.
fn three_objectives(view: &View) -> Option<Point3> {
    Some([view.watts.mean, view.tail.mean, view.lost?.mean])
}

/// The predicted logarithms of power and of tail over bound.
fn two_objectives(view: &View) -> Point {
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
        Reading { tail_us, watts, requests: 1000, late, progress_per_s: None }
    }

    fn logs(reading: &Reading) -> Point {
        [reading.watts.ln(), (reading.tail_us / BOUND_US).ln()]
    }

    /// The exact hypervolume of the settings that a search has tried, as a share of all.
    fn reached(method: Method, seed: u64) -> f64 {
        let mut search = Search::new(space(), Rules::new(method, BOUND_US, 20));
        let mut rng = Rng::seed_from_u64(seed);
        while let Some(next) = search.ask(&mut rng) {
            let exact = server(&search.space().values(&next.point));
            let noise = 1.0 + 0.02 * (rng.random::<f64>() - 0.5);
            search.tell(next.point, Ok(Reading { tail_us: exact.tail_us * noise, ..exact }));
        }
        let exact = |point: &SearchPoint| logs(&server(&search.space().values(point)));
        let tried: Vec<Point> = search.trials().iter().map(|it| exact(&it.point)).collect();
        let all: Vec<Point> = search.space().points().map(|point| exact(&point)).collect();
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
            let exact = server(&search.space().values(&next.point));
            search.tell(next.point, Ok(exact));
        }
        let front = search.front();
        assert!(front.len() >= 3, "{front:?}");
        for pair in front.windows(2) {
            assert!(pair[0].watts < pair[1].watts && pair[0].tail_us > pair[1].tail_us, "{pair:?}");
        }
        assert!(search.choice().unwrap().meets, "the last trials confirm an answer");
    }

    #[test]
    fn a_setting_that_is_predicted_to_miss_the_bound_is_not_on_the_front() {
        let mut search = Search::new(space(), Rules::new(Method::Front, BOUND_US, 20));
        // One core has the least power, and a tail of 900 us and more.
        for cores in [0, 3, 8, 17] {
            let point = SearchPoint(vec![20, cores]);
            let exact = server(&search.space().values(&point));
            search.tell(point, Ok(exact));
        }
        let front = search.front();
        let cores: Vec<_> = front.iter().map(|it| it.point.0[1]).collect();
        assert_eq!(cores, [3, 8, 17], "{front:?}");
    }

    /// The server with best-effort apps, which use the cores that there are, and do more the
    /// fewer interrupts disturb them.
    fn shared_server(values: &[f64]) -> Reading {
        let (delay, cores) = (values[0], values[1]);
        let progress = cores * (1.0 + delay).sqrt();
        Reading { progress_per_s: Some(progress), ..server(values) }
    }

    /// The exact hypervolume of power, tail and progress that the tried settings have, as a share
    /// of all.
    fn reached_of_three(method: Method, seed: u64) -> f64 {
        let mut search = Search::new(space(), Rules::new(method, BOUND_US, 24));
        let mut rng = Rng::seed_from_u64(seed);
        while let Some(next) = search.ask(&mut rng) {
            let exact = shared_server(&search.space().values(&next.point));
            let noise = 1.0 + 0.02 * (rng.random::<f64>() - 0.5);
            search.tell(next.point, Ok(Reading { tail_us: exact.tail_us * noise, ..exact }));
        }
        let exact = |point: &SearchPoint| -> Point3 {
            let it = shared_server(&search.space().values(point));
            let [watts, tail] = logs(&it);
            [watts, tail, -it.progress_per_s.unwrap().max(0.2).ln()]
        };
        let tried: Vec<Point3> = search.trials().iter().map(|it| exact(&it.point)).collect();
        // Every fifth delay: the whole front is 9,018 points.
        let points = search.space().points().filter(|point| point.0[0] % 5 == 0);
        let all: Vec<Point3> = points.map(|point| exact(&point)).collect();
        let most = |axis: usize| all.iter().map(|it| it[axis]).fold(f64::MIN, f64::max);
        let reference = [most(0), 0.0, most(2)];
        let front: Vec<Point3> = front_of_three(&all).into_iter().map(|at| all[at]).collect();
        let volume = |points: &[Point3]| Boxes::new(points, reference).hypervolume;
        volume(&tried) / volume(&front)
    }

    #[test]
    fn a_front_of_three_reaches_more_than_trials_by_chance() {
        let of =
            |method| -> Vec<f64> { (0..6).map(|seed| reached_of_three(method, seed)).collect() };
        let (ours, chance) = (of(Method::Front), of(Method::Random));
        let more = paired_difference(&ours, &chance).unwrap();
        assert!(more.mean > more.half_width, "{more:?}: {ours:?} {chance:?}");
    }

    #[test]
    fn the_front_names_progress_where_each_reading_has_it_and_only_there() {
        let play = |has_progress: fn(usize) -> bool| {
            let mut search = Search::new(space(), Rules::new(Method::Front, BOUND_US, 20));
            let mut rng = Rng::seed_from_u64(4);
            while let Some(next) = search.ask(&mut rng) {
                let exact = shared_server(&search.space().values(&next.point));
                let known = has_progress(search.trials().len());
                let progress_per_s = exact.progress_per_s.filter(|_| known);
                search.tell(next.point, Ok(Reading { progress_per_s, ..exact }));
            }
            search.front()
        };
        let front = play(|_| true);
        assert!(front.iter().all(|it| it.progress_per_s.is_some()), "{front:?}");
        assert!(front.windows(2).all(|pair| pair[0].watts <= pair[1].watts), "{front:?}");
        let best = |of: fn(&FrontSetting) -> f64| {
            front.iter().max_by(|a, b| of(a).total_cmp(&of(b))).unwrap().point.clone()
        };
        assert_ne!(best(|it| it.progress_per_s.unwrap()), best(|it| -it.tail_us), "{front:?}");
        assert!(play(|trial| trial != 3).iter().all(|it| it.progress_per_s.is_none()));
    }

    #[test]
    fn a_front_that_has_done_enough_harm_tries_what_is_nearly_sure() {
        let rules = Rules { harm_max: 0.0, ..Rules::new(Method::Front, BOUND_US, 20) };
        let mut careful = Search::new(space(), rules);
        let mut rng = Rng::seed_from_u64(5);
        while let Some(next) = careful.ask(&mut rng) {
            let outcome = server(&careful.space().values(&next.point));
            careful.tell(next.point, Ok(outcome));
        }
        let over = careful.readings().filter(|(_, it)| it.tail_us > BOUND_US).count();
        assert!(over <= 1, "{over}");
    }
}
