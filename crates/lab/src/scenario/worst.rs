//! Searches the worst burst cycle: the length of bursts at which a controller does most harm.
//!
//! Wang et al. (TRIOS 2013, section 4) found that a governor whose climb takes about as long
//! as a burst lasts makes a server slower than any steady load does, and that
//! much slower and much faster bursts are harmless. The search scales the
//! phases of the source and keeps its levels: a logarithmic grid of cycles
//! finds the region of the longest responses, and a golden-section search in
//! the logarithm of the cycle narrows it down. All cycles and policies use
//! common random numbers, so that their differences come from the cycle.

use super::outcome::interval;
use super::run::failed;
use super::{InvalidKey, RunError, Scenario, Variant};
use crate::cycles::{BACKLOG, Cycle, LARGEST, WINDOW, error_figure, response_figure, worst};
use crate::figure::Figure;
use crate::progress::Progress;
use crate::trial::{Trial, estimate_of};
use lull_measure::Nanos;
use lull_sim::model::{Model, Schedule, Source};
use lull_sim::stats::Estimate;
use serde::Serialize;

/// The smaller part of the golden section.
const GOLDEN: f64 = 0.381_966_011_250_105;

/// The burst cycles to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// The shortest.
    pub shortest: Nanos,
    /// The longest.
    pub longest: Nanos,
    /// Cycles of the grid, at least three.
    pub grid: u32,
    /// Further cycles around the worst of the grid.
    pub refine: u32,
}

impl Default for Search {
    /// A tenth of a second to 16 s as in Figs. 8 and 12, nine cycles and six more.
    fn default() -> Self {
        let (shortest, longest) = (Nanos::from_millis(100), Nanos::from_secs(16));
        Self { shortest, longest, grid: 9, refine: 6 }
    }
}

/// The worst cycles, policy by policy.
#[derive(Debug, Clone, PartialEq)]
pub struct WorstCycles {
    /// The scenario's title.
    pub title: String,
    /// The app whose bursts were stretched.
    pub app: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Replications of each cycle.
    pub replications: u64,
    /// The sweeps.
    pub policies: Vec<Sweep>,
    /// Notices about how far the figures are valid.
    pub notices: Vec<String>,
}

/// All cycles under one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The policy's label.
    pub label: String,
    /// The cycles, ascending; never empty.
    pub cycles: Vec<Cycle>,
    /// Number of the one with the longest mean response.
    pub worst: usize,
}

impl Search {
    fn check(&self) -> Result<(), InvalidKey> {
        let fail = |key: &str, message: &str| Err(InvalidKey::at(key, message));
        if self.shortest < Nanos::from_micros(1) {
            return fail("--shortest", "must be at least a microsecond");
        }
        if self.longest <= self.shortest || self.longest > Nanos::from_secs(86_400) {
            return fail("--longest", "must be above --shortest and at most a day");
        }
        if !(3..=1000).contains(&self.grid) {
            return fail("--grid", "must be from 3 to 1000 cycles");
        }
        if self.refine > 1000 {
            return fail("--refine", "must be at most 1000 cycles");
        }
        Ok(())
    }

    /// The grid: equal ratios from end to end.
    fn cycles(&self) -> Vec<Nanos> {
        let (low, high) = (self.shortest.as_secs_f64().ln(), self.longest.as_secs_f64().ln());
        let last = self.grid - 1;
        (0..self.grid)
            .map(|at| round(low + (high - low) * f64::from(at) / f64::from(last)))
            .collect()
    }
}

/// A cycle from the logarithm of its seconds, with three significant digits.
fn round(ln_s: f64) -> Nanos {
    let nanos = ln_s.exp() * 1e9;
    let unit = 10f64.powi(nanos.log10().floor() as i32 - 2);
    Nanos(((nanos / unit).round() * unit) as u64)
}

impl Scenario {
    /// Checks that a search can be made, and finds the app whose bursts to stretch.
    ///
    /// # Errors
    /// If no app or several have bursts, or the search makes no sense.
    pub fn bursty_app(&self, search: &Search) -> Result<usize, InvalidKey> {
        search.check()?;
        let all: Vec<usize> =
            (0..self.model.app.len()).filter(|app| bursts(&self.model, *app).is_some()).collect();
        let names = || {
            all.iter().map(|app| self.model.app[*app].name.as_str()).collect::<Vec<_>>().join(", ")
        };
        match all.as_slice() {
            [app] => {
                // Both are extended to whole cycles.
                let [warmup, length] = [self.warmup.unwrap_or_default(), self.length]
                    .map(|span| whole(span, search.longest));
                self.check_events(warmup.saturating_add(length), "--longest")?;
                Ok(*app)
            }
            [] => Err(InvalidKey::at(
                "app",
                "no app has bursts: give one a source with bursts = { high = 1200.0, low = 400.0, \
                 cycle = \"2s\" }, or a schedule that cycles",
            )),
            _ => {
                let message = format!("several apps have bursts ({}): keep those of one", names());
                Err(InvalidKey::at("app", message))
            }
        }
    }

