//! What the user is told on standard error, whether or not anybody listens.

use std::fmt::Display;
use std::io::Write;

/// Writes one line. A terminal that is gone is no reason to stop, and
/// `eprintln!` would panic before the knobs are put back.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes one line that says who speaks.
pub(crate) fn told(text: impl Display) {
    line(format_args!("lull: {text}"));
}
