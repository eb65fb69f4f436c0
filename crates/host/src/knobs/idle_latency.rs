//! The idle states that cores may enter, by exit latency: `cpuidle/stateN/disable` of every core
//! (Documentation/admin-guide/pm/cpuidle.rst).
//!
//! A limit disables the states that take longer to leave, on every core. The others are as their
//! owner had them: Lull enables no state that was disabled. Polling (exit latency 0) is no limit of
//! its own, because a core that only polls takes power and speed from its neighbours. A core that
//! sleeps in a deeper state stays there until it wakes. The kernel keeps the flags of a core that
//! goes offline; a core that was offline when a limit was set has it from the next one on.

use super::{ChangedSetting, KnobError, SaveOld};
use crate::Roots;
use crate::drivers::cpuidle::states;
use crate::drivers::text;
use crate::drivers::texts::{TextWrite, write_all};
use crate::guard::{Key, Original};
use lull_control::Setting;
use lull_measure::{Missing, Nanos};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The content of `disable` of a state that cores may enter, and of one that they may not.
const ENABLED: &str = "0";
const DISABLED: &str = "1";

/// The idle states of all cores and Lull's last settings.
#[derive(Debug)]
pub(super) struct IdleLatency {
    roots: Roots,
    /// The states of cores that were online when a limit was set last, the deepest first.
    states: Vec<CoreState>,
    /// `disable` of each state before Lull wrote any.
    owners: BTreeMap<PathBuf, String>,
    /// The last setting by Lull, unless another program has changed it since.
    set: Option<Limit>,
}

/// One idle state of one core.
#[derive(Debug, Clone, PartialEq)]
struct CoreState {
    disable: PathBuf,
    exit: Nanos,
}

/// A limit that Lull has set.
#[derive(Debug)]
struct Limit {
    at_most: Nanos,
    /// The values of `disable` for every state: those that Lull disabled, and the others.
    in_force: Vec<TextWrite>,
}

/// The states of all cores, the deepest first; one whose exit latency cannot be read is left out.
fn core_states(roots: &Roots) -> Vec<CoreState> {
    let state = |dir: PathBuf| {
        let exit_us = text::read_number(&dir.join("latency")).ok()?;
        Some(CoreState { disable: dir.join("disable"), exit: Nanos::from_micros(exit_us) })
    };
    let mut all: Vec<_> = states(roots).into_iter().filter_map(state).collect();
    all.sort_by_key(|state| std::cmp::Reverse(state.exit));
    all
}

/// The exit latencies of the states of any core, ascending, without polling.
pub(super) fn limits(roots: &Roots) -> Vec<Nanos> {
    limits_of(&core_states(roots))
}

fn limits_of(states: &[CoreState]) -> Vec<Nanos> {
    let exits = states.iter().rev().map(|state| state.exit);
    let mut all: Vec<_> = exits.filter(|exit| *exit > Nanos::ZERO).collect();
    all.dedup();
    all
}

/// The files that are written.
pub(super) fn files(roots: &Roots) -> Vec<PathBuf> {
    core_states(roots).into_iter().map(|state| state.disable).collect()
}

/// Returns the means by which idle states are limited, or the reason why they cannot be.
pub(super) fn settable(roots: &Roots) -> Result<String, Missing> {
    let states = core_states(roots);
    if states.is_empty() {
        return Err(Missing::because(
            "no cpuidle states: the kernel has no idle driver for this machine",
        ));
    }
    let limits = limits_of(&states);
    if limits.len() < 2 {
        return Err(Missing::because(
            "cores have one idle state besides polling: nothing to choose (usual in virtual \
             machines)",
        ));
    }
    states.iter().try_for_each(|state| text::check_writable(&state.disable))?;
    let limits: Vec<_> = limits.iter().map(Nanos::to_string).collect();
    Ok(format!("cpuidle: disable of states by exit latency ({})", limits.join(", ")))
}

impl IdleLatency {
    /// The idle states of the machine under these roots.
    pub(super) fn new(roots: &Roots) -> Self {
        let (roots, states) = (roots.clone(), core_states(roots));
        Self { roots, states, owners: BTreeMap::new(), set: None }
    }

    /// The exit latency of the deepest state that any core may enter; `None` if that cannot be
    /// read. If all states are disabled, the kernel enters the shallowest.
    pub(super) fn get(&self) -> Option<Nanos> {
        let mut shallowest = None;
        for CoreState { disable, exit } in &self.states {
            let Ok(flag) = text::read(disable) else { continue };
            if flag == ENABLED {
                return Some(*exit);
            }
            shallowest = Some(*exit);
        }
        shallowest
    }

