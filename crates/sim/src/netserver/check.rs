//! Checks of a server's model; errors name the key.

use super::model::NetServerModel;
use crate::governor::Governor;
use crate::model::{Checked, at_least_one, range, refuse_if, some};

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
        let is_uneven = !self.cores.is_multiple_of(self.packages);
        refuse_if(is_uneven, "packages", "packages must share the cores evenly")?;
        let is_wrong = !self.frequencies.is_sorted_by(|a, b| a < b) || self.lowest().0 == 0;
        let order = "give at least one frequency above 0, each once, lowest first";
        refuse_if(is_wrong, "frequencies", order)?;
        let excludes = matches!(self.governor, Governor::Ondemand { io_is_busy: false, .. });
        let io = "no thread of a network server waits for I/O: leave this key out";
        refuse_if(excludes, "governor.ondemand.io_is_busy", io)?;
        let shallowest = "give at least the shallowest idle state, in which a core only waits";
        some(&self.idle, "idle", shallowest)?;
        let [low, high] = self.power.volts;
        range(low, low > 0.0 && low <= high, "above 0, at most the second", "power.volts")?;
        range(high, low >= 0.01 * high, "at most a hundred times the first", "power.volts")?;
        self.machine().check().map_err(|error| error.renamed(&KEYS))
    }
}
