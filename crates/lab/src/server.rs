//! Grids of settings on a simulated network server, with tail and power of each.
//!
//! A [`Cell`] is one setting at one load for a span of simulated time. All cells of a load
//! serve the same requests and run in parallel; the result is the same bytes on any number
//! of threads. [`ServerFile`] is the file format of a server with its grid.

mod file;
mod records;

pub use file::{ServerFile, ServerFileError, ServerScenario};
pub use records::write_parquet;

use crate::progress::Progress;
use lull_control::Capability;
use lull_measure::{Latency, Nanos, Percentile};
use lull_policies::search::{SearchPoint, Space};
use lull_sim::model::ModelError;
use lull_sim::netserver::{EventLoopTotals, MachineSimulation, NetServerModel};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Share of the arrived requests that a server must answer to count as keeping up.
const KEEPS_UP: f64 = 0.97;

/// How long a cell runs, and with which random numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// The part at the beginning that is not counted.
    pub warmup: Nanos,
    /// The part that is counted.
    pub length: Nanos,
    /// Seed.
    pub seed: u64,
    /// Replication.
    pub replication: u64,
    /// The percentile of the objective, which is measured beside p50, p90 and p99.
    pub percentile: Percentile,
}

/// The settings to go through.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// All that can be set.
    pub space: Space,
    /// The delays to take, in microseconds; all if absent.
    pub delays_us: Option<Vec<f64>>,
    /// The frequencies to take, in GHz; all if absent.
    pub frequencies_ghz: Option<Vec<f64>>,
}

/// A setting of a network server.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ServerSetting {
    /// ITR delay, in microseconds; `None` leaves it to the driver.
    pub delay_us: Option<f64>,
    /// Frequency, in GHz; `None` leaves it to the governor.
    pub frequency_ghz: Option<f64>,
}

/// The measurement of one setting at one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Offered requests per second; 0 for a closed loop.
    pub rate_per_s: f64,
    /// ITR delay of the setting, in microseconds; `None` leaves it to the driver.
    pub delay_us: Option<f64>,
    /// Frequency of the setting, in GHz; `None` leaves it to the governor.
    pub frequency_ghz: Option<f64>,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests answered.
    pub answered: u64,
    /// Median latency, in microseconds.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The percentile of the objective, in percent.
    pub percentile: f64,
    /// The latency at that percentile, in microseconds.
    pub tail_us: f64,
    /// Mean power, in watts.
    pub watts: f64,
    /// Cycles a request.
    pub cycles_a_request: f64,
    /// Interrupts per second.
    pub interrupts_per_s: f64,
    /// Share of time that cores were busy.
    pub busy: f64,
}

impl Grid {
    /// The space of the grid alone.
    pub fn only(&self) -> Space {
        let mut space = self.space.clone();
        if let Some(delays) = &self.delays_us {
            space = space.only(Capability::Coalescing, delays);
        }
        if let Some(frequencies) = &self.frequencies_ghz {
            space = space.only(Capability::Frequency, frequencies);
        }
        space
    }

    /// Its settings.
    pub fn settings(&self) -> Vec<ServerSetting> {
        let space = self.only();
        space.points().map(|point| ServerSetting::from_point(&space, &point)).collect()
    }
}

impl ServerSetting {
    /// The settings of Linux by itself.
    pub const DEFAULT: Self = Self { delay_us: None, frequency_ghz: None };

    /// The setting at a point of a space.
    pub fn from_point(space: &Space, point: &SearchPoint) -> Self {
        let values = space.values(point);
        let value = |knob: Capability| {
            let at = space.dimensions().iter().position(|dimension| dimension.knob == knob)?;
            Some(values[at])
        };
        Self {
            delay_us: value(Capability::Coalescing),
            frequency_ghz: value(Capability::Frequency),
        }
    }

    /// Puts it on a server of this model.
    pub fn apply_to(self, model: &NetServerModel, server: &mut MachineSimulation) {
        server.set_delay(self.delay_us.map(|us| Nanos::from_secs_f64(us / 1e6)));
        let hertz = self.frequency_ghz.and_then(|ghz| {
            let wanted = (ghz * 1e9).round() as u64;
            model.frequencies.iter().copied().min_by_key(|hertz| hertz.0.abs_diff(wanted))
        });
        (0..usize::from(model.cores)).for_each(|core| server.hold(core, hertz));
    }
}

impl Cell {
    /// Runs one setting at one load (that of the model for a closed loop).
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub fn measure(
        model: &NetServerModel,
        rate_per_s: f64,
        setting: ServerSetting,
        run: Run,
    ) -> Result<Self, ModelError> {
        let totals = measure(model, rate_per_s, setting, run)?;
        let cores = usize::from(model.cores);
        Ok(Self::from_totals(rate_per_s, setting, &totals, (cores, run.percentile)))
    }

