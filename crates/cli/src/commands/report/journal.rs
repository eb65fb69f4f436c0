//! Selects the entries of a journal that a report shows.
//!
//! These are all unusual events (the SLO-safe state, changes by other programs, refusals,
//! exits, orders), and those decisions of the policy after which the target metric changed
//! most.

use lull_agent::status;
use lull_control::journal::{Entry, Event};
use lull_control::{AppSpec, ApplyOutcome};
use lull_measure::Nanos;
use rusqlite::Connection;

/// Most entries of either kind.
const MOST: usize = 12;

/// The chosen entries, in their order.
#[derive(Debug, Default)]
pub(super) struct Highlights {
    /// Seconds since the run began, and the event.
    pub(super) lines: Vec<(f64, String)>,
    /// Number of entries in the journal.
    pub(super) total: usize,
}

/// A candidate line.
struct Line {
    time: Nanos,
    text: String,
    /// The change of the metric after a decision; `None` for an unusual event.
    weight: Option<f64>,
}

impl Highlights {
    /// Selects the entries from the journal of a record.
    pub(super) fn read(database: &Connection, apps: &[AppSpec]) -> anyhow::Result<Self> {
        let mut query =
            database.prepare("SELECT epoch, time_ns, event FROM journal ORDER BY rowid")?;
        let rows = query.query_map([], |row| {
            let time = Nanos(row.get::<_, i64>(1)?.cast_unsigned());
            Ok((row.get::<_, i64>(0)?, time, row.get::<_, String>(2)?))
        })?;
        let mut chosen =
            JournalSelection { apps, lines: Vec::new(), decided: Vec::new(), total: 0 };
        for row in rows {
            let (epoch, time, text) = row?;
            // Skip events of other versions and keep the rest.
            match serde_json::from_str(&text) {
                Ok(event) => chosen.take(epoch, &Entry { time, event }),
                Err(_) => chosen.total += 1,
            }
        }
        Ok(chosen.choose())
    }
}

/// Goes through a journal.
struct JournalSelection<'a> {
    apps: &'a [AppSpec],
    lines: Vec<Line>,
    /// The last epoch with decisions, and these.
    decided: Vec<(i64, Nanos, String)>,
    total: usize,
}

impl JournalSelection<'_> {
    fn take(&mut self, epoch: i64, entry: &Entry) {
        self.total += 1;
        let text = status::describe_event(self.apps, &entry.event);
        match &entry.event {
            Event::Decision(decision) => {
                if matches!(decision.outcome.got, ApplyOutcome::Refused { .. }) {
                    self.lines.push(Line { time: entry.time, text, weight: None });
                    return;
                }
                self.decided.retain(|(of, ..)| *of == epoch);
                self.decided.push((epoch, entry.time, text));
            }
            Event::Effect(effect) => {
                let scale = effect.before.abs().max(1e-9);
                let moves = std::mem::take(&mut self.decided);
                let Some(time) = moves.first().map(|(_, time, _)| *time) else { return };
                let moves: Vec<String> = moves.into_iter().map(|(.., text)| text).collect();
                let text = format!("{}; {text}", moves.join("; "));
                let weight = Some(effect.measured_change().abs() / scale);
                self.lines.push(Line { time, text, weight });
            }
            // A gate may log two of these for each pair of blocks.
            Event::Held { .. } | Event::SurveyBegins | Event::SurveyEnds => {}
            Event::Foreign { .. }
            | Event::SafeBegins { .. }
            | Event::SafeEnds
            | Event::AppExited { .. }
            | Event::AppWaiting { .. }
            | Event::AppArrived { .. }
            | Event::AppRestarted { .. }
            | Event::PolicyRebuilt { .. }
            | Event::GateChanged { .. }
            | Event::AreasChanged { .. }
            | Event::ReferenceCorrected { .. }
            | Event::Discovery { .. }
            | Event::Operator(_) => {
                self.lines.push(Line { time: entry.time, text, weight: None });
            }
        }
    }

    fn choose(self) -> Highlights {
        let (mut moves, mut others): (Vec<_>, Vec<_>) =
            self.lines.into_iter().partition(|line| line.weight.is_some());
        // The sort is stable: of equal changes the earlier one is first.
        moves.sort_by(|one, other| {
            other.weight.unwrap_or(0.0).total_cmp(&one.weight.unwrap_or(0.0))
        });
        moves.truncate(MOST);
        others.truncate(MOST);
        others.extend(moves);
        others.sort_by_key(|line| line.time);
        let lines = others.into_iter().map(|line| (line.time.as_secs_f64(), line.text));
        Highlights { lines: lines.collect(), total: self.total }
    }
}
