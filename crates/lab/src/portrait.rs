//! A picture of every policy for the documentation: its actions on a small simulated scene,
//! which is the same for all policies of its kind.
//!
//! `lull policies --figures docs/policies` draws them all; the same commit
//! draws the same bytes.

mod colocated;
mod dispatch;
mod frequencies;
mod gated;
mod numbers;
mod trace;
mod zoned;

use crate::figure::{DrawError, Figure, svg};
use lull_control::PlantError;
use lull_control::dispatcher::DispatcherError;
use lull_control::{LimitsError, PolicyError};
use lull_policies::Family;
use lull_policies::{ADMISSION_CONTROLLERS, DISPATCHERS, POLICIES};

use lull_sim::machine::MachinePlantError;
use lull_sim::model::ModelError;
use lull_sim::plant::PlantSpecError;

/// Seed of all random numbers.
const SEED: u64 = 1;

/// Why a picture cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PortraitError {
    /// The policy cannot run on its scene.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The dispatcher cannot run on its scene.
    #[error(transparent)]
    Dispatcher(#[from] DispatcherError),
    /// The scene cannot be simulated.
    #[error("the scene cannot be simulated: {0}")]
    Scene(String),
    /// The figure cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

/// Converts an invalid model into an invalid scene.
macro_rules! of_scene {
    ($($error:ty),*) => {
        $(impl From<$error> for PortraitError {
            fn from(error: $error) -> Self {
                Self::Scene(error.to_string())
            }
        })*
    };
}

of_scene!(ModelError, MachinePlantError, PlantSpecError, PlantError, LimitsError);

/// All that have a picture: policies, dispatchers, admission controllers.
pub fn names() -> Vec<&'static str> {
    POLICIES.names().chain(DISPATCHERS.names()).chain(ADMISSION_CONTROLLERS.names()).collect()
}

/// The picture of one of [`names`], as SVG.
///
/// # Errors
/// If there is none of this name, or its scene cannot be simulated or drawn.
pub fn draw(name: &str) -> Result<String, PortraitError> {
    Ok(svg(&panels(name)?)?)
}

fn panels(name: &str) -> Result<Vec<Figure>, PortraitError> {
    if DISPATCHERS.contains(name) {
        return dispatch::panels(name);
    }
    if ADMISSION_CONTROLLERS.contains(name) {
        return gated::panels(name);
    }
    if let Some(policy) = zoned::has(name) {
        return zoned::panels(policy);
    }
    match POLICIES.find(name)?.kind.family {
        Family::Colocation => colocated::panels(name),
        Family::Frequency => frequencies::panels(name),
        Family::Tuning => numbers::panels(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// A picture that is larger makes the book slow.
    const BYTES_MAX: u64 = 40_000;

    #[test]
    fn every_policy_has_its_picture_in_the_book_and_nothing_else_is_there() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let page = std::fs::read_to_string(docs.join("policies.md")).unwrap();
        let files = std::fs::read_dir(docs.join("policies")).unwrap().flatten();
        let found: BTreeSet<String> =
            files.map(|file| file.file_name().into_string().unwrap()).collect();
        let wanted: BTreeSet<String> = names().iter().map(|name| format!("{name}.svg")).collect();
        assert_eq!(found, wanted, "run lull policies --figures docs/policies");
        assert_eq!(wanted.len(), names().len(), "two have the same name");
        for file in &wanted {
            assert!(page.contains(&format!("](policies/{file})")), "{file} is not on the page");
            let bytes = std::fs::metadata(docs.join("policies").join(file)).unwrap().len();
            assert!(bytes < BYTES_MAX, "{file} has {bytes} bytes");
        }
    }

    /// Portraits that take a fraction of a second each to draw again.
    const CHEAP: [&str; 3] = ["full-speed", "tl", "clairvoyant"];

    fn assert_fresh(name: &str) {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies");
        let file = std::fs::read_to_string(docs.join(format!("{name}.svg"))).unwrap();
        assert!(file == draw(name).unwrap(), "{name}: run lull policies --figures docs/policies");
    }

    #[test]
    fn the_pictures_that_are_drawn_in_no_time_are_those_in_the_book() {
        CHEAP.into_iter().for_each(assert_fresh);
    }

    #[test]
    #[ignore = "slow: simulates a scene for every policy"]
    fn all_pictures_are_those_in_the_book() {
        names().into_iter().for_each(assert_fresh);
    }
}
