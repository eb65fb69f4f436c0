//! A search in the terminal: the predicted power of every setting, the trials, and the best
//! setting so far.

use crate::text::number;
use lull_policies::search::{Choice, Dimension, Search, SearchPoint, Trial};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use ratatui::{Frame, Terminal};
use std::io::{IsTerminal, Stderr, stderr};

/// Colours of predicted power, from the least to the most of all settings shown.
const SHADES: [Color; 5] = [Color::Blue, Color::Cyan, Color::Green, Color::Yellow, Color::Red];
/// Trials shown below the surface.
const LATEST: usize = 6;
/// Columns left of the surface, for the levels of its rows.
const MARGIN: usize = 10;

/// The screen of a search; `Off` without a terminal.
pub(super) enum Picture {
    /// The output is not a terminal, or another program reads it.
    Off,
    /// Not drawn yet.
    Ready,
    /// On the terminal's other screen.
    Open(Screen),
}

/// The terminal's other screen; a drop returns to the first one.
pub(super) struct Screen(Terminal<CrosstermBackend<Stderr>>);

impl Picture {
    /// Returns a screen, or `Off` if the output is for programs or not on a terminal.
    pub(super) fn new(for_programs: bool) -> Self {
        let is_watched = stderr().is_terminal() && std::io::stdout().is_terminal();
        if is_watched && !for_programs { Self::Ready } else { Self::Off }
    }

    /// Draws a search, and the point that is being tried.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn show(
        &mut self,
        search: &Search,
        trying: Option<&SearchPoint>,
    ) -> anyhow::Result<()> {
        if matches!(self, Self::Ready) {
            let screen = Screen(Terminal::new(CrosstermBackend::new(stderr()))?);
            execute!(stderr(), EnterAlternateScreen, Hide)?;
            *self = Self::Open(screen);
        }
        if let Self::Open(Screen(terminal)) = self {
            terminal.draw(|frame| draw(frame, search, trying))?;
        }
        Ok(())
    }

    /// Restores the terminal.
    pub(super) fn close(&mut self) {
        if matches!(self, Self::Open(_)) {
            *self = Self::Ready;
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
        let _ = execute!(stderr(), LeaveAlternateScreen, Show);
    }
}

fn draw(frame: &mut Frame<'_>, search: &Search, trying: Option<&SearchPoint>) {
    let trials = search.trials().len().min(LATEST) as u16;
    let [head, best, surface, foot, latest] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(1),
        Constraint::Length(trials),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(search, trying)), head);
    let choice = search.choice();
    frame.render_widget(Paragraph::new(best_line(search, choice.as_ref())), best);
    let size = (usize::from(surface.width), usize::from(surface.height));
    let map = Map::new(search, choice.as_ref(), trying, size);
    frame.render_widget(Paragraph::new(map.lines(search)), surface);
    frame.render_widget(Paragraph::new(legend()).dim(), foot);
    let rows = search.trials().iter().enumerate().rev().take(LATEST);
    let rows: Vec<Line<'_>> = rows.map(|(at, trial)| trial_line(search, at + 1, trial)).collect();
    frame.render_widget(Paragraph::new(rows), latest);
}

fn heading(search: &Search, trying: Option<&SearchPoint>) -> Line<'static> {
    let (done, all) = (search.trials().len(), search.rules().trials);
    let trying = trying.map(|point| format!(", trying {}", search.space().describe(point)));
    Line::from(vec![
        Span::from("lull tune").bold(),
        Span::from(format!("  {done} of {all} trials{}", trying.unwrap_or_default())),
    ])
}

fn best_line(search: &Search, choice: Option<&Choice>) -> Line<'static> {
    let Some(choice) = choice else { return Line::from("no reading yet") };
    let setting = search.space().describe(&choice.point);
    let figures = format!("{} us, {} W", number(choice.tail_us), number(choice.watts));
    match choice.meets {
        true => Line::from(format!("best so far: {setting}: {figures}")).fg(Color::Green),
        false => {
            let bound = number(search.rules().bound_us);
            Line::from(format!("none meets {bound} us so far; nearest: {setting}: {figures}"))
                .fg(Color::Yellow)
        }
    }
}

