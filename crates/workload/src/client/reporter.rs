//! The thread that summarises windows and pushes them, off the load's critical path.
//!
//! Encoding a histogram takes tens of microseconds, during which the engine would
//! send late. Windows travel between the two threads in boxes that are reused.

use super::ledger::Window;
use super::report::{Pushed, WindowReport, Windows};
use crate::push::{PushConfig, Pusher};
use lull_measure::push::{LENGTH_MIN, LatencyWindow, Message};
use lull_measure::{Latency, Percentile};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Window buffers: one is filled, one is summarised, two absorb a slow moment.
const BUFFERS: usize = 4;
/// Most windows in the report, which drops the oldest: over two hours at 100 ms.
const MAX_REPORTS: usize = 100_000;

/// The engine's end of the channel.
pub(super) struct WindowSender {
    full: SyncSender<Box<Window>>,
    spare: Receiver<Box<Window>>,
    dropped: u64,
}

/// The reporter's end of the channel.
pub(super) struct Reporter {
    full: Receiver<Box<Window>>,
    spare: SyncSender<Box<Window>>,
}

/// Creates the channel, with all buffers at the engine's end.
pub(super) fn channel() -> (WindowSender, Reporter) {
    let (full_in, full_out) = sync_channel(BUFFERS);
    let (spare_in, spare_out) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        spare_in.send(Box::default()).expect("the receiver is at hand and the channel has room");
    }
    let sender = WindowSender { full: full_in, spare: spare_out, dropped: 0 };
    (sender, Reporter { full: full_out, spare: spare_in })
}

impl WindowSender {
    /// Returns an empty buffer, if one is free.
    pub(super) fn spare(&mut self) -> Option<Box<Window>> {
        self.spare.try_recv().ok()
    }

    /// Exchanges a full buffer for an empty one without waiting. If no buffer is
    /// free, the window is dropped and counted.
    pub(super) fn exchange(&mut self, window: &mut Box<Window>) {
        let Some(spare) = self.spare() else {
            self.dropped += 1;
            window.clear();
            return;
        };
        let full = std::mem::replace(window, spare);
        // The channel has room for every buffer. If the reporter has ended, its join
        // reports why.
        let _ = self.full.try_send(full);
    }

    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Reporter {
    /// Summarises windows until the engine drops its end.
    pub(super) fn run(
        self,
        push: Option<&PushConfig>,
        mut watch: impl FnMut(&WindowReport, &Latency),
    ) -> Windows {
        let mut pusher = push.map(|push| (Pusher::new(push.socket.clone()), push.app.as_str()));
        let mut kept = VecDeque::new();
        while let Ok(mut window) = self.full.recv() {
            let report = summed_up(&window);
            watch(&report, &window.latency);
            if let Some((pusher, app)) = &mut pusher {
                push_window(pusher, &mut window, app);
            }
            if kept.len() == MAX_REPORTS {
                kept.pop_front();
            }
            kept.push_back(report);
            window.clear();
            // Fails only if the engine has ended; the next receive then ends the loop.
            let _ = self.spare.try_send(window);
        }
        let pushed = pusher.map(|(pusher, _)| Pushed {
            sent_messages: pusher.sent(),
            dropped_messages: pusher.dropped(),
        });
        Windows { reports: kept.into(), pushed }
    }
}

fn summed_up(window: &Window) -> WindowReport {
    let counts = window.counts;
    WindowReport {
        start_ns: window.start,
        length_seconds: window.length.as_secs_f64(),
        warmup: window.warmup,
        due_requests: counts.due,
        sent_requests: counts.sent,
        completed_requests: counts.completed,
        failed_requests: counts.failed,
        timed_out_requests: counts.timed_out,
        outstanding_requests: window.outstanding,
        oldest_outstanding_seconds: window.oldest.as_secs_f64(),
        latency: (&window.latency).into(),
        lag: (&window.lag).into(),
    }
}

fn push_window(pusher: &mut Pusher, window: &mut Window, app: &str) {
    let counts = window.counts;
    let message = Message::Latency(Box::new(LatencyWindow {
        app: app.to_owned(),
        start_ns: window.start,
        length_ns: window.length.max(LENGTH_MIN),
        due: counts.due,
        sent: counts.sent,
        completed: counts.completed,
        errors: counts.failed + counts.timed_out,
        outstanding: window.outstanding,
        oldest_ns: window.oldest,
        lag_p99_ns: window.lag.quantile(Percentile::P99).unwrap_or_default(),
        histogram: std::mem::take(&mut window.latency),
        sample: Some(std::mem::take(&mut window.sample)).filter(|sample| !sample.is_empty()),
    }));
    pusher.push(&message);
    // Move the histogram back, so that its memory is reused.
    if let Message::Latency(sent) = message {
        window.latency = sent.histogram;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Nanos;

    #[test]
    fn the_engine_never_waits_for_a_reporter_that_does_nothing() {
        let (mut reporting, _reporter) = channel();
        let mut window = reporting.spare().unwrap();
        for _ in 0..10 {
            window.counts.due = 3;
            reporting.exchange(&mut window);
            assert_eq!(window.counts.due, 0, "a window was counted twice");
        }
        assert_eq!(reporting.dropped(), 10 - (BUFFERS as u64 - 1));
    }

    #[test]
    fn buffers_come_back_empty() {
        let (mut reporting, reporter) = channel();
        let mut window = reporting.spare().unwrap();
        std::thread::scope(|scope| {
            let reporter = scope.spawn(|| reporter.run(None, |_, _| {}));
            for round in 0..20 {
                assert!(window.latency.is_empty() && window.counts == Default::default());
                window.counts.due = round;
                window.latency.record(Nanos::from_micros(round + 1));
                reporting.exchange(&mut window);
            }
            let dropped = reporting.dropped();
            drop(reporting);
            let reports = reporter.join().unwrap().reports;
            assert_eq!(reports.len() as u64 + dropped, 20);
            assert!(reports.iter().all(|report| report.latency.count == 1));
        });
    }
}
