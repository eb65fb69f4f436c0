//! Text to the user. All of it is escaped here: names of apps, commands and units, and contents of
//! files, can hold characters that steer a terminal.

pub(crate) use lull_measure::escape::visible;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The bytes that a pipe takes in one piece (pipe(7)).
const PIPE_BUF: usize = 4096;

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
    lines(&[text.to_string()]);
}

/// Writes lines to standard error in few pieces, as `line` does one. A pipe takes each piece whole,
/// so that no line is cut by one of another process.
pub(crate) fn lines(texts: &[String]) {
    for piece in pieces(texts) {
        // In one call, since standard error has no buffer: parts would be written one by one.
        let _ = io::stderr().write_all(format!("{piece}\n").as_bytes());
    }
}

/// Escapes lines and joins them to pieces that a pipe takes whole, but for single lines that are
/// longer than that.
fn pieces(texts: &[String]) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    for text in texts {
        let text = visible(text);
        match pieces.last_mut() {
            Some(piece) if piece.len() + text.len() + 2 <= PIPE_BUF => {
                piece.push('\n');
                piece.push_str(&text);
            }
            _ => pieces.push(text.into_owned()),
        }
    }
    pieces
}

/// Writes one line with the program's name before it.
pub(crate) fn notice(text: impl Display) {
    line(format_args!("lull: {text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_as_far_as_a_pipe_takes_them_whole() {
        let text = |length| "a".repeat(length);
        let lengths = |lines: &[usize]| -> Vec<usize> {
            let lines: Vec<String> = lines.iter().map(|length| text(*length)).collect();
            pieces(&lines).iter().map(String::len).collect()
        };
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[10, 20, 30]), [62]);
        // With a line feed after each line.
        assert_eq!(lengths(&[4000, 94]), [4095]);
        assert_eq!(lengths(&[4000, 95, 5000, 1]), [4000, 95, 5000, 1]);
        assert_eq!(pieces(&["a\u{1b}[1m".to_owned()])[0].matches('\u{1b}').count(), 0);
    }
}
