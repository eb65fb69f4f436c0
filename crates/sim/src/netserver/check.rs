//! Checks of a server's model; errors name the key.

use super::model::NetServerModel;
use crate::governor::Governor;
use crate::model::{Checked, Problem, at_least_one, fail, range};

/// Keys of the machine's model and those of this one, longer ones first.
const KEYS: [(&str, &str); 10] = [
    ("app[0].activity.event-loops.frame", "nic.frame"),
    ("app[0].activity.event-loops.stack", "stack"),
    ("app[0].activity.event-loops.traffic", "traffic"),
    ("app[0].activity.event-loops", "app"),
    ("card.connections", "traffic.open.connections"),
    ("card", "nic"),
    ("scaling.governor", "governor"),
    ("scaling.steps", "frequencies"),
    ("power.active_dynamic", "power.active"),
    ("power.uncore_scales", "power.uncore-scales"),
];

impl NetServerModel {
    /// Checks everything that can be checked without running the model.
    ///
    /// # Errors
    /// The first thing found that cannot be simulated, with its key.
    pub fn check(&self) -> Checked {
        at_least_one(self.packages, "packages", "packages")?;
        if !self.cores.is_multiple_of(self.packages) {
            return fail("packages", Problem::Conflict("packages must share the cores evenly"));
        }
        let ascending = self.frequencies.is_sorted_by(|a, b| a < b);
        if !ascending || self.lowest().0 == 0 {
            let what = "give at least one frequency above 0, each once, lowest first";
            return fail("frequencies", Problem::Conflict(what));
        }
        if let Governor::Ondemand { io_is_busy: false, .. } = self.governor {
            let what = "no thread of a network server waits for I/O: leave this key out";
            return fail("governor.ondemand.io_is_busy", Problem::Conflict(what));
        }
        if self.idle.is_empty() {
            let wanted = "give at least the shallowest idle state, in which a core only waits";
            return fail("idle", Problem::Empty { wanted });
        }
        let [low, high] = self.power.volts;
        range(low, low > 0.0 && low <= high, "above 0, at most the second", "power.volts")?;
        range(high, low >= 0.01 * high, "at most a hundred times the first", "power.volts")?;
        self.machine().check().map_err(|error| error.renamed(&KEYS))
    }
}
