//! The terminal's picture: state, apps, entropy over time, cores, journal.

use super::state::{AppFacts, Epoch, Facts, GateState, Line as Entry, Top};
use crate::text::number;
use lull_measure::Nanos;
use lull_measure::escape::visible_line;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table};

/// Steps of E_S in a sparkline, which draws whole numbers only: thousandths.
const PARTS: f64 = 1000.0;
/// The series that has a value for each class of clients.
const CLASSES: &str = "client_connections";
/// Colours of regions in turn.
const COLOURS: [Color; 5] = [Color::Blue, Color::Green, Color::Magenta, Color::Yellow, Color::Cyan];

/// Draws the view.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top) {
    let (Some(facts), Some(epoch)) = (&top.facts, &top.latest) else {
        let text = format!("lull top: {} at {}; q ends", top.lost, top.address);
        frame.render_widget(Paragraph::new(text), frame.area());
        return;
    };
    let apps = facts.apps.len() as u16 + 1;
    let classes = epoch.series(CLASSES).count() as u16;
    let gate_lines = gate_lines(epoch);
    let [head, state, table, gates, clients, past, cores, journal, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(apps),
        Constraint::Length(gate_lines.len() as u16),
        Constraint::Length(if classes > 0 { classes + 1 } else { 0 }),
        Constraint::Length(4),
        Constraint::Length(2),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(heading(facts, top), head);
    frame.render_widget(Paragraph::new(acting(epoch)), state);
    frame.render_widget(app_table(facts, epoch, top), table);
    frame.render_widget(Paragraph::new(gate_lines), gates);
    frame.render_widget(class_table(epoch), clients);
    frame.render_widget(entropy(top), past);
    frame.render_widget(regions(epoch), cores);
    lines(frame, top, journal);
    frame.render_widget(Paragraph::new(footer(epoch)).dim(), foot);
}

fn heading(facts: &Facts, top: &Top) -> Paragraph<'static> {
    let cores = facts.machine.cores;
    let (machine, run) = (visible_line(&facts.machine.name), visible_line(&facts.run));
    let what = format!(" {machine}, {cores} cores, run {run}");
    let link = match (top.lost.as_str(), top.overdue_s) {
        ("", None) => Span::from("  live").fg(Color::Green),
        ("", Some(age_s)) => {
            Span::from(format!("  no epoch for {age_s} s: the agent may be stuck")).fg(Color::Red)
        }
        (why, _) => Span::from(format!("  lost: {why}; retrying")).fg(Color::Red),
    };
    Paragraph::new(Line::from(vec![Span::from("Lull").bold(), Span::from(what), link]))
}

fn acting(epoch: &Epoch) -> Line<'static> {
    let (name, colour) = match epoch {
        Epoch { paused: true, .. } => ("paused".to_owned(), Color::Yellow),
        Epoch { safe: true, .. } => ("SLO-safe".to_owned(), Color::Yellow),
        _ => (visible_line(&epoch.policy).into_owned(), Color::Green),
    };
    let value = |series| epoch.value(series, "").map_or_else(|| "-".to_owned(), number);
    let source = if epoch.energy_measured { "measured" } else { "modelled" };
    Line::from(vec![
        Span::from(name).fg(colour).bold(),
        Span::from(format!(
            "  {:.0} s, epochs of {:.2}  E_S {} (E_LC {}, E_BE {})  {} W {source}, {} J a request",
            epoch.time_s,
            Nanos::from_secs_f64(epoch.epoch_s),
            value("entropy_system_ratio"),
            value("entropy_lc_ratio"),
            value("entropy_be_ratio"),
            value("power_watts"),
            value("energy_per_request_joules"),
        )),
    ])
}

