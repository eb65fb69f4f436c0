//! The servers on which searches are compared: two of formulas, a simulated memcached at four
//! loads, and records of live servers (`recorded.rs`).
//!
//! A surface has the truth of every setting, and draws trials of it. Those of the simulated
//! server are stretches of one run of each setting; the truth is all of them together.

use anyhow::Result;
use lull_control::{Capability, Rng};
use lull_lab::server::{Cell, ServerScenario, ServerSetting};
use lull_measure::statistics::normal_quantile;
use lull_measure::{Latency, Nanos};
use lull_policies::search::{Dimension, Level, Reading, SearchPoint, Space};
use rand::RngExt;
use rand_distr::{Distribution, LogNormal, Poisson};
use rayon::prelude::*;

/// The bound on the p99 of every surface.
pub(super) const BOUND_US: f64 = 500.0;
/// Share of requests that may be late.
const ALLOWED: f64 = 0.01;
/// Loads of the simulated server.
const LOADS_PER_S: [f64; 4] = [200e3, 400e3, 600e3, 700e3];
/// Stretches of a simulated run; a trial is one of them.
const STRETCHES: u64 = 4;
const WARMUP: Nanos = Nanos::from_millis(20);
const STRETCH: Nanos = Nanos::from_millis(100);
/// Probability of the next trial that a search has to show.
const SHOWN: f64 = 0.95;
/// Tail over bound that is assumed of a server that does not keep up.
const OVERLOAD: f64 = 5.0;
/// The tail of a trial with a burst.
#[cfg(test)]
const BURST_US: f64 = 4.0 * BOUND_US;

/// Tail and power of a setting without noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Truth {
    pub(super) tail_us: f64,
    pub(super) watts: f64,
}

/// A server with its settings.
pub(super) struct Surface {
    pub(super) name: String,
    pub(super) space: Space,
    /// Indexed by the number of the point.
    truths: Vec<Truth>,
    trials: Trials,
}

/// A surface that formulas give.
struct Formula {
    truth: fn(&[f64]) -> Truth,
    /// Standard deviation of the logarithm of a trial's tail.
    noise: f64,
    /// The requests of a trial.
    requests: u64,
}

/// The source of a trial.
enum Trials {
    /// The true surface with lognormal noise of the tail, of this many requests.
    Formula { noise: f64, requests: u64 },
    /// One of these readings, at random.
    Measured(Vec<Vec<Reading>>),
    /// Readings of a formula, with a burst in this share of the trials of some settings.
    #[cfg(test)]
    Bursts { share: f64, without: Box<Surface> },
}

impl Surface {
    /// The two of formulas, and the simulated server at its four loads.
    ///
    /// # Errors
    /// If the server cannot be simulated.
    pub(super) fn all(server: &ServerScenario) -> Result<Vec<Self>> {
        let mut all = Self::from_formulas();
        for load in LOADS_PER_S {
            all.push(Self::simulated(server, load)?);
        }
        Ok(all)
    }

    /// The simulated server at loads on which the rules of searches were not chosen.
    ///
    /// # Errors
    /// If the server cannot be simulated.
    #[cfg(test)]
    pub(super) fn held_out(server: &ServerScenario) -> Result<Vec<Self>> {
        [250e3, 300e3, 500e3, 650e3].into_iter().map(|load| Self::simulated(server, load)).collect()
    }

    /// A server of formulas whose frequencies below 1.65 GHz have a burst in this share of their
    /// trials, with a tail of four times the bound; a setting with bursts misses the bound.
    #[cfg(test)]
    pub(super) fn with_bursts(share: f64) -> Self {
        let truth = |values: &[f64]| match values[1] < 1.65 {
            true => Truth { tail_us: BURST_US, ..frequency_server(values) },
            false => frequency_server(values),
        };
        let [formula, without] = [truth, frequency_server]
            .map(|truth: fn(&[f64]) -> Truth| Formula { truth, noise: 0.02, requests: 100_000 });
        let name = format!("formulas, bursts in {:.0} % of trials", 100.0 * share);
        let bursts = Self::from_formula(&name, delays_and_frequencies(), &formula);
        let without = Self::from_formula(&name, delays_and_frequencies(), &without);
        Self { trials: Trials::Bursts { share, without: Box::new(without) }, ..bursts }
    }

