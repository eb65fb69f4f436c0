//! Checks of a server's model; errors name the key.

use super::model::NetServerModel;
use crate::governor::Governor;
use crate::idle;
use crate::machine::check_cost;
use crate::model::{Checked, Problem, above_0, at_least_0, fail, range};

/// Most cores, packages times cores.
const MOST_CORES: u64 = 64;

impl NetServerModel {
    /// Checks everything that can be checked without running the model.
    ///
    /// # Errors
    /// The first thing found that cannot be simulated, with its key.
    pub fn check(&self) -> Checked {
        self.check_cores()?;
        let ascending = self.frequencies.is_sorted_by(|a, b| a < b);
        let lowest = self.frequencies.first().map_or(0.0, |hertz| hertz.0 as f64);
        if !ascending || lowest <= 0.0 {
            let what = "give at least one frequency above 0, each once, lowest first";
            return fail("frequencies", Problem::Conflict(what));
        }
        self.check_governor()?;
        if self.idle.is_empty() {
            let wanted = "give at least the shallowest idle state, in which a core only waits";
            return fail("idle", Problem::Empty { wanted });
        }
        idle::check(&self.idle, self.highest())?;
        self.check_power()?;
        self.check_nic()?;
        self.stack.check("stack.")?;
        check_cost(self.app.cycles, self.app.shape, "app.")?;
        self.traffic.check("traffic.")
    }

    fn check_cores(&self) -> Checked {
        for (count, what, key) in
            [(self.cores, "cores", "cores"), (self.packages, "packages", "packages")]
        {
            if count == 0 {
                return fail(key, Problem::Zero { what });
            }
        }
        let found = u64::from(self.cores);
        if found > MOST_CORES {
            return fail("cores", Problem::TooMany { what: "cores", found, most: MOST_CORES });
        }
        if !self.cores.is_multiple_of(self.packages) {
            return fail("packages", Problem::Conflict("packages must share the cores evenly"));
        }
        Ok(())
    }

    fn check_governor(&self) -> Checked {
        self.governor.check("governor")?;
        if let Governor::Ondemand { io_is_busy: false, .. } = self.governor {
            let what = "no thread of a network server waits for I/O: leave this key out";
            return fail("governor.ondemand.io_is_busy", Problem::Conflict(what));
        }
        Ok(())
    }

    fn check_power(&self) -> Checked {
        let power = &self.power;
        let [low, high] = power.volts;
        range(low, low > 0.0 && low <= high, "above 0, at most the second", "power.volts")?;
        range(high, high.is_finite(), "finite", "power.volts")?;
        for (watts, key) in [
            (power.active, "power.active"),
            (power.leakage, "power.leakage"),
            (power.uncore, "power.uncore"),
        ] {
            at_least_0(watts.0, key)?;
        }
        let share = power.uncore_scales;
        range(share, (0.0..=1.0).contains(&share), "0 to 1", "power.uncore-scales")
    }

    fn check_nic(&self) -> Checked {
        above_0(self.nic.delay_step.as_secs_f64(), "nic.delay-step")?;
        above_0(self.nic.delay_max.as_secs_f64(), "nic.delay-max")?;
        above_0(self.nic.frame.as_secs_f64(), "nic.frame")?;
        above_0(f64::from(self.nic.buckets), "nic.buckets")?;
        above_0(f64::from(self.nic.budget), "nic.budget")
    }
}
