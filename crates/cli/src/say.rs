//! Text to the user. All of it is escaped here: names of apps, commands and units, and what
//! a file contains, can hold characters that steer a terminal.

pub(crate) use lull_measure::escape::visible;
use std::fmt::Display;
use std::io::Write;

/// As the standard `println!`, which it hides in this crate, but escaped.
macro_rules! println {
    () => { ::std::println!() };
    ($($argument:tt)*) => {
        ::std::println!("{}", $crate::say::visible(&::std::format!($($argument)*)))
    };
}

/// Writes one line to standard error. Errors are ignored: `eprintln!` would panic on a closed
/// terminal before the knobs are restored.
pub(crate) fn line(text: impl Display) {
    // As one piece, or standard error, which has no buffer, is written to twice.
    let line = format!("{}\n", visible(&text.to_string()));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes one line with the program's name before it.
pub(crate) fn notice(text: impl Display) {
    line(format_args!("lull: {text}"));
}