    /// Disables all states that take longer to leave than this, or than the lowest limit. Refuses a
    /// limit whose own states the owner has disabled.
    pub(super) fn set(&mut self, wanted: Nanos, save: &mut impl SaveOld) -> Result<(), KnobError> {
        let states = core_states(&self.roots);
        let limits = limits_of(&states);
        let within = limits.iter().rfind(|limit| **limit <= wanted);
        let Some(at_most) = within.or(limits.first()).copied() else {
            return Err(KnobError::Nonsense("there are no idle states to limit".to_owned()));
        };
        let mut reached = Nanos::ZERO;
        let (mut originals, mut writes) = (Vec::new(), Vec::new());
        let mut owners = self.owners.clone();
        for CoreState { disable, exit } in &states {
            let text = text::read(disable)?;
            let owner = owners.entry(disable.clone()).or_insert_with(|| text.clone());
            let is_ours = *exit > at_most && owner != DISABLED;
            if *exit <= at_most && owner != DISABLED {
                reached = reached.max(*exit);
            }
            let wanted = if is_ours { DISABLED } else { owner.as_str() };
            writes.push(TextWrite::exactly(disable.clone(), wanted));
            originals.push(Original::of_text(disable.clone(), text, wanted));
        }
        if reached < at_most {
            let why = format!("idle states of {at_most} to leave are disabled by their owner");
            return Err(KnobError::Nonsense(why));
        }
        save.values(&originals)?;
        write_all(&writes)?;
        (self.states, self.owners) = (states, owners);
        self.set = Some(Limit { at_most, in_force: writes });
        Ok(())
    }

    /// The states that another program has enabled or disabled since, reported once.
    pub(super) fn watch(&mut self) -> Option<ChangedSetting> {
        // A file that cannot be read belongs to a core that is offline.
        let is_changed =
            |left: &&TextWrite| text::read(&left.path).is_ok_and(|found| found != left.text);
        let Limit { at_most, in_force } = self.set.as_ref()?;
        let changed = in_force.iter().filter(is_changed);
        let changed: Vec<PathBuf> = changed.map(|left| left.path.clone()).collect();
        let whom = match changed.as_slice() {
            [] => return None,
            [one] => one.display().to_string(),
            [one, others @ ..] => format!("{} and {} more", one.display(), others.len()),
        };
        let (ours, found) = (Setting::IdleLatency(*at_most), Setting::IdleLatency(self.get()?));
        self.set = None;
        changed.iter().for_each(|disable| drop(self.owners.remove(disable)));
        let keys = changed.into_iter().map(Key::File).collect();
        Some(ChangedSetting { ours, found, whom, keys })
    }

    /// Forgets the settings, after they were restored. A state that is still disabled because it
    /// could not be restored, or whose core is offline, keeps its owner's text, so that Lull's own
    /// `1` does not count as the owner's.
    pub(super) fn restored(&mut self) {
        self.set = None;
        self.owners.retain(|disable, owner| match text::read(disable) {
            Ok(found) => found == DISABLED && owner != DISABLED,
            Err(_) => true,
        });
    }

