//! One cpufreq policy: the cores that share a frequency, their governor and bounds
//! (Documentation/admin-guide/pm/cpufreq.rst).
//!
//! What kernels answer, seen on 6.1, 6.12 and 7.2 with acpi-cpufreq: bounds
//! beyond those of the hardware are clamped without an error; a minimum above
//! the maximum is kept and takes effect when the maximum is raised; reading
//! `scaling_setspeed` gives the speed in force on 6.1 and 6.12, and the last
//! request on 7.2, however absurd; a policy whose cores are all offline
//! answers EBUSY. New bounds are in force, and read back, only when a worker of
//! the kernel has taken them over, after the write has returned
//! (`cpufreq_notifier_max` in drivers/cpufreq/cpufreq.c, since 5.3).

use super::PutBack;
use super::text::{FileError, read, read_number, write};
use crate::Roots;
use crate::files::{HotFile, number};
use lull_control::DomainId;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// First pause between two looks at new bounds; each is twice the one before.
const PAUSE: Duration = Duration::from_micros(50);
/// Looks at new bounds: together 100 ms, for a kernel worker a very long time.
const LOOKS: u32 = 11;

/// The governor under which a frequency is set as such.
pub(crate) const USERSPACE: &str = "userspace";

/// The directories `policy0`, `policy4`, ... with their numbers.
pub(crate) fn policies(roots: &Roots) -> impl Iterator<Item = (DomainId, PathBuf)> + use<> {
    let dir = roots.sys.join("devices/system/cpu/cpufreq");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix("policy")?.parse().ok()?;
        Some((DomainId(number), entry.path()))
    })
}

/// The setting of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyState {
    /// `/sys/devices/system/cpu/cpufreq/policyN`.
    pub dir: PathBuf,
    /// `scaling_governor`.
    pub governor: String,
    /// `scaling_min_freq`.
    pub min_khz: u64,
    /// `scaling_max_freq`.
    pub max_khz: u64,
    /// `scaling_setspeed`; `None` where the governor has none.
    pub speed_khz: Option<u64>,
}

impl PolicyState {
    /// The state now.
    ///
    /// # Errors
    /// If one of the files cannot be read, as when the cores are offline.
    pub fn read(dir: &Path) -> Result<Self, FileError> {
        Files::new(dir).read()
    }

    /// The one frequency that the state allows; `None` where a governor chooses.
    pub(crate) fn pinned_khz(&self) -> Option<u64> {
        let bounded = |khz: u64| khz.max(self.min_khz).min(self.max_khz);
        match self.governor.as_str() {
            USERSPACE => self.speed_khz.map(bounded),
            "performance" => Some(self.max_khz),
            _ if self.min_khz == self.max_khz => Some(self.max_khz),
            _ => None,
        }
    }

    /// Raises the frequency as far as the saved bounds allow, which is safe for every objective.
    /// Leaves alone a value that another program has set, as [`PolicyState::put_back_ours`] does.
    /// Returns whether anything was written.
    pub(crate) fn boost(&self, ours: &[String]) -> Result<bool, FileError> {
        let now = Self::read(&self.dir)?;
        let own = self.without_others(&now, ours);
        let highest_khz = own.max_khz;
        if now.max_khz < highest_khz {
            write(&self.file("scaling_max_freq"), &highest_khz.to_string())?;
            // A speed above the bound in force would be held at it.
            Self { min_khz: now.min_khz, ..own.clone() }.wait_for_bounds()?;
        }
        let is_slow = now.governor == USERSPACE
            && now.pinned_khz() < Some(highest_khz)
            && (own.governor != now.governor || own.speed_khz != now.speed_khz);
        if is_slow {
            write(&self.file("scaling_setspeed"), &highest_khz.to_string())?;
        }
        Ok(is_slow || now.max_khz < highest_khz)
    }

    /// Writes the state; whether anything had to be written.
    ///
    /// # Errors
    /// If a write fails, or does not read back.
    pub fn put_back(&self) -> Result<bool, FileError> {
        let now = Self::read(&self.dir)?;
        if self.is_like(&now) {
            return Ok(false);
        }
        self.write_bounds(&now)?;
        if now.governor != self.governor {
            write(&self.file("scaling_governor"), &self.governor)?;
        }
        if let Some(khz) = self.speed_khz.filter(|_| self.governor == USERSPACE) {
            write(&self.file("scaling_setspeed"), &khz.to_string())?;
        }
        let kept = Self::read(&self.dir)?;
        match self.is_like(&kept) {
            true => Ok(true),
            false => Err(FileError {
                path: self.dir.clone(),
                wanted: Some(self.to_string()),
                source: std::io::Error::other(format!("it reads back as {kept}")),
            }),
        }
    }

