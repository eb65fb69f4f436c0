//! The frequency of a domain: `userspace` and `scaling_setspeed` where the
//! driver has them, else minimum and maximum at one value.
//!
//! A domain under a governor that chooses has no setting, because it has no
//! single frequency to report. The bounds that were set before Lull started are
//! the administrator's and hold for Lull too. A core that goes offline and
//! comes back has its governor but runs at its highest frequency again (seen
//! on 6.1 to 7.2), so a domain whose cores changed is set again. If a core goes
//! and comes back within one epoch, this looks like a change by another writer,
//! and that change is kept.

use super::{ChangedSetting, KnobError, SaveOld, Watched};
use crate::Roots;
use crate::drivers::cpufreq::{Files, Means, PolicyState, USERSPACE, means, policies};
use crate::drivers::text::{self, FileError};
use crate::files::read_text;
use crate::guard::{Key, Original};
use lull_control::{DomainId, Setting};
use lull_measure::{Hertz, Missing};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// All domains whose frequency can be set.
#[derive(Debug)]
pub(crate) struct Frequencies {
    domains: BTreeMap<DomainId, Domain>,
}

#[derive(Debug)]
struct Domain {
    dir: PathBuf,
    files: Files,
    means: Means,
    /// The state before the first write.
    original: Option<PolicyState>,
    set: Option<Set>,
}

/// The last setting by Lull.
#[derive(Debug, Clone, PartialEq)]
struct Set {
    khz: u64,
    state: PolicyState,
    /// `affected_cpus` then.
    cores: String,
}

/// The outcome of setting a domain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrequencyOutcome {
    Already,
    Done,
    /// The bounds of the administrator or the hardware held it here.
    Held(Hertz),
}

/// Returns the means by which frequencies are set, or the reason why they cannot be.
pub(super) fn settable(roots: &Roots) -> Result<String, Missing> {
    let mut found: Vec<_> = policies(roots).collect();
    found.sort();
    if found.is_empty() {
        return Err(Missing::because(
            "no cpufreq: the kernel has no frequency driver here (usual in virtual machines)",
        ));
    }
    let mut described = BTreeSet::new();
    for (_, dir) in &found {
        let (how, driver) = means(dir).map_err(|error| Missing::because(error.to_string()))?;
        let written = match how {
            Means::Speed => ["scaling_governor", "scaling_setspeed"],
            Means::Bounds => ["scaling_min_freq", "scaling_max_freq"],
        };
        for file in written.map(|name| dir.join(name)) {
            text::check_writable(&file)?;
        }
        described.insert(format!("{driver}: {}", written.join(" + ")));
    }
    Ok(described.into_iter().collect::<Vec<_>>().join("; "))
}

/// Returns the files that are written, without a lower bound that is not the hardware's, which may
/// be a momentary limit and would stay, and without the upper one: the hardware's own rises when
/// turbo is switched on, and a written value would stay, too.
pub(super) fn files(roots: &Roots) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for (_, dir) in policies(roots) {
        all.push(dir.join("scaling_governor"));
        let [bound, hardware] = ["scaling_min_freq", "cpuinfo_min_freq"].map(|it| dir.join(it));
        let found = [&bound, &hardware].map(|file| text::read_number(file).ok());
        if found[0].is_some() && found[0] == found[1] {
            all.push(bound);
        }
    }
    all
}

impl Frequencies {
    /// The policies in these directories; one that cannot be set is left out.
    pub(crate) fn new(policies: impl Iterator<Item = (DomainId, PathBuf)>) -> Self {
        let domain = |(id, dir): (DomainId, PathBuf)| {
            let (means, _) = means(&dir).ok()?;
            let files = Files::new(&dir);
            Some((id, Domain { dir, files, means, original: None, set: None }))
        };
        Self { domains: policies.filter_map(domain).collect() }
    }

    /// The one frequency that a domain is set to; `None` where a governor chooses.
    pub(crate) fn get(&self, id: DomainId) -> Option<Hertz> {
        let dir = &self.domains.get(&id)?.dir;
        PolicyState::read(dir).ok()?.pinned_khz().map(Hertz::from_khz)
    }

