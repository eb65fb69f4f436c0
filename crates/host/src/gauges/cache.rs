//! Cache occupancy and memory bandwidth of an app by resctrl's monitors
//! (Documentation/filesystems/resctrl.rst, "mon_data").
//!
//! The monitors are those of the app's own group, which it has once it has a
//! share of cache or bandwidth. The monitors of the root group count all its threads
//! together, so they cannot be used for one app. In the rig the monitors exist and
//! count 0.

use super::first_reading;
use crate::drivers::text::read_number;
use lull_measure::{Gauge, Missing, Nanos};
use std::path::{Path, PathBuf};

/// Monitors of one app over epochs.
#[derive(Debug, Default)]
pub struct CacheMonitor {
    /// The group then, and the bytes that it had moved.
    last: Option<(PathBuf, u64)>,
}

/// The readings of the monitors.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheUse {
    /// Bytes of last-level cache that the app fills now, all sockets together.
    pub occupancy_bytes: Gauge<f64>,
    /// Bytes per second between cache and memory over the span.
    pub bandwidth_bytes_per_s: Gauge<f64>,
}

impl CacheMonitor {
    /// The monitors of an app's group over `span`, the time since the last call.
    pub fn read(&mut self, group: Option<&Path>, span: Nanos) -> CacheUse {
        let Some(group) = group else {
            self.last = None;
            let why = Missing::because(
                "the app has no resctrl group: it gets one with a share of cache or bandwidth",
            );
            return CacheUse { occupancy_bytes: Err(why.clone()), bandwidth_bytes_per_s: Err(why) };
        };
        CacheUse {
            occupancy_bytes: sum(group, "llc_occupancy").map(|bytes| bytes as f64),
            bandwidth_bytes_per_s: self.bandwidth(group, span),
        }
    }

    fn bandwidth(&mut self, group: &Path, span: Nanos) -> Gauge<f64> {
        let now = sum(group, "mbm_total_bytes");
        let kept = now.as_ref().ok().map(|bytes| (group.to_owned(), *bytes));
        let last = std::mem::replace(&mut self.last, kept);
        let now = now?;
        let last = last.filter(|(of, bytes)| of == group && *bytes <= now);
        let (_, last) = last.ok_or_else(first_reading)?;
        Ok((now - last) as f64 / span.as_secs_f64())
    }
}

/// Returns one counter over all sockets.
fn sum(group: &Path, name: &str) -> Gauge<u64> {
    let entries = std::fs::read_dir(group.join("mon_data")).into_iter().flatten().flatten();
    let files = entries.map(|domain| domain.path().join(name)).filter(|file| file.exists());
    let mut total = None;
    for file in files {
        // The hardware may have no number to count with: `Unavailable`.
        let count = read_number(&file).map_err(|error| Missing::because(error.to_string()))?;
        total = Some(total.unwrap_or(0) + count);
    }
    total.ok_or_else(|| Missing::because(format!("this processor does not monitor {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn set(tree: &Tree, socket: u8, occupancy: u64, moved: &str) {
        let dir = format!("sys/fs/resctrl/lull-a/mon_data/mon_L3_0{socket}");
        tree.write(&format!("{dir}/llc_occupancy"), &format!("{occupancy}\n"));
        tree.write(&format!("{dir}/mbm_total_bytes"), &format!("{moved}\n"));
    }

    #[test]
    fn sockets_add_up_and_bandwidth_is_a_difference() {
        let tree = Tree::new();
        let group = tree.path("sys/fs/resctrl/lull-a");
        let mut monitor = CacheMonitor::default();
        let mut read = || monitor.read(Some(&group), Nanos::from_secs(2));
        assert!(read().occupancy_bytes.unwrap_err().reason.contains("does not monitor"));
        for (socket, moved) in [(0, "100"), (1, "1000")] {
            set(&tree, socket, 5, moved);
        }
        assert_eq!(read().occupancy_bytes, Ok(10.0));
        set(&tree, 0, 5, "2100");
        assert_eq!(read().bandwidth_bytes_per_s, Ok(1000.0));
        set(&tree, 0, 5, "Unavailable");
        assert!(read().bandwidth_bytes_per_s.unwrap_err().reason.contains("Unavailable"));
        set(&tree, 0, 5, "2200");
        assert!(read().bandwidth_bytes_per_s.unwrap_err().reason.contains("first reading"));
    }

    #[test]
    fn an_app_without_a_group_has_a_reason() {
        let seen = CacheMonitor::default().read(None, Nanos::from_secs(1));
        assert!(seen.occupancy_bytes.unwrap_err().reason.contains("no resctrl group"));
    }
}