    /// Reads a cell from the totals of a run on this many cores, with this percentile beside the
    /// usual ones.
    pub fn from_totals(
        rate_per_s: f64,
        setting: ServerSetting,
        totals: &EventLoopTotals,
        (cores, percentile): (usize, Percentile),
    ) -> Self {
        let tail = |percent| quantile_us(&totals.latency, percent);
        let seconds = totals.span.as_secs_f64().max(f64::MIN_POSITIVE);
        Self {
            rate_per_s,
            delay_us: setting.delay_us,
            frequency_ghz: setting.frequency_ghz,
            arrived: totals.arrived,
            answered: totals.answered,
            p50_us: tail(50.0),
            p90_us: tail(90.0),
            p99_us: tail(99.0),
            percentile: percentile.percent(),
            tail_us: tail(percentile.percent()),
            watts: totals.watts(),
            cycles_a_request: totals.cycles / (totals.answered.max(1)) as f64,
            interrupts_per_s: totals.interrupts as f64 / seconds,
            busy: totals.busy.as_secs_f64() / seconds / cores as f64,
        }
    }

    /// Its setting.
    pub const fn setting(&self) -> ServerSetting {
        ServerSetting { delay_us: self.delay_us, frequency_ghz: self.frequency_ghz }
    }

    /// Returns the latency at a percentile that was measured: that of the objective, p50, p90 or
    /// p99. Any other is NaN, which meets no bound.
    pub fn tail_at(&self, percentile: f64) -> f64 {
        let measured = [
            (self.percentile, self.tail_us),
            (50.0, self.p50_us),
            (90.0, self.p90_us),
            (99.0, self.p99_us),
        ];
        measured.iter().find(|(at, _)| *at == percentile).map_or(f64::NAN, |(_, tail_us)| *tail_us)
    }

    /// Whether the server answered nearly all requests that arrived.
    pub fn keeps_up(&self) -> bool {
        self.answered as f64 >= KEEPS_UP * self.arrived as f64
    }
}

/// Runs one setting at one load; everything that is known of it.
///
/// # Errors
/// If the model cannot be simulated.
pub fn measure(
    model: &NetServerModel,
    rate_per_s: f64,
    setting: ServerSetting,
    run: Run,
) -> Result<EventLoopTotals, ModelError> {
    let mut server = model.at_rate(rate_per_s).simulation(run.seed, run.replication)?;
    setting.apply_to(model, &mut server);
    server.run_until(run.warmup);
    server.forget();
    server.run_until(run.warmup + run.length);
    Ok(server.event_loop_totals())
}

/// Runs all settings at all loads in parallel, in the order of loads, then settings.
///
/// # Errors
/// If the model cannot be simulated.
pub fn sweep(
    model: &NetServerModel,
    rates_per_s: &[f64],
    settings: &[ServerSetting],
    run: Run,
    progress: &Progress<'_>,
) -> Result<Vec<Cell>, ModelError> {
    let pairs: Vec<_> = rates_per_s
        .iter()
        .flat_map(|rate| settings.iter().map(move |setting| (*rate, *setting)))
        .collect();
    progress.expect(pairs.len() as u64);
    let one = |(rate, setting): &(f64, ServerSetting)| {
        let cell = Cell::measure(model, *rate, *setting, run);
        progress.step();
        cell
    };
    pairs.par_iter().map(one).collect()
}

/// The cells that no other beats in both tail and power, fastest first.
pub fn pareto(cells: &[Cell], percentile: f64) -> Vec<&Cell> {
    let mut all: Vec<_> = cells.iter().filter(|cell| cell.keeps_up()).collect();
    let tail = |cell: &Cell| cell.tail_at(percentile);
    all.sort_by(|a, b| tail(a).total_cmp(&tail(b)).then(a.watts.total_cmp(&b.watts)));
    let mut least = f64::INFINITY;
    all.retain(|cell| {
        let better = cell.watts < least;
        least = least.min(cell.watts);
        better
    });
    all
}

/// A quantile in microseconds; 0 without a request.
fn quantile_us(latency: &Latency, percent: f64) -> f64 {
    let at = Percentile::new(percent).unwrap_or(Percentile::P50);
    latency.quantile(at).map_or(0.0, Nanos::as_micros_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(p99_us: f64, watts: f64) -> Cell {
        Cell {
            rate_per_s: 1.0,
            delay_us: None,
            frequency_ghz: None,
            arrived: 100,
            answered: 100,
            p50_us: 1.0,
            p90_us: 2.0,
            p99_us,
            percentile: 99.9,
            tail_us: 2.0 * p99_us,
            watts,
            cycles_a_request: 1.0,
            interrupts_per_s: 1.0,
            busy: 0.5,
        }
    }

    #[test]
    fn a_front_descends_and_leaves_out_what_is_beaten_or_cannot_keep_up() {
        let mut cells = vec![cell(300.0, 50.0), cell(100.0, 80.0), cell(200.0, 90.0)];
        cells.push(Cell { answered: 50, ..cell(50.0, 10.0) });
        let front: Vec<_> = pareto(&cells, 99.0).iter().map(|cell| cell.p99_us).collect();
        assert_eq!(front, [100.0, 300.0]);
    }

    #[test]
    fn a_tail_is_that_of_its_own_percentile_and_no_other_replaces_it() {
        let cell = cell(300.0, 50.0);
        let tails = [50.0, 90.0, 99.0, 99.9].map(|at| cell.tail_at(at));
        assert_eq!(tails, [1.0, 2.0, 300.0, 600.0]);
        assert!(cell.tail_at(95.0).is_nan());
    }
}
