//! The kernel's throttle on real-time threads: `sched_rt_runtime_us`
//! (sched(7), "Limiting the CPU usage of real-time and deadline processes").
//!
//! Off means -1: a real-time thread that never sleeps then keeps its core for
//! good. On again means the value that was there, or the kernel's default.

use super::{ChangedSetting, KnobError, SaveOld};
use crate::Roots;
use crate::files::read_value;
use crate::guard::{Key, Original};
use lull_control::Setting;
use lull_measure::Missing;
use rustix::fs::Access;
use std::io;
use std::path::PathBuf;

/// The kernel's default: 950 ms of each second.
const DEFAULT_US: i64 = 950_000;
/// No throttle.
const OFF_US: i64 = -1;

/// The throttle and its original value.
#[derive(Debug)]
pub(crate) struct Throttle {
    roots: Roots,
    path: PathBuf,
    original_us: Option<i64>,
    /// The last value by Lull, unless another program wrote since.
    set_us: Option<i64>,
}

/// The kernel's budget of real-time threads, in microseconds of each period.
fn path(roots: &Roots) -> PathBuf {
    roots.proc.join("sys/kernel/sched_rt_runtime_us")
}

/// Returns the means by which the throttle is set, or the reason why it cannot be.
pub(super) fn settable(roots: &Roots) -> Result<String, Missing> {
    let path = path(roots);
    let writable = rustix::fs::access(&path, Access::READ_OK | Access::WRITE_OK);
    let means = path.display().to_string();
    writable.map(|()| means.clone()).map_err(|error| {
        Missing::because(format!("{means} cannot be written: {error}; run as root"))
    })
}

impl Throttle {
    pub(crate) fn new(roots: &Roots) -> Self {
        let path = path(roots);
        let original_us = read_value(&path).ok();
        Self { roots: roots.clone(), path, original_us, set_us: None }
    }

    /// Whether real-time threads are throttled.
    pub(crate) fn get(&self) -> io::Result<bool> {
        read_value::<i64>(&self.path).map(|runtime_us| runtime_us >= 0)
    }

    /// The ledger's name of it.
    pub(crate) fn key(&self) -> Key {
        Key::File(self.path.clone())
    }

    pub(crate) fn set(
        &mut self,
        on: bool,
        save: &mut impl SaveOld,
        is_privileged: bool,
    ) -> Result<(), KnobError> {
        let on_us = self.original_us.filter(|us| *us >= 0).unwrap_or(DEFAULT_US);
        let wanted_us = if on { on_us } else { OFF_US };
        let refused = |source| KnobError::Refused { what: self.what(), source, is_privileged };
        let original = Original::of_real_time_throttle(&self.roots, wanted_us);
        save.values(&[original.map_err(refused)?])?;
        std::fs::write(&self.path, wanted_us.to_string()).map_err(refused)?;
        let found_us: i64 = read_value(&self.path).map_err(refused)?;
        if found_us != wanted_us {
            let (wanted, found) = (wanted_us.to_string(), found_us.to_string());
            return Err(KnobError::NotKept { what: self.what(), wanted, found });
        }
        self.set_us = Some(wanted_us);
        Ok(())
    }

    /// Returns a value that another program has written since, once.
    pub(crate) fn watch(&mut self) -> Option<ChangedSetting> {
        let ours_us = self.set_us?;
        let found_us: i64 = read_value(&self.path).ok()?;
        if found_us == ours_us {
            return None;
        }
        self.set_us = None;
        Some(ChangedSetting {
            ours: Setting::RealTimeThrottle(ours_us >= 0),
            found: Setting::RealTimeThrottle(found_us >= 0),
            whom: self.what(),
            keys: vec![self.key()],
        })
    }

    /// Forgets the setting, after it was restored.
    pub(crate) fn restored(&mut self) {
        self.set_us = None;
    }

    fn what(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Restored;
    use crate::testing::{Saved, Tree};

    const PATH: &str = "proc/sys/kernel/sched_rt_runtime_us";

    #[test]
    fn on_again_is_the_value_that_was_there() {
        let tree = Tree::new();
        tree.write(PATH, "900000\n");
        let mut saved = Saved::default();
        let mut throttle = Throttle::new(&tree.roots());
        throttle.set(false, &mut saved, true).unwrap();
        assert!(!throttle.get().unwrap());
        throttle.set(true, &mut saved, true).unwrap();
        assert_eq!(read_value::<i64>(&tree.path(PATH)).unwrap(), 900_000);
        let Original::RealTimeThrottle { runtime_us, .. } = &saved.originals[0] else {
            panic!("{saved:?}")
        };
        assert_eq!(*runtime_us, 900_000);
    }

    #[test]
    fn a_throttle_that_another_program_has_set_stays() {
        let tree = Tree::new();
        tree.write(PATH, "900000\n");
        let mut saved = Saved::default();
        Throttle::new(&tree.roots()).set(false, &mut saved, true).unwrap();
        tree.write(PATH, "500000\n");
        let left = Restored::Left { found: "500000".to_owned() };
        assert_eq!(saved.originals[0].restore(&tree.roots()), left);
        tree.write(PATH, "-1\n");
        assert_eq!(saved.originals[0].restore(&tree.roots()), Restored::Done);
        assert_eq!(read_value::<i64>(&tree.path(PATH)).unwrap(), 900_000);
    }

    #[test]
    fn another_writer_is_reported_once() {
        let tree = Tree::new();
        tree.write(PATH, "950000\n");
        let mut throttle = Throttle::new(&tree.roots());
        assert_eq!(throttle.watch(), None, "never set");
        throttle.set(false, &mut Saved::default(), true).unwrap();
        assert_eq!(throttle.watch(), None);
        tree.write(PATH, "500000\n");
        let change = throttle.watch().unwrap();
        assert_eq!(change.ours, Setting::RealTimeThrottle(false));
        assert_eq!(change.found, Setting::RealTimeThrottle(true));
        assert_eq!(throttle.watch(), None);
    }

    #[test]
    fn a_kernel_without_the_file_refuses() {
        let mut throttle = Throttle::new(&Tree::new().roots());
        assert!(throttle.get().is_err());
        let error = throttle.set(false, &mut Saved::default(), true).unwrap_err();
        assert!(error.to_string().contains("sched_rt_runtime_us"), "{error}");
    }

    #[test]
    fn a_missing_throttle_file_is_a_reason() {
        let why = settable(&Tree::new().roots()).unwrap_err();
        assert!(why.reason.contains("sched_rt_runtime_us cannot be written"), "{why}");
    }
}
