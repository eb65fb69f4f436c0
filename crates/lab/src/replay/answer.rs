//! A whole replay: the fit, the recorded policy, and the others if that one is reproduced.

use super::Replay;
use super::model::Fit;
use super::play::{ReplayError, Steered};
use super::predict::Reproduction;
use crate::progress::Progress;
use crate::report::number_text;
use crate::scenario::Outcome;
use std::fmt::Display;

/// The result of a replay.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The fitted parameters.
    pub fit: Fit,
    /// The recorded policy, measured and replayed.
    pub reproduction: Reproduction,
    /// The largest relative error of the reproduction; infinite if no figure can be judged.
    pub error: f64,
    /// The figure with that error.
    pub error_of: String,
    /// The largest relative error that allows a prediction.
    pub error_max: f64,
    /// The recorded policy and the others; absent if the record is not reproduced.
    pub prediction: Option<Outcome>,
}

impl Replay<'_> {
    /// Fits the model, replays the recorded policy, and predicts the others if no figure of the
    /// replay is off by more than `error_max`. `fitted` is called once the model is fitted.
    ///
    /// # Errors
    /// If a policy cannot be simulated, or a stop is requested.
    pub fn answer(
        &self,
        others: &[Steered],
        error_max: f64,
        progress: &Progress<'_>,
        fitted: impl FnOnce(),
    ) -> Result<Answer, ReplayError> {
        let fit = self.calibrate(progress)?;
        fitted();
        let reproduction = self.reproduce(&fit, progress)?;
        let (error, error_of) = match reproduction.worst() {
            Some((figure, error)) => (error, figure.quantity.id.clone()),
            // Without any figure the error is too large for a prediction.
            None => (f64::INFINITY, "all figures: too few answers to judge any".to_owned()),
        };
        let prediction = match error <= error_max {
            true => Some(self.predict(&fit, &reproduction, others, progress)?),
            false => None,
        };
        Ok(Answer { fit, reproduction, error, error_of, error_max, prediction })
    }
}

impl Answer {
    /// Says why nothing is predicted, and what to do; `run` is the record.
    pub fn shortfall(&self, run: impl Display, policy: &str) -> String {
        format!(
            "{run}: the replay of `{policy}` is off by {} % in {}, above --max-error {} %: nothing \
             is predicted. Record on a quieter machine, longer, or choose the steady part with \
             --skip",
            number_text(100.0 * self.error),
            self.error_of,
            number_text(100.0 * self.error_max)
        )
    }
}

impl ReplayError {
    /// The error of the replay of this record, for people.
    pub fn of_run(&self, run: impl Display) -> String {
        match self {
            Self::Unfit(why) => format!("{run} cannot be replayed: {why}"),
            Self::Policy(_) | Self::Beyond { .. } | Self::Model(_) => format!("{run}: {self}"),
            Self::Stopped => self.to_string(),
        }
    }
}
