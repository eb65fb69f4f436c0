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

/// Apps in cgroups of a tree of files, so that no right to make one is needed.
struct Groups {
    directories: [tempfile::TempDir; 2],
    apps: [Option<App>; 2],
}

impl Groups {
    fn new() -> Self {
        let mut groups =
            Self { directories: [0; 2].map(|_| tempfile::tempdir().unwrap()), apps: [None, None] };
        (0..2).for_each(|number| groups.exchange(number, true));
        groups
    }

    /// Ends the processes of a cgroup, and starts others if that is wanted.
    fn exchange(&mut self, number: usize, starts: bool) {
        self.apps[number] = None;
        self.apps[number] = starts.then(|| App::start(2));
        let line = |app: &App| format!("{}\n", app.pid());
        let text = self.apps[number].as_ref().map_or_else(String::new, line);
        std::fs::write(self.directories[number].path().join("cgroup.procs"), text).unwrap();
    }
}

#[test]
fn apps_of_the_host_come_and_go_without_a_change_of_one_another() {
    let mut groups = Groups::new();
    let [first, second] = &groups.directories;
    let mut scene = Scene::of_cgroups(first.path(), second.path());
    lull_control::conformance::check_churn(EPOCH, 16, &mut scene.plant, |_, app, event| {
        groups.exchange(app.index(), event != RosterEvent::Departed);
        std::thread::sleep(LISTED);
    });
}

#[test]
fn the_host_is_a_plant_without_any_privilege() {
    // For an ordinary user, `the_host_is_a_plant` is this test.
    as_nobody("conformance::the_host_is_a_plant");
}
