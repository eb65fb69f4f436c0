//! A limit of a unit that Lull sets, and how it is restored.
//!
//! The limit is restored only while systemd has the value that Lull set. systemd also keeps
//! the value in a drop-in, which is removed, or gets its former text, so that a later change of
//! the unit by its owner is not overridden. A drop-in with Lull's value is restored in every case:
//! where another value is in force now, and where systemd does not answer, Lull's would take effect
//! at a later reload.

use super::super::PutBack;
use super::{Systemd, SystemdError, UNSET, UnitProperty, UnitValue};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// One limit of a unit before Lull, and Lull's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitState {
    /// The unit's own name, with its suffix, and no alias.
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
        property: UnitProperty,
        ours: UnitValue,
    ) -> Result<Self, SystemdError> {
        let unit = systemd.id(unit)?;
        let before = systemd.get(&unit, property)?;
        let path = drop_in(run, &unit, property);
        let drop_in = match fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if is_absent(&error) => None,
            Err(source) => return Err(SystemdError::DropIn { path, source }),
        };
        Ok(Self { unit, property, before, ours, drop_in })
    }

    /// Restores the limit if it has Lull's value, and the drop-in if it is Lull's.
    ///
    /// # Errors
    /// If systemd does not answer before `deadline` or refuses, or the drop-in cannot be written.
    /// The drop-in needs no systemd, so it is restored also if systemd does not answer.
    pub(crate) fn put_back(&self, run: &Path, deadline: Instant) -> Result<PutBack, SystemdError> {
        let connected = Systemd::connect_until(run, deadline);
        let outcome = connected.and_then(|mut systemd| self.set_back(&mut systemd));
        // systemd has just written the value of before into the drop-in, which overrides the
        // owner's unit.
        let was_set = matches!(outcome, Ok(PutBack::Done));
        let restored = match was_set || self.has_lulls_drop_in(run) {
            true => self.restore_drop_in(run),
            false => Ok(()),
        };
        match outcome {
            Err(SystemdError::NoUnit { .. }) => restored.map(|()| PutBack::Gone),
            Err(error) => Err(error),
            Ok(outcome) => restored.map(|()| outcome),
        }
    }

    fn set_back(&self, systemd: &mut Systemd) -> Result<PutBack, SystemdError> {
        let found = systemd.get(&self.unit, self.property)?;
        if found == self.before {
            return Ok(PutBack::Already);
        }
        if found != self.ours {
            return Ok(PutBack::Left { found: found.to_string() });
        }
        systemd.set(&self.unit, &[(self.property, &self.before)])?;
        Ok(PutBack::Done)
    }

    /// Sets the limit again if a reload of systemd has undone it: an owner's drop-in that
    /// systemd reads after Lull's has another value. Returns whether it did. A limit that
    /// another program has set since has another drop-in and is left alone.
    pub(crate) fn renew(&self, run: &Path, deadline: Instant) -> Result<bool, SystemdError> {
        let has_lulls = ends_in(&self.drop_in_now(run), self.property, &self.ours);
        if self.before == self.ours || !has_lulls {
            return Ok(false);
        }
        let mut systemd = Systemd::connect_until(run, deadline)?;
        let is_undone = systemd.get(&self.unit, self.property)? == self.before;
        if is_undone {
            systemd.set(&self.unit, &[(self.property, &self.ours)])?;
        }
        Ok(is_undone)
    }

    /// The text of systemd's drop-in; empty without one.
    fn drop_in_now(&self, run: &Path) -> String {
        fs::read_to_string(drop_in(run, &self.unit, self.property)).unwrap_or_default()
    }

    /// Whether systemd's drop-in is to be restored: it has Lull's value, or the value of before
    /// from a restore that was interrupted between the call of systemd and the drop-in.
    fn has_lulls_drop_in(&self, run: &Path) -> bool {
        let text = self.drop_in_now(run);
        let is_interrupted = ends_in(&text, self.property, &self.before)
            && self.drop_in.as_deref() != Some(text.as_str());
        self.before != self.ours && (is_interrupted || ends_in(&text, self.property, &self.ours))
    }

    fn restore_drop_in(&self, run: &Path) -> Result<(), SystemdError> {
        match &self.drop_in {
            None => self.remove_drop_in(run),
            Some(text) => {
                let path = drop_in(run, &self.unit, self.property);
                fs::write(&path, text).map_err(|source| SystemdError::DropIn { path, source })
            }
        }
    }

    fn remove_drop_in(&self, run: &Path) -> Result<(), SystemdError> {
        let path = drop_in(run, &self.unit, self.property);
        match fs::remove_file(&path) {
            Err(error) if !is_absent(&error) => {
                return Err(SystemdError::DropIn { path, source: error });
            }
            _ => {}
        }
        // The directory is removed only if it is empty: the drop-ins of other limits stay.
        let _ = path.parent().map(fs::remove_dir);
        Ok(())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Whether the last line of a drop-in sets a limit to a value.
fn ends_in(text: &str, property: UnitProperty, value: &UnitValue) -> bool {
    let line = format!("{}={}", property.setting(), in_unit_files(property, value));
    text.lines().next_back() == Some(line.as_str())
}

/// A value as systemd writes it into a drop-in.
fn in_unit_files(property: UnitProperty, value: &UnitValue) -> String {
    match (value, property) {
        (UnitValue::Number(UNSET), _) => String::new(),
        (UnitValue::Number(us), UnitProperty::CpuQuota) => format!("{}%", us / 10_000),
        (UnitValue::Number(1_000_000), UnitProperty::CpuQuotaPeriod) => "1s".to_owned(),
        (UnitValue::Number(us), UnitProperty::CpuQuotaPeriod) => format!("{}ms", us / 1000),
        (UnitValue::Number(number), _) => number.to_string(),
        (UnitValue::Cores(cores), _) => cores.to_string().replace(',', " "),
    }
}
