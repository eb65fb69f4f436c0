//! The event engine: one replication of a model.
//!
//! Two structures hold the future. A winner tree has one clock per lane and
//! per source, for what is re-timed at almost every event; a heap has the few
//! one-shot timers. Their earliest key is the next event. Nothing else happens
//! between events, so every integral (requests present, busy cores, energy) is
//! brought up to date only where it changes.

mod away;
mod build;
mod flow;
mod lane;
mod power;
mod program;
mod request;
mod samples;
mod server;
mod source;
mod steer;
mod tally;
mod tier;
mod totals;
mod watch;

pub use totals::{AppTotals, DomainTotals, ServerTotals, Totals};
pub(crate) use watch::CallCounts;

use crate::model::Draw;
use crate::order::{Key, MOST_EVENTS};
use crate::replication::Stream;
use crate::timers::{TimerPurpose, Timers, owner_of};
use crate::tree::WinnerTree;
use away::AwayWork;
use lane::Lane;
use lull_measure::Nanos;
use power::Domain;
use program::Programs;
use request::{Fifo, Requests};
use server::{Permits, Server};
use source::{AfterAnswer, SourceState};
use tier::TierState;

/// Sequence numbers held in reserve, so that one event cannot exhaust them.
const SPARE_SEQUENCES: u64 = 1 << 32;

/// One replication of a model, at some point of simulated time.
#[derive(Debug, Clone)]
pub struct Engine {
    now_ns: u64,
    sequence: u64,
    events: u64,
    /// Number of events at which the engine checks its bounds next.
    pause_at: u64,
    clocks: WinnerTree,
    timers: Timers,
    lanes: Vec<Lane>,
    domains: Vec<Domain>,
    hardware: power::MachineParts,
    servers: Vec<Server>,
    queues: Vec<Fifo>,
    permits: Vec<Permits>,
    pools: Vec<PoolGroup>,
    tiers: Vec<TierState>,
    tier_names: Vec<String>,
    apps: Vec<AppState>,
    /// Number of priority classes, and each app's.
    classes: usize,
    class_of: Vec<u8>,
    programs: Programs,
    requests: Requests,
    /// Requests that were granted a resource during this event.
    ready: Vec<u32>,
    /// Work of servers that are machines, which has not been taken.
    away: Vec<AwayWork>,
    watches: watch::Watches,
    limits: crate::model::Limits,
    fault: Option<Stop>,
    counted_since_ns: u64,
    /// Requests in flight when counting began.
    #[cfg(debug_assertions)]
    in_flight_at_start: u32,
}

/// Where a named pool's permits are: one set, or one per server of a tier.
#[derive(Debug, Clone, Copy)]
struct PoolGroup {
    first: u32,
    first_server: u32,
}

/// An app at work.
#[derive(Debug, Clone)]
struct AppState {
    name: String,
    entry: u32,
    class: u8,
    source: SourceState,
    draws: Vec<(Draw, bool)>,
    work: samples::Samples,
    path: Stream,
    arrived: u64,
    answered: u64,
    lost: u64,
    response_ns: u128,
    latency: tally::Tally,
}

/// The reason why a run cannot continue.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Stop {
    /// More requests are in the system than the model allows.
    #[error(
        "stopped at {at}: {in_flight} requests in the system, the bound `limits.in_flight`; \
         app `{app}` sends more than is served: lower its rate, add capacity or `backlog` limits"
    )]
    Overrun {
        /// Simulated time.
        at: Nanos,
        /// Requests in the system.
        in_flight: u32,
        /// The app whose request was one too many.
        app: String,
    },
    /// The run took more events than the model allows.
    #[error("stopped at {at} after {events} events, the bound `limits.events`")]
    Events {
        /// Simulated time.
        at: Nanos,
        /// Events so far.
        events: u64,
    },
}

impl Engine {
    /// Simulated time.
    pub fn now(&self) -> Nanos {
        Nanos(self.now_ns)
    }

    /// Events so far: arrivals, ends of work, and timers.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Requests in the system.
    pub fn in_flight(&self) -> u32 {
        self.requests.live()
    }

    /// Runs all events before `until` and moves the clock there. Where servers are machines, it
    /// stops after an event that sends work to one, with the clock at that event.
    ///
    /// # Errors
    /// If a bound of the model's limits is reached; the engine then stays stopped.
    pub fn run_until(&mut self, until: Nanos) -> Result<(), Stop> {
        self.review()?;
        loop {
            let clock = self.clocks.first();
            // Usually a clock is next and before both the end and any timer.
            if clock.time_ns() < self.timers.first().time_ns().min(until.0) {
                self.clock_event(clock);
            } else if !self.other_event(clock, until.0) {
                break;
            }
            self.events += 1;
            if self.events >= self.pause_at {
                self.review()?;
                if self.has_away() {
                    return Ok(());
                }
            }
        }
        self.now_ns = self.now_ns.max(until.0);
        #[cfg(debug_assertions)]
        self.assert_conservation();
        Ok(())
    }

