//! Limits of a unit's cgroup: runtime properties of systemd where it answers, else files.

use super::super::KnobError;
use super::{CgroupControl, HoldRequest, Plan, cgroup};
use crate::Roots;
use crate::apps::cgroup::named;
use crate::drivers::systemd::is_unit_name;
use crate::drivers::systemd::{Systemd, SystemdError, UnitProperty, UnitState, UnitValue};
use globset::Glob;
use lull_measure::Nanos;

/// systemd's own period, which it takes where none is set.
const USUAL_PERIOD: Nanos = Nanos::from_millis(100);
/// systemd keeps whole percents of a core.
const PERCENT_US: u64 = 10_000;
const UNSET: UnitValue = UnitValue::Number(u64::MAX);

/// `web.service:cpu.weight:50`, with the controls of a cgroup.
pub(super) fn parse(value: &str) -> Result<HoldRequest, String> {
    let as_unit = |text: String| text.replace("cgroup=PATH", "unit=NAME").replace("PATH:", "NAME:");
    let HoldRequest::Cgroup { path: unit, control } = cgroup::parse(value).map_err(as_unit)? else {
        return Err("write unit=NAME:cpu.weight:N".to_owned());
    };
    if !is_unit_name(&unit) {
        return Err(format!("`{unit}` is not a unit: write its whole name, `web.service`"));
    }
    Ok(HoldRequest::Unit { unit, control })
}

/// Adds the limits of a unit; files of its cgroup where systemd does not answer.
pub(super) fn add(
    plan: &mut Plan,
    roots: &Roots,
    unit: &str,
    control: &CgroupControl,
) -> Result<(), KnobError> {
    match Systemd::connect(&roots.run) {
        Ok(mut systemd) => add_limits(plan, roots, &mut systemd, unit, control),
        Err(why) => {
            let path = path_of(roots, unit)?;
            plan.notes.push(undone_by_reload(unit, &why));
            plan.add_cgroup_files(cgroup::control(roots, &path, control)?)
        }
    }
}

/// Adds one control of a cgroup. The cgroup of a unit is systemd's, so its limit is set there.
pub(super) fn add_cgroup(
    plan: &mut Plan,
    roots: &Roots,
    path: &str,
    control: &CgroupControl,
) -> Result<(), KnobError> {
    // Refused first if the machine has no such cgroup, or the kernel no such value.
    let files = cgroup::control(roots, path, control)?;
    let path = path.trim_matches('/');
    let name = path.rsplit('/').next().unwrap_or_default();
    if !is_unit_name(name) {
        return plan.add_cgroup_files(files);
    }
    let unit_cgroup = Systemd::connect(&roots.run).and_then(|mut systemd| {
        let group = systemd.control_group(name)?;
        Ok((systemd, group))
    });
    match unit_cgroup {
        Ok((mut systemd, group)) if group.trim_matches('/') == path => {
            add_limits(plan, roots, &mut systemd, name, control)
        }
        // The name is a unit's and the cgroup is not.
        Ok(_) | Err(SystemdError::NoUnit { .. }) => plan.add_cgroup_files(files),
        Err(why) => {
            plan.notes.push(undone_by_reload(name, &why));
            plan.add_cgroup_files(files)
        }
    }
}

fn add_limits(
    plan: &mut Plan,
    roots: &Roots,
    systemd: &mut Systemd,
    unit: &str,
    control: &CgroupControl,
) -> Result<(), KnobError> {
    for (property, ours) in limits(control).map_err(KnobError::Nonsense)? {
        let state = UnitState::read(systemd, &roots.run, unit, property, ours)?;
        if state.before != state.ours {
            plan.limits.push(state);
        }
    }
    Ok(())
}

fn limits(control: &CgroupControl) -> Result<Vec<(UnitProperty, UnitValue)>, String> {
    // The kernel's bounds are systemd's, too.
    control.text()?;
    Ok(match control {
        CgroupControl::Weight(weight) => {
            vec![(UnitProperty::CpuWeight, UnitValue::Number(u64::from(*weight)))]
        }
        CgroupControl::Cores(cores) => {
            vec![(UnitProperty::AllowedCpus, UnitValue::Cores(cores.clone()))]
        }
        CgroupControl::Max(None) => vec![(UnitProperty::CpuQuota, UNSET)],
        CgroupControl::Max(Some((quota, period))) => {
            let hundredfold = quota.0.checked_mul(100).ok_or_else(|| {
                format!("cpu.max {quota}/{period} of a unit: the quota is too long; write `max`")
            })?;
            if !hundredfold.is_multiple_of(period.0) || !period.0.is_multiple_of(1_000_000) {
                return Err(format!(
                    "cpu.max {quota}/{period} of a unit: systemd keeps whole percents of a core \
                     and whole milliseconds"
                ));
            }
            let percents = hundredfold / period.0;
            let period = match *period == USUAL_PERIOD {
                true => UNSET,
                false => UnitValue::Number(period.0 / 1000),
            };
            let quota = UnitValue::Number(percents * PERCENT_US);
            vec![(UnitProperty::CpuQuota, quota), (UnitProperty::CpuQuotaPeriod, period)]
        }
    })
}

