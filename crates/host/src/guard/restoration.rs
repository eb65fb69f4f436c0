//! The outcome of restoring, in numbers and words.

use super::field::FieldValue;
use super::original::Key;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many threads that other programs set are listed by name.
const LISTED_MAX: usize = 16;

/// The outcome of restoring one value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Restored {
    /// The value was restored.
    Done,
    /// The value was in force already.
    Already,
    /// Its thread or process is gone, its number perhaps reused.
    Gone,
    /// Another program has set the value since, so it was left alone.
    Left {
        /// Its value.
        found: String,
    },
    /// The value could not be restored.
    Failed {
        /// The kernel's error.
        why: String,
    },
}

/// The outcome of restoring all values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a value that could not be restored must be reported to the user"]
pub struct Restoration {
    /// Values restored.
    pub done: usize,
    /// Values that were so already.
    pub already: usize,
    /// Values of threads and processes that are gone.
    pub gone: usize,
    /// Values that are not as they were, and why.
    pub failed: Vec<(Key, String)>,
    /// Fields of threads that another program has set since, which were left alone.
    pub left: Vec<(Key, FieldValue)>,
    /// Other values that another program has set since, which were left alone.
    #[serde(default)]
    pub left_values: Vec<(Key, String)>,
    /// Processes that may have got Lull's settings from a process that has ended, or may be of an
    /// app that Lull started and that has ended.
    pub missed: Vec<String>,
}

impl fmt::Display for Restoration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done, already, gone, failed, missed, .. } = self;
        write!(
            f,
            "{done} values restored, {already} were as before, {gone} had no owner any more"
        )?;
        for (key, why) in failed {
            write!(f, "; {key} is not as before: {why}")?;
        }
        let left = self.describe_left();
        if !left.is_empty() {
            let words = left.join(", ");
            write!(f, "; left as another program set it: {words}")?;
        }
        if !missed.is_empty() {
            write!(f, "; possibly missed: {}", missed.join(", "))?;
        }
        Ok(())
    }
}

impl Restoration {
    /// Whether every value is known to be as its owner left it.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.missed.is_empty()
    }

    pub(super) fn count(&mut self, key: Key, outcome: Restored) {
        match outcome {
            Restored::Done => self.done += 1,
            Restored::Already => self.already += 1,
            Restored::Gone => self.gone += 1,
            Restored::Left { found } => self.left_values.push((key, found)),
            Restored::Failed { why } => self.failed.push((key, why)),
        }
    }

    /// Describes the values that other programs set; names the first ones.
    pub(crate) fn describe_left(&self) -> Vec<String> {
        let fields = self.left.iter().map(|(key, value)| format!("{key}: {value}"));
        let values = self.left_values.iter().map(|(key, value)| format!("{key}: {value}"));
        let mut all: Vec<String> = values.chain(fields).take(LISTED_MAX).collect();
        let count = self.left.len() + self.left_values.len();
        if count > LISTED_MAX {
            all.push(format!("and {} more", count - LISTED_MAX));
        }
        all
    }
}
