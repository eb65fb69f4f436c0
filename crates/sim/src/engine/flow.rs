//! How requests flow: programs, servers' cores and queues, permits.

use super::program::{NO_VISIT, Op};
use super::request::NONE;
use super::server::PermitOutcome;
use super::{Engine, Stop};
use crate::model::Discipline;
use rand::RngExt;

impl Engine {
    /// A request of the app arrives and goes as far as it can.
    #[inline(always)]
    pub(super) fn admit(&mut self, app: usize) {
        let state = &mut self.apps[app];
        if self.requests.live() >= self.limits.in_flight {
            return self.overrun(app);
        }
        state.arrived += 1;
        let request = self.requests.take(app as u16, state.class, self.now_ns);
        // Draw all work at arrival: a request's demand must not depend on how a policy
        // delays it (common random numbers).
        let amounts = self.requests.amounts(request);
        for ((draw, at_arrival), amount) in state.draws.iter().zip(amounts) {
            if *at_arrival {
                *amount = state.work.span(draw);
            }
        }
        let entry = state.entry;
        self.go_on(request, entry);
    }

    #[cold]
    fn overrun(&mut self, app: usize) {
        let (at, in_flight) = (self.now(), self.requests.live());
        self.fault = Some(Stop::Overrun { at, in_flight, app: self.apps[app].name.clone() });
        self.pause_at = 0;
    }

    /// Takes a request's operations from `at` on; in line for the two that
    /// make up simple models.
    #[inline(always)]
    fn go_on(&mut self, request: u32, at: u32) {
        match self.programs.ops[at as usize] {
            Op::Done => self.end(request, true),
            // Skip the three operations behind it, which it replaces.
            Op::VisitOnly { server, amount } => {
                self.work(request, server, (amount, at + 4, false));
            }
            _ => self.proceed(request, at),
        }
    }

    /// Takes a request's operations until it computes, waits, or is over.
    pub(super) fn proceed(&mut self, request: u32, mut at: u32) {
        loop {
            let op = self.programs.ops[at as usize];
            at += 1;
            match op {
                Op::VisitOnly { server, amount } => {
                    return self.work(request, server, (amount, at + 3, false));
                }
                Op::Visit { tier, visit, same_as, amount } => {
                    let same = self.number_of(request, same_as);
                    let server = self.tiers[tier as usize].choose(same);
                    *self.requests.server(request, visit.into()) = server;
                    return self.work(request, server, (amount, at + 3, false));
                }
                Op::Work { visit, amount, keeps_core } => {
                    let server = *self.requests.server(request, visit.into());
                    return self.work(request, server, (amount, at, keeps_core));
                }
                Op::Away { visit, amount } => {
                    return self.send_away(request, visit, amount, at);
                }
                Op::Enter { tier, visit, same_as, way_out } => {
                    match self.enter(request, tier.into(), visit.into(), same_as) {
                        PermitOutcome::Granted => {}
                        PermitOutcome::Waits => return self.requests.get(request).next_op = at,
                        PermitOutcome::Refused => at = self.refuse(request, visit, way_out),
                    }
                }
                Op::Leave { visit } => self.leave(request, visit.into(), true),
                Op::Acquire { pool, visit, way_out } => {
                    let permits = self.permits_of(request, pool, visit);
                    match self.permits[permits].ask(request) {
                        PermitOutcome::Granted => {}
                        PermitOutcome::Waits => return self.requests.get(request).next_op = at,
                        PermitOutcome::Refused => at = way_out,
                    }
                }
                Op::Release { pool, visit } => {
                    let permits = self.permits_of(request, pool, visit);
                    self.give_back(permits);
                }
                Op::Done | Op::Lost => return self.end(request, op == Op::Done),
                other => at = self.turn(request, other, at),
            }
        }
    }

    /// Runs the rarer operations; returns where to continue.
    #[inline(never)]
    fn turn(&mut self, request: u32, op: Op, next: u32) -> u32 {
        let app = self.requests.get(request).app as usize;
        match op {
            Op::FreeCore => self.free_core(request),
            Op::Abandon { visit } => self.leave(request, visit.into(), false),
            Op::Draw { amount } => {
                let state = &mut self.apps[app];
                let drawn = state.draws[amount as usize].0.sample(&mut state.path);
                *self.requests.amount(request, amount.into()) = drawn;
            }
            Op::Choose { first } => {
                let point = self.apps[app].path.random::<f64>();
                let ways = &self.programs.ways[first as usize..];
                let way = ways.iter().find(|way| point < way.0);
                return way.expect("the last way of a choice takes every number").1;
            }
            Op::Jump { to } => return to,
            Op::Repeat { chance, to } => {
                let again = self.programs.chances[chance as usize];
                return if self.apps[app].path.random::<f64>() < again { to } else { next };
            }
            _ => {}
        }
        next
    }

