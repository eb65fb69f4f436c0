//! The search for a load knee: bounded in trials, load and time.
//!
//! The rate doubles until the server no longer keeps up; bisection then finds the highest
//! rate at which it does, and a grid of lower rates gives the curve with the knee. Ah-Q (Liu
//! et al. 2024, section VII-A) uses the knee of tail over load without defining it, so that
//! the result has both common definitions and the spacing of the grid.

use lull_measure::Nanos;
use serde::Serialize;

/// Most doublings (or halvings) until the highest rate is bracketed.
const DOUBLINGS: u32 = 12;
/// Steps of bisection.
const HALVINGS: u32 = 3;
/// Rates of the curve below the highest rate.
const GRID: u32 = 8;
/// A server that answers a smaller share of the requests due does not keep up.
const ANSWERED_MIN: f64 = 0.95;
/// A server whose tail is this many times that of its first trial does not keep up.
const STRETCH_MAX: f64 = 10.0;
/// The jump that makes a knee, between neighbours of the curve (ours).
const JUMP: f64 = 1.25;

/// One trial at one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LoadTrial {
    /// Requests due per second.
    pub rate_per_s: f64,
    /// Tail at the objective's percentile; none if nothing was answered.
    #[serde(rename = "tail_ns")]
    pub tail: Option<Nanos>,
    /// Share of the requests due that were answered.
    pub answered: f64,
}

/// Tail over load.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LoadCurve {
    /// Ascending by rate.
    pub trials: Vec<LoadTrial>,
    /// Whether the search finished; otherwise time or trials ran out.
    pub is_complete: bool,
}

/// A load and the tail there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LoadKnee {
    /// Requests per second.
    pub rate_per_s: f64,
    /// The tail at this load.
    #[serde(rename = "tail_ns")]
    pub tail: Nanos,
}

/// Puts one load on the server; `None` when time is over.
pub type MeasureLoad<'a> = dyn FnMut(f64) -> anyhow::Result<Option<LoadTrial>> + 'a;

/// Finds the curve of tail over load, beginning at a rate that may be far off.
///
/// # Errors
/// If a trial fails.
pub fn find_curve(first_per_s: f64, measure: &mut MeasureLoad<'_>) -> anyhow::Result<LoadCurve> {
    let mut search = Search { curve: LoadCurve::default(), calm: None, measure };
    let done = search.all(first_per_s)?;
    let mut curve = search.curve;
    curve.is_complete = done.is_some();
    curve.trials.sort_by(|a, b| a.rate_per_s.total_cmp(&b.rate_per_s));
    Ok(curve)
}

struct Search<'a, 'b> {
    curve: LoadCurve,
    /// The first tail, with which others are compared.
    calm: Option<Nanos>,
    measure: &'a mut MeasureLoad<'b>,
}

