//! Frequencies with acpi-cpufreq, whose "hardware" is a byte at a port.

use crate::Tests;
use crate::scene::{EPOCH, Scene, at, policy, policy_dir, read, write};
use lull_control::{ApplyOutcome, Plant};
use std::fs::File;
use std::os::unix::fs::FileExt;

pub(crate) const TESTS: Tests = &[
    ("frequency::each_core_runs_at_its_own_and_the_hardware_has_it", each_core),
    ("frequency::between_two_steps_is_the_nearest_and_beyond_them_the_last", nearest),
    ("frequency::the_administrators_bounds_hold_for_lull", bounds),
    ("frequency::a_core_that_is_online_again_is_set_again", hotplug),
    ("frequency::an_offline_core_refuses_and_names_the_file", offline),
    ("frequency::a_governor_changed_under_us_wins_and_stays", foreign),
    ("frequency::restore_gives_every_domain_its_governor_back", restore),
];

/// The byte that the driver wrote for a CPU.
pub(crate) fn hardware(cpu: usize) -> u8 {
    let mut byte = [0];
    let port = [0x81, 0x82, 0x83, 0x87][cpu];
    File::open("/dev/port").unwrap().read_exact_at(&mut byte, port).unwrap();
    byte[0]
}

fn online(cpu: u16, is_online: bool) {
    write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), if is_online { "1" } else { "0" });
}

fn each_core() {
    let mut scene = Scene::new();
    for (domain, mhz) in [(0, 2000), (1, 1200), (2, 800), (3, 1600)] {
        assert_eq!(scene.set(at(domain, mhz)).got, ApplyOutcome::Done);
        assert!(scene.plant.settings().contains(&at(domain, mhz)));
    }
    assert_eq!([0, 1, 2, 3].map(hardware), [0x14, 0x0c, 0x08, 0x10]);
    assert_eq!(scene.set(at(1, 1200)).got, ApplyOutcome::Already);
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
}

fn nearest() {
    let mut scene = Scene::new();
    for (wanted, granted) in [(1500, 1600), (100, 800), (99_999, 2400)] {
        let ApplyOutcome::Clamped { to, .. } = scene.set(at(0, wanted)).got else {
            panic!("{wanted}")
        };
        assert_eq!(to, at(0, granted));
    }
}

fn bounds() {
    let max = policy_dir(0).join("scaling_max_freq");
    write(&max, "1600000");
    let mut scene = Scene::new();
    let ApplyOutcome::Clamped { to, why } = scene.set(at(0, 2400)).got else { panic!() };
    assert_eq!(to, at(0, 1600));
    assert!(why.contains("scaling_max_freq"), "{why}");
    drop(scene);
    assert_eq!(read(&max), "1600000");
    write(&max, "2400000");
}

fn hotplug() {
    let mut scene = Scene::new();
    scene.set(at(1, 1200));
    online(1, false);
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    online(1, true);
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    assert_eq!(hardware(1), 0x0c);
    assert_eq!(scene.plant.take_notices(), [""; 0]);
}

fn offline() {
    let mut scene = Scene::new();
    online(2, false);
    let why = scene.why_not(at(2, 1200));
    online(2, true);
    assert!(why.contains("policy2/scaling_"), "{why}");
}

fn foreign() {
    let mut scene = Scene::new();
    let before = policy(3).governor;
    scene.set(at(3, 1200));
    write(policy_dir(3).join("scaling_governor"), "powersave");
    let foreign = scene.plant.observe(EPOCH).unwrap().foreign;
    assert_eq!((foreign.len(), &foreign[0].ours), (1, &at(3, 1200)));
    assert!(foreign[0].whom.contains("powersave"), "{}", foreign[0].whom);
    drop(scene);
    assert_eq!(policy(3).governor, "powersave");
    write(policy_dir(3).join("scaling_governor"), &before);
}

fn restore() {
    let before: Vec<_> = (0..4).map(policy).collect();
    let mut scene = Scene::new();
    for domain in 0..4 {
        scene.set(at(domain, 800));
    }
    assert_ne!(policy(0).governor, before[0].governor);
    let _ = scene.plant.restore();
    assert_eq!((0..4).map(policy).collect::<Vec<_>>(), before);
    assert_eq!(scene.plant.take_notices(), [""; 0]);
}
