//! Knobs that are one file for each domain: read, set, watched and forgotten alike.

use super::{ChangedSetting, KnobError, SaveOld};
use crate::drivers::text;
use crate::drivers::texts::{TextWrite, write_all};
use crate::guard::{Key, Original};
use lull_control::Setting;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How a knob's files are read and reported.
#[derive(Debug)]
pub(super) struct SettingKind<Id, Value> {
    /// Parses the text of a file, without its line end.
    pub(super) parse: fn(&str) -> Option<Value>,
    /// The setting that a value is.
    pub(super) setting: fn(Id, Value) -> Setting,
    /// Returns the name of a domain in errors.
    pub(super) domain: fn(Id) -> String,
}

/// The files of a knob and Lull's last settings.
#[derive(Debug)]
pub(super) struct SettingFiles<Id, Value> {
    kind: SettingKind<Id, Value>,
    files: BTreeMap<Id, PathBuf>,
    /// The settings by Lull, unless another program has changed them since.
    set: BTreeMap<Id, Value>,
}

impl<Id: Copy + Ord, Value: Copy + PartialEq> SettingFiles<Id, Value> {
    /// A knob with a file for each domain.
    pub(super) fn new(
        kind: SettingKind<Id, Value>,
        files: impl Iterator<Item = (Id, PathBuf)>,
    ) -> Self {
        Self { kind, files: files.collect(), set: BTreeMap::new() }
    }

    /// The value that a domain has now; `None` if it cannot be read.
    pub(super) fn get(&self, id: Id) -> Option<Value> {
        (self.kind.parse)(&text::read(self.files.get(&id)?).ok()?)
    }

    /// Saves what the file of a domain has, and writes the text of another value.
    ///
    /// # Errors
    /// If there is no such domain, or its file cannot be read or written.
    pub(super) fn set(
        &mut self,
        id: Id,
        value: Value,
        new: String,
        save: &mut impl SaveOld,
    ) -> Result<(), KnobError> {
        let unknown = || KnobError::Nonsense(format!("there is no {}", (self.kind.domain)(id)));
        let path = self.files.get(&id).ok_or_else(unknown)?;
        let text = text::read(path)?;
        save.values(&[Original::of_text(path.clone(), text, &new)])?;
        write_all(&[TextWrite::exactly(path.clone(), new)])?;
        self.set.insert(id, value);
        Ok(())
    }

    /// Domains that another program has set since, each reported once.
    pub(super) fn watch(&mut self) -> Vec<ChangedSetting> {
        let mut changes = Vec::new();
        for (id, ours) in self.set.clone() {
            let Some(found) = self.get(id).filter(|found| *found != ours) else { continue };
            let file = self.files[&id].clone();
            self.set.remove(&id);
            changes.push(ChangedSetting {
                ours: (self.kind.setting)(id, ours),
                found: (self.kind.setting)(id, found),
                whom: file.display().to_string(),
                keys: vec![Key::File(file)],
            });
        }
        changes
    }

    /// Forgets the settings, after they were restored.
    pub(super) fn restored(&mut self) {
        self.set.clear();
    }

    /// Whether the ledger's key names this domain.
    pub(super) fn is_of(&self, id: Id, key: &Key) -> bool {
        let Key::File(path) = key else { return false };
        self.files.get(&id) == Some(path)
    }
}