fn legend() -> &'static str {
    "power: blue least, red most; · misses the bound by the model; o tried, x being tried, * best"
}

fn trial_line(search: &Search, number_of: usize, trial: &Trial) -> Line<'static> {
    let setting = search.space().describe(&trial.point);
    match &trial.outcome {
        Err(refusal) => {
            Line::from(format!("{number_of:>3}  {setting}: {}", refusal.why)).fg(Color::Yellow)
        }
        Ok(it) => {
            let figures = format!("{} us, {} W", number(it.tail_us), number(it.watts));
            let line = Line::from(format!("{number_of:>3}  {setting}: {figures}"));
            if it.tail_us > search.rules().bound_us { line.fg(Color::Red) } else { line }
        }
    }
}

/// The surface: the first dimension to the right, the second upwards, the others as in the
/// best setting.
struct Map {
    /// Row by row from the top: a glyph and its colour.
    cells: Vec<Vec<(char, Color)>>,
    /// The level that each row shows.
    rows: Vec<u16>,
}

impl Map {
    fn new(
        search: &Search,
        choice: Option<&Choice>,
        trying: Option<&SearchPoint>,
        (width, height): (usize, usize),
    ) -> Self {
        let dimensions = search.space().dimensions();
        let wide = shown(&dimensions[0], width.saturating_sub(MARGIN));
        let mut rows = dimensions.get(1).map_or(vec![0], |it| shown(it, height.saturating_sub(1)));
        rows.reverse();
        let base = choice.map_or_else(|| search.space().fastest(), |it| it.point.clone());
        let point_at = |row: u16, column: u16| {
            let mut point = base.clone();
            point.0[0] = column;
            if let Some(level) = point.0.get_mut(1) {
                *level = row;
            }
            point
        };
        let points: Vec<SearchPoint> = rows
            .iter()
            .flat_map(|row| wide.iter().map(move |column| (*row, *column)))
            .map(|(row, column)| point_at(row, column))
            .collect();
        let believed = search.predict(&points).unwrap_or_default();
        let watts = || believed.iter().map(|it| it.watts);
        let (least, most) = (watts().fold(f64::MAX, f64::min), watts().fold(f64::MIN, f64::max));
        let shade = |watts: f64| {
            let part = (watts - least) / (most - least).max(1e-9);
            SHADES[((part * SHADES.len() as f64) as usize).min(SHADES.len() - 1)]
        };
        // A level without a column is drawn in the column of the nearest level.
        let nearest = |shown: &[u16], level: u16| {
            shown.iter().copied().min_by_key(|it| it.abs_diff(level)).unwrap_or(0)
        };
        let on_map = |it: &SearchPoint| {
            point_at(nearest(&rows, it.0.get(1).copied().unwrap_or(0)), nearest(&wide, it.0[0]))
        };
        let tried: Vec<SearchPoint> = search.trials().iter().map(|it| on_map(&it.point)).collect();
        let (best, now) = (choice.map(|it| on_map(&it.point)), trying.map(on_map));
        let cell = |(at, point): (usize, &SearchPoint)| {
            let belief = believed.get(at);
            let colour = belief.map_or(Color::Gray, |it| shade(it.watts));
            let glyph = match point {
                it if best.as_ref() == Some(it) => '*',
                it if now.as_ref() == Some(it) => 'x',
                it if tried.contains(it) => 'o',
                _ if belief.is_none_or(|it| it.meets < 0.5) => '·',
                _ => '█',
            };
            (glyph, colour)
        };
        let cells: Vec<_> = points.iter().enumerate().map(cell).collect();
        let cells = cells.chunks(wide.len().max(1)).map(<[_]>::to_vec).collect();
        Self { cells, rows }
    }