/// The cgroup of a unit, below the mount, by its name.
fn path_of(roots: &Roots, unit: &str) -> Result<String, KnobError> {
    let top = cgroup::unified(roots)?;
    let nonsense = |why: String| KnobError::Nonsense(why);
    // A name is a glob of itself; names of units escape special characters.
    let literal = Glob::new(&globset::escape(unit)).map_err(|error| nonsense(error.to_string()))?;
    let found = named(roots, &literal.compile_matcher(), true);
    let found = found.map_err(|error| nonsense(error.to_string()))?;
    let inner = found.first().and_then(|dir| dir.strip_prefix(&top).ok());
    inner.map(|inner| inner.display().to_string()).ok_or_else(|| {
        nonsense(format!("systemd does not answer, and no cgroup has the name {unit}"))
    })
}

fn undone_by_reload(unit: &str, why: &SystemdError) -> String {
    format!(
        "limits of {unit} are written to its cgroup, where `systemctl daemon-reload` undoes \
         them: {why}"
    )
}

#[cfg(test)]
mod tests {
    use super::super::grant;
    use super::*;
    use crate::drivers::systemd::testing::{ALIAS, FakeSystemd};
    use crate::drivers::text;
    use crate::guard::{Original, Restored};
    use crate::testing::{Saved, Tree};
    use std::time::{Duration, Instant};

    const WEB: &str = "web.service";
    const FILE: &str = "sys/fs/cgroup/system.slice/web.service/cpu.weight";

    fn machine() -> Tree {
        let tree = Tree::new();
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io\n");
        tree.write("sys/fs/cgroup/cgroup.procs", "\n");
        tree.write("sys/fs/cgroup/system.slice/cgroup.procs", "\n");
        tree.write(FILE, "100\n");
        tree
    }

    fn roots(tree: &Tree, fake: &FakeSystemd) -> Roots {
        Roots { run: fake.run().to_owned(), ..tree.roots() }
    }

    fn requests(texts: &[&str]) -> Vec<HoldRequest> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn number(fake: &FakeSystemd, property: UnitProperty) -> UnitValue {
        fake.value(WEB, property)
    }

    fn restore_all(saved: &Saved, roots: &Roots) -> Vec<Restored> {
        saved.originals.iter().map(|original| original.restore(roots)).collect()
    }

    #[test]
    fn limits_of_a_unit_are_properties_of_systemd_and_restored_without_a_trace() {
        for request in
            ["unit=web.service:cpu.weight:50", "cgroup=/system.slice/web.service:cpu.weight:50"]
        {
            let (tree, fake) = (machine(), FakeSystemd::start());
            let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
            fake.put(WEB, UnitProperty::CpuWeight, &UnitValue::Number(200));
            let held = grant(&requests(&[request]), &roots, &mut saved).unwrap();
            assert_eq!(number(&fake, UnitProperty::CpuWeight), UnitValue::Number(50), "{request}");
            assert_eq!(text::read(&tree.path(FILE)).unwrap(), "100", "the file is systemd's");
            assert_eq!(held.changes(), ["web.service: CPUWeight 200 -> 50, by systemd"]);
            assert_eq!(restore_all(&saved, &roots), [Restored::Done]);
            assert_eq!(number(&fake, UnitProperty::CpuWeight), UnitValue::Number(200));
            let drop_in = fake.drop_in(WEB, UnitProperty::CpuWeight);
            assert!(!drop_in.exists() && !drop_in.parent().unwrap().exists());
            assert_eq!(restore_all(&saved, &roots), [Restored::Already]);
        }
    }