    /// Restores the values that one of the texts `ours` has set, and leaves alone a value that
    /// another program has set since. Without texts everything is restored.
    ///
    /// # Errors
    /// As [`PolicyState::put_back`].
    pub(crate) fn put_back_ours(&self, ours: &[String]) -> Result<PutBack, FileError> {
        let wanted = self.without_others(&Self::read(&self.dir)?, ours);
        let was_needed = wanted.put_back()?;
        Ok(match (wanted.is_like(self), was_needed) {
            (false, _) => PutBack::Left { found: wanted.to_string() },
            (true, true) => PutBack::Done,
            (true, false) => PutBack::Already,
        })
    }

    /// Returns the saved state, except for the values in `now` that another program has set.
    fn without_others(&self, now: &Self, ours: &[String]) -> Self {
        if ours.is_empty() {
            return self.clone();
        }
        let is_ours = |text: &str| ours.iter().any(|one| one == text);
        // A momentary limit, such as that of heat, has both bounds below the written value.
        let is_limited = now.min_khz == now.max_khz
            && ours.iter().filter_map(|text| text.parse().ok()).any(|khz: u64| khz > now.max_khz);
        let bound = |saved_khz: u64, now_khz: u64| match is_limited || is_ours(&now_khz.to_string())
        {
            true => saved_khz,
            false => now_khz,
        };
        let has_governor = is_ours(&now.governor) || now.governor == self.governor;
        // The kernel may show the speed in force: a bound, or the highest one after a boost.
        let has_speed = now.speed_khz.is_none_or(|khz| {
            is_ours(&khz.to_string()) || [now.min_khz, now.max_khz, self.max_khz].contains(&khz)
        });
        let governor = if has_governor { self } else { now };
        let is_speed_ours = has_governor && (has_speed || self.governor != USERSPACE);
        Self {
            dir: self.dir.clone(),
            governor: governor.governor.clone(),
            min_khz: bound(self.min_khz, now.min_khz),
            max_khz: bound(self.max_khz, now.max_khz),
            speed_khz: if is_speed_ours { self.speed_khz } else { now.speed_khz },
        }
    }

    /// A minimum is written below the maximum in force, or the kernel holds it back.
    /// They are in force when this returns, unless the kernel makes others of them.
    pub(crate) fn write_bounds(&self, now: &Self) -> Result<(), FileError> {
        let max = || write(&self.file("scaling_max_freq"), &self.max_khz.to_string());
        let min = || write(&self.file("scaling_min_freq"), &self.min_khz.to_string());
        if self.max_khz > now.max_khz {
            max()?;
        }
        if self.min_khz != now.min_khz {
            min()?;
        }
        if self.max_khz < now.max_khz {
            max()?;
        }
        match self.has_bounds_of(now) {
            true => Ok(()),
            false => self.wait_for_bounds(),
        }
    }

    /// Waits until the bounds read back as they were written, or are clear not to.
    fn wait_for_bounds(&self) -> Result<(), FileError> {
        for look in 0..LOOKS {
            if self.has_bounds_of(&Self::read(&self.dir)?) {
                break;
            }
            std::thread::sleep(PAUSE * (1 << look));
        }
        Ok(())
    }

    fn has_bounds_of(&self, other: &Self) -> bool {
        (self.min_khz, self.max_khz) == (other.min_khz, other.max_khz)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Whether two states do the same: a speed counts under `userspace` alone.
    fn is_like(&self, other: &Self) -> bool {
        let pinned = |state: &Self| (state.governor == USERSPACE).then(|| state.pinned_khz());
        self.governor == other.governor
            && self.has_bounds_of(other)
            && pinned(self) == pinned(other)
    }
}

impl std::fmt::Display for PolicyState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}-{} kHz", self.governor, self.min_khz, self.max_khz)?;
        match self.speed_khz {
            Some(khz) => write!(f, " at {khz} kHz"),
            None => Ok(()),
        }
    }
}

/// The files of one policy, kept open.
#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    governor: HotFile,
    min: HotFile,
    max: HotFile,
    speed: HotFile,
}

impl Files {
    pub(crate) fn new(dir: &Path) -> Self {
        let file = |name: &str| HotFile::new(dir.join(name));
        Self {
            dir: dir.to_owned(),
            governor: file("scaling_governor"),
            min: file("scaling_min_freq"),
            max: file("scaling_max_freq"),
            speed: file("scaling_setspeed"),
        }
    }

    /// The state now.
    pub(crate) fn read(&mut self) -> Result<PolicyState, FileError> {
        let governor = text_of(&mut self.governor)?;
        let speed_khz = match governor.as_str() {
            USERSPACE => number(text_of(&mut self.speed)?.as_bytes()),
            _ => None,
        };
        let (min_khz, max_khz) = (number_of(&mut self.min)?, number_of(&mut self.max)?);
        Ok(PolicyState { dir: self.dir.clone(), governor, min_khz, max_khz, speed_khz })
    }
}

