//! Frequency of each core from `cpufreq/scaling_cur_freq`.

use super::unreadable;
use crate::Roots;
use crate::files::HotFile;
use lull_measure::{Gauge, Hertz, Missing};
use std::io;

/// Frequency of cores at an instant.
#[derive(Debug)]
pub struct Frequency {
    cores: Vec<HotFile>,
    /// Cores without the file are not tried again each epoch.
    any: bool,
}

impl Frequency {
    /// A gauge of the cores `0..cores`.
    pub fn new(roots: &Roots, cores: usize) -> Self {
        let path =
            |core| roots.sys.join(format!("devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"));
        let cores: Vec<_> = (0..cores).map(|core| HotFile::new(path(core))).collect();
        let any = cores.iter().any(|file| file.path().exists());
        Self { cores, any }
    }

    /// By which means frequency is read, or why it cannot be.
    ///
    /// # Errors
    /// If core 0 has no cpufreq policy.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let mut gauge = Self::new(roots, 1);
        gauge.read().remove(0).map(|_| "cpufreq/scaling_cur_freq".to_owned())
    }

    /// Frequency of each core now.
    pub fn read(&mut self) -> Vec<Gauge<Hertz>> {
        let any = self.any;
        self.cores.iter_mut().map(|file| if any { current(file) } else { Err(none()) }).collect()
    }
}

fn current(file: &mut HotFile) -> Gauge<Hertz> {
    match file.read_number() {
        Ok(khz) => Ok(Hertz::from_khz(khz)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(none()),
        Err(error) => Err(unreadable(file.path(), &error)),
    }
}

fn none() -> Missing {
    Missing::because(
        "no cpufreq: the kernel has no frequency driver for this core (usual in virtual machines)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn kilohertz_become_hertz_and_a_core_without_is_missing() {
        let tree = Tree::new();
        let path = "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq";
        tree.write(path, "2260000\n");
        let mut gauge = Frequency::new(&tree.roots(), 2);
        assert_eq!(gauge.read(), [Ok(Hertz(2_260_000_000)), Err(none())]);
        tree.write(path, "<unknown>\n");
        assert!(gauge.read()[0].as_ref().unwrap_err().reason.contains("cannot be read"));
        assert!(Frequency::probe(&Tree::new().roots()).is_err());
    }
}
