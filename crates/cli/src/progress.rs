//! Progress bars for operations of over two seconds: on stderr, only on a terminal.

use crate::say;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lull_agent::session::Session;
use lull_agent::status;
use lull_control::Epoch;
use lull_control::journal::{Entry, Event};
use lull_lab::experiment::Setup;
use lull_lab::progress::Progress;
use std::io::IsTerminal;
use std::time::Duration;

/// Returns a bar of known length in seconds; hidden unless stderr is a terminal.
pub(crate) fn seconds(total_s: u64) -> ProgressBar {
    bar(total_s, "{msg:36} [{bar:30}] {pos}/{len} s")
}

/// Returns a bar of parts whose number is set later; hidden unless stderr is a terminal.
pub(crate) fn parts() -> ProgressBar {
    bar(1, "{msg:36} [{bar:30}] {pos}/{len}, {eta} left")
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length.max(1));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// How an experiment of the lab is run that shows its parts on a bar.
pub(crate) fn lab_setup(bar: &ProgressBar, seed: u64, quick: bool) -> Setup<'_> {
    let progress = Progress::new(move |done, expected| {
        bar.set_length(expected);
        bar.set_position(done);
    });
    Setup { seed, quick, commit: lull_agent::COMMIT.to_owned(), progress }
}

/// Prints a session's notices, and the references that an epoch has corrected, above its bar.
pub(crate) fn print_notices(session: &Session, epoch: &Epoch, bar: &ProgressBar) {
    let is_correction = |entry: &&Entry| matches!(entry.event, Event::ReferenceCorrected { .. });
    let corrections = epoch.entries.iter().filter(is_correction);
    let corrections = corrections.map(|entry| status::describe(session.apps(), entry));
    for notice in session.take_notices().into_iter().chain(corrections) {
        bar.suspend(|| say::line(notice));
    }
}
