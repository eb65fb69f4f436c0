//! The network card: a vector a core, moderated interrupts, and polling that takes core time.
//!
//! A packet reaches the vector that its connection is hashed to, always the same one. The vector
//! interrupts as soon as the delay since its last interrupt is over, and stays masked while the
//! core polls.
//! Polling comes before every thread: the one that runs on the core continues when the round is
//! over, and a core without one wakes for it. Received requests and queries then continue as if
//! they had arrived without a card. Event loops, whose cores step on their own, have vectors and
//! drivers of the same kind (`loops.rs`).

use super::MachineSimulation;
use super::Timer;
use super::gated::ConnectionId;
use super::parts::Card;
use super::queue::Task;
use crate::moderation::Moderation;
use crate::order::round_ns;
use crate::replication::{Stream, split_mix};
use crate::vector::{Round, Vector, VectorTotals};
use lull_measure::Nanos;
use rand::Rng;

/// The content of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Packet {
    /// A request of an app.
    Request(usize, Task),
    /// A query of this connection.
    Query(ConnectionId),
}

/// The card of a machine.
#[derive(Debug, Clone)]
pub(super) struct CardState {
    model: Card,
    /// One vector a core.
    vectors: Vec<Vector<Packet>>,
    /// The key of the hash.
    key: u64,
    /// The delay that a policy has set; `None` while the driver chooses it.
    pub(super) delay: Option<Nanos>,
}

impl CardState {
    pub(super) fn new(model: &Card, cores: usize, mut hash: Stream) -> Self {
        let vectors = vec![Vector::new(model.moderation); cores];
        Self { model: model.clone(), vectors, key: hash.next_u64(), delay: None }
    }

    /// Sets the delay of all vectors, or returns it to the driver. Returns whether it was in
    /// force already, in which case the vectors keep the state of their moderation.
    pub(super) fn set_delay(&mut self, wanted: Option<Nanos>) -> bool {
        if std::mem::replace(&mut self.delay, wanted) == wanted {
            return true;
        }
        let kind = self.moderation();
        for vector in &mut self.vectors {
            vector.set_moderation(kind);
        }
        false
    }

    /// How interrupts are delayed now.
    pub(super) fn moderation(&self) -> Moderation {
        self.delay.map_or(self.model.moderation, Moderation::Fixed)
    }

    /// Interrupts and packets of all vectors.
    pub(super) fn totals(&self) -> VectorTotals {
        let mut sum = VectorTotals::default();
        self.vectors.iter().for_each(|vector| sum.add(&vector.totals()));
        sum
    }

    /// The vector of a packet: connections are hashed to buckets, buckets dealt to cores in
    /// turn (receive-side scaling).
    fn vector_of(&self, packet: &Packet) -> usize {
        let flow = match packet {
            Packet::Query(id) => (id.gate as u64) << 48 | id.index as u64,
            Packet::Request(_, task) => (task.owner as u64 + 1) << 32 | u64::from(task.connection),
        };
        let bucket = split_mix(&mut (self.key ^ flow)) % u64::from(self.model.buckets);
        bucket as usize % self.vectors.len()
    }
}

impl MachineSimulation {
    fn card_mut(&mut self) -> &mut CardState {
        self.card.as_mut().expect("only a card has packets")
    }

    /// A packet reaches the card, or its receiver at once if there is none.
    pub(super) fn receive(&mut self, packet: Packet) {
        let Some(card) = &mut self.card else { return self.deliver(packet) };
        let core = card.vector_of(&packet);
        card.vectors[core].receive(packet, card.model.request_bytes);
        self.arm(core);
    }

    /// A reply leaves from a core.
    pub(super) fn transmit(&mut self, core: usize) {
        let Some(card) = &mut self.card else { return };
        card.vectors[core].send(1, card.model.reply_bytes);
        if card.model.tx_interrupts {
            self.arm(core);
        }
    }

    /// Schedules an interrupt for as soon as the vector may interrupt.
    fn arm(&mut self, core: usize) {
        let now_ns = self.now_ns;
        if let Some(at_ns) = self.card_mut().vectors[core].arm(now_ns) {
            self.set_timer(at_ns, Timer::Interrupt, core);
        }
    }