    #[inline(always)]
    fn enter(&mut self, request: u32, tier: usize, visit: usize, same_as: u8) -> PermitOutcome {
        let same = self.number_of(request, same_as);
        let chosen = self.tiers[tier].choose(same);
        *self.requests.server(request, visit) = chosen;
        if self.watches.any() {
            let app = self.requests.get(request).app;
            self.watches.call((chosen, app), (request, visit), self.now_ns);
        }
        let server = &mut self.servers[chosen as usize];
        server.pending += 1;
        self.tiers[tier].pending(chosen, server.pending, true);
        if server.threads == NONE {
            return PermitOutcome::Granted;
        }
        self.permits[server.threads as usize].ask(request)
    }

    /// The number, within its tier, of the server of an earlier visit.
    #[inline(always)]
    fn number_of(&mut self, request: u32, visit: u8) -> u32 {
        if visit == NO_VISIT {
            return 0;
        }
        let server = *self.requests.server(request, visit.into());
        server - self.tiers[self.servers[server as usize].tier as usize].first
    }

    /// Undoes a choice of server whose backlog was full.
    #[inline(never)]
    fn refuse(&mut self, request: u32, visit: u8, way_out: u32) -> u32 {
        let refusing = *self.requests.server(request, visit.into());
        let server = &mut self.servers[refusing as usize];
        debug_assert!(server.pending > 0, "a refused call was pending");
        server.pending -= 1;
        self.tiers[server.tier as usize].pending(refusing, server.pending, false);
        let app = self.requests.get(request).app;
        self.watches.end((refusing, app), (request, visit.into()), self.now_ns, false);
        self.free_core(request);
        way_out
    }

    #[inline(always)]
    fn leave(&mut self, request: u32, visit: usize, answered: bool) {
        let left = *self.requests.server(request, visit);
        let server = &mut self.servers[left as usize];
        debug_assert!(server.pending > 0, "a call that ends was pending");
        server.pending -= 1;
        server.counts.answers += u64::from(answered);
        let threads = server.threads;
        self.tiers[server.tier as usize].pending(left, server.pending, false);
        if self.watches.any() {
            let app = self.requests.get(request).app;
            self.watches.end((left, app), (request, visit), self.now_ns, answered);
        }
        if threads != NONE {
            self.give_back(threads as usize);
        }
    }

    #[inline(never)]
    fn permits_of(&mut self, request: u32, pool: u16, visit: u8) -> usize {
        let group = self.pools[pool as usize];
        if visit == NO_VISIT {
            return group.first as usize;
        }
        let server = *self.requests.server(request, visit.into());
        (group.first + server - group.first_server) as usize
    }

    #[inline(always)]
    fn give_back(&mut self, permits: usize) {
        let permits = &mut self.permits[permits];
        if let Some(next) = permits.give_back() {
            self.ready.push(next);
            if let Some(after) = permits.next() {
                self.requests.expect(after);
            }
        }
    }

    #[inline(always)]
    fn end(&mut self, request: u32, answered: bool) {
        let record = self.requests.drop(request);
        let (app, took) = (record.app as usize, self.now_ns - record.started_ns);
        let state = &mut self.apps[app];
        if answered {
            state.answered += 1;
            state.response_ns += u128::from(took);
            state.latency.record(took);
        } else {
            state.lost += 1;
        }
        self.client_thinks(app);
    }

    /// A piece of work arrives at a server's cores.
    #[inline(always)]
    fn work(&mut self, request: u32, server: u32, (amount, then, keeps_core): (u16, u32, bool)) {
        let server_index = server as usize;
        let work_ns = *self.requests.amount(request, amount.into());
        let record = self.requests.get(request);
        record.next_op = then;
        record.work_ns = work_ns;
        record.keeps_core = keeps_core;
        record.queued_ns = self.now_ns;
        let server = &mut self.servers[server_index];
        server.count_arrival(self.now_ns);
        let first = server.first_lane as usize;
        let lane = &mut self.lanes[first];
        let starts = server.discipline == Discipline::Sharing || lane.has_free_core();
        if server.lanes == 1 && starts {
            lane.advance(self.now_ns);
            lane.start(request, work_ns);
            let next = lane.next_end_ns();
            self.set_clock(first, next);
        } else if server.lanes == 1 && server.discipline == Discipline::Fcfs {
            server.queue.push(&mut self.requests, request);
        } else {
            self.work_anywhere(request, server_index, work_ns);
        }
    }

    /// The same for servers with several lanes or with priorities.
    #[inline(never)]
    fn work_anywhere(&mut self, request: u32, server_index: usize, work_ns: f64) {
        match self.lane_for(server_index, request) {
            Some(lane) => {
                self.lanes[lane].advance(self.now_ns);
                self.lanes[lane].start(request, work_ns);
                self.retime(lane);
            }
            None => {
                let class = self.requests.class(request);
                let queue = self.servers[server_index].queue_of(&mut self.queues, class);
                queue.push(&mut self.requests, request);
            }
        }
    }

