//! Records read again: runs, their parts by policy, and what became of each.

mod part;
mod run;

pub(crate) use part::{Found, Part, Phase};
pub(crate) use run::{Database, Run, open};
