//! The model of a dispatched machine and its load: plain data.

use crate::idle::{IdleRule, IdleState};
use crate::machine::{
    Activity, CoreTypes, DispatchPart, LinuxScheduler, LoadStep, MachineApp, MachineModel, Power,
};
use crate::model::{
    Checked, Distribution, ModelError, Problem, above_0, at_least_0, at_most, check_distribution,
    range, refuse_if, some, unique,
};
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_control::dispatcher::{CoreSpeed, Ladder, Supply};
use lull_measure::{Hertz, Nanos, Watts};
use rand::RngExt;
use serde::{Deserialize, Serialize};

/// The name of the app on the machine.
const APP: &str = "requests";
/// Most cores of a machine.
pub const CORES_MAX: u32 = 64;
/// Highest speed of a core and highest power in watts: sums over all cores stay finite.
const FIGURE_MAX: f64 = 1e6;
/// The only frequency; it has no meaning, for work is time at speed 1.
const ONE_SPEED: Hertz = Hertz(1_000_000_000);

/// A dispatched machine and its load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DispatchModel {
    /// Core types, slowest first.
    pub types: Vec<CoreSpeed>,
    /// Cores of them.
    pub supply: Supply,
    /// Arrivals: Poisson at the first rate, then at the next; the last one stays.
    pub load: Vec<RateStep>,
    /// Work of a request, as time alone on a core of speed 1.
    pub work: RequestWork,
    /// Cost of a migration: time without progress when a request changes its core, or
    /// its core changes its speed.
    #[serde(default)]
    pub move_cost: Nanos,
    /// Static power of a core for each unit of its highest speed, at every level and
    /// also while idle.
    #[serde(default)]
    pub static_watts: Watts,
    /// How much all running requests are slowed for each unit of running
    /// speed beyond the first: pace 1/(1 + x (sum of speeds - 1)).
    #[serde(default)]
    pub interference: f64,
    /// Age at which a request is abandoned, so that one that never ends, or whose
    /// thread has died, does not hold its core for ever.
    #[serde(default)]
    pub abandon: Option<Nanos>,
}

/// Poisson arrivals at one rate, for a number of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateStep {
    /// Requests per second.
    pub rate_per_s: f64,
    /// Requests at this rate; none for the last step, which never ends.
    #[serde(default)]
    pub requests: Option<u64>,
}

/// Distribution of the work of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestWork {
    /// Drawn from a distribution.
    Drawn(Distribution),
    /// Drawn from a list, each entry as likely: a measured profile.
    Listed(Vec<Nanos>),
}

impl DispatchModel {
    /// A node of these cores under Poisson arrivals, without any overhead.
    pub fn new(types: Vec<CoreSpeed>, supply: Supply, rate_per_s: f64, work: RequestWork) -> Self {
        Self {
            types,
            supply,
            load: vec![RateStep { rate_per_s, requests: None }],
            work,
            move_cost: Nanos::ZERO,
            static_watts: Watts(0.0),
            interference: 0.0,
            abandon: None,
        }
    }

    /// The same node at a constant rate.
    #[must_use]
    pub fn at_rate(&self, rate_per_s: f64) -> Self {
        Self { load: vec![RateStep { rate_per_s, requests: None }], ..self.clone() }
    }

    /// The core types, checked.
    ///
    /// # Errors
    /// If they are not ordered, two have one name, or there are no cores or too many.
    pub fn ladder(&self) -> Result<Ladder, ModelError> {
        unique(self.types.iter().map(|one| one.name.as_str()), "types")?;
        for (at, CoreSpeed { speed, watts, .. }) in self.types.iter().enumerate() {
            figure(*speed, &format!("types[{at}].speed"))?;
            figure(watts.0, &format!("types[{at}].watts"))?;
        }
        let ladder = Ladder::new(self.types.clone(), self.supply.clone()).map_err(|error| {
            let problem = Problem::Ladder(Box::new(error));
            ModelError { key: "types".to_owned(), problem }
        })?;
        at_most(ladder.all_cores() as u64, CORES_MAX.into(), "cores", "supply")?;
        Ok(ladder)
    }

