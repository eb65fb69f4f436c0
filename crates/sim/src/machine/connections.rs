//! The gated server: connections, each with a worker thread, behind the on-call gate.
//!
//! A connection's query waits at the gate, computes, waits for the storage device, computes
//! again and is answered; its client sends the next one after a round trip. An
//! [`Admission`](lull_control::admission::Admission) controller decides whom the gate admits.

use super::card::Packet;
use super::device::DeviceStep;
use super::gated::{GatedServer, Phase, Stage};
use super::{MachineSimulation, Timer};
use crate::order::round_ns;
use lull_control::admission::{Answered, Numbers, Pace, RoundSeen};
use lull_measure::Nanos;

impl MachineSimulation {
    pub(super) fn gated_mut(&mut self) -> &mut GatedServer {
        self.gated.as_mut().expect("only the gated server has connections")
    }

    /// All connections send their first query within one round trip.
    pub(super) fn start_connections(&mut self) {
        let Some(gated) = &mut self.gated else { return };
        let count = gated.connections.len();
        for index in 0..count {
            let gated = self.gated_mut();
            let trip = gated.draws.round_trip.sample(&mut gated.connections[index].works);
            // Spread first arrivals over one round trip, so that they are not simultaneous.
            let share = index as f64 / count as f64;
            self.set_timer(round_ns(trip * share), Timer::Arrival, index);
        }
    }

