//! Assigning slots to waiting workers, round the ring of connections.

use super::{Gate, Wake};
use crate::control::{Settings, Turn, count};
use crate::gate_entry::{GateEntry, Id};
use crate::lease::Held;
use crate::sync::{AtomicU64, Ordering, fence};

const BITS: usize = 64;

/// The search that finds the waiting workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Search {
    /// Every word of the ring is read.
    Full,
    /// No ring is read if the shared count shows no waiting worker. The count may be wrong, so a
    /// worker that waits itself never uses this search.
    Counted,
}

impl Gate<'_> {
    /// Assigns free slots to waiting workers. If the gate is open, lets all of them run.
    ///
    /// Workers pump when they arrive and end their turns. The agent pumps after it has changed
    /// a setting, and periodically for leases and pauses that expire.
    pub fn pump(&self, now_ns: u64, wake: &impl Wake) {
        self.pump_by(Search::Full, now_ns, wake);
    }

    pub(super) fn pump_by(&self, search: Search, now_ns: u64, wake: &impl Wake) {
        let settings = self.control.settings();
        loop {
            // Of two threads that pump at once, at least one reads what the other wrote before its
            // fence, and acts on it.
            fence(Ordering::SeqCst);
            if !self.control.is_closed(now_ns) {
                self.release_all(wake);
                return;
            }
            let turn = self.control.ring.turn();
            if turn.pause_until(now_ns, settings.pause_ns()).is_some() {
                return;
            }
            match self.next_waiter(search, turn, &settings) {
                None if self.end_round(search, turn, &settings, now_ns) => {}
                None => return,
                Some(_) if !self.has_slot(&settings, now_ns) => return,
                Some(id) => self.assign_slot(id, turn, &settings, now_ns, wake),
            }
        }
    }

    /// Gives a slot to a waiting worker; enqueues it again if no slot is free after all.
    fn assign_slot(&self, id: Id, turn: Turn, settings: &Settings, now_ns: u64, wake: &impl Wake) {
        if !self.dequeue(id) {
            return;
        }
        let Some((slot, held)) = self.take_slot(id, settings, now_ns) else {
            self.enqueue(id);
            return;
        };
        if !self.goes_first(id, settings) {
            // Prioritised connections leave the cursor where it was.
            self.control.ring.set_cursor(id.index() + 1);
        }
        if let Some(entry) = self.entry(id).filter(|entry| entry.admit(slot)) {
            if !turn.has_begun() {
                self.control.ring.change(turn, turn.begun());
            }
            count(&self.control.counts.admissions);
            if let Some(queues) = self.queues() {
                queues.classes.charge(entry);
            }
            wake.wake(id, entry);
        } else if let Some(lease) = self.slots.get(slot) {
            lease.free(held);
        }
    }

    /// Takes a slot below C: a free one, else one whose lease has expired.
    pub(super) fn take_slot(
        &self,
        id: Id,
        settings: &Settings,
        now_ns: u64,
    ) -> Option<(usize, Held)> {
        let cap = self.cap(settings);
        debug_assert!(self.entry(id).is_some(), "{id:?} has no entry");
        // Each worker begins at another slot, so that they do not all try the same.
        let order = || (0..cap).map(|step| (id.index() + step) % cap);
        let take = |slot: usize, is_fit: &dyn Fn(Held) -> bool| {
            let lease = &self.slots[slot];
            let seen = lease.read();
            let held = if is_fit(seen) { lease.take(seen, id.0, now_ns) } else { None };
            held.map(|held| (slot, held))
        };
        let free = order().find_map(|slot| take(slot, &|held: Held| held.is_free()));
        free.or_else(|| {
            let is_over = |held: Held| held.is_over(now_ns, settings.slot_lease_ns);
            let taken = order().find_map(|slot| take(slot, &is_over));
            if taken.is_some() {
                count(&self.control.counts.overruns);
            }
            taken
        })
    }

    fn cap(&self, settings: &Settings) -> usize {
        (settings.cap as usize).min(self.slots.len())
    }

    fn has_slot(&self, settings: &Settings, now_ns: u64) -> bool {
        let slots = &self.slots[..self.cap(settings)];
        slots.iter().any(|slot| slot.read().is_over(now_ns, settings.slot_lease_ns))
    }

    /// Returns the next waiting worker that has a turn: by its class, or from the cursor on.
    /// Where connections are ranked, a prioritised one comes first.
    fn next_waiter(&self, search: Search, turn: Turn, settings: &Settings) -> Option<Id> {
        let is_skipped = search == Search::Counted && self.control.waiters() == 0;
        if is_skipped || self.waiting.is_empty() {
            return None;
        }
        let has_turn = |id: Id| self.has_turn(id, turn, settings);
        let first = |id: Id| self.goes_first(id, settings) && has_turn(id);
        let first = if settings.ranks { self.find_waiter(first) } else { None };
        // A worker without a valid ticket is found in the ring, so that none waits for ever.
        first.or_else(|| self.next_by_class(has_turn)).or_else(|| self.find_waiter(has_turn))
    }

    fn next_by_class(&self, has_turn: impl Fn(Id) -> bool) -> Option<Id> {
        let is_valid = |id: Id, ticket: u64| {
            let is_waiting =
                |(word, bit): (&AtomicU64, u64)| word.load(Ordering::Acquire) & bit != 0;
            self.entry(id).and_then(GateEntry::ticket) == Some(ticket)
                && self.bit(id).is_some_and(is_waiting)
        };
        self.queues()?.next(is_valid, has_turn)
    }

    fn goes_first(&self, id: Id, settings: &Settings) -> bool {
        settings.ranks && self.entry(id).is_some_and(GateEntry::goes_first)
    }

    /// Returns the first waiting worker from the cursor on for which `is_fit` holds.
    fn find_waiter(&self, is_fit: impl Fn(Id) -> bool) -> Option<Id> {
        let words = self.waiting.len();
        let cursor = self.control.ring.cursor() % (words * BITS);
        let (first, bit) = (cursor / BITS, cursor % BITS);
        let from_cursor = u64::MAX << bit;
        (0..=words).find_map(|step| {
            let at = (first + step) % words;
            let bits = self.waiting[at].load(Ordering::Acquire);
            // The word of the cursor is read twice: its end first, its beginning last.
            let bits = match step {
                0 => bits & from_cursor,
                _ if step == words => bits & !from_cursor,
                _ => bits,
            };
            let mut ids = BitsOf(bits).map(|bit| Id((at * BITS + bit) as u32));
            ids.find(|id| is_fit(*id))
        })
    }

    fn has_turn(&self, id: Id, turn: Turn, settings: &Settings) -> bool {
        let Some(entry) = self.entry(id) else {
            // No worker waits without an entry: the bit was not set by this program.
            self.dequeue(id);
            return false;
        };
        let is_past = !settings.joins && entry.past_round() == turn.round();
        entry.has_queries() && !is_past
    }

    /// Ends a round in which no waiting worker has a turn. Returns `false` if it continues.
    ///
    /// With a pause, the round ends when the last worker has ended its turn, and then the
    /// pause begins. Without one, the next round begins while the last workers still run, if a
    /// worker waits for it.
    fn end_round(&self, search: Search, turn: Turn, settings: &Settings, now_ns: u64) -> bool {
        let has_pause = settings.pause_ns() > 0;
        if !turn.has_begun() || (settings.joins && !has_pause) {
            return false;
        }
        let goes_on = if has_pause {
            self.active(now_ns) > 0
        } else {
            self.next_waiter(search, turn.next(0), settings).is_none()
        };
        if goes_on {
            return false;
        }
        let begins_ns = if has_pause { now_ns.saturating_add(settings.pause_ns()) } else { 0 };
        if self.control.ring.change(turn, turn.next(begins_ns)) {
            count(&self.control.counts.rounds);
        }
        true
    }

    fn release_all(&self, wake: &impl Wake) {
        for id in self.all_waiters() {
            self.dequeue(id);
            if let Some(entry) = self.entry(id).filter(|entry| entry.let_go()) {
                count(&self.control.counts.let_go);
                wake.wake(id, entry);
            }
        }
    }

    /// Pumps, and lets workers run that have waited for the longest time allowed: for workers
    /// that sleep until they are called and do not check by themselves.
    pub fn release_expired(&self, now_ns: u64, wake: &impl Wake) {
        self.pump(now_ns, wake);
        for id in self.all_waiters() {
            let Some(entry) = self.entry(id) else { continue };
            if entry.is_waiting() && self.is_expired(entry, now_ns) && entry.let_go() {
                self.dequeue(id);
                count(&self.control.counts.expired);
                wake.wake(id, entry);
            }
        }
    }

    fn all_waiters(&self) -> impl Iterator<Item = Id> + '_ {
        self.waiting.iter().enumerate().flat_map(|(at, word)| {
            BitsOf(word.load(Ordering::Acquire)).map(move |bit| Id((at * BITS + bit) as u32))
        })
    }

    /// Returns the number of waiting workers, from the ring itself.
    pub fn count_waiters(&self) -> u32 {
        self.waiting.iter().map(|word| word.load(Ordering::Acquire).count_ones()).sum()
    }

    /// Corrects the shared count of waiting workers.
    ///
    /// The agent calls this when it attaches and once a second. Calls that change the count
    /// meanwhile may make the correction wrong until the next one: with a count of 0 a waiting
    /// worker runs at its own next check instead of at the end of a turn.
    pub fn recount_waiters(&self) {
        let before = self.control.ring.waiters.load(Ordering::Relaxed);
        let now = self.count_waiters();
        if before != now {
            // A call that has changed the count meanwhile has the newer one.
            let _ = self.control.ring.waiters.compare_exchange(
                before,
                now,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Adds a waiting connection to the ring again if a process that died has lost it. For
    /// connections without a worker that checks the gate at its deadlines.
    pub fn requeue(&self, id: Id) {
        if self.entry(id).is_some_and(GateEntry::is_waiting) {
            self.enqueue(id);
        }
    }

    /// Adds a connection to the waiting ones, if it is not there.
    pub(super) fn enqueue(&self, id: Id) {
        let Some((word, bit)) = self.bit(id) else { return };
        // The worker has stored before that it waits. If it finds its bit set while another
        // thread clears it, that thread finds the worker waiting.
        fence(Ordering::SeqCst);
        if word.load(Ordering::Relaxed) & bit != 0 {
            self.push(id);
            return;
        }
        // The count rises before the bit is set, so that no thread finds the ring empty
        // while a connection is in it.
        self.control.ring.waiters.fetch_add(1, Ordering::Relaxed);
        if word.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            self.control.ring.waiters.fetch_sub(1, Ordering::Relaxed);
        }
        self.push(id);
    }

    /// Adds a connection whose bit is set to the queue of its class, if it is not there: by now
    /// each thread finds it in the ring at least.
    fn push(&self, id: Id) {
        if let (Some(queues), Some(entry)) = (self.queues(), self.entry(id)) {
            queues.push(id, entry);
        }
    }

    /// Removes a connection from the waiting ones. Returns whether it was there.
    pub(super) fn dequeue(&self, id: Id) -> bool {
        let Some((word, bit)) = self.bit(id) else { return false };
        let was_there = word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0;
        if was_there {
            self.control.ring.waiters.fetch_sub(1, Ordering::Relaxed);
            // As in `enqueue`: the caller reads the entry after this.
            fence(Ordering::SeqCst);
        }
        was_there
    }

    fn bit(&self, id: Id) -> Option<(&AtomicU64, u64)> {
        Some((self.waiting.get(id.index() / BITS)?, 1 << (id.index() % BITS)))
    }
}

/// Iterates over the numbers of the bits that are set, lowest first.
struct BitsOf(u64);

impl Iterator for BitsOf {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0.checked_sub(1)?;
        Some(bit)
    }
}