    /// Sets a domain; if that fails in the middle it is as before.
    pub(crate) fn set(
        &mut self,
        id: DomainId,
        wanted: Hertz,
        save: &mut impl SaveOld,
    ) -> Result<FrequencyOutcome, KnobError> {
        let none = || KnobError::Nonsense(format!("domain {} has no frequency to set", id.0));
        let domain = self.domains.get_mut(&id).ok_or_else(none)?;
        let before = domain.files.read()?;
        let mut originals = vec![domain.note_original(Some(wanted.0 / 1000), &before)];
        // The first write saves the values of all domains, so that the disk is waited for once. A
        // domain that is offline is saved when it is first written.
        for other in self.domains.values_mut().filter(|other| other.original.is_none()) {
            let state = other.files.read().ok();
            originals.extend(state.map(|state| other.note_original(None, &state)));
        }
        save.values(&originals)?;
        let domain = self.domains.get_mut(&id).ok_or_else(none)?;
        let outcome = domain.write(wanted.0 / 1000, &before);
        if outcome.is_err() {
            // If this fails too, the ledger still has the old state.
            let _ = before.put_back();
        }
        outcome
    }

    /// Returns settings by other programs since the last call, each once. A domain whose cores went
    /// offline and are online again is set again, and a failure of that is a notice.
    pub(crate) fn watch(&mut self) -> Watched {
        let mut all = Watched::default();
        for (id, domain) in &mut self.domains {
            match domain.watch(*id) {
                Ok(found) => all.changes.extend(found),
                Err(error) => all.notices.push(error.to_string()),
            }
        }
        all
    }

    /// Forgets the settings, after all were restored.
    pub(crate) fn restored(&mut self) {
        self.domains.values_mut().for_each(|domain| domain.set = None);
    }

    /// Whether the ledger's name is that of a domain.
    pub(crate) fn is_of(&self, id: DomainId, key: &Key) -> bool {
        let dir = self.domains.get(&id).map(|domain| &domain.dir);
        matches!((key, dir), (Key::File(path), Some(dir)) if path == dir)
    }
}

impl Domain {
    /// Its old state, with what the files have if Lull has set them: in the state `now`, and after
    /// the write of a frequency, if one is to be written.
    fn note_original(&mut self, wanted_khz: Option<u64>, now: &PolicyState) -> Original {
        let state = self.original.get_or_insert_with(|| now.clone()).clone();
        let khz = wanted_khz.map(|khz| self.bounded_khz(khz, now));
        let ours = match self.means {
            // The governor of before replaces the speed.
            Means::Speed if state.governor != USERSPACE => vec![USERSPACE.to_owned()],
            Means::Speed => {
                let speeds = now.speed_khz.into_iter().chain(khz).map(|khz| khz.to_string());
                [USERSPACE.to_owned()].into_iter().chain(speeds).collect()
            }
            Means::Bounds => {
                let former_khz = (now.min_khz == now.max_khz).then_some(now.max_khz);
                let bounds = former_khz.into_iter().chain(khz).map(|khz| khz.to_string());
                [state.governor.clone()].into_iter().chain(bounds).collect()
            }
        };
        Original::CpuFreq { state, ours }
    }

    /// The frequency within the bounds that were set before Lull.
    fn bounded_khz(&self, wanted_khz: u64, before: &PolicyState) -> u64 {
        let limits = self.original.as_ref().unwrap_or(before);
        wanted_khz.max(limits.min_khz).min(limits.max_khz)
    }

    fn write(
        &mut self,
        wanted_khz: u64,
        before: &PolicyState,
    ) -> Result<FrequencyOutcome, KnobError> {
        let khz = self.bounded_khz(wanted_khz, before);
        let outcome = |wrote: bool| match (khz == wanted_khz, wrote) {
            (false, _) => FrequencyOutcome::Held(Hertz::from_khz(khz)),
            (true, true) => FrequencyOutcome::Done,
            (true, false) => FrequencyOutcome::Already,
        };
        if before.pinned_khz() == Some(khz) {
            return Ok(outcome(false));
        }
        self.request(khz, before)?;
        let kept = self.files.read()?;
        if kept.pinned_khz() != Some(khz) {
            return Err(KnobError::NotKept {
                what: self.dir.display().to_string(),
                wanted: format!("{khz} kHz"),
                found: kept.to_string(),
            });
        }
        self.set = Some(Set::new(khz, &kept));
        Ok(outcome(true))
    }

    fn request(&self, khz: u64, before: &PolicyState) -> Result<(), FileError> {
        match self.means {
            Means::Speed => {
                if before.governor != USERSPACE {
                    text::write(&before.file("scaling_governor"), USERSPACE)?;
                }
                text::write(&before.file("scaling_setspeed"), &khz.to_string())
            }
            Means::Bounds => {
                let wanted = PolicyState { min_khz: khz, max_khz: khz, ..before.clone() };
                wanted.write_bounds(before)
            }
        }
    }