    /// Measures all policies at the cycles of a search, the app's being `app`.
    ///
    /// # Errors
    /// The first simulation that cannot be set up or reaches a bound.
    pub fn find_worst_cycle(
        &self,
        app: usize,
        search: &Search,
        progress: &Progress<'_>,
    ) -> Result<WorstCycles, RunError> {
        let cycles = u64::from(search.grid + search.refine);
        progress.expect(cycles * self.replications * self.variants.len() as u64);
        let warmup = self.find_warmup()?;
        let sweep = |variant| self.sweep(variant, app, search, warmup, progress);
        Ok(WorstCycles {
            title: self.title.clone(),
            app: self.model.app[app].name.clone(),
            seed: self.seed,
            replications: self.replications,
            policies: self.variants.iter().map(sweep).collect::<Result<_, _>>()?,
            notices: self.notices.clone(),
        })
    }

    fn sweep(
        &self,
        variant: &Variant,
        app: usize,
        search: &Search,
        warmup: Nanos,
        progress: &Progress<'_>,
    ) -> Result<Sweep, RunError> {
        let at = |cycle| self.at_cycle(variant, app, cycle, warmup, progress);
        let mut cycles = search.cycles().into_iter().map(at).collect::<Result<Vec<_>, _>>()?;
        let ln_s = |cycle: &Cycle| cycle.seconds().ln();
        let top = longest_response(&cycles);
        let mut left = ln_s(&cycles[top.saturating_sub(1)]);
        let mut right = ln_s(&cycles[(top + 1).min(cycles.len() - 1)]);
        let mut middle = (ln_s(&cycles[top]), cycles[top].response_ms().mean);
        for _ in 0..search.refine {
            let (before, after) = (middle.0 - left, right - middle.0);
            let step = if after >= before { GOLDEN * after } else { -GOLDEN * before };
            let probe = at(round(middle.0 + step))?;
            let found = (middle.0 + step, probe.response_ms().mean);
            cycles.push(probe);
            // The worse of the two becomes the middle, the other an end.
            let (higher, lower) =
                if found.1 > middle.1 { (found, middle) } else { (middle, found) };
            if lower.0 < higher.0 {
                left = lower.0;
            } else {
                right = lower.0;
            }
            middle = higher;
        }
        cycles.sort_by_key(|cycle| cycle.cycle);
        cycles.dedup_by_key(|cycle| cycle.cycle);
        let worst = longest_response(&cycles);
        Ok(Sweep { label: variant.label.clone(), cycles, worst })
    }

    /// One cycle; warm-up and length are made whole cycles, so that high and
    /// low have their share.
    fn at_cycle(
        &self,
        variant: &Variant,
        app: usize,
        cycle: Nanos,
        warmup: Nanos,
        progress: &Progress<'_>,
    ) -> Result<Cycle, RunError> {
        let mut model = self.model.clone();
        if let Some(schedule) = bursts_mut(&mut model, app) {
            *schedule = schedule.with_cycle(cycle);
        }
        let trial = Trial {
            model: &model,
            warmup: whole(warmup, cycle),
            length: whole(self.length, cycle),
            ..self.trial(variant)
        };
        let measured = Cycle::measure(&trial, cycle, app, 0..self.replications, progress);
        measured.map_err(failed(variant))
    }
}

/// The shortest time of whole cycles that is not below a span.
fn whole(span: Nanos, cycle: Nanos) -> Nanos {
    Nanos(span.0.div_ceil(cycle.0).saturating_mul(cycle.0))
}

fn longest_response(cycles: &[Cycle]) -> usize {
    worst(cycles, |cycle| cycle.response_ms().mean).unwrap_or(0)
}

/// The schedule of an app's bursts: it comes repeatedly, in spans that
/// do not vary, and its level changes.
fn bursts(model: &Model, app: usize) -> Option<&Schedule> {
    let schedule = model.app[app].source.schedule()?;
    let varies = schedule.phases.windows(2).any(|pair| pair[0].level != pair[1].level);
    (varies && schedule.cycle_length().is_some()).then_some(schedule)
}

