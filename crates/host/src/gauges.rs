//! What can be read of a machine and of its apps, one file each.
//!
//! Each gauge keeps what it read last and answers with the change since.
//! `probe` says by which means it reads, or why it cannot here.

pub mod app_time;
pub mod cache;
pub mod counters;
pub mod energy;
pub mod events;
pub mod frequency;
pub mod idle;
pub mod pressure;
pub mod push;
pub mod queries;
pub mod reported;
pub mod traffic;
pub mod utilisation;

use crate::Roots;
use crate::files::read_text;
use lull_measure::Missing;
use std::io;
use std::path::Path;

/// A file that could not be read, as the reason why a gauge is missing.
pub(crate) fn unreadable(path: &Path, error: &io::Error) -> Missing {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root to read it",
        _ => "",
    };
    Missing::because(format!("{} cannot be read: {error}{hint}", path.display()))
}

/// Why perf may not count, and what would allow it: this level, or less.
fn not_allowed(roots: &Roots, level: i8) -> String {
    let now = read_text(&roots.proc.join("sys/kernel/perf_event_paranoid"));
    let now = now.unwrap_or_else(|_| "unreadable".to_owned());
    format!(
        "perf_event_paranoid is {now}: set it to {level} or lower \
         (sysctl kernel.perf_event_paranoid={level}) or give CAP_PERFMON"
    )
}

/// The first reading has nothing to be compared with.
pub(crate) fn first_reading() -> Missing {
    Missing::because("first reading: a change needs two")
}
