//! Bounds on wake-up latency (Documentation/power/pm_qos_interface.rst).
//!
//! `/dev/cpu_dma_latency` holds for all cores as long as it is open, so the
//! kernel itself takes it back when the holder ends, however it ends. The
//! bound of one core is a file of its device.

use super::super::KnobError;
use crate::Roots;
use crate::drivers::FileError;
use crate::drivers::text::read;
use crate::drivers::texts::TextWrite;
use lull_control::CoreSet;
use lull_measure::Nanos;
use std::fs::{File, OpenOptions};
use std::io::Write;

/// Holds the bound of all cores until the file is dropped.
pub(super) fn wake(roots: &Roots, at_most: Nanos) -> Result<File, KnobError> {
    let path = roots.dev.join("cpu_dma_latency");
    let us = microseconds(at_most)?;
    let open = OpenOptions::new().write(true).open(&path);
    let held = open.and_then(|mut file| file.write_all(&us.to_ne_bytes()).map(|()| file));
    let failed = |source| FileError { path, wanted: Some(format!("{us} us")), source };
    Ok(held.map_err(failed)?)
}

/// Bounds some cores; 0 us there means no idle state at all but polling.
pub(super) fn resume(
    roots: &Roots,
    cores: &CoreSet,
    at_most: Nanos,
) -> Result<Vec<TextWrite>, KnobError> {
    // The file takes 0 for "no bound" and n/a for "no latency at all".
    let text = match microseconds(at_most)? {
        0 => "n/a".to_owned(),
        us => us.to_string(),
    };
    let write = |core| {
        let device = roots.sys.join(format!("devices/system/cpu/cpu{core}"));
        // The kernel removes the file while the core is offline.
        if read(&device.join("online")).is_ok_and(|online| online == "0") {
            let why = format!("core {core} is offline: bring it online first, or leave it out");
            return Err(KnobError::Nonsense(why));
        }
        let file = device.join("power/pm_qos_resume_latency_us");
        Ok(TextWrite::exactly(file, text.clone()))
    };
    cores.iter().map(write).collect()
}

fn microseconds(time: Nanos) -> Result<i32, KnobError> {
    let us = i32::try_from(time.0 / 1000).ok();
    us.ok_or_else(|| {
        KnobError::Nonsense(format!("{time} is not a wake-up latency: at most 35 min"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn the_bound_is_four_bytes_of_microseconds() {
        let tree = Tree::new();
        let error = wake(&tree.roots(), Nanos::from_micros(20)).unwrap_err().to_string();
        assert!(error.contains("cpu_dma_latency"), "{error}");
        tree.write("dev/cpu_dma_latency", "");
        drop(wake(&tree.roots(), Nanos::from_micros(20)).unwrap());
        assert_eq!(std::fs::read(tree.path("dev/cpu_dma_latency")).unwrap(), 20i32.to_ne_bytes());
        assert!(wake(&tree.roots(), Nanos::MAX).is_err());
    }

    #[test]
    fn a_core_without_any_latency_is_not_a_core_without_a_bound() {
        let tree = Tree::new();
        let text = |time| resume(&tree.roots(), &CoreSet::first(1), time).unwrap()[0].text.clone();
        assert_eq!(text(Nanos::ZERO), "n/a");
        assert_eq!(text(Nanos::from_micros(7)), "7");
    }

    #[test]
    fn a_core_that_is_offline_is_refused_by_its_number() {
        let tree = Tree::new();
        for (core, online) in [(0, "1\n"), (1, "0\n")] {
            tree.write(&format!("sys/devices/system/cpu/cpu{core}/online"), online);
        }
        let resume = |cores| resume(&tree.roots(), &CoreSet::first(cores), Nanos::ZERO);
        assert_eq!(resume(1).unwrap().len(), 1);
        let why = resume(2).unwrap_err().to_string();
        assert!(why.starts_with("core 1 is offline"), "{why}");
    }
}
