//! Drivers on files that real machines had: Intel, AMD, Arm. Whose they are and
//! `machines/PROVENANCE.md` lists what they contain.

use lull_control::{
    ApplyOutcome, Capability, CoreId, DomainId, EnergyPreference, Machine, Plant, Setting,
};
use lull_host::drivers::cpufreq::PolicyState;
use lull_host::gauges::energy::PowerModel;
use lull_host::gauges::frequency::Frequency;
use lull_host::gauges::idle::{IdleResidency, IdleState};
use lull_host::guard::{Ledger, StateDir};
use lull_host::knobs::hold::{HoldRequest, hold};
use lull_host::{HostConfig, HostPlant, Roots, Stop, probe};
use lull_measure::{Hertz, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

const CPU: &str = "sys/devices/system/cpu";

/// A machine's files in a directory of their own.
struct Recorded {
    dir: TempDir,
    roots: Roots,
}

impl Recorded {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let recording = format!("{}/tests/machines/{name}.tsv", env!("CARGO_MANIFEST_DIR"));
        let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
        for line in fs::read_to_string(recording).unwrap().lines() {
            // A file that held nothing has its path alone.
            let (path, text) = line.split_once('\t').unwrap_or((line, ""));
            let file = files.entry(dir.path().join(path)).or_default();
            file.push_str(text);
            file.push('\n');
        }
        for (path, text) in files {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let roots = Roots::under(dir.path());
        let recorded = Self { dir, roots };
        recorded.link_policies();
        recorded
    }

    /// `cpuN/cpufreq`, which the kernel has and the archives lack.
    fn link_policies(&self) {
        for domain in self.machine().domains {
            for core in domain.cores.iter() {
                let policy = self.path(&format!("{CPU}/cpufreq/policy{}", domain.id.0));
                let link = self.path(&format!("{CPU}/cpu{core}/cpufreq"));
                std::os::unix::fs::symlink(policy, link).unwrap();
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn machine(&self) -> Machine {
        probe::machine(&self.roots).unwrap()
    }

    fn ledger(&self) -> Ledger {
        let state = StateDir::locate(Some(&self.path("state"))).unwrap();
        Ledger::open(state, &Roots::default()).unwrap().ledger
    }

    fn plant(&self) -> HostPlant {
        let config = HostConfig {
            roots: self.roots.clone(),
            apps: Vec::new(),
            push: None,
            power: PowerModel::default(),
            ledger: self.ledger(),
            foreign_wins: true,
            stop: Stop::new().unwrap(),
        };
        HostPlant::new(config).unwrap()
    }

    fn policies(&self) -> Vec<PolicyState> {
        let dir = |number: u16| self.path(&format!("{CPU}/cpufreq/policy{number}"));
        let count = self.machine().domains.len() as u16;
        (0..count).map(|number| PolicyState::read(&dir(number)).unwrap()).collect()
    }

    fn preferences(&self) -> BTreeSet<String> {
        let file = |number| format!("{CPU}/cpufreq/policy{number}/energy_performance_preference");
        let read = |number| fs::read_to_string(self.path(&file(number))).unwrap();
        (0..self.machine().domains.len()).map(read).map(|text| text.trim().to_owned()).collect()
    }
}

/// Cores, sockets, cores with threads taken together, and the types' speeds.
fn shape(machine: &Machine) -> (usize, usize, usize, Vec<f64>) {
    let sockets: BTreeSet<_> = machine.cores.iter().map(|core| core.package).collect();
    let leaders: BTreeSet<_> = machine.cores.iter().map(|core| core.smt_leader).collect();
    let speeds = machine.core_types.iter().map(|kind| (kind.speed * 100.0).round() / 100.0);
    (machine.cores.len(), sockets.len(), leaders.len(), speeds.collect())
}

#[test]
fn cores_sockets_threads_and_types_are_those_of_the_machine() {
    for (name, cores, sockets, whole, speeds) in [
        ("intel-core-i7-1370p", 20, 1, 14, vec![1.0]),
        ("intel-xeon-e7-4870", 40, 4, 40, vec![1.0]),
        // Modules of two, which kernels of that time report as threads of one core.
        ("amd-opteron-6276", 64, 4, 32, vec![1.0]),
        ("nvidia-gb10", 20, 1, 20, vec![1.0, 1.39]),
        // Sockets 36 and 8442, as the firmware numbers them.
        ("kunpeng-920", 128, 2, 128, vec![1.0]),
    ] {
        let found = shape(&Recorded::new(name).machine());
        assert_eq!(found, (cores, sockets, whole, speeds), "{name}");
    }
}

#[test]
fn a_hybrid_has_two_types_once_the_kernel_lists_both_kinds() {
    let machine = Recorded::new("intel-core-i7-1370p");
    // The one file that the archive lacks: the PMU of the small cores.
    let kind = machine.path("sys/devices/cpu_atom/cpus");
    fs::create_dir_all(kind.parent().unwrap()).unwrap();
    fs::write(kind, "12-19\n").unwrap();
    let machine = machine.machine();
    assert_eq!(shape(&machine).3, [1.0, 1.64], "64 against 39, and 67 is of the same kind");
    let big = |core: &&lull_control::Core| core.core_type == 1;
    assert_eq!(machine.cores.iter().filter(big).count(), 12);
}

#[test]
fn the_range_of_each_domain_is_that_of_its_kind_of_core() {
    let ranges = |name: &str| {
        let machine = Recorded::new(name).machine();
        assert!(machine.domains.iter().all(|domain| domain.continuous && domain.cores.len() == 1));
        let range = |domain: &lull_control::FrequencyDomain| {
            [domain.steps[0], domain.steps[1]].map(|step| step.0 / 1_000_000)
        };
        let mut ranges: BTreeMap<[u64; 2], usize> = BTreeMap::new();
        machine.domains.iter().for_each(|domain| *ranges.entry(range(domain)).or_default() += 1);
        ranges.into_iter().collect::<Vec<_>>()
    };
    let intel = [([400, 3900], 8), ([400, 5000], 8), ([400, 5200], 4)];
    assert_eq!(ranges("intel-core-i7-1370p"), intel);
    assert_eq!(ranges("nvidia-gb10"), [([338, 2808], 10), ([1378, 3900], 10)]);
}

#[test]
fn intel_pstate_is_steered_by_its_bounds_and_has_them_back() {
    let machine = Recorded::new("intel-core-i7-1370p");
    let before = machine.policies();
    let mut plant = machine.plant();
    let all =
        || (0..20).map(|domain| Setting::Frequency(DomainId(domain), Hertz::from_khz(1_900_000)));
    let applied = plant.apply(&all().collect::<Vec<_>>());
    assert!(applied.outcomes.iter().all(|outcome| outcome.in_force().is_some()), "{applied:?}");
    for policy in machine.policies() {
        let found = (policy.governor.as_str(), policy.min_khz, policy.max_khz);
        assert_eq!(found, ("powersave", 1_900_000, 1_900_000));
    }
    let _ = plant.restore();
    assert_eq!(machine.policies(), before);
}

#[test]
fn cppc_is_steered_by_its_speed_and_has_its_governor_back() {
    let machine = Recorded::new("nvidia-gb10");
    let before = machine.policies();
    let mut plant = machine.plant();
    let setting = Setting::Frequency(DomainId(5), Hertz::from_khz(2_000_000));
    assert!(plant.apply(std::slice::from_ref(&setting)).outcomes[0].in_force().is_some());
    let now = &machine.policies()[5];
    assert_eq!((now.governor.as_str(), now.speed_khz), ("userspace", Some(2_000_000)));
    assert!(plant.settings().contains(&setting));
    let _ = plant.restore();
    assert_eq!(machine.policies(), before);
}

#[test]
fn a_preference_is_set_where_the_driver_has_one_and_refused_where_not() {
    let intel = Recorded::new("intel-core-i7-1370p");
    let request: HoldRequest = "energy-preference=power".parse().unwrap();
    let mut ledger = intel.ledger();
    let held = hold(std::slice::from_ref(&request), &intel.roots, &mut ledger).unwrap();
    assert_eq!((held.changes().len(), intel.preferences().len()), (20, 1));
    assert!(intel.preferences().contains("power"));
    assert!(ledger.restore().failed.is_empty());
    assert_eq!(intel.preferences(), BTreeSet::from(["balance_performance".to_owned()]));
    let arm = Recorded::new("nvidia-gb10");
    let refused = hold(&[request], &arm.roots, &mut arm.ledger()).unwrap_err().to_string();
    assert!(refused.contains("energy_performance_available_preferences"), "{refused}");
}

#[test]
fn preferences_are_searched_where_the_driver_has_them_and_are_restored() {
    let machine = Recorded::new("intel-core-i7-1370p");
    let offered = machine.machine().energy_preferences;
    assert_eq!(offered, [0, 128, 192, 255].map(EnergyPreference));
    let mut plant = machine.plant();
    let power = |domain| Setting::EnergyPreference(DomainId(domain), EnergyPreference(255));
    let all: Vec<_> = (0..20).map(power).collect();
    let applied = plant.apply(&all);
    assert!(
        applied.outcomes.iter().all(|outcome| outcome.got == ApplyOutcome::Done),
        "{applied:?}"
    );
    assert_eq!(machine.preferences(), BTreeSet::from(["power".to_owned()]));
    assert!(all.iter().all(|setting| plant.settings().contains(setting)));
    let _ = plant.restore();
    assert_eq!(machine.preferences(), BTreeSet::from(["balance_performance".to_owned()]));
    let arm = Recorded::new("nvidia-gb10").machine();
    let why = arm.capabilities.get(Capability::EnergyPreference).unwrap_err();
    assert!(why.reason.contains("no energy-performance preference"), "{why}");
}

#[test]
fn idle_states_are_limited_where_the_kernel_can_disable_them_and_are_restored() {
    let machine = Recorded::new("intel-xeon-e7-4870");
    let file = |core: usize, state: usize| format!("{CPU}/cpu{core}/cpuidle/state{state}/disable");
    let why = machine.machine().capabilities.get(Capability::IdleLatency).unwrap_err();
    assert!(why.reason.contains("disable"), "{why}");
    // A kernel that is not as old has this file; the archive has the states of four cores.
    for (core, state) in (0..4).flat_map(|core| (0..4).map(move |state| (core, state))) {
        fs::write(machine.path(&file(core, state)), "0\n").unwrap();
    }
    assert_eq!(machine.machine().idle_latencies, [3, 20, 200].map(Nanos::from_micros));
    let flags = || {
        let flag = |core, state| fs::read_to_string(machine.path(&file(core, state))).unwrap();
        let of_core = |core: usize| -> String {
            (0..4).map(|state| flag(core, state).trim().to_owned()).collect()
        };
        (0..4).map(of_core).collect::<BTreeSet<String>>().into_iter().collect::<Vec<_>>()
    };
    let mut plant = machine.plant();
    let limit = |us| Setting::IdleLatency(Nanos::from_micros(us));
    assert!(plant.settings().contains(&limit(200)));
    assert_eq!(plant.apply(&[limit(20)]).outcomes[0].got, ApplyOutcome::Done);
    assert_eq!((flags(), plant.settings().contains(&limit(20))), (vec!["0001".to_owned()], true));
    assert_eq!(plant.apply(&[limit(20)]).outcomes[0].got, ApplyOutcome::Already);
    let got = plant.apply(&[limit(19)]).outcomes[0].got.clone();
    let ApplyOutcome::Clamped { to, .. } = got else { panic!("{got:?}") };
    assert_eq!((to, flags()), (limit(3), vec!["0011".to_owned()]));
    let _ = plant.restore();
    assert_eq!((flags(), plant.settings().contains(&limit(200))), (vec!["0000".to_owned()], true));
}

#[test]
fn an_average_that_the_kernel_leaves_blank_gives_way_to_the_setting() {
    let machine = Recorded::new("nvidia-gb10");
    let seen = Frequency::new(&machine.roots, 20).read();
    let at = |khz| seen.iter().filter(|one| **one == Ok(Hertz::from_khz(khz))).count();
    assert_eq!((at(2_808_000), at(3_900_000)), (5, 7), "those that slept");
    assert_eq!(seen[8], Ok(Hertz::from_khz(3_831_445)), "one that ran");
}

#[test]
fn idle_states_of_an_old_kernel_lack_what_it_did_not_tell() {
    let machine = Recorded::new("intel-xeon-e7-4870");
    let states = IdleState::read_all(&machine.roots, CoreId(0)).unwrap();
    let found: Vec<_> =
        states.iter().map(|state| (state.name.as_str(), state.exit_latency)).collect();
    let us = Nanos::from_micros;
    let known = [("C0", us(0)), ("NHM-C1", us(3)), ("NHM-C3", us(20)), ("NHM-C6", us(200))];
    assert_eq!(found, known);
    assert!(states.iter().all(|state| state.target_residency.is_none()));
    let deep = states[3].count().unwrap();
    assert_eq!((deep.entries, deep.time), (228_384_696, us(6_748_047_758_841)));
    let means = IdleResidency::probe(&machine.roots).unwrap();
    assert_eq!(means, "cpuidle (C0, NHM-C1, NHM-C3, NHM-C6)");
    let request = "idle-latency=20us".parse().unwrap();
    let refused = hold(&[request], &machine.roots, &mut machine.ledger()).unwrap_err().to_string();
    assert!(refused.contains("disable"), "{refused}");
}
