//! A limit of a unit that Lull sets, and how it is restored.
//!
//! The limit is restored only while systemd has the value that Lull set. systemd also keeps
//! the value in a drop-in, which is removed, or gets its former text, so that a later change of
//! the unit by its owner is not overridden.

use super::super::PutBack;
use super::{Systemd, SystemdError, UNSET, UnitProperty, UnitValue};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// One limit of a unit before Lull, and Lull's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitState {
    /// The unit, with its suffix.
    pub unit: String,
    /// The limit.
    pub property: UnitProperty,
    /// Its value before.
    pub before: UnitValue,
    /// Its value by Lull.
    pub ours: UnitValue,
    /// The text of systemd's drop-in for it, if an owner has set it at runtime before.
    pub drop_in: Option<String>,
}

/// Where systemd keeps a limit of a unit that was set at runtime.
pub(crate) fn drop_in(run: &Path, unit: &str, property: UnitProperty) -> PathBuf {
    let systemd = run.join("systemd");
    let transient = systemd.join("transient");
    let place = match transient.join(unit).exists() {
        true => transient,
        false => systemd.join("system.control"),
    };
    place.join(format!("{unit}.d")).join(format!("50-{}.conf", property.setting()))
}

impl UnitState {
    /// Reads a limit as it is, which Lull will set to `ours`.
    pub(crate) fn read(
        systemd: &mut Systemd,
        run: &Path,
        unit: &str,
        (property, ours): (UnitProperty, UnitValue),
    ) -> Result<Self, SystemdError> {
        let before = systemd.get(unit, property)?;
        let path = drop_in(run, unit, property);
        let drop_in = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if is_absent(&error) => None,
            Err(source) => return Err(SystemdError::DropIn { path, source }),
        };
        Ok(Self { unit: unit.to_owned(), property, before, ours, drop_in })
    }

    /// Restores the limit if it has Lull's value.
    ///
    /// # Errors
    /// If systemd does not answer or refuses, or the drop-in cannot be written.
    pub(crate) fn put_back(&self, run: &Path) -> Result<PutBack, SystemdError> {
        let mut systemd = Systemd::connect(run)?;
        let found = match systemd.get(&self.unit, self.property) {
            Ok(found) => found,
            Err(SystemdError::NoUnit { .. }) => {
                self.restore_drop_in(run)?;
                return Ok(PutBack::Gone);
            }
            Err(error) => return Err(error),
        };
        if found == self.before {
            self.restore_drop_in(run)?;
            return Ok(PutBack::Already);
        }
        if found != self.ours {
            return Ok(PutBack::Left { found: found.to_string() });
        }
        systemd.set(&self.unit, &[(self.property, &self.before)])?;
        // systemd has written the value into its drop-in, which overrides the owner's unit.
        match &self.drop_in {
            None => self.remove_drop_in(run)?,
            Some(text) => self.write_drop_in(run, text)?,
        }
        Ok(PutBack::Done)
    }

    /// Sets the limit again if a reload of systemd has undone it: an owner's drop-in that
    /// systemd reads after Lull's has another value. Returns whether it did. A limit that
    /// another program has set since has another drop-in and is left alone. `kept` is a
    /// connection of an earlier call.
    pub(crate) fn renew(
        &self,
        run: &Path,
        kept: &mut Option<Systemd>,
    ) -> Result<bool, SystemdError> {
        if self.before == self.ours || !self.is_our_drop_in(run) {
            return Ok(false);
        }
        // Taken, so that a connection that failed is not used again.
        let mut systemd = kept.take().map_or_else(|| Systemd::connect(run), Ok)?;
        let is_undone = systemd.get(&self.unit, self.property)? == self.before;
        if is_undone {
            systemd.set(&self.unit, &[(self.property, &self.ours)])?;
        }
        *kept = Some(systemd);
        Ok(is_undone)
    }

    /// Whether systemd's drop-in has Lull's value.
    fn is_our_drop_in(&self, run: &Path) -> bool {
        let text = fs::read_to_string(drop_in(run, &self.unit, self.property)).unwrap_or_default();
        let line = format!("{}={}", self.property.setting(), in_unit_files(self));
        text.lines().next_back() == Some(line.as_str())
    }

    /// Takes Lull's value out of the drop-in, if it is there.
    fn restore_drop_in(&self, run: &Path) -> Result<(), SystemdError> {
        match &self.drop_in {
            _ if self.before == self.ours || !self.is_our_drop_in(run) => Ok(()),
            None => self.remove_drop_in(run),
            Some(text) => self.write_drop_in(run, text),
        }
    }

    fn write_drop_in(&self, run: &Path, text: &str) -> Result<(), SystemdError> {
        let path = drop_in(run, &self.unit, self.property);
        fs::write(&path, text).map_err(|source| SystemdError::DropIn { path, source })
    }

    fn remove_drop_in(&self, run: &Path) -> Result<(), SystemdError> {
        let path = drop_in(run, &self.unit, self.property);
        match fs::remove_file(&path) {
            Err(error) if !is_absent(&error) => {
                return Err(SystemdError::DropIn { path, source: error });
            }
            _ => {}
        }
        // Only if it is empty: the drop-ins of other limits stay.
        let _ = path.parent().map(fs::remove_dir);
        Ok(())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Lull's value as systemd writes it into a drop-in.
fn in_unit_files(state: &UnitState) -> String {
    match (&state.ours, state.property) {
        (UnitValue::Number(UNSET), _) => String::new(),
        (UnitValue::Number(us), UnitProperty::CpuQuota) => format!("{}%", us / 10_000),
        (UnitValue::Number(1_000_000), UnitProperty::CpuQuotaPeriod) => "1s".to_owned(),
        (UnitValue::Number(us), UnitProperty::CpuQuotaPeriod) => format!("{}ms", us / 1000),
        (UnitValue::Number(number), _) => number.to_string(),
        (UnitValue::Cores(cores), _) => cores.to_string().replace(',', " "),
    }
}
