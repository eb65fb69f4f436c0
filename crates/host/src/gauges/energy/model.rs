//! A power model for machines without a meter.
//!
//! `P = base + sum over online cores of (busy u + idle (1 - u)`
//! `        + dynamic u (f/full)^3 + shallow max(1 - u - d, 0))`
//!
//! with `u` the core's utilisation, `f` its frequency and `d` its share of time
//! in the deepest idle state. Linear in utilisation (Fan, Weber, Barroso: Power
//! provisioning for a warehouse-sized computer, ISCA 2007, section 3.2), split by
//! core so that consolidating work on few cores shows. The last two terms are
//! there only where `lull calibrate power` has measured them; the constants
//! assumed otherwise are blind to frequency and to the depth of idle states:
//! good for comparing two runs on one machine, not for a bill.

use lull_control::{CoreObservation, EnergyObservation, EnergySource};
use lull_measure::{Gauge, Hertz, Missing, Nanos, Watts};
use std::fmt::Write as _;

/// Constants of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct PowerModel {
    /// A core that is busy all the time, at any frequency.
    pub busy: Watts,
    /// A core that is idle all the time, in its deepest state if `shallow` is known.
    pub idle: Watts,
    /// Everything that does not depend on the cores.
    pub base: Watts,
    /// The additional power of a busy core by its frequency.
    pub by_frequency: Option<ByFrequency>,
    /// The additional power of an idle core that is not in its deepest state.
    pub shallow: Option<Watts>,
    /// The source of the constants and how well they fit; `None` if they are assumed.
    pub calibration: Option<String>,
}

/// The part of a busy core's power that is proportional to the cube of its frequency:
/// `C V^2 f` with a voltage that follows the frequency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ByFrequency {
    /// Power at full frequency.
    pub dynamic: Watts,
    /// The full frequency.
    pub full: Hertz,
}

impl Default for PowerModel {
    /// Orders of magnitude of a server socket: 5 W a busy core, 0.5 W an idle
    /// one, 20 W for the rest. Not measured on any machine.
    fn default() -> Self {
        Self {
            busy: Watts(5.0),
            idle: Watts(0.5),
            base: Watts(20.0),
            by_frequency: None,
            shallow: None,
            calibration: None,
        }
    }
}

impl ByFrequency {
    /// The cube of a frequency, as a share of the full one.
    pub(crate) fn cube(full: Hertz, frequency: Hertz) -> f64 {
        (frequency.0 as f64 / full.0 as f64).powi(3)
    }
}

impl PowerModel {
    /// Energy of a span in which the cores were seen like this; offline cores
    /// take none.
    ///
    /// # Errors
    /// If no core's utilisation is known, or a core lacks what the model needs.
    pub(crate) fn energy(
        &self,
        span: Nanos,
        cores: &[CoreObservation],
    ) -> Gauge<EnergyObservation> {
        let online = || cores.iter().filter(|core| core.utilisation.is_ok());
        if let (None, Some(Err(why))) = (online().next(), cores.first().map(|it| &it.utilisation)) {
            return Err(Missing::because(format!("the power model needs utilisation: {why}")));
        }
        let mut power = self.base;
        for core in online() {
            power.0 += self.of_core(core)?;
        }
        Ok(EnergyObservation { energy: power.during(span), source: self.source() })
    }

    fn of_core(&self, core: &CoreObservation) -> Gauge<f64> {
        let needs = |what: &str, why: &Missing| {
            Missing::because(format!("the calibrated power model needs {what}: {why}"))
        };
        let busy = core.utilisation.clone()?;
        let mut power = self.busy.0 * busy + self.idle.0 * (1.0 - busy);
        if let Some(ByFrequency { dynamic, full }) = self.by_frequency {
            let frequency = core.frequency.as_ref().map_err(|why| needs("frequency", why))?;
            power += dynamic.0 * busy * ByFrequency::cube(full, *frequency);
        }
        if let Some(shallow) = self.shallow {
            let deep = core.deep_idle_residency.as_ref();
            let deep = deep.map_err(|why| needs("idle residency", why))?;
            power += shallow.0 * (1.0 - busy - deep).max(0.0);
        }
        Ok(power)
    }