    #[test]
    fn the_original_is_saved_before_systemd_is_called() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let mut saved = Saved { is_full: true, ..Saved::default() };
        let request = requests(&["unit=web.service:cpu.weight:50"]);
        grant(&request, &roots(&tree, &fake), &mut saved).unwrap_err();
        assert_eq!(number(&fake, UnitProperty::CpuWeight), UNSET);
    }

    #[test]
    fn a_limit_that_its_owner_sets_meanwhile_is_left_with_its_drop_in() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        let held =
            grant(&requests(&["unit=web.service:cpu.weight:50"]), &roots, &mut saved).unwrap();
        fake.set_property(WEB, UnitProperty::CpuWeight, &UnitValue::Number(77));
        assert_eq!(held.renew(), Vec::<String>::new(), "it is the owner's now");
        assert_eq!(restore_all(&saved, &roots), [Restored::Left { found: "77".to_owned() }]);
        assert_eq!(number(&fake, UnitProperty::CpuWeight), UnitValue::Number(77));
        assert!(fake.drop_in(WEB, UnitProperty::CpuWeight).exists());
    }

    #[test]
    fn a_runtime_property_of_the_owner_gets_its_text_back() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        fake.set_property(WEB, UnitProperty::CpuQuota, &UnitValue::Number(700_000));
        let drop_in = fake.drop_in(WEB, UnitProperty::CpuQuota);
        let before = std::fs::read_to_string(&drop_in).unwrap();
        let request = requests(&["unit=web.service:cpu.max:20ms/100ms"]);
        grant(&request, &roots, &mut saved).unwrap();
        assert_eq!(number(&fake, UnitProperty::CpuQuota), UnitValue::Number(200_000));
        // A reload, after which another drop-in of the owner wins: the text is Lull's still.
        fake.put(WEB, UnitProperty::CpuQuota, &UnitValue::Number(700_000));
        assert_eq!(restore_all(&saved, &roots), [Restored::Already]);
        assert_eq!(std::fs::read_to_string(&drop_in).unwrap(), before);
    }

    #[test]
    fn a_value_of_the_owner_wins_and_lulls_drop_in_does_not_stay_below_it() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        grant(&requests(&["unit=web.service:cpu.weight:50"]), &roots, &mut saved).unwrap();
        // A reload, after which a drop-in of the owner wins: that of Lull is there still.
        fake.put(WEB, UnitProperty::CpuWeight, &UnitValue::Number(77));
        assert_eq!(restore_all(&saved, &roots), [Restored::Left { found: "77".to_owned() }]);
        assert_eq!(number(&fake, UnitProperty::CpuWeight), UnitValue::Number(77));
        assert!(!fake.drop_in(WEB, UnitProperty::CpuWeight).exists());
    }

    #[test]
    fn a_restore_that_was_interrupted_leaves_no_drop_in_with_the_old_value() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        fake.put(WEB, UnitProperty::CpuWeight, &UnitValue::Number(200));
        grant(&requests(&["unit=web.service:cpu.weight:50"]), &roots, &mut saved).unwrap();
        // The guard is killed after its call of systemd, which writes the drop-in.
        fake.set_property(WEB, UnitProperty::CpuWeight, &UnitValue::Number(200));
        assert_eq!(restore_all(&saved, &roots), [Restored::Already]);
        assert!(!fake.drop_in(WEB, UnitProperty::CpuWeight).exists());
    }

    #[test]
    fn a_limit_that_was_set_without_an_answer_is_undone() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        fake.put(WEB, UnitProperty::CpuWeight, &UnitValue::Number(200));
        fake.set_without_answer();
        let request = requests(&["unit=web.service:cpu.weight:50"]);
        let error = grant(&request, &roots, &mut saved).unwrap_err().to_string();
        assert!(error.contains("did not answer SetUnitProperties"), "{error}");
        assert_eq!(number(&fake, UnitProperty::CpuWeight), UnitValue::Number(200));
        assert_eq!(restore_all(&saved, &roots), [Restored::Already]);
        assert!(!fake.drop_in(WEB, UnitProperty::CpuWeight).exists());
    }

    #[test]
    fn an_alias_is_held_and_restored_by_the_own_name_of_its_unit() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        let (alias, own) = ALIAS;
        let request = format!("unit={alias}:cpu.weight:50");
        let held = grant(&requests(&[&request]), &roots, &mut saved).unwrap();
        assert_eq!(held.changes(), [format!("{own}: CPUWeight not set -> 50, by systemd")]);
        let drop_in = fake.drop_in(own, UnitProperty::CpuWeight);
        assert!(drop_in.exists());
        fake.put(own, UnitProperty::CpuWeight, &UNSET);
        assert_eq!(held.renew().len(), 1, "a reload has undone it");
        assert_eq!(restore_all(&saved, &roots), [Restored::Done]);
        assert!(!drop_in.exists(), "a drop-in is left");
        let both = [request, format!("unit={own}:cpu.weight:60")];
        let both = requests(&both.each_ref().map(String::as_str));
        let twice = grant(&both, &roots, &mut Saved::default()).unwrap_err().to_string();
        assert!(twice.contains("mariadb.service is named twice"), "{twice}");
    }

    #[test]
    fn no_connection_to_systemd_stays_open_between_two_looks() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        let held =
            grant(&requests(&["unit=web.service:cpu.weight:50"]), &roots, &mut saved).unwrap();
        assert_eq!(held.renew(), Vec::<String>::new());
        let begun = Instant::now();
        while fake.connections() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "a connection stays open");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(held);
    }

    #[test]
    fn a_limit_that_a_reload_undid_is_set_again() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        let held =
            grant(&requests(&["unit=web.service:cpuset.cpus:1"]), &roots, &mut saved).unwrap();
        let (none, one) = (UnitValue::Cores("".parse().unwrap()), "1".parse().unwrap());
        assert_eq!(held.renew(), Vec::<String>::new(), "nothing has undone it");
        fake.put(WEB, UnitProperty::AllowedCpus, &none);
        assert_eq!(held.renew(), ["web.service: AllowedCPUs 1 is set again after a reload"]);
        assert_eq!(number(&fake, UnitProperty::AllowedCpus), UnitValue::Cores(one));
        assert_eq!(restore_all(&saved, &roots), [Restored::Done]);
        assert_eq!(number(&fake, UnitProperty::AllowedCpus), none);
    }

    #[test]
    fn a_quota_with_a_period_is_two_properties() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let (roots, mut saved) = (roots(&tree, &fake), Saved::default());
        let request = requests(&["unit=web.service:cpu.max:25ms/50ms"]);
        grant(&request, &roots, &mut saved).unwrap();
        assert_eq!(number(&fake, UnitProperty::CpuQuota), UnitValue::Number(500_000));
        assert_eq!(number(&fake, UnitProperty::CpuQuotaPeriod), UnitValue::Number(50_000));
        assert_eq!(restore_all(&saved, &roots), [Restored::Done, Restored::Done]);
        assert_eq!(number(&fake, UnitProperty::CpuQuotaPeriod), UNSET);
        let third = requests(&["unit=web.service:cpu.max:1ms/3ms"]);
        let refused = grant(&third, &roots, &mut Saved::default()).unwrap_err().to_string();
        assert!(refused.contains("whole percents"), "{refused}");
        // A hundred times this quota does not fit into 64 bits.
        let long = CgroupControl::Max(Some((Nanos(u64::MAX / 99), USUAL_PERIOD)));
        let refused = limits(&long).unwrap_err();
        assert!(refused.contains("too long"), "{refused}");
    }

    #[test]
    fn where_systemd_does_not_answer_files_are_written_and_that_is_reported() {
        for request in
            ["unit=web.service:cpu.weight:50", "cgroup=system.slice/web.service:cpu.weight:50"]
        {
            let (tree, mut saved) = (machine(), Saved::default());
            let held = grant(&requests(&[request]), &tree.roots(), &mut saved).unwrap();
            assert_eq!(text::read(&tree.path(FILE)).unwrap(), "50");
            let changes = held.changes().join("\n");
            assert!(changes.contains("daemon-reload") && changes.contains("private"), "{changes}");
            assert!(matches!(saved.originals[..], [Original::Cgroup(_)]));
            assert_eq!(restore_all(&saved, &tree.roots()), [Restored::Done]);
            assert_eq!(text::read(&tree.path(FILE)).unwrap(), "100");
        }
        let missing = requests(&["unit=none.service:cpu.weight:50"]);
        let error = grant(&missing, &machine().roots(), &mut Saved::default()).unwrap_err();
        assert!(error.to_string().contains("none.service"), "{error}");
    }

    #[test]
    fn units_that_are_masked_or_refused_change_nothing() {
        let (tree, fake) = (machine(), FakeSystemd::start());
        let roots = roots(&tree, &fake);
        let error = |texts: &[&str]| {
            grant(&requests(texts), &roots, &mut Saved::default()).unwrap_err().to_string()
        };
        let masked = error(&["unit=masked.service:cpu.weight:50"]);
        assert!(masked.contains("masked.service cannot have limits"), "{masked}");
        let twice = error(&["unit=web.service:cpu.weight:5", "unit=web.service:cpu.weight:6"]);
        assert!(twice.contains("twice"), "{twice}");
        fake.refuse("Access denied");
        let first = "unit=web.service:cpu.weight:50";
        assert!(error(&[first]).contains("Access denied"));
        assert_eq!(number(&fake, UnitProperty::CpuWeight), UNSET);
        for wrong in ["unit=web:cpu.weight:5", "unit=web.service:io.weight:5", "unit=web.service"] {
            let refused = wrong.parse::<HoldRequest>().unwrap_err().to_string();
            assert!(refused.contains("unit"), "{refused}");
        }
    }
}
