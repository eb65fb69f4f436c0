//! The highest frequency of a processor's uncore: last-level cache, mesh and memory controllers
//! (Documentation/admin-guide/pm/intel_uncore_frequency_scaling.rst).
//!
//! The driver has one directory a die (`package_00_die_00`) and, on processors with several
//! uncore domains a die, one more a domain (`uncore00`). A write to a die's directory goes to all
//! its domains, so the domains alone are knobs where there are any. Lull sets `max_freq_khz`
//! and lets the hardware choose below it, between the bounds that the owner had. It does not read
//! `initial_max_freq_khz` to restore: that is the value at boot and not the owner's.

use super::setting_files::{SettingFiles, SettingKind};
use super::{KnobError, SaveOld};
use crate::Roots;
use crate::drivers::text;
use lull_control::{Capability, Dial, DialId, Machine, Setting};
use lull_measure::{Hertz, Missing};
use std::path::PathBuf;

const DIR: &str = "devices/system/cpu/intel_uncore_frequency";
const MAX: &str = "max_freq_khz";
/// The unit of the hardware's register (`UNCORE_FREQ_KHZ_MULTIPLIER` in the driver).
const STEP: Hertz = Hertz::from_khz(100_000);

/// The uncore domains of a machine and Lull's last settings.
#[derive(Debug)]
pub(super) struct Uncores {
    dials: Vec<Dial>,
    pub(super) files: SettingFiles<DialId, Hertz>,
}

/// Names of the directories that are set, in order: of domains, else of dies.
fn names(roots: &Roots) -> Vec<String> {
    let entries = std::fs::read_dir(roots.sys.join(DIR)).into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    all.sort();
    let (domains, dies): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|name| name.starts_with("uncore"));
    match domains.is_empty() {
        true => dies.into_iter().filter(|name| name.starts_with("package_")).collect(),
        false => domains,
    }
}

/// The domains whose bounds leave a choice.
pub(super) fn dials(roots: &Roots) -> Vec<Dial> {
    let dial = |name: String| {
        let dir = roots.sys.join(DIR).join(&name);
        let bound = |file: &str| text::read_number(&dir.join(file)).ok().map(Hertz::from_khz);
        let (lowest, highest) = (bound("min_freq_khz")?, bound(MAX)?);
        let knob = Capability::UncoreFrequency;
        (lowest < highest).then_some(Dial {
            id: DialId(0),
            knob,
            name,
            lowest,
            highest,
            step: STEP,
        })
    };
    names(roots).into_iter().filter_map(dial).collect()
}

/// The files that are written.
pub(super) fn files(roots: &Roots) -> Vec<PathBuf> {
    dials(roots).iter().map(|dial| roots.sys.join(DIR).join(&dial.name).join(MAX)).collect()
}

/// Returns the means by which the uncore's frequency is set, or the reason why it cannot be.
pub(super) fn settable(roots: &Roots) -> Result<String, Missing> {
    if names(roots).is_empty() {
        return Err(Missing::because(
            "the driver intel_uncore_frequency has no domain here: it is for Intel server \
             processors (modprobe intel-uncore-frequency)",
        ));
    }
    let dials = dials(roots);
    if dials.is_empty() {
        return Err(Missing::because(
            "min_freq_khz and max_freq_khz of every uncore domain are equal: nothing to choose",
        ));
    }
    files(roots).iter().try_for_each(|file| text::check_writable(file))?;
    let names: Vec<_> = dials.iter().map(|dial| dial.name.as_str()).collect();
    Ok(format!("intel_uncore_frequency: {MAX} of {}", names.join(", ")))
}

impl Uncores {
    /// The uncore domains of a machine.
    pub(super) fn new(roots: &Roots, machine: &Machine) -> Self {
        let ours = machine.dials.iter().filter(|dial| dial.knob == Capability::UncoreFrequency);
        Self::from_dials(roots, ours.cloned().collect())
    }

    fn from_dials(roots: &Roots, dials: Vec<Dial>) -> Self {
        let file = |dial: &Dial| (dial.id, roots.sys.join(DIR).join(&dial.name).join(MAX));
        let kind = SettingKind {
            parse: |text| text.parse().ok().map(Hertz::from_khz),
            setting: Setting::UncoreFrequency,
            domain: |id: DialId| format!("uncore domain {}", id.0),
        };
        let files = SettingFiles::new(kind, dials.iter().map(file));
        Self { dials, files }
    }

