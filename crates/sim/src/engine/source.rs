//! The arrival process of an app: when its next request arrives.
//!
//! A gap is drawn with mean 1 and used up at the present rate, so a change of
//! rate (a phase, a client that begins to think) stretches or squeezes what is
//! left of it. For exponential gaps this is exact: all thinking clients of a
//! closed app share one clock whose rate is their number over the think time,
//! instead of one pending event each.

use super::samples::Samples;
use crate::model::{Draw, Schedule, Shape, Source, Spans, Unit};
use crate::order::{NEVER_NS, round_ns};
use crate::replication::{Replication, Stream, StreamPurpose};

/// An app's source.
#[derive(Debug, Clone)]
pub(crate) struct SourceState {
    /// The rest of the present gap, in units of the mean gap.
    left: f64,
    /// Time of the last change.
    at_ns: u64,
    pace: Pace,
    gap: Unit,
    clients: Clients,
    samples: Samples,
    phases: Option<Phases>,
}

/// How fast gaps are used up.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Gaps per nanosecond.
    rate: f64,
    inverse: f64,
}

/// The paces of clients that think and share a clock.
#[derive(Debug, Clone)]
struct Paces {
    /// Gaps per nanosecond of one.
    each: f64,
    /// Paces for 0, 1, 2 and more requests: each request changes the pace, and a division takes
    /// longer than a look-up.
    known: Vec<Pace>,
}

/// Clients up to which paces are kept; more would push other things out of the cache.
const PACES_MAX: u32 = 1024;

/// The quantity on which the rate depends.
#[derive(Debug, Clone)]
enum Clients {
    /// The schedule alone.
    Open,
    /// How many clients there are and think, how many of these are frozen,
    /// and their paces.
    Superposed { all: u32, thinking: u32, frozen: u32, paces: Paces },
    /// Each client has a timer of its own.
    Timed { think: Draw },
}

/// State of a schedule.
#[derive(Debug, Clone)]
struct Phases {
    schedule: Schedule,
    stream: Stream,
    next: usize,
}

impl SourceState {
    /// A source at time 0: all clients think.
    pub(crate) fn new(source: &Source, streams: Replication, app: usize) -> Self {
        let (gap, rate, clients) = match source {
            Source::Open(open) => (Unit::new(open.gaps), open.rate_per_s / 1e9, Clients::Open),
            Source::Closed(closed) if closed.think.shape == Shape::Exponential => {
                let (thinking, each) = (closed.clients, 1.0 / closed.think.mean.0 as f64);
                let paces = Paces::new(each, thinking);
                let clients = Clients::Superposed { all: thinking, thinking, frozen: 0, paces };
                (Unit::Exponential, f64::from(thinking) * each, clients)
            }
            Source::Closed(closed) => {
                (Unit::Exponential, 0.0, Clients::Timed { think: closed.think.draw() })
            }
        };
        let phases = source.schedule().map(|schedule| Phases {
            schedule: schedule.clone(),
            stream: streams.stream(StreamPurpose::Phases, app),
            next: 0,
        });
        // A client's own think time may be anything.
        let units = match &clients {
            Clients::Timed { think } => vec![gap, *think.unit()],
            Clients::Open | Clients::Superposed { .. } => vec![gap],
        };
        let mut samples = Samples::new(streams.stream(StreamPurpose::Arrivals, app), &units);
        let left = samples.draw(&gap);
        Self { left, at_ns: 0, pace: Pace::new(rate), gap, clients, samples, phases }
    }

    /// When the next request arrives; [`NEVER_NS`] at rate 0.
    #[inline(always)]
    pub(crate) fn next_ns(&self) -> u64 {
        if self.pace.rate <= 0.0 {
            return NEVER_NS;
        }
        self.at_ns.saturating_add(round_ns(self.left.max(0.0) * self.pace.inverse))
    }

    /// The next request arrives now; returns when the one after it does.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, now_ns: u64) -> u64 {
        if let Clients::Superposed { thinking, frozen, paces, .. } = &mut self.clients {
            debug_assert!(*thinking > 0, "only a thinking client sends a request");
            *thinking -= 1;
            self.pace = paces.pace(thinking.saturating_sub(*frozen));
        }
        self.left = self.samples.draw(&self.gap);
        self.at_ns = now_ns;
        self.next_ns()
    }

    /// A client receives its answer and thinks. Returns what to schedule.
    #[inline(always)]
    pub(crate) fn answer(&mut self, now_ns: u64) -> AfterAnswer {
        match &mut self.clients {
            Clients::Open => AfterAnswer::Nothing,
            Clients::Superposed { all, thinking, frozen, paces } => {
                debug_assert!(*thinking < *all, "only a waiting client receives an answer");
                *thinking += 1;
                let pace = paces.pace(thinking.saturating_sub(*frozen));
                self.change_pace(now_ns, pace);
                AfterAnswer::Retime(self.next_ns())
            }
            Clients::Timed { think } => AfterAnswer::Timer(after(now_ns, think, &mut self.samples)),
        }
    }

    /// First think times of clients that have a timer each.
    pub(crate) fn first_think_times(&mut self, clients: u32) -> Vec<u64> {
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
        let pace = match &mut self.clients {
            Clients::Open => Pace::new(level / 1e9),
            Clients::Superposed { all, thinking, frozen, paces } => {
                *frozen = all.saturating_sub(level.round() as u32);
                paces.pace(thinking.saturating_sub(*frozen))
            }
            Clients::Timed { .. } => return,
        };
        self.change_pace(now_ns, pace);
    }

    #[inline(always)]
    fn change_pace(&mut self, now_ns: u64, pace: Pace) {
        self.left -= (now_ns - self.at_ns) as i64 as f64 * self.pace.rate;
        self.at_ns = now_ns;
        self.pace = pace;
    }
}

impl Pace {
    fn new(rate: f64) -> Self {
        Self { rate, inverse: 1.0 / rate }
    }
}

impl Paces {
    fn new(each: f64, clients: u32) -> Self {
        let mut paces = Self { each, known: Vec::new() };
        paces.known = (0..=clients.min(PACES_MAX)).map(|thinking| paces.pace(thinking)).collect();
        paces
    }

    /// Returns the pace of this number of thinking clients.
    #[inline(always)]
    fn pace(&self, thinking: u32) -> Pace {
        let known = self.known.get(thinking as usize);
        known.copied().unwrap_or_else(|| Pace::new(f64::from(thinking) * self.each))
    }
}

/// The event that the engine schedules after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterAnswer {
    /// No event.
    Nothing,
    /// The shared clock goes off at another time.
    Retime(u64),
    /// This client's own timer goes off then.
    Timer(u64),
}

fn after(now_ns: u64, think: &Draw, samples: &mut Samples) -> u64 {
    now_ns.saturating_add((samples.span(think) + 0.5) as u64)
}
