//! A power model in a file: written by `lull calibrate power`, used by
//! `[power] file` of a config on a machine of the same kind that has no meter.

use lull_host::gauges::energy::{ByFrequency, PowerModel};
use lull_measure::{Hertz, Watts};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The file. Terms that were not measured are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerFile {
    /// Power of the machine with all cores idle.
    pub base_watts: f64,
    /// Additional power of a busy core, at any frequency.
    pub busy_core_watts: f64,
    /// Further power of a busy core at `full_hertz`; below, it scales with the frequency cubed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_core_watts: Option<f64>,
    /// The frequency at which a busy core takes `dynamic_core_watts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_hertz: Option<u64>,
    /// Additional power of an idle core that is not in its deepest state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shallow_core_watts: Option<f64>,
    /// How the constants were measured.
    pub calibration: Calibration,
}

/// How the constants were measured and how well the model fits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The machine's processor.
    pub machine: String,
    /// Cores of the machine.
    pub cores: usize,
    /// The meter that measured the power.
    pub meter: String,
    /// Steps that were measured.
    pub steps: usize,
    /// Root mean square error of the model on steps that it was not fitted to.
    pub off_watts: f64,
    /// Root mean square error on the steps that it was fitted to.
    pub residual_watts: f64,
    /// Share of the variance of power that it explains.
    pub explained_ratio: f64,
    /// Terms that are left out, and why.
    pub notes: Vec<String>,
    /// The version of Lull.
    pub version: String,
}

impl PowerFile {
    /// Combines a model with its calibration.
    pub fn new(model: &PowerModel, calibration: Calibration) -> Self {
        Self {
            base_watts: model.base.0,
            busy_core_watts: model.busy.0,
            dynamic_core_watts: model.by_frequency.map(|part| part.dynamic.0),
            full_hertz: model.by_frequency.map(|part| part.full.0),
            shallow_core_watts: model.shallow.map(|watts| watts.0),
            calibration,
        }
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// The fault, with the file's name.
    pub fn read(path: &Path) -> Result<Self, String> {
        let wrong = |what: String| format!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path)
            .map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let file: Self = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        file.check().map_err(wrong)?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        let constants = [
            ("base_watts", Some(self.base_watts)),
            ("busy_core_watts", Some(self.busy_core_watts)),
            ("dynamic_core_watts", self.dynamic_core_watts),
            ("shallow_core_watts", self.shallow_core_watts),
        ];
        for (key, value) in constants {
            if value.is_some_and(|watts| !(watts >= 0.0 && watts.is_finite())) {
                return Err(format!("{key} must be 0 or more"));
            }
        }
        if self.dynamic_core_watts.is_some() != self.full_hertz.is_some_and(|hertz| hertz > 0) {
            return Err("dynamic_core_watts and full_hertz go together".to_owned());
        }
        Ok(())
    }

    /// Returns the model, which labels every figure with its calibration.
    pub fn model(&self) -> PowerModel {
        let Calibration { machine, meter, off_watts, .. } = &self.calibration;
        let parts = self.dynamic_core_watts.zip(self.full_hertz);
        let by_frequency =
            |(dynamic, full)| ByFrequency { dynamic: Watts(dynamic), full: Hertz(full) };
        PowerModel {
            base: Watts(self.base_watts),
            busy: Watts(self.busy_core_watts),
            idle: Watts(0.0),
            by_frequency: parts.map(by_frequency),
            shallow: self.shallow_core_watts.map(Watts),
            calibration: Some(format!("on {machine} against {meter}, off by {off_watts:.2} W")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "base_watts = 20.0\nbusy_core_watts = 1.5\ndynamic_core_watts = 4.0\n\
        full_hertz = 2400000000\n\n[calibration]\nmachine = \"a Xeon\"\ncores = 8\n\
        meter = \"RAPL package-0\"\nsteps = 14\noff_watts = 0.31\nresidual_watts = 0.2\n\
        explained_ratio = 0.99\nnotes = []\nversion = \"0.1.0\"\n";

    fn read(text: &str) -> Result<PowerFile, String> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("power.toml");
        std::fs::write(&path, text).unwrap();
        PowerFile::read(&path)
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_its_model_names_the_calibration() {
        let file = read(TEXT).unwrap();
        assert_eq!(toml::to_string(&file).unwrap(), TEXT);
        let model = file.model();
        assert_eq!(PowerFile::new(&model, file.calibration.clone()), file);
        let source = model.source().to_string();
        let wanted = "modelled: calibrated on a Xeon against RAPL package-0, off by 0.31 W: 20 W";
        assert!(source.starts_with(wanted), "{source}");
        assert_eq!(model.shallow, None);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused_by_key() {
        let cases = [
            (TEXT.replace("1.5", "-1.5"), "busy_core_watts must be"),
            (TEXT.replace("20.0", "nan"), "base_watts must be"),
            (TEXT.replace("full_hertz = 2400000000\n", ""), "go together"),
            (TEXT.replace("full_hertz = 2400000000", "full_hertz = 0"), "go together"),
            (TEXT.replace("base_watts", "basis_watts"), "basis_watts"),
            (TEXT.replace("[calibration]", "[calibrated]"), "calibrated"),
        ];
        for (text, hint) in cases {
            let why = read(&text).unwrap_err();
            assert!(why.contains(hint) && why.contains("power.toml"), "{why}");
        }
    }
}
