//! Cache ways and memory bandwidth by resctrl: four classes of service, seven or eight ways.

use crate::Tests;
use crate::scene::{APP, EPOCH, Scene, read, write};
use lull_control::{ApplyOutcome, Capability, Plant, Setting, WayMask};
use lull_measure::catalogue::{CACHE_OCCUPANCY, MEMORY_BANDWIDTH};
use std::fs;
use std::path::Path;

pub(crate) const TESTS: Tests = &[
    ("resctrl::ways_are_set_for_all_threads_of_an_app_and_put_back", ways),
    ("resctrl::masks_that_the_hardware_cannot_have_are_refused", masks),
    ("resctrl::no_class_of_service_left_says_who_has_them", exhausted),
    ("resctrl::threads_in_a_group_of_another_program_are_left_there", others),
    ("resctrl::another_writer_wins", foreign),
];
pub(crate) const RUNS_ONLY: Tests =
    &[("resctrl::ways_that_are_not_side_by_side_are_refused", runs)];
pub(crate) const TWO_CACHES: Tests = &[
    ("resctrl::both_caches_are_divided_alike", both),
    ("resctrl::another_writer_at_the_second_cache_wins", second),
];
pub(crate) const AMD: Tests = &[
    ("resctrl::ways_may_be_anywhere", sparse),
    ("resctrl::bandwidth_is_a_share_of_the_largest_number", bandwidth),
];

const TOP: &str = "/sys/fs/resctrl";
const OURS: &str = "/sys/fs/resctrl/lull-served";

fn cache_ways(mask: u64) -> Setting {
    Setting::CacheWays(APP, WayMask(mask))
}

/// Reads a group's schemata of a resource, for each cache.
fn values(group: &str, resource: &str) -> Vec<String> {
    let text = read(format!("{group}/schemata"));
    let line = text.lines().find_map(|line| line.trim().strip_prefix(resource)?.strip_prefix(':'));
    let values = line.unwrap_or_else(|| panic!("no {resource} in {text}")).split(';');
    values.map(|one| one.split_once('=').unwrap().1.to_owned()).collect()
}

fn ways() {
    let mut scene = Scene::new();
    let machine = scene.plant.machine();
    assert!(machine.capabilities.has(Capability::CacheWays));
    let all = u64::from_str_radix(&read(format!("{TOP}/info/L3/cbm_mask")), 16).unwrap();
    assert_eq!(machine.cache.as_ref().unwrap().ways, all.count_ones());
    assert_eq!(scene.set(cache_ways(0x3)).got, ApplyOutcome::Done);
    assert!(values(OURS, "L3").iter().all(|mask| mask == "3"));
    let tasks: Vec<_> = read(format!("{OURS}/tasks")).lines().map(str::to_owned).collect();
    let threads = fs::read_dir(format!("/proc/{}/task", scene.app.id())).unwrap().count();
    assert_eq!(tasks.len(), threads);
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert!(seen.foreign.is_empty());
    // This emulated processor has monitors, and they count nothing.
    assert_eq!(seen.apps[0].readings.get(CACHE_OCCUPANCY), Ok(0.0));
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert_eq!(seen.apps[0].readings.get(MEMORY_BANDWIDTH), Ok(0.0));
    let _ = scene.plant.restore();
    assert!(!Path::new(OURS).exists());
    assert_eq!(scene.set(cache_ways(0x3)).got, ApplyOutcome::Done, "and once more");
}

fn masks() {
    let mut scene = Scene::new();
    for mask in [0, 0x100, u64::MAX] {
        assert!(!scene.why_not(cache_ways(mask)).is_empty());
    }
    assert!(!Path::new(OURS).exists());
}

fn runs() {
    assert!(Scene::new().why_not(cache_ways(0b101)).contains("one run"));
    assert!(!Path::new(OURS).exists());
}

fn both() {
    let mut scene = Scene::new();
    let before = values(TOP, "L3");
    assert_eq!(before.len(), 2);
    assert_eq!(scene.set(cache_ways(0x3c)).got, ApplyOutcome::Done);
    assert_eq!(values(OURS, "L3"), ["3c", "3c"]);
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    let _ = scene.plant.restore();
    assert_eq!(values(TOP, "L3"), before);
}

fn second() {
    let mut scene = Scene::new();
    scene.set(cache_ways(0x3));
    let last = read(format!("{OURS}/schemata"));
    let cache = last.rsplit_once(';').unwrap().1.split_once('=').unwrap().0.to_owned();
    write(format!("{OURS}/schemata"), &format!("L3:{cache}=70\n"));
    let foreign = scene.plant.observe(EPOCH).unwrap().foreign;
    assert_eq!((foreign.len(), &foreign[0].found), (1, &cache_ways(0x70)));
    drop(scene);
    fs::remove_dir(OURS).unwrap();
}

fn sparse() {
    let mut scene = Scene::new();
    assert_eq!(scene.set(cache_ways(0b101)).got, ApplyOutcome::Done);
    assert!(values(OURS, "L3").iter().all(|mask| mask == "5"));
}

fn bandwidth() {
    let mut scene = Scene::new();
    assert!(scene.plant.machine().capabilities.has(Capability::MemoryBandwidth));
    let full: u64 = values(TOP, "MB")[0].parse().unwrap();
    let share = |percent| Setting::MemoryBandwidth(APP, percent);
    for percent in [50, 25, 100] {
        assert_eq!(scene.set(share(percent)).got, ApplyOutcome::Done);
        let wanted = (full * u64::from(percent) / 100).to_string();
        assert!(values(OURS, "MB").iter().all(|value| *value == wanted), "{percent} of {full}");
        assert!(scene.plant.settings().contains(&share(percent)));
    }
    assert!(!scene.why_not(share(0)).is_empty());
    assert!(scene.plant.observe(EPOCH).unwrap().foreign.is_empty());
    let _ = scene.plant.restore();
    assert!(!Path::new(OURS).exists());
}

fn exhausted() {
    for number in 1..4 {
        fs::create_dir(format!("{TOP}/other{number}")).unwrap();
    }
    let mut scene = Scene::new();
    let why = scene.why_not(cache_ways(1));
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
    let why = scene.why_not(cache_ways(1));
    fs::remove_dir(&other).unwrap();
    assert!(why.contains("virt-1"), "{why}");
}

fn foreign() {
    let mut scene = Scene::new();
    scene.set(cache_ways(0x3));
    let cache = read(format!("{OURS}/schemata"));
    let cache = cache.split_once("L3:").unwrap().1.split_once('=').unwrap().0;
    write(format!("{OURS}/schemata"), &format!("L3:{cache}=f\n"));
    let foreign = scene.plant.observe(EPOCH).unwrap().foreign;
    assert_eq!((foreign.len(), &foreign[0].found), (1, &cache_ways(0xf)));
    drop(scene);
    // Released: it is theirs now, and so is taking it away.
    assert!(Path::new(OURS).exists());
    fs::remove_dir(OURS).unwrap();
}