    fn watch(&mut self, id: DomainId) -> Result<Option<ChangedSetting>, KnobError> {
        let Some(set) = self.set.clone() else { return Ok(None) };
        let cores = cores_of(&self.dir);
        let now = match self.files.read() {
            Ok(now) if !cores.is_empty() => now,
            Err(error) if !error.is_absent() => return Err(error.into()),
            // All its cores are offline, or its driver is being changed.
            _ => {
                self.set = Some(Set { cores: String::new(), ..set });
                return Ok(None);
            }
        };
        if now == set.state && cores == set.cores {
            return Ok(None);
        }
        if cores != set.cores && now.governor == set.state.governor {
            self.request(set.khz, &now)?;
            let state = self.files.read()?;
            self.set = Some(Set { state, cores, ..set });
            return Ok(None);
        }
        self.set = None;
        let found_khz = now.pinned_khz().or_else(|| current_khz(&self.dir)).unwrap_or(now.max_khz);
        Ok(Some(ChangedSetting {
            ours: Setting::Frequency(id, Hertz::from_khz(set.khz)),
            found: Setting::Frequency(id, Hertz::from_khz(found_khz)),
            whom: format!("{} ({now})", self.dir.display()),
            keys: vec![Key::File(self.dir.clone())],
        }))
    }
}

impl Set {
    fn new(khz: u64, state: &PolicyState) -> Self {
        Self { khz, cores: cores_of(&state.dir), state: state.clone() }
    }
}

fn cores_of(dir: &Path) -> String {
    read_text(&dir.join("affected_cpus")).unwrap_or_default()
}

