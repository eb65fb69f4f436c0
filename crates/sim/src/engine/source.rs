//! Sources at work: when the next request of an app arrives.
//!
//! A gap is drawn with mean 1 and used up at the present rate, so a change of
//! rate (a phase, a client that begins to think) stretches or squeezes what is
//! left of it. For exponential gaps this is exact: all thinking clients of a
//! closed app share one clock whose rate is their number over the think time,
//! instead of one pending event each.

use super::samples::Samples;
use crate::model::{Draw, Schedule, Shape, Source, Spans, Unit};
use crate::order::{NEVER_NS, round_ns};
use crate::random::{Stream, Streams, Use};

/// An app's source.
#[derive(Debug, Clone)]
pub(crate) struct SourceState {
    /// What is left of the present gap, where the mean gap is 1.
    left: f64,
    /// Time of the last change.
    at_ns: u64,
    /// Gaps per nanosecond, and the inverse.
    rate: f64,
    inverse: f64,
    gap: Unit,
    clients: Clients,
    samples: Samples,
    phases: Option<Phases>,
}

/// What the rate depends on.
#[derive(Debug, Clone)]
enum Clients {
    /// Nothing but the schedule.
    Open,
    /// How many clients there are and think, how many of these are frozen,
    /// and each one's rate.
    Superposed { all: u32, thinking: u32, frozen: u32, rate: f64 },
    /// Each client has a timer of its own.
    Timed { think: Draw },
}

/// Where a schedule stands.
#[derive(Debug, Clone)]
struct Phases {
    schedule: Schedule,
    stream: Stream,
    next: usize,
}

impl SourceState {
    /// A source at time 0: all clients think.
    pub(crate) fn new(source: &Source, streams: Streams, app: usize) -> Self {
        let (gap, rate, clients) = match source {
            Source::Open(open) => (Unit::of(open.gaps), open.rate_per_s / 1e9, Clients::Open),
            Source::Closed(closed) if closed.think.shape == Shape::Exponential => {
                let (thinking, each) = (closed.clients, 1.0 / closed.think.mean.0 as f64);
                let clients =
                    Clients::Superposed { all: thinking, thinking, frozen: 0, rate: each };
                (Unit::Exponential, f64::from(thinking) * each, clients)
            }
            Source::Closed(closed) => {
                (Unit::Exponential, 0.0, Clients::Timed { think: closed.think.draw() })
            }
        };
        let phases = source.schedule().map(|schedule| Phases {
            schedule: schedule.clone(),
            stream: streams.stream(Use::Phases, app),
            next: 0,
        });
        // A client's own think time may be anything.
        let units = match &clients {
            Clients::Timed { think } => vec![gap, *think.unit()],
            Clients::Open | Clients::Superposed { .. } => vec![gap],
        };
        let mut samples = Samples::new(streams.stream(Use::Arrivals, app), &units);
        let left = samples.draw(&gap);
        Self { left, at_ns: 0, rate, inverse: 1.0 / rate, gap, clients, samples, phases }
    }

    /// When the next request arrives; [`NEVER_NS`] at rate 0.
    #[inline(always)]
    pub(crate) fn next_ns(&self) -> u64 {
        if self.rate <= 0.0 {
            return NEVER_NS;
        }
        self.at_ns.saturating_add(round_ns(self.left.max(0.0) * self.inverse))
    }

    /// The next request arrives now; returns when the one after it does.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, now_ns: u64) -> u64 {
        if let Clients::Superposed { thinking, frozen, rate, .. } = &mut self.clients {
            *thinking -= 1;
            self.rate = f64::from(thinking.saturating_sub(*frozen)) * *rate;
            self.inverse = 1.0 / self.rate;
        }
        self.left = self.samples.draw(&self.gap);
        self.at_ns = now_ns;
        self.next_ns()
    }

    /// A client has its answer and thinks; says what to schedule.
    #[inline(always)]
    pub(crate) fn answer(&mut self, now_ns: u64) -> Answered {
        match &mut self.clients {
            Clients::Open => Answered::Nothing,
            Clients::Superposed { thinking, frozen, rate, .. } => {
                *thinking += 1;
                let rate = f64::from(thinking.saturating_sub(*frozen)) * *rate;
                self.change_rate(now_ns, rate);
                Answered::Retime(self.next_ns())
            }
            Clients::Timed { think } => Answered::Timer(after(now_ns, think, &mut self.samples)),
        }
    }

    /// First think times of clients that have a timer each.
    pub(crate) fn first_thoughts(&mut self, clients: u32) -> Vec<u64> {
        let Clients::Timed { think } = &self.clients else { return Vec::new() };
        (0..clients).map(|_| after(0, think, &mut self.samples)).collect()
    }

    /// Moves to the next phase; returns when that one ends, `None` if it lasts.
    pub(crate) fn next_phase(&mut self, now_ns: u64) -> Option<u64> {
        let phases = self.phases.as_mut()?;
        let list = &phases.schedule.phases;
        let phase = list[phases.next];
        let ends = phases.schedule.cycle || phases.next + 1 < list.len();
        phases.next = (phases.next + 1) % list.len();
        let span = match phases.schedule.spans {
            Spans::Fixed => phase.span.0,
            Spans::Exponential => {
                ((phase.span.0 as f64 * Unit::Exponential.sample(&mut phases.stream)) as u64).max(1)
            }
        };
        self.set_level(now_ns, phase.level);
        ends.then(|| now_ns.saturating_add(span))
    }

    /// Whether there is a schedule.
    pub(crate) fn has_phases(&self) -> bool {
        self.phases.is_some()
    }

    fn set_level(&mut self, now_ns: u64, level: f64) {
        let rate = match &mut self.clients {
            Clients::Open => level / 1e9,
            Clients::Superposed { all, thinking, frozen, rate } => {
                *frozen = all.saturating_sub(level.round() as u32);
                f64::from(thinking.saturating_sub(*frozen)) * *rate
            }
            Clients::Timed { .. } => return,
        };
        self.change_rate(now_ns, rate);
    }

    #[inline(always)]
    fn change_rate(&mut self, now_ns: u64, rate: f64) {
        self.left -= (now_ns - self.at_ns) as i64 as f64 * self.rate;
        self.at_ns = now_ns;
        self.rate = rate;
        self.inverse = 1.0 / rate;
    }
}

/// What an answer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answered {
    /// Nothing.
    Nothing,
    /// The shared clock goes off at another time.
    Retime(u64),
    /// This client's own timer goes off then.
    Timer(u64),
}

fn after(now_ns: u64, think: &Draw, samples: &mut Samples) -> u64 {
    now_ns.saturating_add((samples.span(think) + 0.5) as u64)
}