    /// The two of formulas.
    pub(super) fn from_formulas() -> Vec<Self> {
        vec![
            Self::from_formula(
                "formulas, delay and frequency, 2 %",
                delays_and_frequencies(),
                &Formula { truth: frequency_server, noise: 0.02, requests: 100_000 },
            ),
            Self::from_formula(
                "formulas, delay and cores, 8 %",
                delays_and_cores(),
                &Formula { truth: core_server, noise: 0.08, requests: 2000 },
            ),
        ]
    }

    /// A surface whose trials are drawn from readings: those of each setting, in the order of the
    /// space's points, as are the truths.
    pub(super) fn from_readings(
        name: String,
        space: Space,
        truths: Vec<Truth>,
        readings: Vec<Vec<Reading>>,
    ) -> Self {
        Self { name, space, truths, trials: Trials::Measured(readings) }
    }

    fn from_formula(name: &str, space: Space, formula: &Formula) -> Self {
        let &Formula { truth, noise, requests } = formula;
        let truths = space.points().map(|point| truth(&space.values(&point))).collect();
        Self { name: name.to_owned(), space, truths, trials: Trials::Formula { noise, requests } }
    }

    fn simulated(server: &ServerScenario, rate_per_s: f64) -> Result<Self> {
        let (model, space) = (server.model.at_rate(rate_per_s), server.grid.only());
        let one = |setting: &ServerSetting| -> Result<(Truth, Vec<Reading>)> {
            let mut server = model.simulation(1, 0)?;
            setting.apply_to(&model, &mut server);
            server.run_until(WARMUP);
            let mut together = Latency::default();
            let mut readings = Vec::new();
            for _ in 0..STRETCHES {
                server.forget();
                server.run_until(server.now() + STRETCH);
                let totals = server.event_loop_totals();
                let of = (usize::from(model.cores), lull_measure::Percentile::P99);
                let cell = Cell::from_totals(rate_per_s, *setting, &totals, of);
                readings.push(reading(&cell, &totals.latency));
                together.merge(&totals.latency);
            }
            Ok((pooled(&readings, &together), readings))
        };
        let all = server.grid.settings().par_iter().map(one).collect::<Result<Vec<_>>>()?;
        let (truths, readings) = all.into_iter().unzip();
        let name = format!("simulated memcached, {} K requests/s", rate_per_s / 1e3);
        Ok(Self::from_readings(name, space, truths, readings))
    }

    /// Returns the truth of a setting.
    pub(super) fn truth(&self, point: &SearchPoint) -> Truth {
        self.truths[self.number(point)]
    }

    /// Returns the least power of the settings that meet the bound.
    pub(super) fn least_watts(&self) -> f64 {
        let met = self.truths.iter().filter(|it| it.tail_us <= BOUND_US);
        met.map(|it| it.watts).fold(f64::INFINITY, f64::min)
    }

    /// Returns the least power of the settings that meet the bound and whose next trial meets it
    /// with a probability of 95 %, which is what a search has to show.
    pub(super) fn least_showable_watts(&self) -> f64 {
        let settings = self.truths.iter().enumerate();
        let showable = settings.filter(|(at, it)| it.tail_us <= BOUND_US && self.is_showable(*at));
        showable.map(|(_, it)| it.watts).fold(f64::INFINITY, f64::min)
    }

    /// Whether a trial of the setting with this number meets the bound with that probability.
    fn is_showable(&self, number: usize) -> bool {
        match &self.trials {
            Trials::Measured(all) => {
                let met = all[number].iter().filter(|it| it.tail_us <= BOUND_US).count();
                met as f64 >= SHOWN * all[number].len() as f64
            }
            Trials::Formula { noise, .. } => {
                let log = (self.truths[number].tail_us / BOUND_US).ln();
                log <= noise * normal_quantile(1.0 - SHOWN)
            }
            #[cfg(test)]
            Trials::Bursts { without, .. } => without.is_showable(number),
        }
    }

    /// Draws a trial of a setting.
    pub(super) fn trial(&self, point: &SearchPoint, rng: &mut Rng) -> Reading {
        let number = self.number(point);
        match &self.trials {
            Trials::Measured(all) => all[number][rng.random_range(0..all[number].len())],
            Trials::Formula { noise, requests } => {
                noisy(self.truths[number], *noise, *requests, rng)
            }
            #[cfg(test)]
            Trials::Bursts { share, without } => {
                let truth = self.truths[number];
                match truth.tail_us == BURST_US && rng.random_bool(*share) {
                    true => noisy(truth, 0.02, 100_000, rng),
                    false => without.trial(point, rng),
                }
            }
        }
    }

