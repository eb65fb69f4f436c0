//! The suite that every plant must pass, on a kernel with knobs.

use crate::Tests;
use crate::scene::{EPOCH, Scene};
use lull_control::{AppSpec, Applied, Machine, Observation, Plant, PlantError, Setting};
use lull_measure::Nanos;

pub(crate) const TESTS: Tests = &[("plant::the_host_is_a_plant", conforms)];

impl Plant for Scene {
    fn machine(&self) -> &Machine {
        self.plant.machine()
    }

    fn apps(&self) -> &[AppSpec] {
        self.plant.apps()
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        self.plant.observe(epoch)
    }

    fn settings(&self) -> Vec<Setting> {
        self.plant.settings()
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        self.plant.apply(wanted)
    }

    fn restore(&mut self) -> Applied {
        self.plant.restore()
    }
}

fn conforms() {
    lull_control::conformance::check(EPOCH, Scene::new);
}
