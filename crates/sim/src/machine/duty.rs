//! Duty cycles: cores that compute for a share of every period only.

use super::parts::DutyCycle;
use super::{MachineModel, MachineSimulation, Timer};
use crate::model::{Checked, range, refuse_if, some};
use lull_measure::Nanos;

/// Shortest and longest period: with shorter ones most events would be pauses.
const PERIODS: std::ops::RangeInclusive<Nanos> = Nanos::from_micros(10)..=Nanos::from_millis(10);

/// The cores exist, and compute for some of the time.
pub(super) fn check(cycle: &DutyCycle, model: &MachineModel) -> Checked {
    let DutyCycle { cores, share, period } = cycle;
    let full = "cores are always at full duty under `run-queues`: leave it out";
    refuse_if(model.run_queues.is_some(), "duty-cycle", full)?;
    some(cores, "duty-cycle.cores", "give the numbers of cores")?;
    for (at, core) in cores.iter().enumerate() {
        let is_new = *core < model.cores && !cores[..at].contains(core);
        let wanted = "the number of a core from 0, once";
        range(f64::from(*core), is_new, wanted, &format!("duty-cycle.cores[{at}]"))?;
    }
    range(*share, *share > 0.0 && *share < 1.0, "above 0 and below 1", "duty-cycle.share")?;
    let is_usual = PERIODS.contains(period);
    range(period.as_secs_f64(), is_usual, "from 10 us to 10 ms", "duty-cycle.period")
}

impl MachineSimulation {
    /// A period of a core's duty cycle begins, with its pause.
    pub(super) fn pause(&mut self, core: usize) {
        let Some(cycle) = &self.duty_cycle else { return };
        let (period_ns, pause_ns) = (cycle.period.0, cycle.pause_ns());
        self.before_pace(core);
        self.stop_until(core, self.now_ns + pause_ns);
        self.after_pace(core);
        self.set_timer(self.now_ns + period_ns, Timer::Duty, core);
    }
}