    /// Returns the label of every figure of the model.
    pub fn source(&self) -> EnergySource {
        let Self { busy: Watts(busy), idle: Watts(idle), base: Watts(base), .. } = self;
        let mut label = String::new();
        if let Some(calibration) = &self.calibration {
            let _ = write!(label, "calibrated {calibration}: ");
        }
        let _ = write!(
            label,
            "{base} W + sum over cores of ({busy} W x utilisation + {idle} W x (1 - utilisation)"
        );
        if let Some(ByFrequency { dynamic: Watts(dynamic), full }) = self.by_frequency {
            let ghz = full.0 as f64 / 1e9;
            let _ = write!(label, " + {dynamic} W x utilisation x (frequency / {ghz} GHz)^3");
        }
        if let Some(Watts(shallow)) = self.shallow {
            let _ = write!(label, " + {shallow} W x idle outside the deepest state");
        }
        label.push(')');
        EnergySource::Modelled(label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Joules;

    fn core(utilisation: Gauge<f64>) -> CoreObservation {
        CoreObservation { utilisation, ..CoreObservation::unknown(&Missing::because("not read")) }
    }

    #[test]
    fn the_label_states_the_formula_that_gives_the_figure() {
        let offline = Err(Missing::because("core 2 is offline"));
        let cores = [Ok(1.0), Ok(0.5), offline].map(core);
        let seen = PowerModel::default().energy(Nanos::from_secs(2), &cores).unwrap();
        assert_eq!(seen.energy, Joules(2.0 * (20.0 + 5.0 + (2.5 + 0.25))));
        let wanted =
            "modelled: 20 W + sum over cores of (5 W x utilisation + 0.5 W x (1 - utilisation))";
        assert_eq!(seen.source.to_string(), wanted);
    }

    fn calibrated() -> PowerModel {
        PowerModel {
            busy: Watts(2.0),
            idle: Watts(0.0),
            base: Watts(10.0),
            by_frequency: Some(ByFrequency { dynamic: Watts(4.0), full: Hertz(2_000_000_000) }),
            shallow: Some(Watts(1.0)),
            calibration: Some("on a test".to_owned()),
        }
    }

    #[test]
    fn a_calibrated_model_sees_frequency_and_depth_and_says_so() {
        let core = CoreObservation {
            utilisation: Ok(0.5),
            idle_residency: Ok(0.5),
            deep_idle_residency: Ok(0.25),
            frequency: Ok(Hertz(1_000_000_000)),
            ..CoreObservation::unknown(&Missing::because("not read"))
        };
        let seen = calibrated().energy(Nanos::from_secs(1), &[core]).unwrap();
        assert_eq!(seen.energy, Joules(10.0 + 1.0 + 4.0 * 0.5 / 8.0 + 0.25));
        let source = seen.source.to_string();
        assert!(source.starts_with("modelled: calibrated on a test: 10 W"), "{source}");
        assert!(source.contains("(frequency / 2 GHz)^3 + 1 W x idle outside"), "{source}");
    }

    #[test]
    fn a_calibrated_model_without_what_it_needs_has_no_figure() {
        let seen = calibrated().energy(Nanos::from_secs(1), &[core(Ok(0.5))]);
        let why = seen.unwrap_err().reason;
        assert!(why.contains("needs frequency: not read"), "{why}");
    }

    #[test]
    fn without_utilisation_there_is_no_figure() {
        let why = Missing::because("first reading");
        let seen = PowerModel::default().energy(Nanos::from_secs(1), &[core(Err(why))]);
        assert!(seen.unwrap_err().reason.contains("needs utilisation: first reading"));
    }
}
