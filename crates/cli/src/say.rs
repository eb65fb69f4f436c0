//! Messages to the user on standard error, which do not fail if it is closed.

use std::fmt::Display;
use std::io::Write;

/// Writes one line. Errors are ignored: `eprintln!` would panic on a closed terminal
/// before the knobs are restored.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes one line with the program's name before it.
pub(crate) fn notice(text: impl Display) {
    line(format_args!("lull: {text}"));
}