fn current_khz(dir: &Path) -> Option<u64> {
    text::read_number(&dir.join("scaling_cur_freq")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::cpufreq::tests::policy;
    use crate::drivers::text::faults;
    use crate::guard::Restored;
    use crate::testing::{Saved, Tree};

    const CPUFREQ: &str = "sys/devices/system/cpu/cpufreq";
    const GHZ: Hertz = Hertz(1_200_000_000);

    struct Scene {
        tree: Tree,
        saved: Saved,
        frequencies: Frequencies,
    }

    impl Scene {
        fn new(domains: u16, governors: &str) -> Self {
            let tree = Tree::new();
            for id in 0..domains {
                let dir = format!("{CPUFREQ}/policy{id}");
                policy(&tree, &dir, governors);
                tree.write(&format!("{dir}/affected_cpus"), &format!("{id}\n"));
            }
            Self {
                frequencies: Frequencies::new(policies(&tree.roots())),
                saved: Saved::default(),
                tree,
            }
        }

        fn set(&mut self, id: u16, hertz: Hertz) -> Result<FrequencyOutcome, KnobError> {
            self.frequencies.set(DomainId(id), hertz, &mut self.saved)
        }

        fn file(&self, id: u16, name: &str) -> String {
            text::read(&self.tree.path(&format!("{CPUFREQ}/policy{id}/{name}"))).unwrap()
        }

        fn write(&self, id: u16, name: &str, text: &str) {
            self.tree.write(&format!("{CPUFREQ}/policy{id}/{name}"), text);
        }
    }

    #[test]
    fn a_speed_is_set_under_userspace_and_put_back_with_its_governor() {
        let mut scene = Scene::new(2, "schedutil userspace");
        assert_eq!(scene.frequencies.get(DomainId(0)), None, "a governor chooses");
        assert_eq!(scene.set(0, GHZ).unwrap(), FrequencyOutcome::Done);
        assert_eq!(scene.set(0, GHZ).unwrap(), FrequencyOutcome::Already);
        assert_eq!(scene.frequencies.get(DomainId(0)), Some(GHZ));
        assert_eq!(scene.file(0, "scaling_setspeed"), "1200000");
        assert_eq!(scene.file(1, "scaling_governor"), "schedutil", "the other is left alone");
        assert_eq!(scene.saved.batches, 1, "one wait for the disk for all domains");
        assert_eq!(scene.saved.originals.len(), 2);
        let restore = |original: &Original| original.restore(&scene.tree.roots());
        let restored: Vec<_> = scene.saved.originals.iter().map(restore).collect();
        assert!(restored.contains(&Restored::Done) && restored.contains(&Restored::Already));
        assert_eq!(scene.file(0, "scaling_governor"), "schedutil");
    }

    #[test]
    fn what_another_program_has_set_stays_also_in_a_domain_that_was_never_set() {
        for (governors, theirs) in [
            ("schedutil userspace powersave", ("scaling_governor", "powersave")),
            ("powersave performance", ("scaling_max_freq", "2000000")),
        ] {
            let mut scene = Scene::new(2, governors);
            for mhz in [2000, 1600, 1400] {
                scene.set(0, Hertz::from_khz(mhz * 1000)).unwrap();
            }
            for id in 0..2 {
                scene.write(id, theirs.0, theirs.1);
            }
            for original in &scene.saved.originals {
                let outcome = original.restore(&scene.tree.roots());
                assert!(matches!(outcome, Restored::Left { .. }), "{outcome:?}");
            }
            assert_eq!([0, 1].map(|id| scene.file(id, theirs.0)), [theirs.1; 2]);
        }
    }

    #[test]
    fn a_driver_that_chooses_itself_is_held_by_its_bounds() {
        let mut scene = Scene::new(1, "powersave performance");
        for hertz in [GHZ, Hertz(2_000_000_000), Hertz(800_000_000)] {
            assert_eq!(scene.set(0, hertz).unwrap(), FrequencyOutcome::Done);
            assert_eq!(scene.frequencies.get(DomainId(0)), Some(hertz));
            assert_eq!(scene.file(0, "scaling_governor"), "powersave");
        }
    }

    #[test]
    fn out_of_range_is_held_at_the_administrators_bounds() {
        for governors in ["powersave performance", "schedutil userspace"] {
            let mut scene = Scene::new(1, governors);
            scene.write(0, "scaling_max_freq", "2000000\n");
            let highest = Hertz(2_000_000_000);
            assert_eq!(scene.set(0, Hertz(u64::MAX)).unwrap(), FrequencyOutcome::Held(highest));
            assert_eq!(scene.set(0, Hertz(0)).unwrap(), FrequencyOutcome::Held(Hertz(800_000_000)));
            assert_eq!(scene.frequencies.get(DomainId(0)), Some(Hertz(800_000_000)));
        }
    }

    #[test]
    fn a_refusal_in_the_middle_leaves_the_domain_as_it_was() {
        for (governors, file) in
            [("schedutil userspace", "scaling_setspeed"), ("powersave x", "scaling_max_freq")]
        {
            for errno in [libc::EINVAL, libc::EBUSY, libc::EACCES, libc::ENODEV, libc::EROFS] {
                let mut scene = Scene::new(1, governors);
                let before = PolicyState::read(&scene.tree.path(&format!("{CPUFREQ}/policy0")));
                faults::refuse(file, 0, errno);
                let error = scene.set(0, GHZ).unwrap_err().to_string();
                faults::clear();
                let described = std::io::Error::from_raw_os_error(errno).to_string();
                assert!(error.contains(file) && error.contains(&described), "{error}");
                let after = PolicyState::read(&scene.tree.path(&format!("{CPUFREQ}/policy0")));
                assert_eq!(after.unwrap(), before.unwrap());
            }
        }
    }

    #[test]
    fn old_values_that_cannot_be_saved_keep_the_knob_untouched() {
        let mut scene = Scene::new(1, "schedutil userspace");
        scene.saved.is_full = true;
        assert!(matches!(scene.set(0, GHZ), Err(KnobError::Unsaved(_))));
        assert_eq!(scene.file(0, "scaling_governor"), "schedutil");
    }

    #[test]
    fn a_governor_changed_by_another_program_is_reported_once_with_its_value() {
        let mut scene = Scene::new(1, "schedutil userspace");
        scene.set(0, GHZ).unwrap();
        assert!(scene.frequencies.watch().is_empty());
        scene.write(0, "scaling_governor", "schedutil\n");
        let Watched { changes, notices } = scene.frequencies.watch();
        assert!(notices.is_empty());
        let ours = Setting::Frequency(DomainId(0), GHZ);
        assert_eq!((changes.len(), &changes[0].ours), (1, &ours));
        assert!(changes[0].whom.contains("schedutil"), "{}", changes[0].whom);
        assert!(scene.frequencies.is_of(DomainId(0), &changes[0].keys[0]));
        assert!(scene.frequencies.watch().changes.is_empty(), "reported twice");
    }

    #[test]
    fn a_core_that_is_online_again_is_set_again() {
        let mut scene = Scene::new(1, "schedutil userspace");
        scene.set(0, GHZ).unwrap();
        scene.write(0, "affected_cpus", "\n");
        assert!(scene.frequencies.watch().is_empty(), "offline");
        assert!(scene.frequencies.watch().is_empty(), "still");
        scene.write(0, "affected_cpus", "0\n");
        scene.write(0, "scaling_setspeed", "2400000\n");
        assert!(scene.frequencies.watch().is_empty());
        assert_eq!(scene.frequencies.get(DomainId(0)), Some(GHZ));
    }

    #[test]
    fn a_domain_that_does_not_exist_is_refused() {
        let mut scene = Scene::new(1, "schedutil userspace");
        assert!(matches!(scene.set(7, GHZ), Err(KnobError::Nonsense(_))));
    }
}