fn bursts_mut(model: &mut Model, app: usize) -> Option<&mut Schedule> {
    match &mut model.app[app].source {
        Source::Closed(closed) => closed.schedule.as_mut(),
        Source::Open(open) => open.schedule.as_mut(),
    }
}

impl Sweep {
    /// The worst cycle.
    pub fn worst(&self) -> &Cycle {
        &self.cycles[self.worst]
    }

    /// The cycle with the largest mean error.
    pub fn largest_error(&self) -> &Cycle {
        let at = worst(&self.cycles, |cycle| cycle.error_ms(BACKLOG).mean);
        &self.cycles[at.unwrap_or(self.worst)]
    }

    /// How many times as long responses are at the worst cycle as at the
    /// shortest, replication by replication.
    pub fn times_shortest(&self) -> Estimate {
        self.times(&self.cycles[0])
    }

    /// The same against the longest cycle.
    pub fn times_longest(&self) -> Estimate {
        self.times(&self.cycles[self.cycles.len() - 1])
    }

    fn times(&self, other: &Cycle) -> Estimate {
        let pairs = self.worst().responses_ms.iter().zip(&other.responses_ms);
        estimate_of(&pairs.map(|(worst, other)| worst / other).collect::<Vec<_>>())
    }
}

impl WorstCycles {
    /// Response time and error over the cycle, a curve a policy.
    pub fn panels(&self) -> Vec<Figure> {
        let sweeps: Vec<(&str, &[Cycle])> =
            self.policies.iter().map(|sweep| (sweep.label.as_str(), &*sweep.cycles)).collect();
        let title = |what: &str| format!("{}: {what} over the burst cycle", self.title);
        vec![
            response_figure(&title("mean response"), &sweeps),
            error_figure(&title("mean control error"), &sweeps),
        ]
    }
}

/// A value with its interval in JSON.
#[derive(Debug, Serialize)]
struct Value {
    mean: Option<f64>,
    ci95: Option<[f64; 2]>,
}

impl From<Estimate> for Value {
    fn from(estimate: Estimate) -> Self {
        let mean = Some(estimate.mean).filter(|mean| mean.is_finite());
        Self { mean, ci95: interval(&estimate) }
    }
}

impl Serialize for Cycle {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            cycle_s: f64,
            response_ms: Value,
            error_ms: Value,
            largest_error_ms: Value,
            window_error_ms: Value,
        }
        let shown = Shown {
            cycle_s: self.seconds(),
            response_ms: self.response_ms().into(),
            error_ms: self.error_ms(BACKLOG).into(),
            largest_error_ms: self.error_ms(LARGEST).into(),
            window_error_ms: self.error_ms(WINDOW).into(),
        };
        shown.serialize(to)
    }
}

impl Serialize for WorstCycles {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Policy<'a> {
            label: &'a str,
            worst: &'a Cycle,
            largest_error_cycle_s: f64,
            times_shortest: Value,
            times_longest: Value,
            cycles: &'a [Cycle],
        }
        #[derive(Serialize)]
        struct Shown<'a> {
            scenario: &'a str,
            app: &'a str,
            seed: u64,
            replications: u64,
            notices: &'a [String],
            policies: Vec<Policy<'a>>,
        }
        let policies = self.policies.iter().map(|sweep| Policy {
            label: &sweep.label,
            worst: sweep.worst(),
            largest_error_cycle_s: sweep.largest_error().seconds(),
            times_shortest: sweep.times_shortest().into(),
            times_longest: sweep.times_longest().into(),
            cycles: &sweep.cycles,
        });
        let shown = Shown {
            scenario: &self.title,
            app: &self.app,
            seed: self.seed,
            replications: self.replications,
            notices: &self.notices,
            policies: policies.collect(),
        };
        shown.serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_equal_ratios_and_round_numbers() {
        let search = Search { grid: 5, ..Search::default() };
        let cycles: Vec<f64> = search.cycles().iter().map(|cycle| cycle.as_secs_f64()).collect();
        assert_eq!(cycles, [0.1, 0.356, 1.26, 4.5, 16.0]);
    }

    #[test]
    fn a_search_that_makes_no_sense_is_refused() {
        let good = Search::default();
        assert_eq!(good.check(), Ok(()));
        let bad = [
            Search { shortest: Nanos::ZERO, ..good },
            Search { longest: good.shortest, ..good },
            Search { grid: 2, ..good },
            Search { refine: 1_000_000, ..good },
        ];
        assert!(bad.iter().all(|search| search.check().is_err()));
    }
}
