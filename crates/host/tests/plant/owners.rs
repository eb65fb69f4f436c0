//! Which values of an app's knobs its owner has set.

use crate::child::App;
use crate::scene::{APP, EPOCH, Scene, allowed, one_core, second_core};
use lull_control::{ApplyOutcome, CoreSet, Plant, Setting};
use lull_host::sys::sched::{affinity_of, set_affinity};
use std::path::Path;
use std::time::Duration;

/// Longer than the time between two listings of all processes.
const LISTED: Duration = Duration::from_millis(300);

fn enter(cgroup: &Path, pid: i32) {
    std::fs::write(cgroup.join("cgroup.procs"), format!("{pid}\n")).unwrap();
}

#[test]
fn the_owners_cores_of_a_restarted_app_are_those_of_its_new_processes() {
    let Some(second) = second_core() else { return };
    let cgroup = tempfile::tempdir().unwrap();
    let mut former = App::start(1);
    enter(cgroup.path(), former.pid());
    let mut scene = Scene::of_cgroup(cgroup.path());
    assert_eq!(scene.set(Setting::Cores(APP, one_core())).got, ApplyOutcome::Done);
    assert!(scene.plant.owners(APP).contains(&Setting::Cores(APP, allowed())));
    let next = App::start(1);
    let pinned: CoreSet = [second].into_iter().collect();
    for task in std::fs::read_dir(format!("/proc/{}/task", next.pid())).unwrap() {
        let tid = task.unwrap().file_name().into_string().unwrap().parse().unwrap();
        set_affinity(tid, &pinned).unwrap();
    }
    former.end();
    enter(cgroup.path(), next.pid());
    std::thread::sleep(LISTED);
    let seen = scene.plant.observe(EPOCH).unwrap();
    assert_eq!(seen.restarted, [APP]);
    assert_eq!(affinity_of(next.pid()).unwrap(), one_core(), "it is set as the former one");
    let owners = scene.plant.owners(APP);
    assert!(owners.contains(&Setting::Cores(APP, pinned)), "{owners:?}");
    let _ = scene.plant.restore();
}
