//! Cache ways by resctrl: four classes of service, eight ways, runs only.

use crate::Tests;
use crate::scene::{APP, EPOCH, Scene, read, write};
use lull_control::{Capability, Got, Plant, Setting, WayMask};
use std::fs;
use std::path::Path;

pub(crate) const TESTS: Tests = &[
    ("resctrl::ways_are_set_for_all_threads_of_an_app_and_put_back", ways),
    ("resctrl::masks_that_the_hardware_cannot_have_are_refused", masks),
    ("resctrl::no_class_of_service_left_says_who_has_them", exhausted),
    ("resctrl::threads_in_a_group_of_somebody_else_are_left_there", others),
    ("resctrl::another_writer_wins", foreign),
];

const TOP: &str = "/sys/fs/resctrl";
const OURS: &str = "/sys/fs/resctrl/lull-served";

fn wish(mask: u64) -> Setting {
    Setting::CacheWays(APP, WayMask(mask))
}

fn ways() {
    let mut scene = Scene::new();
    let machine = scene.plant.machine();
    assert!(machine.capabilities.has(Capability::CacheWays));
    assert_eq!(machine.cache.as_ref().unwrap().ways, 8);
    assert_eq!(scene.set(wish(0x3)).got, Got::Done);
    assert!(
        read(format!("{OURS}/schemata")).contains("L3:0=3"),
        "{}",
        read(format!("{OURS}/schemata"))
    );
    let tasks: Vec<_> = read(format!("{OURS}/tasks")).lines().map(str::to_owned).collect();
    let threads = fs::read_dir(format!("/proc/{}/task", scene.app.id())).unwrap().count();
    assert_eq!(tasks.len(), threads);
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert!(seen.foreign.is_empty());
    // This emulated processor has monitors, and they count nothing.
    assert_eq!(seen.apps[0].cache_occupancy_bytes, Ok(0.0));
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert_eq!(seen.apps[0].memory_bandwidth_bytes_per_s, Ok(0.0));
    let _ = scene.plant.restore();
    assert!(!Path::new(OURS).exists());
    assert_eq!(scene.set(wish(0x3)).got, Got::Done, "and once more");
}

fn masks() {
    let mut scene = Scene::new();
    for mask in [0, 0b101, 0x100, u64::MAX] {
        assert!(!scene.why_not(wish(mask)).is_empty());
    }
    assert!(!Path::new(OURS).exists());
}

fn exhausted() {
    for number in 1..4 {
        fs::create_dir(format!("{TOP}/other{number}")).unwrap();
    }
    let mut scene = Scene::new();
    let why = scene.why_not(wish(1));
    for number in 1..4 {
        fs::remove_dir(format!("{TOP}/other{number}")).unwrap();
    }
    assert!(why.contains("class of service") && why.contains("other2"), "{why}");
}

fn others() {
    let other = format!("{TOP}/virt-1");
    fs::create_dir(&other).unwrap();
    let mut scene = Scene::new();
    write(format!("{other}/tasks"), &scene.app.id().to_string());
    let why = scene.why_not(wish(1));
    fs::remove_dir(&other).unwrap();
    assert!(why.contains("virt-1"), "{why}");
}

fn foreign() {
    let mut scene = Scene::new();
    scene.set(wish(0x3));
    write(format!("{OURS}/schemata"), "L3:0=f\n");
    let foreign = scene.plant.observe(EPOCH).unwrap().foreign;
    assert_eq!((foreign.len(), &foreign[0].found), (1, &wish(0xf)));
    drop(scene);
    // Released: it is theirs now, and so is taking it away.
    assert!(Path::new(OURS).exists());
    fs::remove_dir(OURS).unwrap();
}
