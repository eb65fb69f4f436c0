//! The gated server: connections, each with a worker thread, behind the on-call gate.
//!
//! A connection's query waits at the gate, computes, waits for the storage device, computes
//! again and is answered; its client sends the next one after a round trip, or clients at a
//! rate send the next one that is due. An
//! [`Admission`](lull_control::admission::Admission) controller decides whom the gate admits. A
//! machine may have several gates, each with workers, a device and a controller of its own.

use super::app::Work;
use super::card::Packet;
use super::device::DeviceStep;
use super::gated::{ConnectionId, GatedServer, Phase, Stage};
use super::open_queries::OpenQueries;
use super::{MachineSimulation, Timer};
use crate::order::round_ns;
use lull_control::admission::{Answered, GateLimits, Pace, RoundObservation};
use lull_measure::Nanos;

impl MachineSimulation {
    pub(super) fn gated_mut(&mut self, gate: usize) -> &mut GatedServer {
        &mut self.gated[gate]
    }

    /// The number at its gate of a connection with this number among those of all gates.
    fn connection(&self, number: usize) -> ConnectionId {
        let gate = self.gated.partition_point(|gated| gated.first <= number) - 1;
        ConnectionId { gate, index: number - self.gated[gate].first }
    }

    /// Schedules a timer of a connection. Returns its sequence number.
    pub(super) fn set_query_timer(&mut self, at_ns: u64, timer: Timer, id: ConnectionId) -> u64 {
        let number = self.gated[id.gate].first + id.index;
        self.set_timer(at_ns, timer, number)
    }

    /// All connections whose clients wait for answers send their first query within one round
    /// trip.
    pub(super) fn start_connections(&mut self) {
        for gate in 0..self.gated.len() {
            if self.gated[gate].open.is_some() {
                continue;
            }
            let count = self.gated[gate].connections.len();
            for index in 0..count {
                let gated = self.gated_mut(gate);
                let trip = gated.draws.round_trip.sample(&mut gated.connections[index].works);
                // Spread first arrivals over one round trip, so that they are not simultaneous.
                let share = index as f64 / count as f64;
                let id = ConnectionId { gate, index };
                self.set_query_timer(round_ns(trip * share), Timer::Arrival, id);
            }
        }
    }

    /// A timer of a gated server is due.
    pub(super) fn gated_event(&mut self, timer: Timer, number: usize, sequence: u64) {
        let id = match timer {
            Timer::Device | Timer::Gate => ConnectionId { gate: number, index: 0 },
            _ => self.connection(number),
        };
        let now_ns = self.now_ns;
        let gated = self.gated_mut(id.gate);
        gated.pass(now_ns);
        match timer {
            Timer::Io => self.io_ends(id),
            Timer::Arrival if gated.open.is_none() => self.query_arrives(id),
            Timer::Arrival if gated.freed(id.index) => self.receive(Packet::Query(id)),
            Timer::Device if gated.device_due == sequence => self.pump_device(id.gate),
            Timer::Gate if gated.gate_due == sequence => self.decide(id.gate),
            Timer::Look => self.look(id),
            Timer::Lease if gated.connections[id.index].lease == sequence => {
                gated.gate.end_lease(id.index as u32);
                self.admit(id.gate);
            }
            // Stale: the owner has been rescheduled since.
            _ => {}
        }
    }

