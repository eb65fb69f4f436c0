//! The thread that summarises windows and pushes them, off the load's critical path.
//!
//! Encoding a histogram takes tens of microseconds, during which the engine would
//! send late. Windows travel between the two threads in boxes that are reused.

use super::ledger::Window;
use super::report::{Pushed, WindowReport, Windows};
use crate::push::{PushConfig, Pusher};
use lull_measure::push::{LENGTH_MIN, LatencyWindow, Message};
use lull_measure::{Buckets, Latency, Percentile};
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

/// The reporter's ends of the channels.
pub(super) struct Reporter {
    channels: Vec<Channel>,
}

/// The reporter's end of one engine's channel.
struct Channel {
    full: Receiver<Box<Window>>,
    spare: SyncSender<Box<Window>>,
    /// The next window, which waits for those of the other engines.
    next: Option<Box<Window>>,
}

/// Creates a channel for each engine, with all buffers at the engines' ends.
pub(super) fn channels(count: usize) -> (Vec<WindowSender>, Reporter) {
    let (senders, channels) = (0..count).map(|_| channel()).unzip();
    (senders, Reporter { channels })
}

fn channel() -> (WindowSender, Channel) {
    let (full_in, full_out) = sync_channel(BUFFERS);
    let (spare_in, spare_out) = sync_channel(BUFFERS);
    for _ in 0..BUFFERS {
        spare_in.send(Box::default()).expect("the receiver is at hand and the channel has room");
    }
    let sender = WindowSender { full: full_in, spare: spare_out, dropped: 0 };
    (sender, Channel { full: full_out, spare: spare_in, next: None })
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
    /// Returns the next window of all engines together, which is the first's buffer, with its
    /// channel; `None` when all engines have dropped their ends.
    fn next(&mut self) -> Option<(usize, Box<Window>)> {
        for channel in &mut self.channels {
            channel.next = channel.next.take().or_else(|| channel.full.recv().ok());
        }
        let numbers = self.channels.iter().flat_map(|channel| &channel.next);
        // An engine whose window was dropped has none of this number.
        let number = numbers.map(|window| window.number).min()?;
        let mut all: Option<(usize, Box<Window>)> = None;
        for (index, channel) in self.channels.iter_mut().enumerate() {
            let Some(window) = channel.next.take_if(|window| window.number == number) else {
                continue;
            };
            match &mut all {
                None => all = Some((index, window)),
                Some((_, all)) => {
                    all.merge(&window);
                    channel.give_back(window);
                }
            }
        }
        all
    }

    /// Summarises windows until the engines drop their ends.
    pub(super) fn run(
        mut self,
        push: Option<&PushConfig>,
        mut watch: impl FnMut(&WindowReport, &Latency),
    ) -> Windows {
        let mut pusher = push.map(|push| (Pusher::new(push.socket.clone()), push.app.as_str()));
        let mut kept = VecDeque::new();
        while let Some((channel, mut window)) = self.next() {
            let report = summed_up(&window);
            watch(&report, &window.latency);
            if let Some((pusher, app)) = &mut pusher {
                push_window(pusher, &mut window, app);
            }
            if kept.len() == MAX_REPORTS {
                kept.pop_front();
            }
            kept.push_back(report);
            self.channels[channel].give_back(window);
        }
        let pushed = pusher.map(|(pusher, _)| Pushed {
            sent_messages: pusher.sent(),
            dropped_messages: pusher.dropped(),
        });
        Windows { reports: kept.into(), pushed }
    }
}

impl Channel {
    fn give_back(&self, mut window: Box<Window>) {
        window.clear();
        // Fails only if the engine has ended; the next receive then shows that.
        let _ = self.spare.try_send(window);
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
        buckets: Buckets::default(),
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
        let (mut reporting, _channel) = channel();
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
        let (mut senders, reporter) = channels(1);
        let mut reporting = senders.remove(0);
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

    #[test]
    fn windows_of_several_engines_are_put_together_by_number() {
        let (mut senders, reporter) = channels(2);
        // The second engine's window 1 was dropped.
        for (engine, numbers) in [(0, [0, 1, 2].as_slice()), (1, &[0, 2])] {
            let mut window = senders[engine].spare().unwrap();
            for number in numbers {
                window.number = *number;
                window.counts.due = 1 + engine as u64;
                window.latency.record(Nanos::from_micros(5));
                senders[engine].exchange(&mut window);
            }
        }
        drop(senders);
        let reports = reporter.run(None, |_, _| {}).reports;
        let due: Vec<_> = reports.iter().map(|report| report.due_requests).collect();
        assert_eq!(due, [3, 1, 3]);
        assert_eq!(reports[2].latency.count, 2);
    }
}
