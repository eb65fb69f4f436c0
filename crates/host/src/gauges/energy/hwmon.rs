//! Energy from hwmon (Documentation/hwmon/sysfs-interface.rst), where there is no RAPL.
//!
//! Two kinds: counters of each socket (`amd_energy`), and power meters, whose
//! watts are integrated from epoch to epoch: the ACPI meter of a whole machine
//! (`power_meter`, without a name before Linux 6.13 or so) and X-Gene's. Rails
//! of boards (INA chips) and graphics cards report power too, but not what they
//! supply, and are left out.
//!
//! The ACPI meter runs in the rig; `amd_energy` and X-Gene only on made-up trees.

use crate::Roots;
use crate::files::{HotFile, read_text};
use crate::gauges::{first_reading, unreadable};
use lull_control::{EnergyObservation, EnergySource};
use lull_measure::{Gauge, Joules, Missing, Nanos};
use std::path::{Path, PathBuf};

/// A meter by hwmon.
#[derive(Debug)]
pub struct Hwmon {
    files: Vec<HotFile>,
    kind: Kind,
    /// Sum of all files at the last reading, in their unit.
    last: Option<f64>,
    source: EnergySource,
}

/// The unit of the files' values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Microjoules since boot, in 64 bits.
    Energy,
    /// Microwatts now.
    Power,
}

impl Hwmon {
    /// The meter, after one successful reading.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn open(roots: &Roots) -> Result<Self, Missing> {
        let class = roots.sys.join("class/hwmon");
        let entries = std::fs::read_dir(&class).into_iter().flatten().flatten();
        let mut chips: Vec<_> = entries.map(|entry| entry.path()).collect();
        chips.sort();
        let none = || Missing::because(format!("no power meter in {}", class.display()));
        let mut meter = chips.iter().find_map(|chip| Self::open_chip(chip)).ok_or_else(none)?;
        meter.sum()?;
        Ok(meter)
    }

    fn open_chip(chip: &Path) -> Option<Self> {
        // Older kernels have the files of a chip in its device.
        let dirs = [chip.to_owned(), chip.join("device")];
        let name = read_text(&chip.join("name")).unwrap_or_default();
        let all = |end: &str| dirs.iter().flat_map(|dir| inputs(dir, end)).collect::<Vec<_>>();
        let (kind, files) = match name.as_str() {
            "amd_energy" => {
                (Kind::Energy, all("_input").into_iter().filter(|file| is_socket(file)).collect())
            }
            "xgene" => (Kind::Power, all("_input")),
            "power_meter" | "" => (Kind::Power, all("_average")),
            _ => return None,
        };
        let files: Vec<_> = files.into_iter().filter(|file| kind.has(file)).collect();
        if files.is_empty() {
            return None;
        }
        let name = if name.is_empty() { "power_meter".to_owned() } else { name };
        let what = match kind {
            Kind::Energy => format!("hwmon {name}, {} sockets", files.len()),
            Kind::Power => format!("hwmon {name}, power integrated over epochs"),
        };
        let files = files.into_iter().map(HotFile::new).collect();
        Some(Self { files, kind, last: None, source: EnergySource::Measured(what) })
    }

    /// Returns the meter.
    pub fn source(&self) -> &EnergySource {
        &self.source
    }

    /// Energy of `span`, the time since the last call.
    pub fn read(&mut self, span: Nanos) -> Gauge<EnergyObservation> {
        let now = self.sum();
        let last = std::mem::replace(&mut self.last, now.as_ref().ok().copied());
        let (now, last) = (now?, last.ok_or_else(first_reading)?);
        let uj = match self.kind {
            Kind::Energy => (now - last).max(0.0),
            Kind::Power => (now + last) / 2.0 * span.as_secs_f64(),
        };
        Ok(EnergyObservation { energy: Joules(uj / 1e6), source: self.source.clone() })
    }

    fn sum(&mut self) -> Result<f64, Missing> {
        let mut sum = 0;
        for file in &mut self.files {
            sum += file.read_number().map_err(|error| unreadable(file.path(), &error))?;
        }
        Ok(sum as f64)
    }
}

impl Kind {
    fn has(self, file: &Path) -> bool {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(match self {
            Self::Energy => "energy",
            Self::Power => "power",
        })
    }
}

/// Files such as `power1_average` in a chip's directory, in order.
fn inputs(dir: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let has_end =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(end));
    let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(has_end).collect();
    files.sort();
    files
}

/// Whether a counter is a socket's and not that of a core in it.
fn is_socket(file: &Path) -> bool {
    let label = file.to_string_lossy().replace("_input", "_label");
    read_text(Path::new(&label)).is_ok_and(|label| label.starts_with("Esocket"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    const CHIP: &str = "sys/class/hwmon/hwmon3";

    #[test]
    fn a_power_meter_is_integrated_over_the_epoch() {
        for dir in [CHIP.to_owned(), format!("{CHIP}/device")] {
            let tree = Tree::new();
            let average = format!("{dir}/power1_average");
            tree.write(&average, "100000000\n");
            let mut meter = Hwmon::open(&tree.roots()).unwrap();
            assert!(meter.read(Nanos::from_secs(1)).unwrap_err().reason.contains("first reading"));
            tree.write(&average, "300000000\n");
            assert_eq!(meter.read(Nanos::from_secs(2)).unwrap().energy, Joules(400.0));
            let source = meter.source().to_string();
            assert!(source.contains("hwmon power_meter, power integrated"), "{source}");
        }
    }

    #[test]
    fn sockets_add_up_and_their_cores_do_not_count_twice() {
        let tree = Tree::new();
        tree.write(&format!("{CHIP}/name"), "amd_energy\n");
        let counter = |number: u8, label: &str, uj: u64| {
            tree.write(&format!("{CHIP}/energy{number}_label"), label);
            tree.write(&format!("{CHIP}/energy{number}_input"), &uj.to_string());
        };
        let set = |core, socket| {
            counter(1, "Ecore000\n", core);
            counter(2, "Esocket0\n", socket);
            counter(3, "Esocket1\n", socket);
        };
        set(5, 1_000_000);
        let mut meter = Hwmon::open(&tree.roots()).unwrap();
        let _ = meter.read(Nanos::from_secs(1));
        set(900_000_000, 2_500_000);
        assert_eq!(meter.read(Nanos::from_secs(1)).unwrap().energy, Joules(3.0));
    }

    #[test]
    fn a_graphics_card_or_a_rail_is_no_meter_of_the_machine() {
        for name in ["amdgpu", "ina226", "nvme"] {
            let tree = Tree::new();
            tree.write(&format!("{CHIP}/name"), name);
            tree.write(&format!("{CHIP}/power1_average"), "100\n");
            assert!(Hwmon::open(&tree.roots()).unwrap_err().reason.contains("no power meter"));
        }
    }

    #[test]
    fn a_meter_that_fails_is_missing_and_not_zero() {
        let tree = Tree::new();
        tree.write(&format!("{CHIP}/power1_average"), "100\n");
        let mut meter = Hwmon::open(&tree.roots()).unwrap();
        let _ = meter.read(Nanos::from_secs(1));
        tree.write(&format!("{CHIP}/power1_average"), "\n");
        assert!(meter.read(Nanos::from_secs(1)).is_err());
        tree.write(&format!("{CHIP}/power1_average"), "100\n");
        assert!(meter.read(Nanos::from_secs(1)).unwrap_err().reason.contains("first reading"));
    }
}
