//! The state of the view: the agent's data, and the position in its journal.

use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Values kept for a line of the past.
const PAST: usize = 300;
const LINES: usize = 300;
/// How late an epoch may be before the agent may be stuck, as on the page.
const LATE_S: f64 = 5.0;

/// A message of the feed.
#[derive(Debug)]
pub(super) enum Update {
    Run(Facts),
    Past(Past),
    Epoch(Box<Epoch>),
    Lost(String),
}

/// Facts that do not change during a run.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Facts {
    pub(super) run: String,
    pub(super) machine: MachineFacts,
    pub(super) apps: Vec<AppFacts>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct MachineFacts {
    pub(super) name: String,
    pub(super) cores: usize,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct AppFacts {
    pub(super) name: String,
    pub(super) percentile: Option<String>,
    pub(super) solo_per_second: Option<f64>,
}

/// Indexed by series, then label.
type Values<T> = BTreeMap<String, BTreeMap<String, T>>;

/// The samples of past epochs.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Past {
    values: Values<Vec<Option<f64>>>,
    journal: Vec<Line>,
}

/// One epoch.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Epoch {
    pub(super) time_s: f64,
    pub(super) epoch_s: f64,
    /// `None` from an agent of an earlier version.
    next_epoch_s: Option<f64>,
    pub(super) policy: String,
    pub(super) safe: bool,
    pub(super) paused: bool,
    pub(super) energy_measured: bool,
    pub(super) journal: Vec<Line>,
    pub(super) knobs: Vec<KnobState>,
    /// `None` from an agent of an earlier version.
    #[serde(default)]
    pub(super) gates: Vec<GateState>,
    pub(super) absent: Vec<String>,
    values: Values<f64>,
}

/// A line of the journal.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Line {
    pub(super) time_s: f64,
    pub(super) kind: String,
    pub(super) text: String,
}

/// A knob, its setting, and whether another program has changed it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct KnobState {
    pub(super) of: String,
    pub(super) setting: String,
    pub(super) foreign: bool,
}

/// The gate of an app's server, and the last decision about it; that is empty without an
/// admission controller.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct GateState {
    pub(super) app: String,
    pub(super) limit: String,
    pub(super) under_way: usize,
    pub(super) waiting: usize,
    pub(super) decision: String,
    /// The cores of the classes of its clients; empty without areas, and of an older agent.
    #[serde(default)]
    pub(super) areas: String,
}

impl Epoch {
    /// A value, if it is known.
    pub(super) fn value(&self, series: &str, label: &str) -> Option<f64> {
        self.values.get(series)?.get(label).copied()
    }

    /// All of a series, by label.
    pub(super) fn series(&self, series: &str) -> impl Iterator<Item = (&str, f64)> {
        let labels = self.values.get(series).into_iter().flatten();
        labels.map(|(label, value)| (label.as_str(), *value))
    }
}

/// The view's state.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) address: String,
    pub(super) facts: Option<Facts>,
    pub(super) latest: Option<Epoch>,
    arrived: Option<Instant>,
    /// The age of the last epoch in seconds, if the next one is overdue.
    pub(super) overdue_s: Option<u64>,
    /// Why no updates arrive; empty while they do.
    pub(super) lost: String,
    pub(super) entropy: VecDeque<f64>,
    pub(super) tails: BTreeMap<String, VecDeque<f64>>,
    pub(super) journal: VecDeque<Line>,
    /// Lines of the journal that are scrolled away, from the newest.
    pub(super) skipped: usize,
}

impl Top {
    /// Returns a view without data.
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            facts: None,
            latest: None,
            arrived: None,
            overdue_s: None,
            lost: "connecting".to_owned(),
            entropy: VecDeque::new(),
            tails: BTreeMap::new(),
            journal: VecDeque::new(),
            skipped: 0,
        }
    }

    /// Moves in the journal; up is back to the newest.
    pub(super) fn scroll(&mut self, by: isize) {
        let most = self.journal.len().saturating_sub(1);
        self.skipped = self.skipped.saturating_add_signed(by).min(most);
    }

    /// Takes note of the time; returns whether the picture changes by it.
    pub(super) fn note_time(&mut self, now: Instant) -> bool {
        let last = self.latest.as_ref().zip(self.arrived);
        let overdue_s = last.and_then(|(epoch, arrived)| {
            let age = now.saturating_duration_since(arrived);
            let next_epoch_s = epoch.next_epoch_s.unwrap_or(epoch.epoch_s);
            let is_late = age.as_secs_f64() > 2.0 * next_epoch_s + LATE_S;
            is_late.then_some(age.as_secs())
        });
        std::mem::replace(&mut self.overdue_s, overdue_s) != overdue_s
    }

    /// Applies an update.
    pub(super) fn take(&mut self, update: Update) {
        match update {
            Update::Lost(why) => self.lost = why,
            Update::Run(facts) => self.facts = Some(facts),
            Update::Past(past) => self.past(past),
            Update::Epoch(epoch) => self.epoch(*epoch),
        }
    }

    /// Replaces all data with that of the past, because another run may have started.
    fn past(&mut self, mut past: Past) {
        self.skipped = 0;
        self.journal = past.journal.into();
        let known = |column: Vec<Option<f64>>| column.into_iter().flatten().collect();
        let mut series = |name: &str| past.values.remove(name).unwrap_or_default();
        self.entropy = series("entropy_system_ratio").remove("").map(known).unwrap_or_default();
        let tails = series("tail_latency_seconds").into_iter();
        self.tails = tails.map(|(app, column)| (app, known(column))).collect();
    }

    fn epoch(&mut self, epoch: Epoch) {
        self.lost.clear();
        self.entropy.extend(epoch.value("entropy_system_ratio", ""));
        shorten(&mut self.entropy, PAST);
        for (app, tail) in epoch.series("tail_latency_seconds") {
            let tails = self.tails.entry(app.to_owned()).or_default();
            tails.push_back(tail);
            shorten(tails, PAST);
        }
        self.journal.extend(epoch.journal.iter().cloned());
        if self.skipped > 0 {
            // Lines that a reader has scrolled to stay where they are.
            self.scroll(epoch.journal.len().cast_signed());
        }
        shorten(&mut self.journal, LINES);
        (self.latest, self.arrived) = (Some(epoch), Some(Instant::now()));
    }
}

fn shorten<T>(values: &mut VecDeque<T>, most: usize) {
    let old = values.len().saturating_sub(most);
    values.drain(..old);
}
