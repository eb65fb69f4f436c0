//! A power model for machines without a meter.
//!
//! `P = base + sum over online cores of (busy x utilisation + idle x (1 - utilisation))`
//!
//! Linear in utilisation (Fan, Weber, Barroso: Power provisioning for a
//! warehouse-sized computer, ISCA 2007, section 3.2), split by core so that
//! consolidating work on few cores shows. Blind to frequency and to the depth
//! of idle states; good for comparing two runs on one machine, not for a bill.

use lull_control::{EnergySeen, EnergySource};
use lull_measure::{Gauge, Missing, Nanos, Watts};

/// Constants of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerModel {
    /// A core that is busy all the time.
    pub busy: Watts,
    /// A core that is idle all the time.
    pub idle: Watts,
    /// Everything that does not depend on the cores.
    pub base: Watts,
}

impl Default for PowerModel {
    /// Orders of magnitude of a server socket: 5 W a busy core, 0.5 W an idle
    /// one, 20 W for the rest. Not measured on any machine.
    fn default() -> Self {
        Self { busy: Watts(5.0), idle: Watts(0.5), base: Watts(20.0) }
    }
}

impl PowerModel {
    /// Energy of a span with these utilisations; offline cores take none.
    ///
    /// # Errors
    /// If no core's utilisation is known.
    pub(super) fn energy(&self, span: Nanos, utilisation: &[Gauge<f64>]) -> Gauge<EnergySeen> {
        let known: Vec<_> = utilisation.iter().filter_map(|core| core.as_ref().ok()).collect();
        if let (true, Some(Err(why))) = (known.is_empty(), utilisation.first()) {
            return Err(Missing::because(format!("the power model needs utilisation: {why}")));
        }
        let core = |busy: &f64| self.busy.0 * busy + self.idle.0 * (1.0 - busy);
        let power = Watts(self.base.0 + known.into_iter().map(core).sum::<f64>());
        Ok(EnergySeen { energy: power.during(span), source: self.source() })
    }

    /// The label that goes with every figure of the model.
    pub fn source(&self) -> EnergySource {
        let Self { busy: Watts(busy), idle: Watts(idle), base: Watts(base) } = self;
        EnergySource::Modelled(format!(
            "{base} W + sum over cores of ({busy} W x utilisation + {idle} W x (1 - utilisation))"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Joules;

    #[test]
    fn the_label_states_the_formula_that_gives_the_figure() {
        let offline = Err(Missing::because("core 2 is offline"));
        let seen = PowerModel::default().energy(Nanos::from_secs(2), &[Ok(1.0), Ok(0.5), offline]);
        let seen = seen.unwrap();
        assert_eq!(seen.energy, Joules(2.0 * (20.0 + 5.0 + (2.5 + 0.25))));
        let wanted =
            "modelled: 20 W + sum over cores of (5 W x utilisation + 0.5 W x (1 - utilisation))";
        assert_eq!(seen.source.to_string(), wanted);
    }

    #[test]
    fn without_utilisation_there_is_no_figure() {
        let why = Missing::because("first reading");
        let seen = PowerModel::default().energy(Nanos::from_secs(1), &[Err(why)]);
        assert!(seen.unwrap_err().reason.contains("needs utilisation: first reading"));
    }
}
