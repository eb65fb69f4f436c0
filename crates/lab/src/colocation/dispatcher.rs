//! The dispatcher of an app's requests on a simulated machine.

use super::gate::read_named;
use lull_control::dispatcher::{Dispatcher, DispatcherError};
use lull_control::{AppSpec, PolicyError};
use lull_measure::{Nanos, Percentile};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use lull_sim::machine::MachineModel;

/// Requests in the profile that dispatchers are built from: as in EETL (Haque et al., MICRO
/// 2017), section 4.3.
const PROFILE: usize = 8000;

/// A dispatcher with its config.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RequestDispatcher {
    name: String,
    config: toml::Table,
}

impl RequestDispatcher {
    /// Reads `dispatcher = { name = "eetl", ... }`.
    ///
    /// # Errors
    /// If it is not a table with a name.
    pub(crate) fn read(written: toml::Value) -> Result<Self, String> {
        let (name, config) = read_named(written, "dispatcher", "eetl")?;
        Ok(Self { name, config })
    }

    /// Builds it for the app that a machine dispatches.
    ///
    /// # Errors
    /// If there is none of this name, its keys are wrong, or the machine dispatches no app with
    /// a latency objective.
    pub(crate) fn build(
        &self,
        model: &MachineModel,
        apps: &[AppSpec],
        seed: u64,
    ) -> Result<Box<dyn Dispatcher>, PolicyError> {
        let error = |message: &str| error_of("dispatcher", message);
        let part = model.dispatch.as_ref();
        let part = part.ok_or_else(|| {
            error("the machine dispatches no app: write dispatch = { app = \"...\" } in [node]")
        })?;
        let tail = apps.iter().find(|app| app.name == part.app).and_then(AppSpec::tail);
        let (percentile, target): (Percentile, Nanos) =
            tail.ok_or_else(|| error("the app of `node.dispatch` has no latency objective"))?;
        let ladder = model.ladder().map_err(|wrong| error(&wrong.to_string()))?;
        let profile = model.profile(PROFILE, seed);
        let site = Site { ladder: &ladder, percentile, target, profile: &profile };
        let built = DISPATCHERS.build(&self.name, &self.config, &site);
        built.map_err(|wrong| {
            let error = match wrong {
                DispatcherError::Config(error) => error,
                other => error_of("name", &other.to_string()),
            };
            error.within("dispatcher")
        })
    }
}

fn error_of(key: &str, message: &str) -> PolicyError {
    PolicyError::Config { key: key.to_owned(), message: message.to_owned() }
}
