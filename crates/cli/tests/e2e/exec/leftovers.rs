//! What a killed `lull exec` leaves behind.

use crate::support::scene::Scene;
use crate::support::{arguments, send};
use rustix::process::Signal;

#[test]
fn the_library_of_a_killed_exec_is_removed_by_a_restore_once_no_process_has_it() {
    let scene = Scene::new();
    let place = scene.path("tmp");
    std::fs::create_dir(&place).unwrap();
    let start = |words: &[&str]| {
        let mut command = scene.lull(words);
        command.env("TMPDIR", &place);
        scene.start(command)
    };
    let libraries = || {
        let all = std::fs::read_dir(&place).unwrap().flatten();
        all.filter(|one| one.file_name().to_string_lossy().starts_with("lull-preload-")).count()
    };
    let server = || {
        let all = scene.processes().into_iter();
        all.into_iter().find(|pid| arguments(*pid) == ["sleep", "3000"])
    };
    let mut agent = start(&["exec", "--", "sleep", "3000"]);
    agent.wait_for("the server", || server().is_some());
    agent.signal(Signal::KILL);
    agent.wait();
    let state = scene.path("state").display().to_string();
    let restore = || start(&["restore", "--state", &state]).wait().well();
    restore();
    assert_eq!(libraries(), 1, "the server has it in its environment");
    send(server().unwrap(), Signal::KILL);
    scene.wait_until_quiet();
    restore();
    assert_eq!(libraries(), 0);
}
