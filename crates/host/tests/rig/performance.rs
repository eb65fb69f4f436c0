//! amd-pstate in its active mode: a driver that chooses frequencies itself,
//! within bounds and by an energy-performance preference.

use crate::Tests;
use crate::hold::Holding;
use crate::scene::{EPOCH, Scene, at, policy, policy_dir, read, wait_for, write};
use lull_control::{ApplyOutcome, Plant};
use std::fs::File;
use std::os::unix::fs::FileExt;

pub(crate) const TESTS: Tests = &[
    ("performance::bounds_at_one_value_are_the_frequency_and_are_put_back", bounds),
    ("performance::beyond_the_range_is_its_end", ends),
    ("performance::a_preference_reaches_the_hardware_and_is_put_back", preference),
    ("performance::what_the_driver_refuses_is_said_in_its_words", refused),
    ("performance::bounds_that_somebody_else_sets_win", foreign),
];

/// The register that the ACPI table names for the preference, 0 to 255.
const PREFERENCE_REGISTER: u64 = 0x40f;

fn hardware(cpu: u16) -> u64 {
    let mut bytes = [0; 8];
    let file = File::open(format!("/dev/cpu/{cpu}/msr")).unwrap();
    file.read_exact_at(&mut bytes, PREFERENCE_REGISTER).unwrap();
    u64::from_le_bytes(bytes)
}

/// The whole range, as an administrator may allow it: from 6.13 on the driver begins
/// at its lowest level that is not wasteful, and Lull keeps to that bound as to any.
fn allow_all() {
    for domain in 0..4 {
        let lowest = read(policy_dir(domain).join("cpuinfo_min_freq"));
        write(policy_dir(domain).join("scaling_min_freq"), &lowest);
        wait_for("a bound", || policy(domain).min_khz.to_string() == lowest);
    }
}

fn bounds() {
    allow_all();
    let before: Vec<_> = (0..4).map(policy).collect();
    assert_eq!(read(policy_dir(0).join("scaling_driver")), "amd-pstate-epp");
    let mut scene = Scene::new();
    for (domain, mhz) in [(0, 2000), (1, 1200), (2, 900), (3, 2800)] {
        let outcome = scene.set(at(domain, mhz));
        assert!(outcome.in_force().is_some(), "{outcome:?}");
        let now = policy(domain);
        assert_eq!((now.min_khz, now.max_khz), (mhz * 1000, mhz * 1000));
    }
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    let _ = scene.plant.restore();
    assert_eq!((0..4).map(policy).collect::<Vec<_>>(), before);
}

fn ends() {
    allow_all();
    let mut scene = Scene::new();
    let domain = scene.plant.machine().domains[0].clone();
    assert!(domain.continuous);
    let (lowest, highest) = (domain.steps[0], domain.steps[1]);
    for (mhz, granted) in [(1, lowest), (99_999, highest)] {
        let ApplyOutcome::Clamped { to, .. } = scene.set(at(0, mhz)).got else { panic!("{mhz}") };
        assert_eq!(to, at(0, granted.0 / 1_000_000));
    }
}

fn preference() {
    let file = |cpu| policy_dir(cpu).join("energy_performance_preference");
    let before = read(file(1));
    let holding = Holding::start(&["governor=powersave", "energy-preference=power"]);
    assert!((0..4).all(|cpu| read(file(cpu)) == "power"));
    assert_eq!(hardware(1), 0xff);
    let _ = holding.end();
    assert_eq!(read(file(1)), before);
}

fn refused() {
    let why = |requests: &[&str]| Holding::try_start(requests).err().unwrap();
    // Under the governor of this guest the list is narrow, and the kernel answers.
    let unknown = why(&["energy-preference=frugal"]);
    assert!(unknown.contains("energy_performance_preference"), "{unknown}");
    let before: Vec<_> = (0..4).map(policy).collect();
    let busy = why(&["governor=performance", "energy-preference=power"]);
    assert!(busy.contains("energy_performance_preference"), "{busy}");
    assert_eq!((0..4).map(policy).collect::<Vec<_>>(), before, "all or none");
}

fn foreign() {
    allow_all();
    let mut scene = Scene::new();
    scene.set(at(3, 1200));
    write(policy_dir(3).join("scaling_max_freq"), "1600000");
    // A worker of the kernel's takes it over.
    wait_for("a bound", || policy(3).max_khz == 1_600_000);
    let foreign = scene.plant.observe(EPOCH).unwrap().foreign;
    assert_eq!((foreign.len(), &foreign[0].ours), (1, &at(3, 1200)));
    drop(scene);
    assert_eq!(policy(3).max_khz, 1_600_000);
    let highest = read(policy_dir(3).join("cpuinfo_max_freq"));
    let lowest = read(policy_dir(3).join("cpuinfo_min_freq"));
    write(policy_dir(3).join("scaling_max_freq"), &highest);
    write(policy_dir(3).join("scaling_min_freq"), &lowest);
}