fn text_of(file: &mut HotFile) -> Result<String, FileError> {
    let path = file.path().to_owned();
    let mut buffer = [0; 64];
    let read = file.read(&mut buffer);
    let text = read.map_err(|source| FileError { path, wanted: None, source })?;
    Ok(String::from_utf8_lossy(text).trim().to_owned())
}

fn number_of(file: &mut HotFile) -> Result<u64, FileError> {
    let path = file.path().to_owned();
    file.read_number().map_err(|source| FileError { path, wanted: None, source })
}

/// How the frequency of a policy can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// The governor `userspace` and `scaling_setspeed`.
    Speed,
    /// Minimum and maximum at one value: drivers that choose themselves
    /// (intel_pstate, amd-pstate) and kernels without that governor.
    Bounds,
}

/// How the policy in `dir` can be set, and with which driver.
///
/// # Errors
/// If its files cannot be read.
pub(crate) fn means(dir: &Path) -> Result<(Means, String), FileError> {
    let driver = read(&dir.join("scaling_driver"))?;
    let governors = read(&dir.join("scaling_available_governors"))?;
    for bound in ["scaling_min_freq", "scaling_max_freq"] {
        read_number(&dir.join(bound))?;
    }
    let has_userspace = governors.split_whitespace().any(|name| name == USERSPACE);
    Ok((if has_userspace { Means::Speed } else { Means::Bounds }, driver))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::Tree;

    pub(crate) const DIR: &str = "sys/devices/system/cpu/cpufreq/policy0";

    /// A made-up policy; a tree of files keeps whatever is written.
    pub(crate) fn policy(tree: &Tree, dir: &str, governors: &str) {
        for (name, text) in [
            ("scaling_driver", "acpi-cpufreq"),
            ("scaling_available_governors", governors),
            ("scaling_governor", governors.split(' ').next().unwrap()),
            ("scaling_min_freq", "800000"),
            ("scaling_max_freq", "2400000"),
            ("cpuinfo_min_freq", "800000"),
            ("cpuinfo_max_freq", "2400000"),
            ("scaling_cur_freq", "800000"),
            ("scaling_setspeed", "<unsupported>"),
        ] {
            tree.write(&format!("{dir}/{name}"), &format!("{text}\n"));
        }
    }

    fn state(governor: &str, min_khz: u64, max_khz: u64, speed_khz: Option<u64>) -> PolicyState {
        let governor = governor.to_owned();
        PolicyState { dir: PathBuf::from("/d"), governor, min_khz, max_khz, speed_khz }
    }

    #[test]
    fn a_frequency_is_known_where_no_governor_chooses_it() {
        assert_eq!(state("schedutil", 8, 24, None).pinned_khz(), None);
        assert_eq!(state("schedutil", 24, 24, None).pinned_khz(), Some(24));
        assert_eq!(state("performance", 8, 24, None).pinned_khz(), Some(24));
        assert_eq!(state("userspace", 8, 24, Some(16)).pinned_khz(), Some(16));
        assert_eq!(
            state("userspace", 8, 24, Some(99)).pinned_khz(),
            Some(24),
            "7.2 keeps the request"
        );
    }

    #[test]
    fn the_value_that_was_read_is_restored_after_any_other() {
        let tree = Tree::new();
        policy(&tree, DIR, "schedutil userspace");
        let dir = tree.path(DIR);
        let before = PolicyState::read(&dir).unwrap();
        assert!(!before.put_back().unwrap());
        for (name, text) in [
            ("scaling_governor", "userspace"),
            ("scaling_min_freq", "1200000"),
            ("scaling_max_freq", "1200000"),
            ("scaling_setspeed", "1200000"),
        ] {
            tree.write(&format!("{DIR}/{name}"), text);
        }
        assert!(before.boost(&[]).unwrap());
        assert_eq!(PolicyState::read(&dir).unwrap().pinned_khz(), Some(2_400_000));
        assert!(before.put_back().unwrap());
        assert_eq!(PolicyState::read(&dir).unwrap(), before);
    }

    /// A policy that Lull has put under `userspace`, or between two equal bounds.
    fn steered(tree: &Tree, governors: &str, texts: &[(&str, &str)]) -> PolicyState {
        policy(tree, DIR, governors);
        let before = PolicyState::read(&tree.path(DIR)).unwrap();
        texts.iter().for_each(|(name, text)| tree.write(&format!("{DIR}/{name}"), text));
        before
    }

    fn now(tree: &Tree) -> String {
        PolicyState::read(&tree.path(DIR)).unwrap().to_string()
    }

    #[test]
    fn a_governor_that_another_program_has_set_stays() {
        let tree = Tree::new();
        let written = [("scaling_governor", "userspace"), ("scaling_setspeed", "1200000")];
        let before = steered(&tree, "schedutil userspace powersave", &written);
        let ours = [USERSPACE.to_owned()];
        tree.write(&format!("{DIR}/scaling_governor"), "powersave");
        let theirs = now(&tree);
        assert!(!before.boost(&ours).unwrap());
        let left = PutBack::Left { found: theirs.clone() };
        assert_eq!(before.put_back_ours(&ours).unwrap(), left);
        assert_eq!(now(&tree), theirs);
        tree.write(&format!("{DIR}/scaling_governor"), "userspace");
        assert!(before.boost(&ours).unwrap());
        assert_eq!(before.put_back_ours(&ours).unwrap(), PutBack::Done);
        assert_eq!(before.put_back_ours(&ours).unwrap(), PutBack::Already);
    }

    #[test]
    fn a_bound_that_another_program_has_set_stays_and_the_other_is_restored() {
        let tree = Tree::new();
        let written = [("scaling_min_freq", "1200000"), ("scaling_max_freq", "1200000")];
        let before = steered(&tree, "powersave performance", &written);
        let ours = ["1200000".to_owned()];
        tree.write(&format!("{DIR}/scaling_max_freq"), "2000000");
        assert!(!before.boost(&ours).unwrap(), "the maximum is another program's");
        assert!(matches!(before.put_back_ours(&ours).unwrap(), PutBack::Left { .. }));
        assert_eq!(now(&tree), "powersave 800000-2000000 kHz");
        let before = steered(&tree, "powersave performance", &written);
        assert!(before.boost(&ours).unwrap());
        assert_eq!(before.put_back_ours(&ours).unwrap(), PutBack::Done);
    }

    #[test]
    fn bounds_that_heat_has_lowered_are_restored() {
        let tree = Tree::new();
        let limited = [("scaling_min_freq", "1000000"), ("scaling_max_freq", "1000000")];
        let before = steered(&tree, "powersave performance", &limited);
        assert_eq!(before.put_back_ours(&["1200000".to_owned()]).unwrap(), PutBack::Done);
    }

    #[test]
    fn a_speed_that_another_program_has_set_under_the_owners_userspace_stays() {
        let tree = Tree::new();
        let before = steered(&tree, "userspace schedutil", &[]);
        tree.write(&format!("{DIR}/scaling_setspeed"), "1600000");
        let before = PolicyState { speed_khz: Some(1_000_000), ..before };
        let ours = [USERSPACE, "1200000"].map(str::to_owned);
        assert!(!before.boost(&ours).unwrap());
        assert!(matches!(before.put_back_ours(&ours).unwrap(), PutBack::Left { .. }));
        tree.write(&format!("{DIR}/scaling_setspeed"), "1200000");
        assert!(before.boost(&ours).unwrap());
        assert_eq!(before.put_back_ours(&ours).unwrap(), PutBack::Done);
        assert_eq!(now(&tree), "userspace 800000-2400000 kHz at 1000000 kHz");
    }

    #[test]
    fn bounds_are_written_so_that_they_never_cross() {
        let tree = Tree::new();
        policy(&tree, DIR, "powersave performance");
        let dir = tree.path(DIR);
        let low = PolicyState { max_khz: 800_000, ..PolicyState::read(&dir).unwrap() };
        let high = PolicyState { min_khz: 2_400_000, ..PolicyState::read(&dir).unwrap() };
        for wanted in [&low, &high, &low] {
            assert!(wanted.put_back().unwrap());
            assert_eq!(
                PolicyState::read(&dir).unwrap().pinned_khz(),
                Some(wanted.max_khz.max(wanted.min_khz))
            );
        }
    }

    #[test]
    fn means_are_those_of_the_driver() {
        let tree = Tree::new();
        policy(&tree, DIR, "schedutil userspace");
        assert_eq!(means(&tree.path(DIR)).unwrap(), (Means::Speed, "acpi-cpufreq".to_owned()));
        policy(&tree, DIR, "performance powersave");
        assert_eq!(means(&tree.path(DIR)).unwrap().0, Means::Bounds);
        tree.remove(&format!("{DIR}/scaling_max_freq"));
        assert!(means(&tree.path(DIR)).unwrap_err().to_string().contains("scaling_max_freq"));
    }

    #[test]
    fn a_policy_whose_driver_is_gone_is_an_error_that_names_it() {
        let error = PolicyState::read(Path::new("/no/such/policy0")).unwrap_err();
        assert!(error.is_absent() && error.to_string().contains("policy0/scaling_governor"));
    }
}
