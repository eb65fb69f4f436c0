//! The state of an app on a machine.

use super::level::TimeWeightedCount;
use super::queue::{Task, TaskQueue, ThreadScheduling};
use super::source::Requests;
use super::windows::DueWindows;
use crate::model::Draw;
use crate::order::round_ns;
use crate::replication::Stream;
use lull_measure::{Latency, Nanos};

/// One app.
#[derive(Default)]
pub(super) struct AppState {
    pub(super) treatment: ThreadScheduling,
    pub(super) work: Work,
    pub(super) ipc: f64,
    /// Work done per time on a core.
    pub(super) pace: f64,
    pub(super) running: TimeWeightedCount,
    /// Running threads that took a core over from another app.
    pub(super) transferred: TimeWeightedCount,
    pub(super) queued: TimeWeightedCount,
    pub(super) outstanding: TimeWeightedCount,
    /// 1 while it is on the machine.
    pub(super) present: TimeWeightedCount,
    /// How often it has departed.
    pub(super) life: u32,
    /// `running` at the last refresh.
    pub(super) ran_ns: u128,
    pub(super) arrived: u64,
    pub(super) answered: u64,
    /// Requests that were unanswered when it departed, or that were abandoned.
    pub(super) lost: u64,
    pub(super) switches: u64,
    /// Switches by which it took a core over from another app.
    pub(super) transfers: u64,
    pub(super) work_ns: f64,
    /// Whether a plant takes the window.
    pub(super) is_watched: bool,
    /// Latency since the window was last taken; empty if nothing takes it.
    pub(super) window: Latency,
    /// Latency since the start of the counted time.
    pub(super) latency: Latency,
    /// Every latency, if `keep_log` was called.
    pub(super) log: Option<Vec<Nanos>>,
    /// Its requests by when they were due, if `keep_windows` was called.
    pub(super) windows: Option<DueWindows>,
}

/// The work of an app's threads.
#[derive(Default)]
pub(super) enum Work {
    Requests(Box<Requests>),
    Clients(TaskQueue),
    /// Counts of the connections of a gate.
    Connections {
        gate: usize,
    },
    #[default]
    Endless,
    EventLoops,
    Phases {
        draw: Draw,
        stream: Stream,
        threads: Vec<usize>,
        waiting: usize,
    },
}

impl AppState {
    pub(super) fn new(work: Work, ipc: f64, pace: f64, treatment: ThreadScheduling) -> Self {
        let present = TimeWeightedCount::at_start(1);
        Self { treatment, work, ipc, pace, present, ..Self::default() }
    }

    /// A request or query is due.
    pub(super) fn due(&mut self, now_ns: u64) {
        self.outstanding.increment(now_ns);
        self.note_due(now_ns);
    }

    /// The same where cores that step on their own count outstanding requests.
    pub(super) fn note_due(&mut self, now_ns: u64) {
        self.arrived += 1;
        if let Some(windows) = &mut self.windows {
            windows.due(now_ns);
        }
    }

    pub(super) fn answer(&mut self, now_ns: u64, task: &Task) {
        self.record(now_ns, task.arrived_ns, round_ns(task.delay_ns));
    }

    /// A request or query that was due at `arrived_ns` is answered, this long from now. Returns
    /// its latency.
    pub(super) fn record(&mut self, now_ns: u64, arrived_ns: u64, delay_ns: u64) -> Nanos {
        let latency = Nanos(now_ns - arrived_ns + delay_ns);
        self.outstanding.decrement(now_ns);
        self.note_answer(arrived_ns, latency);
        latency
    }

    /// The same where cores that step on their own count outstanding requests.
    pub(super) fn note_answer(&mut self, arrived_ns: u64, latency: Nanos) {
        if let Some(windows) = &mut self.windows {
            windows.answered(arrived_ns, latency);
        }
        self.answered += 1;
        if self.is_watched {
            self.window.record(latency);
        }
        self.latency.record(latency);
        if let Some(log) = &mut self.log {
            log.push(latency);
        }
    }
}
