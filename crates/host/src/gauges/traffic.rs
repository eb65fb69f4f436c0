//! Interrupts of the machine from `/proc/stat`, packets of its network
//! interfaces from `/sys/class/net` (Documentation/ABI/testing/sysfs-class-net-statistics).

use super::{first_reading, unreadable};
use crate::Roots;
use crate::files::{HotFile, numbers};
use lull_measure::{Gauge, Missing, Nanos};
use std::path::{Path, PathBuf};

/// Room for the lines of many cores before that of the interrupts, and its first number.
const STAT_BYTES: usize = 256 << 10;

/// Interrupts and packets over epochs.
#[derive(Debug)]
pub struct Traffic {
    stat: HotFile,
    buffer: Vec<u8>,
    /// `rx_packets` and `tx_packets` of each interface with hardware behind it.
    packets: Vec<HotFile>,
    last_interrupts: Option<u64>,
    last_packets: Option<u64>,
}

impl Traffic {
    /// A gauge of the interfaces that are there now.
    pub fn new(roots: &Roots) -> Self {
        let interfaces = interfaces(&roots.sys.join("class/net"));
        let files = |dir: &PathBuf| {
            ["rx_packets", "tx_packets"].map(|name| HotFile::new(dir.join("statistics").join(name)))
        };
        Self {
            stat: HotFile::new(roots.proc.join("stat")),
            buffer: vec![0; STAT_BYTES],
            packets: interfaces.iter().flat_map(files).collect(),
            last_interrupts: None,
            last_packets: None,
        }
    }

    /// Interrupts per second over `span`, the time since the last call.
    pub fn interrupts(&mut self, span: Nanos) -> Gauge<f64> {
        let now = self.count_interrupts();
        change(&mut self.last_interrupts, now, span)
    }

    /// Packets received and sent per second over `span`, the time since the last call.
    pub fn packets(&mut self, span: Nanos) -> Gauge<f64> {
        let now = self.count_packets();
        change(&mut self.last_packets, now, span)
    }

    fn count_interrupts(&mut self) -> Gauge<u64> {
        let content = self.stat.read(&mut self.buffer);
        let content = content.map_err(|error| unreadable(self.stat.path(), &error))?;
        let mut lines = content.split(|byte| *byte == b'\n');
        // Its first number is the sum of all that follow.
        let total = lines.find_map(|line| numbers(line.strip_prefix(b"intr ")?).next());
        total.ok_or_else(|| Missing::because("/proc/stat has no line of interrupts"))
    }

    fn count_packets(&mut self) -> Gauge<u64> {
        if self.packets.is_empty() {
            return Err(Missing::because("there is no network interface with hardware behind it"));
        }
        let mut sum = 0;
        for file in &mut self.packets {
            sum += file.read_number().map_err(|error| unreadable(file.path(), &error))?;
        }
        Ok(sum)
    }
}

fn change(last: &mut Option<u64>, now: Gauge<u64>, span: Nanos) -> Gauge<f64> {
    let last = std::mem::replace(last, now.as_ref().ok().copied());
    let (now, last) = (now?, last.ok_or_else(first_reading)?);
    // An interface that was reset counts from 0 again.
    Ok(now.saturating_sub(last) as f64 / span.as_secs_f64())
}

/// Loops, bridges and tunnels show packets a second time and have no device.
fn interfaces(net: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(net).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        entries.map(|entry| entry.path()).filter(|dir| dir.join("device").exists()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn rates_are_differences_over_the_span() {
        let tree = Tree::new();
        let set = |interrupts: u64, packets: u64| {
            tree.write("proc/stat", &format!("cpu 1 2\ncpu0 1 2\nintr {interrupts} 0 9\nctxt 1\n"));
            for nic in ["eth0", "lo"] {
                let dir = format!("sys/class/net/{nic}/statistics");
                tree.write(&format!("{dir}/rx_packets"), &format!("{packets}\n"));
                tree.write(&format!("{dir}/tx_packets"), "7\n");
            }
        };
        tree.write("sys/class/net/eth0/device/vendor", "0x8086\n");
        set(1_000, 50);
        let mut traffic = Traffic::new(&tree.roots());
        assert!(traffic.interrupts(Nanos::from_secs(2)).is_err(), "first reading");
        assert!(traffic.packets(Nanos::from_secs(2)).is_err());
        set(3_000, 450);
        assert_eq!(traffic.interrupts(Nanos::from_secs(2)), Ok(1000.0));
        assert_eq!(traffic.packets(Nanos::from_secs(2)), Ok(200.0), "lo has no hardware");
        std::fs::remove_dir_all(tree.path("sys/class/net/eth0/statistics")).unwrap();
        tree.write("sys/class/net/eth0/statistics/rx_packets", "x\n");
        assert!(Traffic::new(&tree.roots()).packets(Nanos::from_secs(1)).is_err());
    }

    #[test]
    fn a_machine_without_a_network_says_so() {
        let mut traffic = Traffic::new(&Tree::new().roots());
        let why = traffic.packets(Nanos::from_secs(1)).unwrap_err();
        assert!(why.reason.contains("no network interface"), "{why}");
    }
}
