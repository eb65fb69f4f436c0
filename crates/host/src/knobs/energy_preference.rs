//! The energy-performance preference of a frequency domain: how a processor that chooses its
//! frequency itself weighs energy against performance
//! (Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst).
//!
//! Lull sets the preferences for which all domains have a name, because not every driver takes
//! numbers. Under the governor `performance` the kernel takes no other preference than
//! `performance` (EBUSY, seen on 6.12 and 7.2 with amd-pstate): there is then nothing to set.

use super::setting_files::{SettingFiles, SettingKind};
use super::{KnobError, SaveOld};
use crate::Roots;
use crate::drivers::cpufreq::policies;
use crate::drivers::text;
use lull_control::{DomainId, EnergyPreference, Setting};
use lull_measure::Missing;
use std::path::PathBuf;

const FILE: &str = "energy_performance_preference";
const LIST: &str = "energy_performance_available_preferences";

/// The preferences of all domains and Lull's last settings.
pub(super) type EnergyPreferences = SettingFiles<DomainId, EnergyPreference>;

/// The preferences that every domain has a name for, ascending.
pub(super) fn offered(roots: &Roots) -> Vec<EnergyPreference> {
    let lists: Vec<_> =
        policies(roots).map(|(_, dir)| text::read(&dir.join(LIST)).unwrap_or_default()).collect();
    let is_in_all =
        |name: &str| lists.iter().all(|list| list.split_whitespace().any(|it| it == name));
    let named = EnergyPreference::NAMED.into_iter().filter(|(_, name)| is_in_all(name));
    match lists.is_empty() {
        true => Vec::new(),
        false => named.map(|(preference, _)| preference).collect(),
    }
}

/// The files that are written.
pub(super) fn files(roots: &Roots) -> Vec<PathBuf> {
    policies(roots).map(|(_, dir)| dir.join(FILE)).collect()
}

/// Returns the means by which the preference is set, or the reason why it cannot be.
pub(super) fn settable(roots: &Roots) -> Result<String, Missing> {
    let mut dirs: Vec<_> = policies(roots).map(|(_, dir)| dir).collect();
    dirs.sort();
    if dirs.is_empty() {
        return Err(Missing::because(
            "no cpufreq: the kernel has no frequency driver here (usual in virtual machines)",
        ));
    }
    for dir in &dirs {
        let file = dir.join(FILE);
        let text = text::read(&file).map_err(|_| {
            Missing::because(format!(
                "there is no {}: its driver has no energy-performance preference (intel_pstate \
                 and amd-pstate have one)",
                file.display()
            ))
        })?;
        if text::read(&dir.join("scaling_governor")).is_ok_and(|name| name == "performance") {
            return Err(Missing::because(
                "under the governor performance the kernel takes no other preference: set the \
                 governor powersave before Lull starts",
            ));
        }
        if EnergyPreference::parse(&text).is_none() {
            let file = file.display();
            let why = format!("{file} is `{text}`, which is neither a known name nor a number");
            return Err(Missing::because(why));
        }
        text::check_writable(&file)?;
    }
    let names: Vec<_> = offered(roots).iter().map(ToString::to_string).collect();
    match names.len() {
        0 | 1 => Err(Missing::because("the domains have fewer than two preferences in common")),
        _ => Ok(format!("{FILE}: {}", names.join(", "))),
    }
}

impl EnergyPreferences {
    /// The domains under these roots.
    pub(super) fn of_domains(roots: &Roots) -> Self {
        let kind = SettingKind {
            parse: EnergyPreference::parse,
            setting: Setting::EnergyPreference,
            domain: |id: DomainId| format!("frequency domain {}", id.0),
        };
        Self::new(kind, policies(roots).map(|(id, dir)| (id, dir.join(FILE))))
    }

