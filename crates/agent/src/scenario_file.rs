//! Reading of a scenario of any kind; every error names file, line and key.

use crate::located::{InputError, Located};
use lull_lab::scenario::{AnyFile, AnyScenario, Choice, Kind};
use std::path::Path;

/// Reads and checks a scenario; files that it names are looked for from `base`.
///
/// # Errors
/// The first key that cannot be read or simulated.
pub fn read_scenario(
    source: &Located,
    base: &Path,
    choice: &Choice,
) -> Result<AnyScenario, InputError> {
    let file = match Kind::from_table(&source.parse()?) {
        Kind::Tiers => AnyFile::Tiers(source.parse()?),
        Kind::Node => AnyFile::Node(source.parse()?),
        Kind::Dispatch => AnyFile::Dispatch(source.parse()?),
        Kind::Gated => AnyFile::Gated(Box::new(source.parse()?)),
        Kind::NetServer => AnyFile::NetServer(Box::new(source.parse()?)),
    };
    AnyScenario::new(file, base, choice).map_err(|wrong| source.error(&wrong.key, &wrong.message))
}
