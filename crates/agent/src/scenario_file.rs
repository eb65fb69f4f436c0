//! Reading of a scenario of any kind, or of an agent's config that is simulated; every error
//! names file, line and key.

use crate::located::{InputError, Located};
use crate::simulated::{DescriptionFiles, is_config, read_simulated};
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
    read_with(source, &DescriptionFiles::default(), base, choice)
}

/// Reads and checks a scenario, or a config with the files beside it; files that it names are
/// looked for from `base`.
///
/// # Errors
/// The first key that cannot be read or simulated; files beside a scenario, which has its own
/// machine and load.
pub fn read_with(
    source: &Located,
    beside: &DescriptionFiles,
    base: &Path,
    choice: &Choice,
) -> Result<AnyScenario, InputError> {
    let table = source.parse()?;
    if is_config(&table) {
        return read_simulated(source, beside, base, choice);
    }
    for (flag, file) in [("--machine", &beside.machine), ("--load", &beside.load)] {
        if file.is_some() {
            let why = format!("is a scenario, which has its own: {flag} is for an agent's config");
            return Err(source.error("", why));
        }
    }
    let file = match Kind::from_table(&table) {
        Kind::Tiers => AnyFile::Tiers(source.parse()?),
        Kind::Node => AnyFile::Node(source.parse()?),
        Kind::Dispatch => AnyFile::Dispatch(source.parse()?),
        Kind::Gated => AnyFile::Gated(Box::new(source.parse()?)),
        Kind::NetServer => AnyFile::NetServer(Box::new(source.parse()?)),
    };
    AnyScenario::new(file, base, choice).map_err(|wrong| source.error(&wrong.key, &wrong.message))
}