fn app_table(facts: &Facts, epoch: &Epoch, top: &Top) -> Table<'static> {
    let rows = facts.apps.iter().map(|app| app_row(app, epoch, top));
    let widths = [
        Constraint::Min(8),
        Constraint::Length(18),
        Constraint::Length(9),
        Constraint::Length(5),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(12),
    ];
    let head = ["app", "tail", "bound", "ReT", "req/s", "progress", "CPU", "cores", "tail before"];
    Table::new(rows, widths).header(Row::new(head).dim())
}

/// Returns the line of each gate, and below it the reason for its limit and its areas, if any.
fn gate_lines(epoch: &Epoch) -> Vec<Line<'static>> {
    let lines = epoch.gates.iter().flat_map(|gate| {
        let GateState { app, limit, under_way, waiting, decision, areas } = gate;
        let (app, limit) = (visible_line(app), visible_line(limit));
        let counts = format!("gate of {app}  {under_way} under way, {waiting} waiting  ");
        let now = Line::from(vec![Span::from(counts), Span::from(limit.into_owned()).bold()]);
        let why = Line::from(format!("  {}", visible_line(decision))).dim();
        let cores = Line::from(format!("  areas, {}", visible_line(areas))).dim();
        let why = (!decision.is_empty()).then_some(why);
        [Some(now), why, (!areas.is_empty()).then_some(cores)]
    });
    lines.flatten().collect()
}

/// How the classes of clients fare at their gates; a label is `APP/CLASS`.
fn class_table(epoch: &Epoch) -> Table<'static> {
    let rows = epoch.series(CLASSES).map(|(label, connections)| {
        let of = |series| epoch.value(series, label).map_or_else(|| "-".to_owned(), number);
        let time = |series| {
            let value = epoch.value(series, label);
            value.map_or_else(|| "-".to_owned(), |it| format!("{:.2}", Nanos::from_secs_f64(it)))
        };
        Row::new([
            visible_line(label).replacen('/', ": ", 1),
            number(connections),
            of("client_under_way"),
            of("client_waiting"),
            of("client_turns_per_second"),
            time("client_wait_p50_seconds"),
            time("client_wait_p99_seconds"),
        ])
    });
    let widths = [
        Constraint::Min(8),
        Constraint::Length(11),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let head =
        ["clients", "connections", "under way", "waiting", "turns/s", "wait p50", "wait p99"];
    Table::new(rows, widths).header(Row::new(head).dim())
}

fn app_row(app: &AppFacts, epoch: &Epoch, top: &Top) -> Row<'static> {
    let of = |series| epoch.value(series, &app.name);
    let text = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let time = |value: Option<f64>| {
        value.map_or_else(|| "-".to_owned(), |it| format!("{:.2}", Nanos::from_secs_f64(it)))
    };
    let (tail, bound) = (of("tail_latency_seconds"), of("tail_bound_seconds"));
    let style = match (tail, bound) {
        (Some(tail), Some(bound)) if tail > bound => Style::new().fg(Color::Red).bold(),
        (Some(_), Some(_)) => Style::new().fg(Color::Green),
        _ => Style::new(),
    };
    let named = app.percentile.as_deref().filter(|_| tail.is_some()).unwrap_or_default();
    let progress = match (of("progress_per_second"), app.solo_per_second) {
        (Some(real), Some(solo)) if solo > 0.0 => format!("{} %", number(100.0 * real / solo)),
        (progress, _) => text(progress),
    };
    let name = visible_line(&app.name);
    let name = match epoch.absent.contains(&app.name) {
        true => format!("{name} (absent)"),
        false => name.into_owned(),
    };
    let before = top.tails.get(&app.name).map(|tails| bars(tails.iter().copied(), 12));
    Row::new([
        Cell::from(name),
        Cell::from(format!("{named} {}", time(tail)).trim().to_owned()).style(style),
        Cell::from(time(bound)),
        Cell::from(text(of("remaining_tolerance_ratio"))),
        Cell::from(text(of("completed_requests_per_second"))),
        Cell::from(progress),
        Cell::from(text(of("cpu_ratio"))),
        Cell::from(of("app_cores").map_or_else(|| "all".to_owned(), |count| format!("{count}"))),
        Cell::from(before.unwrap_or_default()),
    ])
}

