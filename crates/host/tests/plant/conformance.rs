//! The suite that every plant must pass, as root and as the user `nobody`.

use crate::child::App;
use crate::nobody::as_nobody;
use crate::scene::{EPOCH, Scene};
use lull_control::{Plant, RosterEvent};
use lull_oncall::{Mode, Settings};

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

    fn gated() -> Self {
        let app = App::start(3);
        let settings = Settings { mode: Mode::Post, ..Settings::default() };
        Self { scene: Scene::gated(&app, &settings), _app: app }
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
fn the_host_is_a_plant_with_a_gate() {
    lull_control::conformance::check(EPOCH, WithApp::gated);
}

/// Longer than the time between two listings of all processes: an epoch that ends this long after
/// a change sees it.
const LISTED: std::time::Duration = std::time::Duration::from_millis(300);

#[test]
fn apps_of_the_host_come_and_go() {
    // A cgroup of a tree of files, so that no right to make one is needed.
    let cgroup = tempfile::tempdir().unwrap();
    let enter = |pid: Option<i32>| {
        let text = pid.map_or_else(String::new, |pid| format!("{pid}\n"));
        std::fs::write(cgroup.path().join("cgroup.procs"), text).unwrap();
    };
    let mut app = Some(App::start(2));
    enter(app.as_ref().map(App::pid));
    let mut scene = Scene::of_cgroup(cgroup.path());
    lull_control::conformance::check_churn(EPOCH, 8, &mut scene.plant, |_, _, event| {
        app = None;
        if event != RosterEvent::Departed {
            app = Some(App::start(2));
        }
        enter(app.as_ref().map(App::pid));
        std::thread::sleep(LISTED);
    });
}

#[test]
fn the_host_is_a_plant_without_any_privilege() {
    // For an ordinary user, `the_host_is_a_plant` is this test.
    as_nobody("conformance::the_host_is_a_plant");
}
