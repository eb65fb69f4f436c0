//! What a killed `lull exec` leaves behind.

use crate::support::agent::Agent;
use crate::support::scene::Scene;
use crate::support::{arguments, send, wait_for};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::PathBuf;

/// A scene with a directory for temporary files of its own.
struct Temporary {
    scene: Scene,
    place: PathBuf,
}

impl Temporary {
    fn new() -> Self {
        let scene = Scene::new();
        let place = scene.path("tmp");
        std::fs::create_dir(&place).unwrap();
        Self { scene, place }
    }

    fn start(&self, words: &[&OsStr]) -> Agent {
        let mut command = self.scene.lull(words);
        command.env("TMPDIR", &self.place);
        self.scene.start(command)
    }

    /// How many directories of preloaded libraries there are.
    fn libraries(&self) -> usize {
        let all = std::fs::read_dir(&self.place).unwrap().flatten();
        all.filter(|one| one.file_name().to_string_lossy().starts_with("lull-preload-")).count()
    }

    /// The process of the server.
    fn server(&self) -> Option<i32> {
        let mut all = self.scene.processes().into_iter();
        all.find(|pid| arguments(*pid) == ["sleep", "3000"])
    }
}

/// Kills a `lull exec`, and checks that a command keeps the library while the server has it, and
/// removes it afterwards.
fn check_removal(here: &Temporary, command: &[&OsStr]) {
    let mut exec = here.start(&["exec", "--", "sleep", "3000"].map(OsStr::new));
    exec.wait_for("the server", || here.server().is_some());
    exec.signal(Signal::KILL);
    exec.wait();
    assert_eq!(here.libraries(), 1, "the killed command has removed it itself");
    here.start(command).wait().well();
    assert_eq!(here.libraries(), 1, "the server has it in its environment");
    send(here.server().unwrap(), Signal::KILL);
    here.scene.wait_until_quiet();
    // Where another process of the machine is about to run a program, the next command removes it.
    wait_for("the removal of the library", || {
        here.start(command).wait().well();
        here.libraries() == 0
    });
}

#[test]
fn the_library_of_a_killed_exec_is_removed_by_a_restore_once_no_process_has_it() {
    let here = Temporary::new();
    let state = here.scene.path("state");
    check_removal(&here, &["restore".as_ref(), "--state".as_ref(), state.as_os_str()]);
}

#[test]
fn the_library_of_a_killed_exec_is_removed_by_the_next_agent_once_no_process_has_it() {
    let here = Temporary::new();
    let app = "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"batch\"\n\
               class = \"best-effort\"\nsolo = 1.0\nstart = [\"sleep\", \"600\"]\n";
    let config = here.scene.config("", app);
    let words = ["run".as_ref(), config.as_os_str(), "--for".as_ref(), "1s".as_ref()];
    check_removal(&here, &words);
}