/// The last values as bars of one line.
fn bars(values: impl DoubleEndedIterator<Item = f64> + Clone, width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.clone().rev().take(width).fold(0.0, f64::max);
    let bar = |value: f64| {
        let share = if most > 0.0 { value / most } else { 0.0 };
        BARS[((share * 7.0).round() as usize).min(7)]
    };
    let newest: Vec<char> = values.rev().take(width).map(bar).collect();
    newest.into_iter().rev().collect()
}

fn entropy(top: &Top) -> Sparkline<'static> {
    let values = top.entropy.iter().map(|value| (value * PARTS) as u64);
    let block = Block::new().borders(Borders::TOP).title("E_S over time, 0 is best");
    // The newest value is on the left, whatever the width.
    let newest: Vec<u64> = values.rev().collect();
    Sparkline::default().block(block).data(newest).max(PARTS as u64).style(Color::Blue)
}

fn regions(epoch: &Epoch) -> Paragraph<'static> {
    let mut spans = vec![Span::from("cores ")];
    let held = epoch.series("region_cores").filter(|(_, count)| *count > 0.0);
    for (number, (name, count)) in held.enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let bar = "█".repeat((count as usize).min(64));
        spans.push(Span::from(bar).fg(colour));
        spans.push(Span::from(format!(" {} {count}  ", visible_line(name))));
    }
    let mut text = vec![Line::from(spans)];
    let foreign: Vec<String> = epoch
        .knobs
        .iter()
        .filter(|knob| knob.foreign)
        .map(|knob| format!("{} {}", knob.of, knob.setting))
        .collect();
    if !foreign.is_empty() {
        let what = format!("set by another program: {}", foreign.join("; "));
        text.push(Line::from(visible_line(&what).into_owned()).fg(Color::Yellow));
    }
    Paragraph::new(text)
}

fn lines(frame: &mut Frame<'_>, top: &Top, area: Rect) {
    let all = top.journal.iter().rev().skip(top.skipped).map(journal_line);
    let more =
        if top.skipped > 0 { format!(", {} newer above", top.skipped) } else { String::new() };
    let block = Block::new().borders(Borders::TOP).title(format!("Decisions, newest first{more}"));
    let shown: Vec<Line<'_>> = all.take(usize::from(area.height)).collect();
    frame.render_widget(Paragraph::new(shown).block(block), area);
}

fn journal_line(entry: &Entry) -> Line<'static> {
    let style = match entry.kind.as_str() {
        "confirmed" => Style::new().fg(Color::Green),
        "missed" | "foreign" | "safe" | "operator" => Style::new().fg(Color::Yellow),
        "held" => Style::new().add_modifier(Modifier::DIM),
        _ => Style::new(),
    };
    Line::from(vec![
        Span::from(format!("{:8.2} s  ", entry.time_s)).dim(),
        Span::styled(visible_line(&entry.text).into_owned(), style),
    ])
}

fn footer(epoch: &Epoch) -> String {
    let state = if epoch.paused { "paused by an operator; " } else { "" };
    format!("{state}q ends, arrows and page keys move in the journal")
}

#[cfg(test)]
mod tests {
    use super::super::state::Update;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::{Value, json};
    use std::time::{Duration, Instant};

    fn facts() -> Value {
        json!({ "run": "20261121-arq", "machine": { "name": "a machine", "cores": 8 }, "apps": [
            { "name": "shop", "percentile": "p95", "solo_per_second": null },
            { "name": "batch", "percentile": null, "solo_per_second": 200.0 },
        ]})
    }