    /// Whether the ledger's key names one of the states.
    pub(super) fn is_of(&self, key: &Key) -> bool {
        let Key::File(path) = key else { return false };
        self.states.iter().any(|state| state.disable == *path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::text::faults;
    use crate::guard::Restored;
    use crate::testing::{Saved, Tree};

    /// Exit latencies in microseconds of polling, C1, C1E and C6.
    const EXITS_US: [u64; 4] = [0, 2, 10, 133];

    fn file(core: usize, state: usize, name: &str) -> String {
        format!("sys/devices/system/cpu/cpu{core}/cpuidle/state{state}/{name}")
    }

    fn tree(cores: usize) -> Tree {
        let tree = Tree::new();
        for core in 0..cores {
            for (state, exit_us) in EXITS_US.iter().enumerate() {
                tree.write(&file(core, state, "latency"), &format!("{exit_us}\n"));
                tree.write(&file(core, state, "disable"), "0\n");
            }
        }
        tree
    }

    fn flags(tree: &Tree, core: usize) -> String {
        let flag = |state| text::read(&tree.path(&file(core, state, "disable"))).unwrap();
        (0..EXITS_US.len()).map(flag).collect()
    }

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    #[test]
    fn states_above_the_limit_are_disabled_on_every_core_and_put_back() {
        let tree = tree(2);
        let (mut idle, mut saved) = (IdleLatency::new(&tree.roots()), Saved::default());
        assert_eq!(limits(&tree.roots()), [2, 10, 133].map(us));
        assert_eq!(idle.get(), Some(us(133)));
        for (wanted_us, flags_then, limit_us) in
            [(10, "0001", 10), (2, "0011", 2), (0, "0011", 2), (50, "0001", 10), (133, "0000", 133)]
        {
            idle.set(us(wanted_us), &mut saved).unwrap();
            assert_eq!([flags(&tree, 0), flags(&tree, 1)], [flags_then; 2], "{wanted_us}");
            assert_eq!(idle.get(), Some(us(limit_us)), "{wanted_us}");
            assert!(idle.watch().is_none(), "{wanted_us}");
        }
        assert_eq!((saved.originals.len(), saved.batches), (8, 1), "saved together");
        idle.set(us(2), &mut saved).unwrap();
        for original in &saved.originals {
            assert!(idle.is_of(&original.key()));
            assert!(matches!(original.restore(&tree.roots()), Restored::Done | Restored::Already));
        }
        assert_eq!([flags(&tree, 0), flags(&tree, 1)], ["0000"; 2]);
    }

    #[test]
    fn a_state_that_its_owner_has_disabled_is_not_enabled() {
        let tree = tree(2);
        for core in 0..2 {
            tree.write(&file(core, 3, "disable"), "1\n");
        }
        tree.write(&file(1, 2, "disable"), "1\n");
        let (mut idle, mut saved) = (IdleLatency::new(&tree.roots()), Saved::default());
        assert_eq!(idle.get(), Some(us(10)), "of the core that may enter more");
        idle.set(us(2), &mut saved).unwrap();
        assert_eq!([flags(&tree, 0), flags(&tree, 1)], ["0011"; 2]);
        let why = idle.set(us(133), &mut saved).unwrap_err().to_string();
        assert!(why.contains("133us to leave are disabled by their owner"), "{why}");
        assert_eq!(idle.get(), Some(us(2)), "nothing was written");
        idle.set(us(10), &mut saved).unwrap();
        assert_eq!([flags(&tree, 0), flags(&tree, 1)], ["0001", "0011"]);
    }

    #[test]
    fn a_refused_write_undoes_those_before_it_and_is_in_the_ledger() {
        let tree = tree(2);
        let (mut idle, mut saved) = (IdleLatency::new(&tree.roots()), Saved::default());
        faults::refuse("cpu1/cpuidle/state3/disable", 0, libc::EIO);
        let error = idle.set(us(10), &mut saved).unwrap_err();
        faults::clear();
        assert!(error.to_string().contains("cpu1/cpuidle/state3/disable"), "{error}");
        assert_eq!([flags(&tree, 0), flags(&tree, 1)], ["0000"; 2]);
        assert_eq!((saved.originals.len(), idle.get()), (8, Some(us(133))));
        assert!(idle.watch().is_none(), "nothing was set");
        saved.is_full = true;
        saved.originals.clear();
        assert!(idle.set(us(10), &mut saved).is_err());
        assert_eq!(flags(&tree, 0), "0000", "nothing is written without its old value");
    }

    #[test]
    fn another_programs_change_is_reported_once_with_all_of_its_files() {
        let tree = tree(3);
        let mut idle = IdleLatency::new(&tree.roots());
        idle.set(us(10), &mut Saved::default()).unwrap();
        for core in 0..2 {
            tree.write(&file(core, 3, "disable"), "0\n");
        }
        // A core that is offline has no files, and is not a change.
        tree.remove(&file(2, 3, "disable"));
        let change = idle.watch().unwrap();
        assert_eq!(change.ours, Setting::IdleLatency(us(10)));
        assert_eq!((change.found, change.keys.len()), (Setting::IdleLatency(us(133)), 2));
        assert!(change.whom.ends_with("cpu0/cpuidle/state3/disable and 1 more"), "{}", change.whom);
        assert!(idle.watch().is_none());
    }

    #[test]
    fn a_state_within_the_limit_that_another_program_disables_stays_disabled() {
        let tree = tree(2);
        let (mut idle, mut saved) = (IdleLatency::new(&tree.roots()), Saved::default());
        idle.set(us(10), &mut saved).unwrap();
        tree.write(&file(1, 2, "disable"), "1\n");
        let change = idle.watch().unwrap();
        assert!(change.whom.ends_with("cpu1/cpuidle/state2/disable"), "{}", change.whom);
        assert_eq!((change.ours, change.keys.len()), (Setting::IdleLatency(us(10)), 1));
        assert!(idle.watch().is_none());
        idle.set(us(133), &mut saved).unwrap();
        assert_eq!([flags(&tree, 0), flags(&tree, 1)], ["0000", "0010"]);
    }

    #[test]
    fn a_state_that_could_not_be_put_back_is_put_back_by_the_next_limit() {
        let tree = tree(2);
        let (mut idle, mut saved) = (IdleLatency::new(&tree.roots()), Saved::default());
        idle.set(us(10), &mut saved).unwrap();
        // The state of the other core keeps Lull's text.
        tree.write(&file(0, 3, "disable"), "0\n");
        idle.restored();
        assert!(idle.watch().is_none(), "nothing is set");
        idle.set(us(133), &mut saved).unwrap();
        assert_eq!([flags(&tree, 0), flags(&tree, 1)], ["0000"; 2]);
    }

    #[test]
    fn a_machine_without_choice_says_why() {
        let why = |tree: &Tree| settable(&tree.roots()).unwrap_err().reason;
        assert!(why(&Tree::new()).contains("no cpuidle states"));
        let virtual_machine = Tree::new();
        for (state, exit_us) in [(0, 0), (1, 1)] {
            virtual_machine.write(&file(0, state, "latency"), &format!("{exit_us}\n"));
            virtual_machine.write(&file(0, state, "disable"), "0\n");
        }
        assert!(why(&virtual_machine).contains("nothing to choose"));
        let means = settable(&tree(1).roots()).unwrap();
        assert!(means.ends_with("(2us, 10us, 133us)"), "{means}");
        assert_eq!(IdleLatency::new(&Tree::new().roots()).get(), None);
    }
}