    /// A vector interrupts its core, which begins to poll.
    pub(super) fn interrupt(&mut self, core: usize) {
        let now_ns = self.now_ns;
        let card = self.card_mut();
        card.vectors[core].interrupt(now_ns);
        let entry = card.model.interrupt;
        self.poll(core, entry);
    }

    /// A round of polling, after this much other core time.
    fn poll(&mut self, core: usize, entry: Nanos) {
        let card = self.card_mut();
        let Card { budget, receive, clean, .. } = card.model;
        let Round { received, cleaned } = card.vectors[core].begin_round(budget);
        let span = entry + receive * u64::from(received) + clean * u64::from(cleaned);
        let end_ns = self.take_time(core, span);
        self.set_timer(end_ns, Timer::Round, core);
    }

    /// Takes core time before every thread. Returns when it is over.
    fn take_time(&mut self, core: usize, span: Nanos) -> u64 {
        self.credit(core);
        self.account(core);
        let now_ns = self.now_ns;
        let state = &mut self.cores[core];
        let span_ns = round_ns(span.0 as f64 / state.supply.speed).max(1);
        let awake_ns = match state.current {
            None if self.hardware.sleeps() => state.supply.rouse(&self.hardware, now_ns),
            _ => now_ns,
        };
        state.polls_until_ns = awake_ns.max(state.polls_until_ns) + span_ns;
        if state.current.is_none() {
            state.busy.set(now_ns, 1);
        } else {
            state.since_ns = state.since_ns.max(now_ns) + span_ns;
            state.polls_until_ns = state.polls_until_ns.min(state.since_ns);
        }
        let end_ns = state.polls_until_ns;
        self.retime(core);
        end_ns
    }

    /// Ends a round of polling: its packets continue, and the core polls again or unmasks.
    pub(super) fn end_round(&mut self, core: usize) {
        while let Some(packet) = self.card_mut().vectors[core].take_received() {
            self.deliver(packet);
        }
        let now_ns = self.now_ns;
        let card = self.card_mut();
        let cleans = card.model.tx_interrupts;
        if card.vectors[core].end_round(now_ns, cleans) {
            return self.poll(core, Nanos::ZERO);
        }
        if self.cores[core].current.is_some() {
            return;
        }
        self.rest(core);
    }

    /// A packet reaches its app. Requests of an app that has departed since are gone.
    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Query(id) => self.offer_query(id),
            Packet::Request(app, task) if self.apps[task.owner].life == task.life => {
                self.submit(app, task);
            }
            Packet::Request(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::MachineModel;

    /// Cores whose vectors have interrupted, with this many clients that wait for answers.
    fn interrupted(clients: u32) -> usize {
        let text = format!(
            r#"
            name = "four cores"
            cores = 4
            frequency = "2GHz"

            [card]
            moderation = {{ fixed = "10us" }}
            delay-max = "1ms"
            delay-step = "2us"
            buckets = 128
            budget = 64
            tx-interrupts = false
            interrupt = "2us"
            receive = "1us"
            clean = "300ns"
            request-bytes = 100
            reply-bytes = 1000

            [[app]]
            name = "search"
            threads = 4
            [app.activity.requests]
            work = {{ mean = "100us" }}
            closed = {{ clients = {clients}, think = {{ mean = "1ms" }} }}
            "#
        );
        let model: MachineModel = toml::from_str(&text).unwrap();
        let mut machine = MachineSimulation::new(&model, 1, 0).unwrap();
        machine.run_until(Nanos::from_secs(1));
        assert!(machine.totals().apps[0].answered > 500);
        let vectors = &machine.card.as_ref().unwrap().vectors;
        vectors.iter().filter(|vector| vector.totals().interrupts > 0).count()
    }

    #[test]
    fn all_packets_of_a_connection_reach_one_core() {
        assert_eq!(interrupted(1), 1);
        assert_eq!(interrupted(64), 4, "and many connections reach all");
    }
}
