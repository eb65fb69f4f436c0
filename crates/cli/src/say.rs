//! Text to the user. All of it is escaped here: names of apps, commands and units, and contents of
//! files, can hold characters that steer a terminal.

pub(crate) use lull_measure::escape::visible;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

/// Why standard output took no more, once it did not.
static REFUSAL: OnceLock<io::Error> = OnceLock::new();

/// As the standard `println!`, which it hides in this crate, but escaped, and without a panic.
macro_rules! println {
    () => { $crate::say::output("\n") };
    ($($argument:tt)*) => {
        $crate::say::output(&::std::format!(
            "{}\n",
            $crate::say::visible(&::std::format!($($argument)*))
        ))
    };
}

/// As the standard `print!`, which it hides in this crate, but without a panic.
macro_rules! print {
    ($($argument:tt)*) => { $crate::say::output(&::std::format!($($argument)*)) };
}

/// Writes text to standard output. `main` reports an error at the end, so that a full disk does not
/// end a command before it has restored its knobs.
pub(crate) fn output(text: &str) {
    note_refusal(|| io::stdout().write_all(text.as_bytes()));
}

/// Writes what is buffered, and returns why standard output took no more, if it did not.
pub(crate) fn finish_output() -> Option<&'static io::Error> {
    note_refusal(|| io::stdout().flush());
    REFUSAL.get()
}

fn note_refusal(write: impl FnOnce() -> io::Result<()>) {
    if REFUSAL.get().is_none()
        && let Err(error) = write()
    {
        // Only this thread prints results.
        let _ = REFUSAL.set(error);
    }
}

/// Writes one line to standard error. Errors are ignored: `eprintln!` would panic on a closed
/// terminal before the knobs are restored.
pub(crate) fn line(text: impl Display) {
    // One piece, since standard error has no buffer: parts would be written one by one.
    let line = format!("{}\n", visible(&text.to_string()));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Writes lines to standard error, all in one piece.
pub(crate) fn lines(texts: &[String]) {
    if !texts.is_empty() {
        line(texts.join("\n"));
    }
}

/// Writes one line with the program's name before it.
pub(crate) fn notice(text: impl Display) {
    line(format_args!("lull: {text}"));
}