    /// Sets a domain to the nearest frequency within the owner's bounds.
    pub(super) fn set(
        &mut self,
        id: DialId,
        wanted: Hertz,
        save: &mut impl SaveOld,
    ) -> Result<(), KnobError> {
        let dial = self.dials.iter().find(|dial| dial.id == id);
        let to = dial.map_or(wanted, |dial| dial.nearest(wanted));
        self.files.set(id, to, (to.0 / 1000).to_string(), save)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::text::faults;
    use crate::guard::{Key, Restored};
    use crate::testing::{Saved, Tree};

    const DIE: &str = "package_00_die_00";

    fn write(tree: &Tree, name: &str, min_khz: u64, max_khz: u64) {
        let dir = format!("sys/{DIR}/{name}");
        for (file, khz) in [
            ("min_freq_khz", min_khz),
            (MAX, max_khz),
            ("initial_min_freq_khz", 800_000),
            ("initial_max_freq_khz", 2_500_000),
        ] {
            tree.write(&format!("{dir}/{file}"), &format!("{khz}\n"));
        }
    }

    fn uncores(tree: &Tree) -> Uncores {
        let numbered = (0..).zip(dials(&tree.roots()));
        let dials = numbered.map(|(number, dial)| Dial { id: DialId(number), ..dial }).collect();
        Uncores::from_dials(&tree.roots(), dials)
    }

    fn ghz(tenths: u64) -> Hertz {
        Hertz(tenths * 100_000_000)
    }

    #[test]
    fn a_domain_is_set_within_the_owners_bounds_and_put_back() {
        let tree = Tree::new();
        write(&tree, DIE, 1_000_000, 2_400_000);
        let (mut uncores, mut saved) = (uncores(&tree), Saved::default());
        assert_eq!(uncores.files.get(DialId(0)), Some(ghz(24)));
        for (wanted, granted) in [(16, 16), (3, 10), (40, 24)] {
            uncores.set(DialId(0), ghz(wanted), &mut saved).unwrap();
            assert_eq!(uncores.files.get(DialId(0)), Some(ghz(granted)));
        }
        uncores.set(DialId(0), Hertz::from_khz(1_549_000), &mut saved).unwrap();
        assert_eq!(uncores.files.get(DialId(0)), Some(ghz(15)), "the register counts 100 MHz");
        let max = tree.path(&format!("sys/{DIR}/{DIE}/{MAX}"));
        assert!(uncores.files.is_of(DialId(0), &Key::File(max)));
        assert_eq!(saved.originals[0].restore(&tree.roots()), Restored::Done);
        assert_eq!(uncores.files.get(DialId(0)), Some(ghz(24)));
    }

    #[test]
    fn domains_are_set_instead_of_their_dies() {
        let tree = Tree::new();
        for name in [DIE, "uncore01", "uncore00"] {
            write(&tree, name, 800_000, 2_200_000);
        }
        let found: Vec<_> = dials(&tree.roots()).into_iter().map(|dial| dial.name).collect();
        assert_eq!(found, ["uncore00", "uncore01"]);
        let means = settable(&tree.roots()).unwrap();
        assert!(means.contains("uncore00, uncore01"), "{means}");
    }

    #[test]
    fn a_refused_write_leaves_the_old_value_and_is_in_the_ledger() {
        let tree = Tree::new();
        write(&tree, DIE, 800_000, 2_400_000);
        let (mut uncores, mut saved) = (uncores(&tree), Saved::default());
        faults::refuse(MAX, 0, libc::EIO);
        let error = uncores.set(DialId(0), ghz(12), &mut saved).unwrap_err();
        faults::clear();
        assert!(error.to_string().contains(MAX), "{error}");
        assert_eq!((uncores.files.get(DialId(0)), saved.originals.len()), (Some(ghz(24)), 1));
        assert_eq!(uncores.files.watch(), [], "nothing was set");
    }

    #[test]
    fn another_programs_change_is_reported_once() {
        let tree = Tree::new();
        write(&tree, DIE, 800_000, 2_400_000);
        let mut uncores = uncores(&tree);
        uncores.set(DialId(0), ghz(12), &mut Saved::default()).unwrap();
        assert_eq!(uncores.files.watch(), []);
        write(&tree, DIE, 800_000, 2_000_000);
        let changes = uncores.files.watch();
        assert_eq!(changes[0].found, Setting::UncoreFrequency(DialId(0), ghz(20)));
        assert_eq!((changes.len(), uncores.files.watch().len()), (1, 0));
    }

    #[test]
    fn a_machine_without_choice_says_why() {
        let tree = Tree::new();
        let why = |tree: &Tree| settable(&tree.roots()).unwrap_err().reason;
        assert!(why(&tree).contains("modprobe intel-uncore-frequency"));
        write(&tree, DIE, 2_000_000, 2_000_000);
        assert!(why(&tree).contains("nothing to choose"));
        assert_eq!(uncores(&tree).files.get(DialId(0)), None);
    }
}