    /// A connection sends its next query, whose demands are drawn now, so that
    /// every admission controller meets the same ones.
    fn query_arrives(&mut self, id: ConnectionId) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut(id.gate);
        gated.draw(id.index, now_ns);
        let app = gated.connections[id.index].app;
        self.apps[app].due(now_ns);
        self.receive(Packet::Query(id));
    }

    /// A query of clients at a rate is due.
    pub(super) fn query_due(&mut self, app: usize, gate: usize) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut(gate);
        gated.pass(now_ns);
        let sent_on = gated.due(now_ns);
        self.apps[app].due(now_ns);
        if let Some(index) = sent_on {
            self.receive(Packet::Query(ConnectionId { gate, index }));
        }
    }

    /// When the next query of an app is due whose clients send at a rate.
    pub(super) fn next_query_ns(&mut self, app: usize) -> Option<u64> {
        let Work::Connections { gate } = self.apps[app].work else { return None };
        self.gated_mut(gate).open.as_mut().map(OpenQueries::next_ns)
    }

    /// A query reaches the gate.
    pub(super) fn offer_query(&mut self, id: ConnectionId) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut(id.gate);
        gated.pass(now_ns);
        let runs = gated.gate.offer(id.index as u32);
        let starved = gated.phase == Phase::Starved;
        match (runs, starved) {
            (true, _) => self.begin_query(id, Nanos::ZERO),
            (false, true) => self.decide(id.gate),
            (false, false) => self.admit(id.gate),
        }
        self.begin_looks(id);
    }

    /// A query enters service.
    pub(super) fn begin_query(&mut self, id: ConnectionId, extra: Nanos) {
        let gated = self.gated_mut(id.gate);
        gated.in_service += 1;
        gated.connections[id.index].stage = Stage::Before;
        let work = gated.connections[id.index].query.before;
        let intercept = if gated.gate.is_open() { Nanos::ZERO } else { gated.model.intercept };
        self.run_worker(id, work, (extra + intercept).0 as f64);
    }

    /// A worker becomes runnable with work, which the others inflate.
    fn run_worker(&mut self, id: ConnectionId, work: f64, extra: f64) {
        let mask = self.treatment(self.gated[id.gate].connections[id.index].thread).mask;
        let cores = (mask & (u64::MAX >> (64 - self.cores.len()))).count_ones();
        let gated = self.gated_mut(id.gate);
        let inflated = work * gated.model.contention.instructions_on(cores, gated.in_service);
        gated.sums.work += work;
        gated.sums.instructions += inflated;
        gated.runnable += 1;
        let thread = gated.connections[id.index].thread;
        self.threads[thread].left_ns = inflated + extra;
        self.place(thread, true);
    }

    /// A worker has done its work on a core.
    pub(super) fn worker_ends(&mut self, thread: usize) {
        let now_ns = self.now_ns;
        let Work::Connections { gate } = self.apps[self.threads[thread].app].work else { return };
        let gated = self.gated_mut(gate);
        gated.pass(now_ns);
        debug_assert!(gated.runnable > 0, "a thread that ends its work was runnable");
        gated.runnable -= 1;
        let id = ConnectionId { gate, index: gated.of_thread[thread] as usize };
        match gated.connections[id.index].stage {
            Stage::After => return self.answer_query(id),
            Stage::Look => return self.looked(id),
            Stage::Before if !gated.connections[id.index].has_io() => return self.answer_query(id),
            _ => {}
        }
        gated.connections[id.index].stage = Stage::Io;
        gated.in_io += 1;
        gated.storage.submit(id.index as u32);
        self.note_io(thread, true);
        self.pump_device(id.gate);
    }

    /// The device starts all I/Os that it can.
    fn pump_device(&mut self, gate: usize) {
        let now_ns = self.now_ns;
        self.gated_mut(gate).device_due = u64::MAX;
        loop {
            let gated = self.gated_mut(gate);
            match gated.storage.next(now_ns) {
                DeviceStep::Start(index) => {
                    let id = ConnectionId { gate, index: index as usize };
                    let io_ns = round_ns(gated.connections[id.index].query.io);
                    self.set_query_timer(now_ns + io_ns, Timer::Io, id);
                }
                DeviceStep::At(at_ns) => {
                    let due = self.set_timer(at_ns, Timer::Device, gate);
                    self.gated_mut(gate).device_due = due;
                    return;
                }
                DeviceStep::Rest => return,
            }
        }
    }

    fn io_ends(&mut self, id: ConnectionId) {
        let gated = self.gated_mut(id.gate);
        gated.storage.end();
        debug_assert!(gated.in_io > 0, "an I/O that ends was in flight");
        gated.in_io -= 1;
        gated.connections[id.index].stage = Stage::After;
        let connection = &gated.connections[id.index];
        let (thread, work) = (connection.thread, connection.query.after);
        self.note_io(thread, false);
        self.run_worker(id, work, 0.0);
        self.pump_device(id.gate);
    }

    /// A query is answered, and its client's next one is on its way.
    fn answer_query(&mut self, id: ConnectionId) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut(id.gate);
        debug_assert!(gated.in_service > 0, "an answered query was in service");
        gated.in_service -= 1;
        gated.queries -= 1;
        gated.sums.answers[id.index] += 1;
        let connection = &mut gated.connections[id.index];
        connection.stage = Stage::Outside;
        let (app, thread) = (connection.app, connection.thread);
        let arrived_ns = connection.query.arrived_ns;
        let trip = gated.draws.round_trip.sample(&mut connection.works);
        let latency = self.apps[app].record(now_ns, arrived_ns, 0);
        let answered = Answered { connection: id.index as u32, latency, queries: 1 };
        let gated = self.gated_mut(id.gate);
        gated.answered.push(answered);
        let number = gated.first + id.index;
        self.groups.record(number, latency, now_ns);
        self.transmit(self.threads[thread].core);
        self.set_timer(now_ns + round_ns(trip), Timer::Arrival, number);
        if self.gated_mut(id.gate).gate.answered(id.index as u32) {
            let over_ns = now_ns + self.gated_mut(id.gate).model.lease.0;
            let lease = self.set_timer(over_ns, Timer::Lease, number);
            self.gated_mut(id.gate).connections[id.index].lease = lease;
        }
        self.admit(id.gate);
    }

    /// Starts the turns that may start, and ends the round if it is over.
    fn admit(&mut self, gate: usize) {
        while let Some(index) = self.gated_mut(gate).gate.admit() {
            let gated = self.gated_mut(gate);
            gated.sums.gate.turns += u64::from(!gated.gate.is_open());
            let wake = gated.model.wake;
            let id = ConnectionId { gate, index: index as usize };
            if !self.waits_for_look(id) {
                self.begin_query(id, wake);
            }
        }
        let now_ns = self.now_ns;
        let gated = self.gated_mut(gate);
        let Phase::Round(since_ns) = gated.phase else { return };
        if !gated.gate.round_is_over() {
            return;
        }
        gated.round = Some(RoundObservation {
            turns: gated.gate.turns,
            queries: gated.gate.answers,
            took: Nanos(now_ns - since_ns),
        });
        gated.phase = Phase::Rest;
        if let Pace::Rounds { pause, every: None, .. } = gated.gate.admission.pace {
            self.gate_timer(gate, now_ns + pause.0);
        }
    }

    pub(super) fn gate_timer(&mut self, gate: usize, at_ns: u64) {
        let due = self.set_timer(at_ns, Timer::Gate, gate);
        self.gated_mut(gate).gate_due = due;
    }

    /// Calls the admission controller and applies its decision.
    fn decide(&mut self, gate: usize) {
        self.pass_survey_turn(gate);
        let now_ns = self.now_ns;
        let gated = self.gated_mut(gate);
        gated.decision(now_ns);
        match gated.gate.admission.pace {
            Pace::Open { again } | Pace::Flow { again } => {
                gated.phase = Phase::Rest;
                self.gate_timer(gate, now_ns + again.0.max(1));
            }
            Pace::Rounds { turns, pause, every } => {
                self.start_round(gate, turns, every.unwrap_or(pause), every.is_some());
            }
            Pace::Rests { pause, .. } => self.start_round(gate, u32::MAX, pause, false),
        }
        self.admit(gate);
    }

    /// Lets one gate at a time compare settings, because each changes what the others measure. A
    /// gate alone always may.
    fn pass_survey_turn(&mut self, gate: usize) {
        if self.gated.len() < 2 {
            return;
        }
        let admission = &mut self.gated[gate].admission;
        let holder = self.surveyed.filter(|holder| *holder != gate);
        self.surveyed = holder.or(admission.wants_survey().then_some(gate));
        admission.allow_survey(self.surveyed == Some(gate));
    }

    /// Ends the turn of a gate that decides nothing until a query arrives.
    fn end_survey_turn(&mut self, gate: usize) {
        if self.surveyed == Some(gate) {
            self.surveyed = None;
            self.gated[gate].admission.allow_survey(false);
        }
    }

    /// Starts a round. If no connection can be listed, the round starts with the next
    /// query, or at the next decision if all waiting connections lack an allowance.
    fn start_round(&mut self, gate: usize, turns: u32, again: Nanos, overlaps: bool) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut(gate);
        let listed = gated.gate.start_round(turns.max(1));
        let is_empty = listed == 0 && gated.gate.running == 0;
        if is_empty && gated.gate.waiting.iter().all(|queries| *queries == 0) {
            gated.phase = Phase::Starved;
            self.end_survey_turn(gate);
            return;
        }
        gated.phase = if is_empty { Phase::Rest } else { Phase::Round(now_ns) };
        gated.sums.gate.rounds += u64::from(!is_empty);
        if is_empty || overlaps {
            self.gate_timer(gate, now_ns + again.0.max(100_000));
        }
    }

    /// Notifies the admission controllers that a knob of the machine was set, or that an app
    /// arrived or departed.
    pub(super) fn note_machine_change(&mut self) {
        self.gated.iter_mut().for_each(|gated| gated.admission.machine_changed());
    }

    /// Sets the numbers that the admission controller of a gate keeps. They take effect at once,
    /// or after the present round: a round ends with the numbers with which it began.
    pub(super) fn set_numbers(&mut self, gate: usize, numbers: GateLimits) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut(gate);
        let Some(kept) = gated.admission.numbers() else { return };
        *kept = numbers;
        if gated.phase == Phase::Rest {
            self.gate_timer(gate, now_ns);
        }
    }

    /// A worker begins or ends to wait for I/O.
    fn note_io(&mut self, thread: usize, begins: bool) {
        let core = self.threads[thread].core;
        self.account(core);
        self.cores[core].supply.io(begins);
    }
}