    /// Checks whether a bound is reached, and sets when to check next.
    #[cold]
    fn review(&mut self) -> Result<(), Stop> {
        let spare = MOST_EVENTS.saturating_sub(self.sequence);
        if self.events >= self.limits.events || spare < SPARE_SEQUENCES {
            let ran_out = Stop::Events { at: self.now(), events: self.events };
            self.fault.get_or_insert(ran_out);
        }
        // An event rarely schedules more than a handful of others, so `spare / 64`
        // events fit; `SPARE_SEQUENCES` covers a burst of more.
        self.pause_at = self.limits.events.min(self.events + spare / 64);
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// Handles the next event where it may be a timer or at `until_ns` or later.
    /// Returns whether there was an event before `until_ns`.
    #[inline(never)]
    fn other_event(&mut self, clock: Key, until_ns: u64) -> bool {
        let timer = self.timers.first();
        if clock.min(timer).time_ns() >= until_ns {
            return false;
        }
        if clock < timer {
            self.clock_event(clock);
        } else {
            self.timer_event(timer);
        }
        true
    }

    #[inline(always)]
    fn clock_event(&mut self, key: Key) {
        debug_assert!(key.time_ns() >= self.now_ns, "time never goes back");
        self.now_ns = key.time_ns();
        let owner = key.owner() as usize;
        if owner < self.lanes.len() {
            self.end_of_work(owner);
        } else {
            self.arrival(owner - self.lanes.len());
        }
        self.drain_ready();
    }

    fn timer_event(&mut self, key: Key) {
        debug_assert!(key.time_ns() >= self.now_ns, "time never goes back");
        self.now_ns = key.time_ns();
        self.timers.pop();
        match owner_of(key) {
            (TimerPurpose::Think, app) => self.admit(app),
            (TimerPurpose::Phase, app) => self.phase(app),
            (TimerPurpose::Resume, lane) => self.resume(lane, key.sequence()),
        }
        self.drain_ready();
    }

    #[inline(always)]
    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        debug_assert!(self.sequence < MOST_EVENTS, "`review` stops the run before numbers run out");
        self.sequence
    }

    /// The app's shared clock went off.
    #[inline(always)]
    fn arrival(&mut self, app: usize) {
        let next = self.apps[app].source.arrive(self.now_ns);
        self.set_source(app, next);
        self.admit(app);
    }

    /// The app's schedule moves on.
    fn phase(&mut self, app: usize) {
        let source = &mut self.apps[app].source;
        let ends = source.next_phase(self.now_ns);
        let next = source.next_ns();
        self.set_source(app, next);
        if let Some(ends) = ends {
            self.set_timer(ends, TimerPurpose::Phase, app);
        }
    }

    #[inline(always)]
    fn set_source(&mut self, app: usize, next_ns: u64) {
        let leaf = self.lanes.len() + app;
        self.set_clock(leaf, next_ns);
    }

    #[inline(always)]
    fn set_clock(&mut self, leaf: usize, time_ns: u64) {
        let sequence = self.next_sequence();
        self.clocks.set(leaf, Key::new(time_ns, sequence, leaf as u32));
    }

    fn set_timer(&mut self, time_ns: u64, purpose: TimerPurpose, index: usize) -> u64 {
        let sequence = self.next_sequence();
        self.timers.push(time_ns, sequence, purpose, index);
        sequence
    }

    /// The client of a finished request thinks again.
    #[inline(always)]
    fn client_thinks(&mut self, app: usize) {
        match self.apps[app].source.answer(self.now_ns) {
            AfterAnswer::Nothing => {}
            AfterAnswer::Retime(next) => self.set_source(app, next),
            AfterAnswer::Timer(time) => {
                self.set_timer(time, TimerPurpose::Think, app);
            }
        }
    }

    #[inline(always)]
    fn drain_ready(&mut self) {
        if !self.ready.is_empty() {
            self.continue_ready();
        }
    }

    fn continue_ready(&mut self) {
        // Continue in the order of the grants. A continuation may grant more, which
        // extends the list.
        let mut at = 0;
        while at < self.ready.len() {
            let request = self.ready[at];
            at += 1;
            let at = self.requests.get(request).next_op;
            self.proceed(request, at);
        }
        self.ready.clear();
    }

    /// Asserts that every request that arrived is answered, lost or in flight.
    ///
    /// Counts restart when the warm-up ends, while requests that are then in flight
    /// are answered later: in flight = in flight at the start + arrived - answered - lost.
    #[cfg(debug_assertions)]
    fn assert_conservation(&self) {
        let sum = |count: fn(&AppState) -> u64| self.apps.iter().map(count).sum::<u64>();
        let arrived = u64::from(self.in_flight_at_start) + sum(|app| app.arrived);
        let left = sum(|app| app.answered) + sum(|app| app.lost);
        assert_eq!(arrived - left, u64::from(self.in_flight()), "requests are conserved");
    }
}