    /// The same machine as one of optional parts, whose app has arrivals of its own.
    ///
    /// # Errors
    /// If the model is not sound.
    pub(super) fn machine(&self) -> Result<MachineModel, ModelError> {
        self.check()?;
        let ladder = self.ladder()?;
        let cores = ladder.all_cores();
        // They are given one by one.
        let load = vec![LoadStep { from: Nanos::ZERO, rate_per_s: 1.0 }];
        let activity = Activity::requests(Distribution::constant(Nanos(1)), load);
        let power = Power {
            voltage_ratio: 1.0,
            fixed: Watts(self.static_watts.0 * top_speeds(&ladder)),
            ..Power::default()
        };
        let (types, supply) = (self.types.clone(), self.supply.clone());
        let never = Nanos::MAX;
        Ok(MachineModel {
            core_types: Some(CoreTypes { types, supply }),
            interference: self.interference,
            idle: vec![IdleState::new("waiting", Nanos::ZERO, Nanos::ZERO, Watts(0.0))],
            idle_rule: IdleRule::Always(0),
            power: Some(power),
            scheduler: LinuxScheduler {
                switch_cost: Nanos::ZERO,
                balance: never,
                ..LinuxScheduler::default()
            },
            refresh: never,
            dispatch: Some(DispatchPart {
                app: APP.to_owned(),
                move_cost: self.move_cost,
                abandon: self.abandon,
            }),
            app: vec![MachineApp::new(APP, cores as u32, activity)],
            ..MachineModel::plain("dispatched", cores as u16, ONE_SPEED)
        })
    }

    /// Checks everything but the ladder.
    pub(super) fn check(&self) -> Checked {
        some(&self.load, "load", "give at least one rate")?;
        for (index, rate) in self.load.iter().enumerate() {
            above_0(rate.rate_per_s, &format!("load[{index}].rate_per_s"))?;
            let is_endless = rate.requests.is_none() && index + 1 < self.load.len();
            let never = "has no `requests`, so that the next rate would never begin";
            refuse_if(is_endless, format!("load[{index}]"), never)?;
        }
        at_least_0(self.static_watts.0, "static_watts")?;
        figure(self.static_watts.0, "static_watts")?;
        at_least_0(self.interference, "interference")?;
        match &self.work {
            RequestWork::Listed(list) => some(list, "work.listed", "give at least one time"),
            RequestWork::Drawn(work) => check_distribution(*work, "work.drawn"),
        }
    }

    /// Draws a profile: the work of this many requests, as an operator would measure
    /// it before choosing a dispatcher.
    ///
    /// # Errors
    /// If the model is not sound.
    pub fn profile(&self, requests: usize, seed: u64) -> Result<Vec<Nanos>, ModelError> {
        self.check()?;
        let mut draw = self.work.draw();
        let mut stream = Replication { seed, number: 0 }.stream(StreamPurpose::Profile, 0);
        Ok((0..requests).map(|_| Nanos(draw.sample(&mut stream) as u64)).collect())
    }
}

fn figure(value: f64, key: &str) -> Checked {
    range(value, value <= FIGURE_MAX, "at most 1e6", key)
}

/// Returns the sum of the highest speeds of all cores: the capacity of the machine.
pub fn top_speeds(ladder: &Ladder) -> f64 {
    let speed = |kind: usize| ladder.types()[kind].speed;
    if ladder.scales() {
        return ladder.all_cores() as f64 * speed(ladder.fastest());
    }
    (0..ladder.types().len()).map(|kind| speed(kind) * ladder.cores(kind) as f64).sum()
}

impl RequestWork {
    /// Mean work of a request; zero of an empty list.
    pub fn mean(&self) -> Nanos {
        match self {
            Self::Drawn(distribution) => distribution.mean,
            Self::Listed(list) => {
                let sum: u128 = list.iter().map(|work| u128::from(work.0)).sum();
                Nanos(sum.checked_div(list.len() as u128).unwrap_or(0) as u64)
            }
        }
    }

    pub(super) fn draw(&self) -> WorkDraw {
        match self {
            Self::Drawn(distribution) => WorkDraw::Drawn(distribution.draw()),
            Self::Listed(list) => WorkDraw::Listed(list.iter().map(|work| work.0 as f64).collect()),
        }
    }
}

/// Work made ready for drawing, in nanoseconds.
#[derive(Debug, Clone)]
pub(super) enum WorkDraw {
    Drawn(crate::model::Draw),
    Listed(Vec<f64>),
}

impl WorkDraw {
    #[inline]
    pub(super) fn sample(&mut self, stream: &mut Stream) -> f64 {
        match self {
            // A request of no work at all would end before it starts.
            Self::Drawn(draw) => draw.sample(stream).max(1.0),
            Self::Listed(list) => list[stream.random_range(0..list.len())].max(1.0),
        }
    }
}