    fn number(&self, point: &SearchPoint) -> usize {
        let dimensions = self.space.dimensions().iter().zip(&point.0);
        dimensions.fold(0, |number, (it, level)| number * it.levels.len() + usize::from(*level))
    }
}

/// A trial of a server whose latencies are exponential beyond the median: at a tail equal to the
/// bound, 1 % is late.
fn noisy(truth: Truth, noise: f64, requests: u64, rng: &mut Rng) -> Reading {
    let factor = LogNormal::new(0.0, noise).map_or(1.0, |normal| normal.sample(rng));
    let tail_us = truth.tail_us * factor;
    let mean = ALLOWED.powf(BOUND_US / tail_us) * requests as f64;
    let late = Poisson::new(mean.max(1e-9)).map_or(0.0, |poisson| poisson.sample(rng));
    let late = (late as u64).min(requests);
    Reading { tail_us, watts: truth.watts, requests, late, progress_per_s: None }
}

fn reading(cell: &Cell, latency: &Latency) -> Reading {
    let tail_us = cell.tail_us;
    let tail_us = if cell.keeps_up() { tail_us } else { tail_us.max(OVERLOAD * BOUND_US) };
    let unanswered = cell.arrived.saturating_sub(cell.answered);
    let late = latency.count_above(Nanos::from_secs_f64(BOUND_US / 1e6)) + unanswered;
    let requests = cell.arrived.max(1);
    Reading { tail_us, watts: cell.watts, requests, late, progress_per_s: None }
}

fn pooled(readings: &[Reading], together: &Latency) -> Truth {
    let tail = together.quantile(lull_measure::Percentile::P99);
    let pooled = tail.map_or(f64::INFINITY, Nanos::as_micros_f64);
    let is_over = readings.iter().any(|it| it.tail_us >= OVERLOAD * BOUND_US);
    Truth {
        tail_us: if is_over { pooled.max(OVERLOAD * BOUND_US) } else { pooled },
        watts: readings.iter().map(|it| it.watts).sum::<f64>() / readings.len() as f64,
    }
}

/// Returns the levels of a knob with their positions on its scale.
fn levels(values: impl Iterator<Item = f64>, scale: fn(f64) -> f64) -> Vec<Level> {
    let values: Vec<f64> = values.collect();
    let (low, high) = (scale(values[0]), scale(values[values.len() - 1]));
    let level = |value: &f64| {
        let at = (scale(*value) - low) / (high - low);
        Level { value: *value, at, settings: Vec::new() }
    };
    values.iter().map(level).collect()
}

fn delays(count: u16) -> Dimension {
    let levels = levels((0..count).map(|step| 2.0 * f64::from(step)), f64::sqrt);
    Dimension { knob: Capability::Coalescing, levels, fast: 10 }
}

fn delays_and_frequencies() -> Space {
    let levels = levels((0..18).map(|step| 1.2 + 0.1 * f64::from(step)), |ghz| ghz);
    Space::new(vec![delays(500), Dimension { knob: Capability::Frequency, levels, fast: 17 }])
}

fn delays_and_cores() -> Space {
    let levels = levels((1..=18).map(f64::from), f64::ln);
    Space::new(vec![delays(501), Dimension { knob: Capability::Cores, levels, fast: 17 }])
}

/// Equations 1 and 2 of Dong et al. 2026 with a queue that runs away, and power that delays and
/// frequencies move.
fn frequency_server(values: &[f64]) -> Truth {
    let (delay, ghz) = (values[0], values[1]);
    let load = (0.9 + 20.0 / (delay + 40.0)) / ghz;
    let queue = if load < 0.97 { 1.0 / (1.0 - load) } else { 40.0 };
    let watts = 25.0 + 12.0 * ghz.powi(2) + 600.0 / (delay + 40.0);
    Truth { tail_us: 60.0 * queue / ghz.powf(0.6) + 0.8 * delay, watts }
}

/// Fewer cores cost less and are slower, delays save and wait.
fn core_server(values: &[f64]) -> Truth {
    let (delay, cores) = (values[0], values[1]);
    let load = 5.0 + 60.0 / (delay + 15.0);
    let queueing = if cores > load { cores / (cores - load) } else { 50.0 };
    Truth {
        tail_us: 0.6 * delay + 90.0 * queueing,
        watts: 20.0 + 3.0 * cores + 500.0 / (delay + 30.0),
    }
}