    fn epoch(tail_s: f64) -> Value {
        json!({ "time_s": 61.0, "epoch_s": 0.5, "policy": "arq", "safe": false, "paused": false,
        "energy_measured": false, "absent": [],
        "journal": [{ "time_s": 60.5, "kind": "decision", "text": "batch: cores 2-7: why" }],
        "knobs": [{ "of": "shop", "setting": "cores 0-1", "foreign": true }],
        "values": {
            "tail_latency_seconds": { "shop": tail_s }, "tail_bound_seconds": { "shop": 0.004 },
            "progress_per_second": { "batch": 50.0 }, "entropy_system_ratio": { "": 0.25 },
            "region_cores": { "shop": 2.0, "(shared)": 6.0 }, "power_watts": { "": 31.0 },
        }})
    }

    fn top(tail_s: f64) -> Top {
        let mut top = Top::new("127.0.0.1:7077");
        top.take(Update::Run(serde_json::from_value(facts()).unwrap()));
        let past = json!({ "values": { "entropy_system_ratio": { "": [null, 0.5, 0.25] } },
                           "journal": [] });
        top.take(Update::Past(serde_json::from_value(past).unwrap()));
        top.take(Update::Epoch(serde_json::from_value(epoch(tail_s)).unwrap()));
        top
    }