    /// Sets the preference of a domain.
    pub(super) fn prefer(
        &mut self,
        id: DomainId,
        wanted: EnergyPreference,
        save: &mut impl SaveOld,
    ) -> Result<(), KnobError> {
        self.set(id, wanted, wanted.to_string(), save)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::cpufreq::tests::policy;
    use crate::drivers::text::faults;
    use crate::guard::Restored;
    use crate::testing::{Saved, Tree};

    const ALL: &str = "default performance balance_performance balance_power power";
    const POWER: EnergyPreference = EnergyPreference(255);

    fn dir(domain: u16) -> String {
        format!("sys/devices/system/cpu/cpufreq/policy{domain}")
    }

    fn tree(lists: &[&str]) -> Tree {
        let tree = Tree::new();
        for (domain, list) in (0..).zip(lists) {
            policy(&tree, &dir(domain), "powersave performance");
            tree.write(&format!("{}/{LIST}", dir(domain)), &format!("{list} \n"));
            tree.write(&format!("{}/{FILE}", dir(domain)), "balance_performance\n");
        }
        tree
    }

    fn text_of(tree: &Tree, domain: u16) -> String {
        text::read(&tree.path(&format!("{}/{FILE}", dir(domain)))).unwrap()
    }

    #[test]
    fn a_domain_is_set_by_name_and_put_back_with_the_text_that_it_had() {
        let tree = tree(&[ALL, ALL]);
        // A number that another program wrote.
        tree.write(&format!("{}/{FILE}", dir(0)), "77\n");
        let (mut all, mut saved) = (EnergyPreferences::of_domains(&tree.roots()), Saved::default());
        assert_eq!(all.get(DomainId(0)), Some(EnergyPreference(77)));
        for wanted in [POWER, EnergyPreference(0), EnergyPreference(100)] {
            all.prefer(DomainId(0), wanted, &mut saved).unwrap();
            assert_eq!(all.get(DomainId(0)), Some(wanted));
            assert_eq!(text_of(&tree, 0), wanted.to_string());
        }
        assert_eq!(text_of(&tree, 1), "balance_performance", "the other is left alone");
        assert!(all.is_of(DomainId(0), &saved.originals[0].key()));
        assert!(!all.is_of(DomainId(1), &saved.originals[0].key()));
        assert_eq!(saved.originals[0].restore(&tree.roots()), Restored::Done);
        assert_eq!(text_of(&tree, 0), "77");
    }

    #[test]
    fn what_all_domains_have_is_offered() {
        let some = tree(&[ALL, "default performance power"]);
        assert_eq!(offered(&some.roots()), [EnergyPreference(0), POWER]);
        let means = settable(&some.roots()).unwrap();
        assert!(means.ends_with(": performance, power"), "{means}");
    }

    #[test]
    fn a_refused_write_leaves_the_old_value_and_is_in_the_ledger() {
        let tree = tree(&[ALL]);
        let (mut all, mut saved) = (EnergyPreferences::of_domains(&tree.roots()), Saved::default());
        faults::refuse(FILE, 0, libc::EBUSY);
        let error = all.prefer(DomainId(0), POWER, &mut saved).unwrap_err();
        faults::clear();
        assert!(error.to_string().contains(FILE), "{error}");
        assert_eq!((text_of(&tree, 0).as_str(), saved.originals.len()), ("balance_performance", 1));
        assert_eq!(all.watch(), [], "nothing was set");
        assert!(all.prefer(DomainId(7), POWER, &mut saved).is_err(), "there is no such domain");
    }

    #[test]
    fn another_programs_change_is_reported_once() {
        let tree = tree(&[ALL]);
        let mut all = EnergyPreferences::of_domains(&tree.roots());
        all.prefer(DomainId(0), POWER, &mut Saved::default()).unwrap();
        assert_eq!(all.watch(), []);
        tree.write(&format!("{}/{FILE}", dir(0)), "performance\n");
        let changes = all.watch();
        let found = Setting::EnergyPreference(DomainId(0), EnergyPreference(0));
        assert_eq!((changes.len(), &changes[0].found), (1, &found));
        assert_eq!(all.watch(), []);
    }

    #[test]
    fn a_machine_without_choice_says_why() {
        let why = |tree: &Tree| settable(&tree.roots()).unwrap_err().reason;
        assert!(why(&Tree::new()).contains("no cpufreq"));
        assert_eq!(offered(&Tree::new().roots()), []);
        let acpi = Tree::new();
        policy(&acpi, &dir(0), "schedutil userspace");
        assert!(why(&acpi).contains("its driver has no energy-performance preference"));
        let performance = tree(&[ALL]);
        performance.write(&format!("{}/scaling_governor", dir(0)), "performance\n");
        assert!(why(&performance).contains("governor powersave before"));
        let unknown = tree(&[ALL]);
        unknown.write(&format!("{}/{FILE}", dir(0)), "default\n");
        assert!(why(&unknown).contains("is `default`"));
        assert!(why(&tree(&["performance"])).contains("fewer than two"));
    }
}
