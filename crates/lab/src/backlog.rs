//! The control error of a server under DVFS: how far its clock is behind what its load needs.
//! Source: Wang et al., TRIOS 2013, section 4.1.
//!
//! The section defines the error twice. As an algorithm: work launched minus work
//! completed, at the end of each window, which is the backlog. As a formula:
//! `|work done - required|` in the window, with the backlog at its start and
//! the arrivals as what is required. Both count a task as a whole, at its
//! mean, in seconds on a core at full speed.

use crate::trial::{PlantAt, Trial};
use lull_measure::Nanos;
use lull_sim::model::{Model, Step};
use lull_sim::plant::ControllerTurn;

/// Measures the control error of every plant of a trial, window by window.
#[derive(Debug, Clone)]
pub struct ErrorMeter {
    plants: Vec<PlantAt>,
    /// Mean work of a piece at each plant, in seconds at full speed.
    piece_s: Vec<f64>,
    /// Arrivals counted and pieces present at the last window's end.
    before: Vec<Option<(u64, u32)>>,
    /// Highest frequency seen of each plant.
    top_hz: Vec<f64>,
    sum: ControlError,
    windows: u64,
}

/// The error, in seconds of work at full speed per plant.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ControlError {
    /// Mean backlog at the ends of windows.
    pub backlog_mean_s: f64,
    /// Largest backlog.
    pub backlog_max_s: f64,
    /// Mean of |work done - required| over windows.
    pub window_mean_s: f64,
}

impl ErrorMeter {
    /// A meter for the plants of a trial, whose work is that of app `app`.
    pub fn new(trial: &Trial<'_>, app: usize) -> Self {
        let plants = trial.plants();
        let pieces = mean_pieces(trial.model, app);
        let top = |plant: &PlantAt| {
            let machine = trial.model.machine_of(&trial.model.tier[plant.tier]);
            let states = machine.cores.iter().filter_map(|group| group.pstates.first());
            states.map(|state| state.frequency.0 as f64).fold(0.0, f64::max)
        };
        Self {
            piece_s: plants.iter().map(|plant| pieces[plant.tier]).collect(),
            before: vec![None; plants.len()],
            top_hz: plants.iter().map(top).collect(),
            plants,
            sum: ControlError::default(),
            windows: 0,
        }
    }

    /// Adds one window of one plant; returns its backlog in seconds.
    pub fn observe(&mut self, turned: &ControllerTurn<'_>) -> f64 {
        let plant = turned.plant;
        let server = turned.engine.server_totals(self.plants[plant].server);
        let piece_s = self.piece_s[plant];
        let backlog_s = f64::from(server.present) * piece_s;
        self.sum.backlog_mean_s += backlog_s;
        self.sum.backlog_max_s = self.sum.backlog_max_s.max(backlog_s);
        self.windows += 1;
        // The end of the warm-up resets counters, so the first window has no count of arrivals.
        if let Some((arrivals, present)) = self.before[plant] {
            let arrived = server.arrivals.saturating_sub(arrivals);
            let required = (f64::from(present) + arrived as f64) * piece_s;
            self.sum.window_mean_s += (work_done(turned, self.top_hz[plant]) - required).abs();
        }
        self.before[plant] = Some((server.arrivals, server.present));
        backlog_s
    }

    /// Returns the error over all windows so far.
    pub fn read(&self) -> ControlError {
        let windows = self.windows.max(1) as f64;
        ControlError {
            backlog_mean_s: self.sum.backlog_mean_s / windows,
            backlog_max_s: self.sum.backlog_max_s,
            window_mean_s: self.sum.window_mean_s / windows,
        }
    }
}

/// `util * clock rate * time window`, in seconds at full speed.
fn work_done(turned: &ControllerTurn<'_>, top_hz: f64) -> f64 {
    let epoch_s = turned.seen.epoch.as_secs_f64();
    let cores = turned.seen.cores.iter();
    cores
        .filter_map(|core| {
            // A core without P-states has no frequency: it is always at full speed.
            let pace = core.frequency.as_ref().map_or(1.0, |clock| clock.0 as f64 / top_hz);
            Some(core.utilisation.as_ref().ok()? * pace * epoch_s)
        })
        .sum()
}

/// Mean work of one piece of an app's work at each tier, in seconds.
fn mean_pieces(model: &Model, app: usize) -> Vec<f64> {
    let each = model.demands_s(app).into_iter().zip(pieces(model, app));
    each.map(|(work_s, pieces)| if pieces > 0.0 { work_s / pieces } else { 0.0 }).collect()
}

/// Mean number of pieces of work that a request of an app brings to each tier.
pub(crate) fn pieces(model: &Model, app: usize) -> Vec<f64> {
    let mut counting = model.clone();
    set_to_a_second(&mut counting.app[app].steps);
    counting.demands_s(app)
}

/// Each piece of work takes a second here, so the demand is the number of pieces.
fn set_to_a_second(steps: &mut [Step]) {
    for step in steps {
        match step {
            Step::Work(work) => work.mean = Nanos::from_secs(1),
            Step::Call { steps, .. } | Step::Hold { steps, .. } | Step::Repeat { steps, .. } => {
                set_to_a_second(steps);
            }
            Step::Choose(ways) => {
                ways.iter_mut().for_each(|way| set_to_a_second(&mut way.steps));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_sim::model::{App, Distribution, Source, Tier};

    #[test]
    fn a_piece_is_the_mean_of_an_apps_work_at_a_tier() {
        let work = |ms| Step::Work(Distribution::exponential(Nanos::from_millis(ms)));
        let call = |tier: &str, steps| Step::Call { tier: tier.to_owned(), steps };
        let steps = vec![call("front", vec![work(2), call("back", vec![work(5)]), work(4)])];
        let model = Model {
            tier: vec![Tier::named("front"), Tier::named("back"), Tier::named("idle")],
            app: vec![App { name: "a".into(), source: Source::poisson(1.0), priority: 0, steps }],
            ..Model::default()
        };
        assert_eq!(mean_pieces(&model, 0), [0.003, 0.005, 0.0]);
    }
}
