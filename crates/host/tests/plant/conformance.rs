//! The suite that every plant must pass, as root and as nobody.

use crate::child::App;
use crate::scene::{EPOCH, Scene};
use lull_control::Plant;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A plant together with its app, which lives as long.
struct WithApp {
    scene: Scene,
    _app: App,
}

impl WithApp {
    fn new() -> Self {
        let app = App::start(3);
        Self { scene: Scene::new(&app), _app: app }
    }
}

impl Plant for WithApp {
    fn machine(&self) -> &lull_control::Machine {
        self.scene.plant.machine()
    }

    fn apps(&self) -> &[lull_control::AppSpec] {
        self.scene.plant.apps()
    }

    fn observe(
        &mut self,
        epoch: lull_measure::Nanos,
    ) -> Result<lull_control::Observation, lull_control::PlantError> {
        self.scene.plant.observe(epoch)
    }

    fn settings(&self) -> Vec<lull_control::Setting> {
        self.scene.plant.settings()
    }

    fn apply(&mut self, wanted: &[lull_control::Setting]) -> lull_control::Applied {
        self.scene.plant.apply(wanted)
    }

    fn restore(&mut self) -> lull_control::Applied {
        self.scene.plant.restore()
    }
}

#[test]
fn the_host_is_a_plant() {
    lull_control::conformance::check(EPOCH, WithApp::new);
}

#[test]
fn the_host_is_a_plant_without_any_privilege() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        // Then `the_host_is_a_plant` is this test.
        return;
    }
    // Nobody may read neither the build directory nor what root made in it.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("tests");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    for path in [dir.path(), &program] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let run = Command::new(&program)
        .args(["conformance::the_host_is_a_plant", "--exact"])
        .env("TMPDIR", "/tmp")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && told.contains("1 passed"), "{told}");
}
