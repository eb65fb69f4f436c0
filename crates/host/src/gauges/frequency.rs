//! Frequency of each core: the one at which it ran, where the kernel reports it
//! (`cpufreq/cpuinfo_avg_freq`, from APERF and MPERF, since Linux 6.16 or so), else what cpufreq
//! last set or measured (`cpufreq/scaling_cur_freq`).

use super::unreadable;
use crate::Roots;
use crate::files::HotFile;
use lull_measure::{Gauge, Hertz, Missing};
use std::io;

/// Frequency of cores at an instant.
#[derive(Debug)]
pub struct Frequency {
    cores: Vec<CoreFiles>,
    /// Cores without the file are not tried again each epoch.
    any: bool,
}

impl Frequency {
    /// A gauge of the cores `0..cores`.
    pub fn new(roots: &Roots, cores: usize) -> Self {
        let cores: Vec<_> = (0..cores).map(|core| CoreFiles::new(roots, core)).collect();
        let any = cores.iter().any(|core| core.set.path().exists());
        Self { cores, any }
    }

    /// Returns the means by which frequency is read.
    ///
    /// # Errors
    /// If core 0 has no cpufreq policy.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let mut gauge = Self::new(roots, 1);
        let means = match gauge.cores[0].real {
            Some(_) => "cpufreq/cpuinfo_avg_freq",
            None => "cpufreq/scaling_cur_freq",
        };
        gauge.read().remove(0).map(|_| means.to_owned())
    }

    /// Frequency of each core now.
    pub fn read(&mut self) -> Vec<Gauge<Hertz>> {
        let any = self.any;
        self.cores.iter_mut().map(|core| if any { core.read() } else { Err(none()) }).collect()
    }
}

/// Where the frequency of one core is read.
#[derive(Debug)]
struct CoreFiles {
    /// Measured by the processor; not every driver has it.
    real: Option<HotFile>,
    set: HotFile,
}

impl CoreFiles {
    fn new(roots: &Roots, core: usize) -> Self {
        let dir = roots.sys.join(format!("devices/system/cpu/cpu{core}/cpufreq"));
        let real = Some(dir.join("cpuinfo_avg_freq")).filter(|file| file.exists());
        Self { real: real.map(HotFile::new), set: HotFile::new(dir.join("scaling_cur_freq")) }
    }

    /// A core that slept through the last tick has no average; then the setting counts.
    fn read(&mut self) -> Gauge<Hertz> {
        let real = self.real.as_mut().and_then(|file| file.read_number().ok());
        real.filter(|khz| *khz > 0)
            .map_or_else(|| current(&mut self.set), |khz| Ok(Hertz::from_khz(khz)))
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

    #[test]
    fn what_a_core_really_ran_at_comes_before_what_was_set() {
        let tree = Tree::new();
        let dir = "sys/devices/system/cpu/cpu0/cpufreq";
        tree.write(&format!("{dir}/scaling_cur_freq"), "2260000\n");
        tree.write(&format!("{dir}/cpuinfo_avg_freq"), "1900000\n");
        let mut gauge = Frequency::new(&tree.roots(), 1);
        assert_eq!(gauge.read(), [Ok(Hertz::from_khz(1_900_000))]);
        assert_eq!(Frequency::probe(&tree.roots()).unwrap(), "cpufreq/cpuinfo_avg_freq");
        tree.write(&format!("{dir}/cpuinfo_avg_freq"), "\n");
        assert_eq!(gauge.read(), [Ok(Hertz::from_khz(2_260_000))], "it was asleep");
    }
}
