//! `lull top`: a running agent in the terminal, over ssh too.
//!
//! It reads the same HTTP addresses as the agent's page, and sends no orders.

mod feed;
mod state;
mod view;

use crate::cli::TopArgs;
use crate::commands::UsageError;
use crate::signals::stop_flag;
use feed::Feed;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use state::Top;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often keys and new epochs are polled.
const TICK: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        let what = format!(
            "lull top needs a terminal; for programs there is http://{}/api/epoch",
            args.address
        );
        return Err(UsageError(what).into());
    }
    // A signal that ended the process would leave the terminal raw and without echo.
    let stop = stop_flag()?;
    let feed = Feed::start(&args.address);
    let mut terminal = ratatui::try_init()?;
    let ended = show(&mut terminal, &feed, &mut Top::new(&args.address), &stop);
    ratatui::restore();
    ended
}

fn show(
    terminal: &mut DefaultTerminal,
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
        if !event::poll(TICK)? {
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
