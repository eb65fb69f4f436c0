//! Checks of a server's model; errors name the key.

use super::model::{NetServerModel, PingPong, Stack, Traffic};
use crate::governor::Governor;
use crate::idle;
use crate::model::{Checked, Problem, above_0, at_least_0, fail, range};
use lull_measure::Nanos;

/// Most cores, packages times cores.
const MOST_CORES: u64 = 64;
/// Most requests a second: a nanosecond apart.
const MOST_PER_S: f64 = 1e9;

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
        if let Err(error) = idle::check(&self.idle) {
            return fail(format!("idle: {error}"), Problem::Conflict("idle states must be sound"));
        }
        self.check_power()?;
        self.check_nic()?;
        check_stack(&self.stack)?;
        above_0(self.app.cycles, "app.cycles")?;
        let cv2 = self.app.shape.cv2();
        range(cv2, cv2.is_finite() && cv2 >= 0.0, "at least 0", "app.shape.cv2")?;
        self.check_traffic()
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
        above_0(f64::from(self.nic.buckets), "nic.buckets")?;
        above_0(f64::from(self.nic.budget), "nic.budget")
    }

    fn check_traffic(&self) -> Checked {
        match &self.traffic {
            Traffic::PingPong(pair) => check_pair(pair),
            Traffic::Open { load, connections, .. } => {
                above_0(f64::from(*connections), "traffic.open.connections")?;
                let begins = load.first().is_some_and(|step| step.from == Nanos::ZERO);
                if !begins || !load.is_sorted_by(|a, b| a.from < b.from) {
                    let what = "the first step begins at 0s, and each later than the one before";
                    return fail("traffic.open.load", Problem::Conflict(what));
                }
                for (at, step) in load.iter().enumerate() {
                    let key = format!("traffic.open.load[{at}].rate-per-s");
                    let rate = step.rate_per_s;
                    range(rate, (0.0..=MOST_PER_S).contains(&rate), "0 to 1e9", &key)?;
                }
                Ok(())
            }
        }
    }
}

fn check_stack(stack: &Stack) -> Checked {
    for (cycles, key) in [
        (stack.interrupt_cycles, "stack.interrupt-cycles"),
        (stack.rx_cycles, "stack.rx-cycles"),
        (stack.tx_clean_cycles, "stack.tx-clean-cycles"),
        (stack.wake_cycles, "stack.wake-cycles"),
        (stack.poll_cycles, "stack.poll-cycles"),
        (stack.sleep_cycles, "stack.sleep-cycles"),
    ] {
        at_least_0(cycles, key)?;
    }
    above_0(f64::from(stack.events), "stack.events")
}

fn check_pair(pair: &PingPong) -> Checked {
    above_0(pair.bytes as f64, "traffic.ping-pong.bytes")?;
    above_0(f64::from(pair.segment), "traffic.ping-pong.segment")?;
    range(
        f64::from(pair.window),
        pair.window >= 2,
        "at least 2, or no acknowledgement comes",
        "traffic.ping-pong.window",
    )?;
    at_least_0(pair.cycles_per_byte, "traffic.ping-pong.cycles-per-byte")
}