    /// A timer of the gated server is due.
    pub(super) fn gated_event(&mut self, timer: Timer, index: usize, sequence: u64) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        gated.pass(now_ns);
        match timer {
            Timer::Io => self.io_ends(index),
            Timer::Arrival => self.query_arrives(index),
            Timer::Device if gated.device_due == sequence => self.pump_device(),
            Timer::Gate if gated.gate_due == sequence => self.decide(),
            Timer::Look => self.look(index),
            Timer::Lease if gated.connections[index].lease == sequence => {
                gated.gate.lapse(index as u32);
                self.admit();
            }
            // Stale: the owner has been rescheduled since.
            _ => {}
        }
    }

    /// A connection sends its next query, whose demands are drawn now, so that
    /// every admission controller meets the same ones.
    fn query_arrives(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        gated.draw(index, now_ns);
        let app = gated.connections[index].app;
        self.apps[app].due(now_ns);
        self.receive(Packet::Query(index));
    }

    /// A query reaches the gate.
    pub(super) fn offer_query(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        gated.pass(now_ns);
        let runs = gated.gate.offer(index as u32);
        let starved = gated.phase == Phase::Starved;
        match (runs, starved) {
            (true, _) => self.begin_query(index, Nanos::ZERO),
            (false, true) => self.decide(),
            (false, false) => self.admit(),
        }
        self.begin_looks(index);
    }

    /// A query enters service.
    pub(super) fn begin_query(&mut self, index: usize, extra: Nanos) {
        let gated = self.gated_mut();
        gated.in_service += 1;
        gated.connections[index].stage = Stage::Before;
        let work = gated.connections[index].before;
        let intercept = if gated.gate.is_open() { Nanos::ZERO } else { gated.model.intercept };
        self.run_worker(index, work, (extra + intercept).0 as f64);
    }

    /// A worker becomes runnable with work, which the others inflate.
    fn run_worker(&mut self, index: usize, work: f64, extra: f64) {
        let gated = self.gated.as_ref().expect("only the gated server has workers");
        let mask = self.treatment(gated.connections[index].thread).mask;
        let cores = (mask & (u64::MAX >> (64 - self.cores.len()))).count_ones();
        let gated = self.gated_mut();
        let inflated = work * gated.model.contention.instructions_on(cores, gated.in_service);
        gated.sums.work += work;
        gated.sums.instructions += inflated;
        gated.runnable += 1;
        let thread = gated.connections[index].thread;
        self.threads[thread].left_ns = inflated + extra;
        self.place(thread, true);
    }

    /// A worker has done its work on a core.
    pub(super) fn worker_ends(&mut self, thread: usize) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        gated.pass(now_ns);
        debug_assert!(gated.runnable > 0, "a thread that ends its work was runnable");
        gated.runnable -= 1;
        let index = gated.of_thread[thread] as usize;
        match gated.connections[index].stage {
            Stage::After => return self.answer_query(index),
            Stage::Look => return self.looked(index),
            Stage::Before if !gated.connections[index].has_io() => return self.answer_query(index),
            _ => {}
        }
        gated.connections[index].stage = Stage::Io;
        gated.in_io += 1;
        gated.storage.submit(index as u32);
        self.note_io(thread, true);
        self.pump_device();
    }

    /// The device starts what it can.
    fn pump_device(&mut self) {
        let now_ns = self.now_ns;
        self.gated_mut().device_due = u64::MAX;
        loop {
            let gated = self.gated_mut();
            match gated.storage.next(now_ns) {
                DeviceStep::Start(index) => {
                    let io_ns = round_ns(gated.connections[index as usize].io);
                    self.set_timer(now_ns + io_ns, Timer::Io, index as usize);
                }
                DeviceStep::At(at_ns) => {
                    let due = self.set_timer(at_ns, Timer::Device, 0);
                    self.gated_mut().device_due = due;
                    return;
                }
                DeviceStep::Rest => return,
            }
        }
    }

    fn io_ends(&mut self, index: usize) {
        let gated = self.gated_mut();
        gated.storage.end();
        debug_assert!(gated.in_io > 0, "an I/O that ends was in flight");
        gated.in_io -= 1;
        gated.connections[index].stage = Stage::After;
        let (thread, work) = (gated.connections[index].thread, gated.connections[index].after);
        self.note_io(thread, false);
        self.run_worker(index, work, 0.0);
        self.pump_device();
    }

    /// A query is answered, and its client's next one is on its way.
    fn answer_query(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        debug_assert!(gated.in_service > 0, "an answered query was in service");
        gated.in_service -= 1;
        gated.queries -= 1;
        gated.sums.answers[index] += 1;
        let connection = &mut gated.connections[index];
        connection.stage = Stage::Outside;
        let (app, thread) = (connection.app, connection.thread);
        let arrived_ns = connection.arrived_ns;
        let trip = gated.draws.round_trip.sample(&mut connection.works);
        let latency = self.apps[app].record(now_ns, arrived_ns, 0);
        let answered = Answered { connection: index as u32, latency, queries: 1 };
        let gated = self.gated_mut();
        gated.answered.push(answered);
        gated.promises.record(index, latency, now_ns);
        self.transmit(self.threads[thread].core);
        self.set_timer(now_ns + round_ns(trip), Timer::Arrival, index);
        if self.gated_mut().gate.answered(index as u32) {
            let over_ns = now_ns + self.gated_mut().model.lease.0;
            let lease = self.set_timer(over_ns, Timer::Lease, index);
            self.gated_mut().connections[index].lease = lease;
        }
        self.admit();
    }

    /// Starts the turns that may start, and ends the round if it is over.
    fn admit(&mut self) {
        while let Some(index) = self.gated_mut().gate.admit() {
            let gated = self.gated_mut();
            gated.sums.gate.turns += u64::from(!gated.gate.is_open());
            let wake = gated.model.wake;
            if !self.waits_for_look(index as usize) {
                self.begin_query(index as usize, wake);
            }
        }
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        let Phase::Round(since_ns) = gated.phase else { return };
        if !gated.gate.round_is_over() {
            return;
        }
        gated.round = Some(RoundSeen {
            turns: gated.gate.turns,
            queries: gated.gate.answers,
            took: Nanos(now_ns - since_ns),
        });
        gated.phase = Phase::Rest;
        if let Pace::Rounds { pause, every: None, .. } = gated.gate.admission.pace {
            self.gate_timer(now_ns + pause.0);
        }
    }

    pub(super) fn gate_timer(&mut self, at_ns: u64) {
        let due = self.set_timer(at_ns, Timer::Gate, 0);
        self.gated_mut().gate_due = due;
    }

    /// Calls the admission controller and applies its decision.
    fn decide(&mut self) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        gated.decision(now_ns);
        match gated.gate.admission.pace {
            Pace::Open { again } | Pace::Flow { again } => {
                gated.phase = Phase::Rest;
                self.gate_timer(now_ns + again.0.max(1));
            }
            Pace::Rounds { turns, pause, every } => {
                self.start_round(turns, every.unwrap_or(pause), every.is_some());
            }
            Pace::Rests { pause, .. } => self.start_round(u32::MAX, pause, false),
        }
        self.admit();
    }

    /// Starts a round. If no connection can be listed, the round starts with the next
    /// query, or at the next decision if all waiting connections lack an allowance.
    fn start_round(&mut self, turns: u32, again: Nanos, overlaps: bool) {
        let now_ns = self.now_ns;
        let gated = self.gated_mut();
        let listed = gated.gate.start_round(turns.max(1));
        let is_empty = listed == 0 && gated.gate.running == 0;
        if is_empty && gated.gate.waiting.iter().all(|queries| *queries == 0) {
            gated.phase = Phase::Starved;
            return;
        }
        gated.phase = if is_empty { Phase::Rest } else { Phase::Round(now_ns) };
        gated.sums.gate.rounds += u64::from(!is_empty);
        if is_empty || overlaps {
            self.gate_timer(now_ns + again.0.max(100_000));
        }
    }

    /// Notifies the admission controller that a knob of the machine was set, or that an app
    /// arrived or departed.
    pub(super) fn note_machine_change(&mut self) {
        if let Some(gated) = &mut self.gated {
            gated.admission.machine_changed();
        }
    }

    /// Sets the numbers that the admission controller keeps. They take effect at once, or
    /// after the present round: a round ends with the numbers with which it began.
    pub(super) fn set_numbers(&mut self, numbers: Numbers) {
        let now_ns = self.now_ns;
        let Some(gated) = &mut self.gated else { return };
        let Some(kept) = gated.admission.numbers() else { return };
        *kept = numbers;
        if gated.phase == Phase::Rest {
            self.gate_timer(now_ns);
        }
    }

    /// A worker begins or ends to wait for I/O.
    fn note_io(&mut self, thread: usize, begins: bool) {
        let core = self.threads[thread].core;
        self.account(core);
        self.cores[core].supply.io(begins);
    }
}
