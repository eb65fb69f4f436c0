//! A vector of a network card: received packets, interrupts and the rounds of polling that
//! they begin, as every machine with a card has them (Linux: NAPI).
//!
//! A vector interrupts its core as soon as the delay since its last interrupt is over. It
//! then stays masked while the core polls in rounds, each of which takes at most a budget of
//! packets. The vector knows neither core nor costs: its owner schedules what [`Vector::arm`]
//! returns and says when a round is over.

use crate::moderation::{Moderation, Moderator, PacketCounts};
use crate::order::NEVER_NS;
use std::collections::VecDeque;

/// A vector that receives packets of a type.
#[derive(Debug, Clone)]
pub(crate) struct Vector<P> {
    ring: VecDeque<P>,
    /// Packets sent that have not been cleaned up.
    sent: u32,
    /// Packets that the present round still receives.
    round: u32,
    /// Packets since the moderator last looked, by direction.
    rx: PacketCounts,
    tx: PacketCounts,
    moderator: Moderator,
    masked: bool,
    /// When it may interrupt again.
    open_ns: u64,
    /// When it interrupts; `NEVER_NS` if no interrupt is scheduled.
    due_ns: u64,
    totals: VectorTotals,
}

/// The packets that a round of polling takes from a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Round {
    /// Packets that it receives.
    pub(crate) received: u32,
    /// Sent packets that it cleans up.
    pub(crate) cleaned: u32,
}

/// Interrupts and packets of a vector since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VectorTotals {
    pub(crate) interrupts: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
}

impl VectorTotals {
    /// Packets in both directions.
    pub(crate) fn packets(&self) -> u64 {
        self.received + self.sent
    }

    /// Adds the totals of another vector.
    pub(crate) fn add(&mut self, other: &Self) {
        self.interrupts += other.interrupts;
        self.received += other.received;
        self.sent += other.sent;
    }
}

impl<P> Vector<P> {
    /// A vector that may interrupt at once.
    pub(crate) fn new(kind: Moderation) -> Self {
        Self {
            ring: VecDeque::new(),
            sent: 0,
            round: 0,
            rx: PacketCounts::NONE,
            tx: PacketCounts::NONE,
            moderator: Moderator::new(kind),
            masked: false,
            open_ns: 0,
            due_ns: NEVER_NS,
            totals: VectorTotals::default(),
        }
    }

    /// Moderates interrupts in another way, from the next one on.
    pub(crate) fn set_moderation(&mut self, kind: Moderation) {
        self.moderator = Moderator::new(kind);
    }

    /// Least time between two interrupts.
    #[inline]
    pub(crate) fn delay_ns(&self) -> u64 {
        self.moderator.delay_ns()
    }

    /// When it interrupts; `NEVER_NS` if no interrupt is scheduled.
    #[inline(always)]
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Packets that no round has received yet, in order of arrival.
    #[inline]
    pub(crate) fn ring(&self) -> &VecDeque<P> {
        &self.ring
    }

    /// Packets that the present round still receives.
    #[inline]
    pub(crate) fn round(&self) -> u32 {
        self.round
    }

    /// Packets received and sent since polling last ended.
    pub(crate) fn counts(&self) -> (PacketCounts, PacketCounts) {
        (self.rx, self.tx)
    }

    /// Interrupts and packets since the start.
    #[inline]
    pub(crate) fn totals(&self) -> VectorTotals {
        self.totals
    }

    /// A packet of this size reaches the card.
    #[inline]
    pub(crate) fn receive(&mut self, packet: P, bytes: u32) {
        self.totals.received += 1;
        self.rx.add(1, bytes);
        self.ring.push_back(packet);
    }

    /// This many packets of a size leave.
    #[inline]
    pub(crate) fn send(&mut self, packets: u32, bytes: u32) {
        self.totals.sent += u64::from(packets);
        self.tx.add(packets, bytes);
        self.sent += packets;
    }

    /// Schedules an interrupt for as soon as the vector may interrupt. Returns when that is, or
    /// `None` if it is masked or an interrupt is scheduled already.
    #[inline]
    pub(crate) fn arm(&mut self, now_ns: u64) -> Option<u64> {
        if self.masked || self.due_ns != NEVER_NS {
            return None;
        }
        self.due_ns = now_ns.max(self.open_ns);
        Some(self.due_ns)
    }

    /// Interrupts its core, which begins to poll.
    #[inline]
    pub(crate) fn interrupt(&mut self, now_ns: u64) {
        debug_assert!(!self.masked, "a core that polls is not interrupted");
        (self.due_ns, self.masked) = (NEVER_NS, true);
        self.open_ns = now_ns + self.moderator.delay_ns();
        self.totals.interrupts += 1;
    }

    /// Begins a round of polling that receives at most `budget` packets.
    #[inline]
    pub(crate) fn begin_round(&mut self, budget: u32) -> Round {
        self.round = (self.ring.len() as u32).min(budget);
        Round { received: self.round, cleaned: std::mem::take(&mut self.sent) }
    }