impl Search<'_, '_> {
    /// `None` when time ran out on the way.
    fn all(&mut self, first_per_s: f64) -> anyhow::Result<Option<()>> {
        let Some((mut good, mut bad)) = self.bracket(first_per_s)? else { return Ok(None) };
        for _ in 0..HALVINGS {
            let middle = f64::sqrt(good * bad);
            match self.keeps_up(middle)? {
                Some(true) => good = middle,
                Some(false) => bad = middle,
                None => return Ok(None),
            }
        }
        for step in 1..=GRID {
            let rate = good * f64::from(step) / f64::from(GRID + 1);
            if self.keeps_up(rate)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    /// A rate that is kept up with and one, twice as high, that is not.
    fn bracket(&mut self, first_per_s: f64) -> anyhow::Result<Option<(f64, f64)>> {
        let Some(first) = self.keeps_up(first_per_s)? else { return Ok(None) };
        let factor = if first { 2.0 } else { 0.5 };
        let mut rate = first_per_s;
        for _ in 0..DOUBLINGS {
            let next = rate * factor;
            match self.keeps_up(next)? {
                Some(up) if up != first => {
                    return Ok(Some(if first { (rate, next) } else { (next, rate) }));
                }
                Some(_) => rate = next,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn keeps_up(&mut self, rate_per_s: f64) -> anyhow::Result<Option<bool>> {
        let Some(trial) = (self.measure)(rate_per_s)? else { return Ok(None) };
        self.curve.trials.push(trial);
        let Some(tail) = trial.tail else { return Ok(Some(false)) };
        if trial.answered >= ANSWERED_MIN {
            self.calm = Some(self.calm.map_or(tail, |calm| calm.min(tail)));
        }
        let is_calm = self.calm.is_some_and(|calm| tail <= calm.scale(STRETCH_MAX));
        Ok(Some(trial.answered >= ANSWERED_MIN && is_calm))
    }
}

impl LoadCurve {
    /// The trials in which the server kept up.
    fn kept_up(&self) -> Vec<LoadKnee> {
        let answered = |trial: &&LoadTrial| trial.answered >= ANSWERED_MIN;
        let point =
            |trial: &LoadTrial| Some(LoadKnee { rate_per_s: trial.rate_per_s, tail: trial.tail? });
        let all: Vec<LoadKnee> = self.trials.iter().filter(answered).filter_map(point).collect();
        let calm = all.iter().map(|point| point.tail).min().unwrap_or_default();
        all.into_iter().filter(|point| point.tail <= calm.scale(STRETCH_MAX)).collect()
    }

    /// Returns where the curve is farthest below its chord, on axes from 0 to 1
    /// (Satopaa et al., "Finding a 'Kneedle' in a Haystack", 2011).
    pub fn chord_knee(&self) -> Option<LoadKnee> {
        let points = self.kept_up();
        let (first, last) = (*points.first()?, *points.last()?);
        let ends = |of: fn(&LoadKnee) -> f64| {
            let all = points.iter().map(of);
            (all.clone().fold(f64::INFINITY, f64::min), all.fold(f64::NEG_INFINITY, f64::max))
        };
        let rates = (first.rate_per_s, last.rate_per_s);
        let tails = ends(|point| point.tail.as_secs_f64());
        let unit = |value: f64, (low, high): (f64, f64)| (value - low) / (high - low).max(1e-12);
        let below = |point: &LoadKnee| {
            unit(point.rate_per_s, rates) - unit(point.tail.as_secs_f64(), tails)
        };
        points.into_iter().max_by(|a, b| below(a).total_cmp(&below(b)))
    }

    /// Returns the least load from which the next one's tail is 1.25 times as long.
    pub fn jump_knee(&self) -> Option<LoadKnee> {
        let points = self.kept_up();
        let jumps = |pair: &&[LoadKnee]| pair[1].tail.0 as f64 >= JUMP * pair[0].tail.0 as f64;
        points.windows(2).find(jumps).map(|pair| pair[0])
    }

    /// Returns the highest load measured whose tail is within a bound.
    pub fn within(&self, bound: Nanos) -> Option<LoadKnee> {
        self.kept_up().into_iter().rfind(|point| point.tail <= bound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M/M/1 with 1 ms of service: p95 = 3 ms/(1 - rate/1000).
    fn queue(rate: f64) -> LoadTrial {
        let busy = (rate / 1_000.0).min(1.5);
        let tail = if busy < 0.999 { 3e-3 / (1.0 - busy) } else { 5.0 };
        let answered = if busy > 1.0 { 1.0 / busy } else { 1.0 };
        LoadTrial { rate_per_s: rate, tail: Some(Nanos::from_secs_f64(tail)), answered }
    }

    fn curve_from(first: f64) -> (LoadCurve, usize) {
        let mut trials = 0;
        let curve = find_curve(first, &mut |rate| {
            trials += 1;
            Ok(Some(queue(rate)))
        });
        (curve.unwrap(), trials)
    }

    #[test]
    fn from_far_below_or_above_the_same_border_is_found_in_few_trials() {
        for first in [20.0, 300.0, 8_000.0] {
            let (curve, trials) = curve_from(first);
            assert!(curve.is_complete && trials <= 24, "{trials} trials from {first}");
            // Ten times the calm tail is at nine tenths of the load.
            let most = curve.kept_up().last().unwrap().rate_per_s;
            assert!((700.0..=930.0).contains(&most), "{most} from {first}");
        }
    }

    #[test]
    fn the_knee_of_a_queue_lies_where_its_tail_begins_to_run_away() {
        let (curve, _) = curve_from(50.0);
        let chord = curve.chord_knee().unwrap().rate_per_s;
        assert!((500.0..=850.0).contains(&chord), "{chord}");
        let jump = curve.jump_knee().unwrap();
        assert!(jump.rate_per_s < 850.0 && jump.tail < Nanos::from_millis(20), "{jump:?}");
        let within = curve.within(Nanos::from_millis(10)).unwrap();
        assert!(within.tail <= Nanos::from_millis(10) && within.rate_per_s > 500.0, "{within:?}");
        assert_eq!(curve.within(Nanos::from_millis(1)), None);
    }

    #[test]
    fn findings_at_the_time_limit_are_kept_and_reported_as_partial() {
        let mut left = 3;
        let curve = find_curve(50.0, &mut |rate| {
            left -= 1;
            Ok((left >= 0).then(|| queue(rate)))
        });
        let curve = curve.unwrap();
        assert!(!curve.is_complete);
        assert_eq!(curve.trials.len(), 3);
    }

    #[test]
    fn a_server_that_never_answers_or_never_tires_ends_the_search() {
        let dead = |rate| Ok(Some(LoadTrial { rate_per_s: rate, tail: None, answered: 0.0 }));
        let curve = find_curve(50.0, &mut { dead }).unwrap();
        assert!(!curve.is_complete && curve.chord_knee().is_none());
        let tail = Some(Nanos::from_millis(1));
        let endless = |rate| Ok(Some(LoadTrial { rate_per_s: rate, tail, answered: 1.0 }));
        let curve = find_curve(50.0, &mut { endless }).unwrap();
        assert!(!curve.is_complete);
        assert_eq!(curve.trials.len(), 1 + DOUBLINGS as usize);
    }
}
