//! `[power]`: the model used where nothing measures energy.

use crate::power_file::PowerFile;
use lull_host::gauges::energy::PowerModel;
use lull_measure::Watts;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

/// `[power]`: constants of the power model used where nothing measures.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PowerSection {
    /// Power of the machine without its cores.
    #[schemars(extend("x-unit" = "W"))]
    pub base_watts: f64,
    /// Power of a busy core.
    #[schemars(extend("x-unit" = "W"))]
    pub busy_core_watts: f64,
    /// Power of an idle core.
    #[schemars(extend("x-unit" = "W"))]
    pub idle_core_watts: f64,
    /// A model that `lull calibrate power` has written on a machine of the same
    /// kind, instead of the other keys.
    #[schemars(example = &"/etc/lull/power.toml")]
    pub file: Option<PathBuf>,
}

impl PowerSection {
    /// Returns the model that the keys or the file describe.
    ///
    /// # Errors
    /// The key and the fault.
    pub fn model(&self) -> Result<PowerModel, (&'static str, String)> {
        if let Some(file) = &self.file {
            if *self != (Self { file: self.file.clone(), ..Self::default() }) {
                return Err(("file", "has all constants: leave the other keys out".to_owned()));
            }
            return PowerFile::read(file).map(|file| file.model()).map_err(|why| ("file", why));
        }
        let constants = [
            ("base_watts", self.base_watts),
            ("busy_core_watts", self.busy_core_watts),
            ("idle_core_watts", self.idle_core_watts),
        ];
        let wrong = constants.into_iter().find(|(_, watts)| !(*watts >= 0.0 && watts.is_finite()));
        if let Some((key, watts)) = wrong {
            return Err((key, format!("{watts} is not a power: write watts, 0 or more")));
        }
        Ok(PowerModel {
            base: Watts(self.base_watts),
            busy: Watts(self.busy_core_watts),
            idle: Watts(self.idle_core_watts),
            ..PowerModel::default()
        })
    }
}

impl Default for PowerSection {
    /// The host's own model.
    fn default() -> Self {
        let model = PowerModel::default();
        Self {
            base_watts: model.base.0,
            busy_core_watts: model.busy.0,
            idle_core_watts: model.idle.0,
            file: None,
        }
    }
}