    fn drawn(top: &Top, width: u16, height: u16) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, top)).unwrap();
        terminal
    }

    fn text(terminal: &Terminal<TestBackend>) -> String {
        terminal.backend().to_string()
    }

    #[test]
    fn the_picture_has_the_facts_of_the_page() {
        let text = text(&drawn(&top(0.002), 110, 24));
        let wanted = [
            "a machine, 8 cores",
            "live",
            "arq",
            "E_S 0.250",
            "31.0 W modelled",
            "shop",
            "p95 2.00ms",
            "4.00ms",
            "25.0 %",
            "██ shop 2",
            "██████ (shared) 6",
            "set by another program: shop cores 0-1",
            "60.50 s  batch: cores 2-7: why",
        ];
        for words in wanted {
            assert!(text.contains(words), "{words} is missing:\n{text}");
        }
    }

    #[test]
    fn classes_of_clients_have_a_row_each_where_there_are_any() {
        assert!(!text(&drawn(&top(0.002), 110, 24)).contains("turns/s"));
        let mut epoch = epoch(0.002);
        let of_both = |web: f64, others: f64| json!({ "shop/others": others, "shop/web": web });
        epoch["values"]["client_connections"] = of_both(64.0, 8.0);
        epoch["values"]["client_waiting"] = of_both(40.0, 0.0);
        epoch["values"]["client_turns_per_second"] = of_both(1200.0, 300.0);
        epoch["values"]["client_wait_p99_seconds"] = json!({ "shop/web": 0.0125 });
        let mut top = top(0.002);
        top.take(Update::Epoch(serde_json::from_value(epoch).unwrap()));
        let text = text(&drawn(&top, 110, 24));
        let row = text.lines().find(|line| line.contains("shop: web")).unwrap();
        for word in ["64", "40", "12.50ms"] {
            assert!(row.contains(word), "{word} is missing:\n{text}");
        }
        assert!(text.contains("shop: others"), "{text}");
    }

    #[test]
    fn a_gate_is_shown_with_its_limit_and_the_decision_behind_it() {
        assert!(!text(&drawn(&top(0.002), 110, 24)).contains("gate of"));
        let mut epoch = epoch(0.002);
        let areas_of = |app: &str| if app == "shop" { "fixed: web on cores 0-3" } else { "" };
        let gate = |app: &str, limit: &str, decision: &str| {
            json!({ "app": app, "limit": limit, "under_way": 12, "waiting": 40,
                    "decision": decision, "areas": areas_of(app) })
        };
        let decision = "auto: 15 at a time: throughput times 1.42 (1.21 to 1.66), 19 blocks";
        epoch["gates"] = json!([
            gate("shop", "15 transactions at a time", decision),
            gate("cache", "the gate is open", ""),
        ]);
        let mut top = top(0.002);
        top.take(Update::Epoch(serde_json::from_value(epoch).unwrap()));
        let text = text(&drawn(&top, 110, 24));
        let now = "gate of shop  12 under way, 40 waiting  15 transactions at a time";
        assert!(text.contains(now) && text.contains(decision), "{text}");
        assert_eq!(text.matches("areas, ").count(), 1, "{text}");
        assert!(text.contains("  areas, fixed: web on cores 0-3"), "{text}");
        assert!(text.contains("gate of cache  12 under way, 40 waiting  the gate is"), "{text}");
    }

    #[test]
    fn a_missed_bound_is_red_and_one_that_is_kept_green() {
        let colour_of = |tail_s| {
            let terminal = drawn(&top(tail_s), 110, 24);
            let buffer = terminal.backend().buffer().clone();
            let at = |(x, y): (u16, u16)| {
                buffer[(x, y)].symbol() == "p" && buffer[(x, y)].fg != Color::Reset
            };
            let places = (0..24).flat_map(|y| (0..110).map(move |x| (x, y)));
            let place = places.clone().find(|place| at(*place)).unwrap();
            buffer[place].fg
        };
        assert_eq!((colour_of(0.002), colour_of(0.02)), (Color::Green, Color::Red));
    }

    #[test]
    fn no_size_of_a_terminal_is_a_fault() {
        for (width, height) in [(1, 1), (20, 5), (40, 12), (300, 100)] {
            drawn(&top(0.002), width, height);
            drawn(&Top::new("x"), width, height);
        }
    }

    #[test]
    fn a_lost_agent_is_reported_and_its_last_values_stay() {
        let mut top = top(0.002);
        top.take(Update::Lost("connection refused".to_owned()));
        let text = text(&drawn(&top, 110, 24));
        assert!(text.contains("lost: connection refused") && text.contains("p95 2.00ms"), "{text}");
        let nothing = drawn(&Top::new("127.0.0.1:7077"), 80, 5).backend().to_string();
        assert!(nothing.contains("connecting at 127.0.0.1:7077"), "{nothing}");
    }

    #[test]
    fn an_agent_that_may_be_stuck_is_not_live() {
        let mut top = top(0.002);
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert!(!top.note_time(after(3)) && text(&drawn(&top, 110, 24)).contains("  live"));
        assert!(top.note_time(after(90)) && !top.note_time(after(90)));
        let stuck = text(&drawn(&top, 110, 24));
        assert!(
            stuck.contains("s: the agent may be stuck") && !stuck.contains("  live"),
            "{stuck}"
        );
        let mut cut_short = epoch(0.002);
        cut_short["next_epoch_s"] = json!(60.0);
        top.take(Update::Epoch(serde_json::from_value(cut_short).unwrap()));
        assert!(top.note_time(after(90)) && top.overdue_s.is_none(), "the next epoch is long");
    }

    #[test]
    fn scrolling_ends_at_both_ends_and_new_lines_do_not_move_it() {
        let mut top = top(0.002);
        for _ in 0..3 {
            top.take(Update::Epoch(serde_json::from_value(epoch(0.002)).unwrap()));
        }
        top.scroll(-5);
        assert_eq!(top.skipped, 0);
        top.scroll(2);
        top.take(Update::Epoch(serde_json::from_value(epoch(0.002)).unwrap()));
        assert_eq!(top.skipped, 3);
        top.scroll(100);
        assert_eq!(top.skipped, 4);
        assert!(text(&drawn(&top, 110, 24)).contains("4 newer above"));
    }

    #[test]
    fn bars_are_of_the_newest_values() {
        assert_eq!(bars([9.0, 0.0, 1.0, 2.0].into_iter(), 3), "▁▅█");
        assert_eq!(bars([0.0].into_iter(), 3), "▁");
        assert_eq!(bars(std::iter::empty(), 3), "");
    }
}
