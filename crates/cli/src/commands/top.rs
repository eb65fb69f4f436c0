//! `lull top`: a running agent in the terminal, over ssh too.
//!
//! It reads the same HTTP addresses as the agent's page, and sends no orders.

mod feed;
mod state;
mod view;

use crate::cli::TopArgs;
use crate::commands::UsageError;
use crate::signals::stop_flag;
use anyhow::{Context, bail};
use feed::Feed;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use state::Top;
use std::fs::File;
use std::io::{self, IsTerminal, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often keys and new epochs are polled.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        let what = format!(
            "lull top needs a terminal; for programs there is http://{}/api/epoch",
            args.address
        );
        return Err(UsageError(what).into());
    }
    // A signal that ended the process would leave the terminal raw and without echo.
    let stop = stop_flag()?;
    let keys =
        keyboard().context("lull top reads its keys from the terminal, and there is none")?;
    let feed = Feed::start(&args.address);
    let mut terminal = ratatui::try_init()?;
    let ended = show(&mut terminal, &keys, &feed, &mut Top::new(&args.address), &stop);
    ratatui::restore();
    ended
}

fn show(
    terminal: &mut DefaultTerminal,
    keys: &OwnedFd,
    feed: &Feed,
    top: &mut Top,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut is_new = true;
    while !stop.load(Ordering::Relaxed) {
        for update in feed.updates() {
            top.take(update);
            is_new = true;
        }
        is_new |= top.note_time(Instant::now());
        if is_new {
            terminal.draw(|frame| view::draw(frame, top))?;
            is_new = false;
        }
        if is_closed_within(keys, &TICK)? {
            bail!("the terminal of lull top has gone; the agent at {} goes on", top.address);
        }
        if !event::poll(Duration::ZERO)? {
            continue;
        }
        is_new = true;
        let Event::Key(key) = event::read()? else { continue };
        if key.kind != KeyEventKind::Press {
            continue;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
            KeyCode::Up | KeyCode::Char('k') => top.scroll(-1),
            KeyCode::Down | KeyCode::Char('j') => top.scroll(1),
            KeyCode::PageUp => top.scroll(-10),
            KeyCode::PageDown => top.scroll(10),
            _ => {}
        }
    }
    Ok(())
}

/// What the library for keys reads: the input, or else the terminal of the session.
fn keyboard() -> io::Result<OwnedFd> {
    match stdin().is_terminal() {
        true => stdin().as_fd().try_clone_to_owned(),
        false => File::open("/dev/tty").map(OwnedFd::from),
    }
}

/// Waits for a key, and returns whether the terminal has gone. The library for keys reads the end
/// of a terminal for ever, and would see no signal.
fn is_closed_within(terminal: impl AsFd, time: &Timespec) -> rustix::io::Result<bool> {
    let mut wanted = [PollFd::new(&terminal, PollFlags::IN)];
    match poll(&mut wanted, Some(time)) {
        Ok(_) => Ok(wanted[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_terminal_that_has_gone_is_noticed_and_keys_and_silence_are_none() {
        let (mut keys, terminal) = UnixStream::pair().unwrap();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert!(!is_closed_within(&terminal, &now).unwrap());
        keys.write_all(b"j").unwrap();
        assert!(!is_closed_within(&terminal, &now).unwrap());
        drop(keys);
        assert!(is_closed_within(&terminal, &now).unwrap());
    }
}