    /// Takes the next packet that the present round receives.
    #[inline]
    pub(crate) fn take_received(&mut self) -> Option<P> {
        self.round = self.round.checked_sub(1)?;
        self.ring.pop_front()
    }

    /// A round is over, whose packets have been taken. Returns whether the core polls again;
    /// otherwise the vector may interrupt again. `cleans` is whether sent packets wait for a
    /// round.
    #[inline]
    pub(crate) fn end_round(&mut self, now_ns: u64, cleans: bool) -> bool {
        if self.has_work(cleans) {
            return true;
        }
        self.unmask(now_ns);
        false
    }

    /// Whether packets wait for a round; `cleans` is whether sent ones do.
    #[inline]
    fn has_work(&self, cleans: bool) -> bool {
        !self.ring.is_empty() || (self.sent > 0 && cleans)
    }

    /// Ends polling whatever waits, which interrupts again.
    pub(crate) fn end_polling(&mut self, now_ns: u64, cleans: bool) {
        self.unmask(now_ns);
        if self.has_work(cleans) {
            self.arm(now_ns);
        }
    }

    /// Updates the moderator with the packets that polling received and sent, and lets the vector
    /// interrupt.
    #[inline]
    fn unmask(&mut self, now_ns: u64) {
        self.moderator.update(now_ns, self.rx, self.tx);
        (self.rx, self.tx) = (PacketCounts::NONE, PacketCounts::NONE);
        self.masked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Nanos;

    fn vector() -> Vector<u32> {
        Vector::new(Moderation::Fixed(Nanos(1000)))
    }

    #[test]
    fn packets_that_wait_when_polling_ends_interrupt_after_the_delay() {
        let mut vector = vector();
        vector.receive(7, 100);
        vector.arm(50);
        vector.interrupt(50);
        assert_eq!(vector.begin_round(64).received, 1);
        assert_eq!(vector.take_received(), Some(7));
        vector.receive(8, 100);
        vector.end_polling(80, true);
        assert_eq!(vector.due_ns(), 1050, "a delay after the last interrupt");
        vector.interrupt(1050);
        assert_eq!(vector.begin_round(64).received, 1);
        assert_eq!(vector.take_received(), Some(8));
        vector.end_polling(1080, true);
        assert_eq!(vector.due_ns(), NEVER_NS, "nothing waits");
    }

    #[test]
    fn interrupts_are_a_delay_apart_and_none_is_scheduled_while_the_core_polls() {
        let mut vector = vector();
        vector.receive(7, 100);
        assert_eq!(vector.arm(50), Some(50));
        assert_eq!(vector.arm(60), None, "one is scheduled");
        assert_eq!(vector.due_ns(), 50);
        vector.interrupt(50);
        assert_eq!((vector.arm(70), vector.due_ns()), (None, NEVER_NS), "it is masked");
        assert_eq!(vector.begin_round(64), Round { received: 1, cleaned: 0 });
        assert_eq!((vector.take_received(), vector.take_received()), (Some(7), None));
        assert!(!vector.end_round(80, true));
        assert_eq!(vector.arm(90), Some(1050), "1000 ns after the last interrupt");
        assert_eq!(vector.totals(), VectorTotals { interrupts: 1, received: 1, sent: 0 });
    }

    #[test]
    fn a_round_takes_at_most_its_budget_and_another_follows_for_the_rest() {
        let mut vector = vector();
        (0..5).for_each(|packet| vector.receive(packet, 100));
        vector.interrupt(0);
        assert_eq!(vector.begin_round(3).received, 3);
        let first: Vec<u32> = std::iter::from_fn(|| vector.take_received()).collect();
        assert_eq!(first, [0, 1, 2], "packets beyond the budget stay");
        assert!(vector.end_round(10, true));
        assert_eq!(vector.begin_round(3).received, 2);
        let rest: Vec<u32> = std::iter::from_fn(|| vector.take_received()).collect();
        assert_eq!(rest, [3, 4]);
        assert!(!vector.end_round(20, true));
    }

    #[test]
    fn sent_packets_are_cleaned_up_once_and_call_for_a_round_where_they_interrupt() {
        let mut vector = vector();
        vector.interrupt(0);
        assert_eq!(vector.begin_round(64), Round { received: 0, cleaned: 0 });
        vector.send(2, 300);
        assert_eq!(vector.counts().1.bytes, 600);
        assert!(vector.end_round(10, true), "a card whose sent packets interrupt polls on");
        assert_eq!(vector.begin_round(64), Round { received: 0, cleaned: 2 });
        assert!(!vector.end_round(20, true));
        vector.send(1, 300);
        assert!(!vector.end_round(30, false), "other cards clean up with the next interrupt");
        assert_eq!(vector.totals().packets(), 3);
    }
}