    fn lines(&self, search: &Search) -> Vec<Line<'static>> {
        let dimensions = search.space().dimensions();
        let label = |level: u16| match dimensions.get(1) {
            Some(it) => format!("{} {}", it.levels[usize::from(level)].value, it.unit()),
            None => String::new(),
        };
        let line =
            |(cells, level): (&Vec<(char, Color)>, &u16)| {
                let mut spans = vec![Span::from(format!("{:>9} ", label(*level)))];
                let glyphs = cells.iter();
                spans.extend(glyphs.map(|(glyph, colour)| {
                    Span::styled(glyph.to_string(), Style::new().fg(*colour))
                }));
                Line::from(spans)
            };
        let mut lines: Vec<_> = self.cells.iter().zip(&self.rows).map(line).collect();
        let levels = &dimensions[0].levels;
        let (first, last) = (levels[0].value, levels[levels.len() - 1].value);
        let (knob, unit) = (dimensions[0].knob, dimensions[0].unit());
        let first = if first < 0.0 { "adaptive, then 0".to_owned() } else { first.to_string() };
        lines.push(Line::from(format!("{:>MARGIN$}{knob} {first} to {last} {unit}", "")));
        lines
    }
}

/// Returns the levels of a dimension that are shown: all, or as many as fit, at equal steps
/// of the scale on which its effect is smooth.
fn shown(dimension: &Dimension, room: usize) -> Vec<u16> {
    let all = 0..dimension.levels.len() as u16;
    if dimension.levels.len() <= room {
        return all.collect();
    }
    let nearest = |at: f64| {
        let off = |level: &u16| (dimension.levels[usize::from(*level)].at - at).abs();
        all.clone().min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(0)
    };
    let steps = room.max(2);
    let mut kept: Vec<u16> =
        (0..steps).map(|step| nearest(step as f64 / (steps - 1) as f64)).collect();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Capability;
    use lull_policies::search::{Level, Method, Reading, Rules, Space};
    use ratatui::backend::TestBackend;

    fn dimension(knob: Capability, count: u16) -> Dimension {
        let level = |number: u16| Level {
            value: f64::from(number),
            at: f64::from(number) / f64::from(count - 1),
            settings: Vec::new(),
        };
        Dimension { knob, levels: (0..count).map(level).collect(), fast: count - 1 }
    }

    fn searched(dimensions: Vec<Dimension>, trials: usize) -> Search {
        let mut search =
            Search::new(Space::new(dimensions), Rules::new(Method::Apart, 500.0, trials));
        let mut rng = rand::SeedableRng::seed_from_u64(1);
        while let Some(next) = search.ask(&mut rng) {
            let at = search.space().coordinates(&next.point);
            let slow: f64 = at.iter().map(|it| 1.0 - it).sum();
            let outcome = Reading {
                tail_us: 100.0 + 400.0 * slow,
                watts: 60.0 - 20.0 * slow,
                requests: 100,
                late: 0,
                progress_per_s: None,
            };
            search.tell(next.point, Ok(outcome));
        }
        search
    }

    fn drawn(search: &Search, (width, height): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, search, None)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_surface_shows_what_was_tried_the_best_and_what_misses() {
        let knobs = vec![dimension(Capability::Coalescing, 30), dimension(Capability::Cores, 6)];
        let screen = drawn(&searched(knobs, 12), (60, 20));
        for wanted in ["12 of 12 trials", "best so far: coalescing", "*", "o", "·", "█", "5 cores"]
        {
            assert!(screen.contains(wanted), "no {wanted} in\n{screen}");
        }
    }

    #[test]
    fn one_knob_many_levels_and_a_narrow_terminal_are_drawn_too() {
        let one = searched(vec![dimension(Capability::Cores, 2)], 4);
        assert!(drawn(&one, (50, 12)).contains("cores 0 to 1 cores"));
        let many = vec![
            dimension(Capability::Coalescing, 500),
            dimension(Capability::Frequency, 40),
            dimension(Capability::Cores, 3),
        ];
        for size in [(40, 14), (12, 6), (1, 1)] {
            let _ = drawn(&searched(many.clone(), 8), size);
        }
    }

    #[test]
    fn before_the_first_reading_it_says_so() {
        let search = searched(vec![dimension(Capability::Cores, 4)], 0);
        assert!(drawn(&search, (40, 10)).contains("no reading yet"));
    }
}