    /// The lane that takes a request at once, if any does.
    fn lane_for(&mut self, server_index: usize, request: u32) -> Option<usize> {
        let server = &self.servers[server_index];
        let first = server.first_lane as usize;
        let lanes = first..first + server.lanes as usize;
        let best = if server.discipline == Discipline::Sharing {
            // Where it progresses fastest; it stays there.
            pick(lanes, |lane| Some(self.lanes[lane].pace_of_next()))
        } else {
            pick(lanes, |lane| self.lanes[lane].has_free_core().then(|| self.lanes[lane].speed()))
        };
        if best.is_some() || server.discipline != Discipline::Preemptive {
            return best;
        }
        self.preempt(server_index, self.requests.class(request))
    }

    /// Takes a core from the least important running request, if it is less
    /// important than `class`; of equal ones from the one started last.
    fn preempt(&mut self, server_index: usize, class: u8) -> Option<usize> {
        let server = &self.servers[server_index];
        let lanes = server.first_lane..server.first_lane + server.lanes;
        let running = lanes.flat_map(|lane| {
            self.lanes[lane as usize].jobs().map(move |(request, start)| (request, start, lane))
        });
        let worst = running
            .max_by_key(|(request, start, lane)| (self.requests.class(*request), *start, *lane));
        let (victim, _, lane) = worst.filter(|worst| self.requests.class(worst.0) > class)?;
        let lane = lane as usize;
        self.lanes[lane].advance(self.now_ns);
        self.requests.get(victim).work_ns = self.lanes[lane].interrupt(victim);
        let class = self.requests.class(victim);
        let queue = self.servers[server_index].queue_of(&mut self.queues, class);
        queue.push_front(&mut self.requests, victim);
        Some(lane)
    }

    pub(super) fn retime(&mut self, lane: usize) {
        let next = self.lanes[lane].next_end_ns();
        self.set_clock(lane, next);
    }

    /// The clock of a lane went off: its first request is done there.
    #[inline(always)]
    pub(super) fn end_of_work(&mut self, lane_index: usize) {
        let lane = &mut self.lanes[lane_index];
        lane.advance(self.now_ns);
        let request = lane.finished();
        let record = self.requests.get(request);
        let (next_op, queued_ns) = (record.next_op, record.queued_ns);
        if record.keeps_core {
            self.keep_core(lane_index);
        } else {
            match self.depart(lane_index, queued_ns) {
                Some((next, work_ns)) => self.lanes[lane_index].succeed(next, work_ns),
                None => {
                    self.lanes[lane_index].finish();
                }
            }
            self.go_ahead(lane_index);
        }
        self.go_on(request, next_op);
    }

    /// A request that is done keeps its core until there is room for it elsewhere.
    #[inline(never)]
    fn keep_core(&mut self, lane_index: usize) {
        let lane = &mut self.lanes[lane_index];
        let request = lane.finish();
        lane.held += 1;
        self.requests.get(request).held_lane = lane_index as u32;
        self.retime(lane_index);
    }

    /// A request that arrived at `queued_ns` gives up its core of a lane; returns
    /// the one that takes it, with its work.
    #[inline(always)]
    fn depart(&mut self, lane_index: usize, queued_ns: u64) -> Option<(u32, f64)> {
        let server = &mut self.servers[self.lanes[lane_index].server as usize];
        server.count_departure(self.now_ns, queued_ns);
        let next = server.queue.pop(&self.requests);
        if next.is_some() || !server.has_classes() {
            return next;
        }
        let queues = &mut self.queues[server.first_queue as usize..][..self.classes];
        queues.iter_mut().find_map(|queue| queue.pop(&self.requests))
    }

    /// Sets the clock of a lane whose requests have changed.
    #[inline(always)]
    fn go_ahead(&mut self, lane_index: usize) {
        let lane = &self.lanes[lane_index];
        if let Some(first) = lane.ends_first() {
            self.requests.expect(first);
        }
        let next = lane.next_end_ns();
        self.set_clock(lane_index, next);
    }

    /// A request that kept its core gives it back.
    #[inline(never)]
    fn free_core(&mut self, request: u32) {
        let record = self.requests.get(request);
        let lane = std::mem::replace(&mut record.held_lane, NONE);
        let queued_ns = record.queued_ns;
        if lane == NONE {
            return;
        }
        let lane = lane as usize;
        debug_assert!(self.lanes[lane].held > 0, "the request holds a core of this lane");
        self.lanes[lane].held -= 1;
        self.lanes[lane].advance(self.now_ns);
        if let Some((next, work_ns)) = self.depart(lane, queued_ns) {
            self.lanes[lane].start(next, work_ns);
        }
        self.go_ahead(lane);
    }
}

/// The lane with the greatest value; of equal ones the first.
fn pick(lanes: std::ops::Range<usize>, value: impl Fn(usize) -> Option<f64>) -> Option<usize> {
    let mut best: Option<(f64, usize)> = None;
    for lane in lanes {
        if let Some(value) = value(lane)
            && best.is_none_or(|(most, _)| value > most)
        {
            best = Some((value, lane));
        }
    }
    best.map(|(_, lane)| lane)
}
