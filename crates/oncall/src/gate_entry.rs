//! The gate's entry for a connection: the state of its worker.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of a connection in its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

impl Id {
    /// Returns the number as an index. The caller checks it against the length of its table.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The worker neither waits nor holds a slot.
const IDLE: u32 = 0;
/// The worker waits for a slot; other threads may change the word.
const WAITING: u32 = 1;
/// The worker may run without a slot.
const LET_GO: u32 = 2;
/// The worker holds a slot, whose number is in the bits from [`SLOT_SHIFT`] on.
const ADMITTED: u32 = 3;
/// The worker rests until a query arrives; other threads may change the word.
const RESTING: u32 = 4;
const STATE_MASK: u32 = 0xff;
const SLOT_SHIFT: u32 = 8;
/// Slots are numbered below this.
pub(crate) const SLOTS_MAX: usize = 1 << (u32::BITS - SLOT_SHIFT);

/// Encodes a number of queries: 0 is `None`, so that zeroed memory sets no limit.
fn encode(queries: Option<u32>) -> u32 {
    queries.map_or(0, |queries| queries.saturating_add(1))
}

/// Decodes what [`encode`] returned.
const fn decode(word: u32) -> Option<u32> {
    word.checked_sub(1)
}

/// The word of a worker that holds this slot.
fn admitted(slot: usize) -> u32 {
    debug_assert!(slot < SLOTS_MAX, "slot {slot} does not fit the word of an entry");
    ADMITTED | (slot as u32) << SLOT_SHIFT
}

/// The state of the worker of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Resting,
    Waiting,
    LetGo,
    Admitted { slot: usize },
}

/// One connection's part of the gate, in one cache line.
///
/// Only its worker changes `word`, with two exceptions, each one atomic step: the thread that
/// admits a *waiting* worker or lets it go, and the thread that makes a *resting* worker
/// *waiting* since a query has arrived, or lets it go.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct GateEntry {
    /// The word that its worker sleeps on.
    word: AtomicU32,
    /// The last round in which it has no turn.
    round: AtomicU32,
    /// Queries left of this turn.
    tokens: AtomicU32,
    /// Queries of one turn, encoded; `None` is the gate's batch.
    budget: AtomicU32,
    /// Queries that turns may still take until the agent's next decision, encoded; `None` is
    /// no limit.
    left: AtomicU32,
    /// 1 if it is admitted before others, where connections are ranked.
    first: AtomicU32,
    /// When it began to wait.
    waiting_since_ns: AtomicU64,
    /// The number of its client's class.
    client_class: AtomicU32,
    /// Its place in the queue of that class, plus one; 0 if it has none.
    ticket: AtomicU64,
}

impl GateEntry {
    /// Returns the word that the worker sleeps on, and its value while the worker sleeps.
    pub fn word(&self) -> (&AtomicU32, u32) {
        (&self.word, if self.is_resting() { RESTING } else { WAITING })
    }

    /// Whether its worker rests now.
    pub fn is_resting(&self) -> bool {
        self.state() == State::Resting
    }

    /// Whether its worker waits now.
    pub fn is_waiting(&self) -> bool {
        self.state() == State::Waiting
    }

    /// Whether its worker was admitted and has not ended its turn.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        matches!(self.state(), State::Admitted { .. })
    }

    /// Returns when its worker last began to wait, in nanoseconds of the gate's clock.
    pub fn waiting_since_ns(&self) -> u64 {
        self.waiting_since_ns.load(Ordering::Relaxed)
    }

    /// Returns the queries of one turn; `None` is the gate's batch.
    pub fn budget(&self) -> Option<u32> {
        decode(self.budget.load(Ordering::Relaxed))
    }

    /// Sets the queries of one turn (N_k): 0 makes it miss its turns, `None` is the gate's
    /// batch. A caller that raises it from 0 pumps the gate afterwards.
    pub fn set_budget(&self, queries: Option<u32>) {
        self.budget.store(encode(queries), Ordering::Relaxed);
    }

    /// Returns the queries that its turns may still take until the agent's next decision;
    /// `None` is no limit.
    pub fn left(&self) -> Option<u32> {
        decode(self.left.load(Ordering::Acquire))
    }

    /// Applies the agent's decision: the queries of one turn ([`GateEntry::set_budget`]), and
    /// the queries of all turns until the next decision (`None`: no limit). A turn takes its
    /// queries from these when it begins and returns none; with none left, turns are missed.
    /// A caller that gives queries to a connection that had none pumps the gate afterwards.
    pub fn allow(&self, batch: Option<u32>, queries: Option<u32>) {
        self.set_budget(batch);
        // Written last, so that a thread that reads the budget has the new one. A swap and not a
        // store, since it must be ordered with a worker's use of it meanwhile.
        self.left.swap(encode(queries), Ordering::AcqRel);
    }

    /// Whether a turn that began now would have a query.
    pub(crate) fn has_queries(&self) -> bool {
        self.left() != Some(0) && self.budget() != Some(0)
    }

    /// Whether it is admitted before others, where [`Settings::ranks`](crate::Settings) is set.
    pub fn goes_first(&self) -> bool {
        self.first.load(Ordering::Relaxed) == 1
    }

    /// Sets whether it is admitted before others.
    pub fn set_first(&self, first: bool) {
        self.first.store(u32::from(first), Ordering::Relaxed);
    }

    /// Returns the number of its client's class, which may be any.
    pub fn client_class(&self) -> usize {
        self.client_class.load(Ordering::Relaxed) as usize
    }

    /// Sets the class of its client, by its own worker. It counts from its next wait on.
    pub fn set_client_class(&self, class: u32) {
        self.client_class.store(class, Ordering::Relaxed);
    }

    /// Returns its ticket in the queue of its class, if it has drawn one in this wait.
    pub(crate) fn ticket(&self) -> Option<u64> {
        self.ticket.load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn set_ticket(&self, ticket: u64) {
        self.ticket.store(ticket.wrapping_add(1), Ordering::Release);
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        match self.word.load(Ordering::Acquire) {
            // Compared as a whole word: a state that no step matches would never end.
            WAITING => State::Waiting,
            RESTING => State::Resting,
            LET_GO => State::LetGo,
            word if word & STATE_MASK == ADMITTED => {
                State::Admitted { slot: (word >> SLOT_SHIFT) as usize }
            }
            _ => State::Idle,
        }
    }

    pub(crate) fn wait_from(&self, now_ns: u64, past_round: u32) {
        self.round.store(past_round, Ordering::Relaxed);
        self.waiting_since_ns.store(now_ns, Ordering::Relaxed);
        self.ticket.store(0, Ordering::Relaxed);
        self.word.store(WAITING, Ordering::Release);
    }

    pub(crate) fn past_round(&self) -> u32 {
        self.round.load(Ordering::Relaxed)
    }

    /// Changes a state that other threads may change. Returns `false` if it is another one.
    fn step(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends a worker's wait. Returns `false` if it does not wait.
    fn end_wait(&self, to: u32) -> bool {
        self.step(WAITING, to)
    }

    /// Begins a rest, by its own worker.
    pub(crate) fn rest(&self) {
        self.word.store(RESTING, Ordering::Release);
    }

    /// Ends a rest, by its own worker. Returns `false` if a query arrived or the worker was let
    /// go meanwhile.
    pub(crate) fn end_rest(&self) -> bool {
        self.step(RESTING, IDLE)
    }

    /// Makes a resting worker wait, since a query has arrived. Returns `false` if it does not
    /// rest. The times are written first, since a thread that sees it wait reads them. If it
    /// does not rest after all, they are a little newer than its own.
    pub(crate) fn end_rest_by_query(&self, now_ns: u64, past_round: u32) -> bool {
        if !self.is_resting() {
            return false;
        }
        self.round.store(past_round, Ordering::Relaxed);
        self.waiting_since_ns.store(now_ns, Ordering::Relaxed);
        self.ticket.store(0, Ordering::Relaxed);
        self.step(RESTING, WAITING)
    }

    /// Gives a waiting worker a slot. Returns `false` if it no longer waits.
    pub(crate) fn admit(&self, slot: usize) -> bool {
        self.end_wait(admitted(slot))
    }

    /// Lets a waiting or resting worker run without a slot. Returns `false` if it no longer does
    /// either.
    pub(crate) fn let_go(&self) -> bool {
        // In between the state may change from resting to waiting, and never back by itself.
        self.step(RESTING, LET_GO) || self.end_wait(LET_GO)
    }

    /// Ends a wait, by its own worker. Returns `false` if it was admitted or let go meanwhile.
    pub(crate) fn stop_waiting(&self) -> bool {
        self.end_wait(IDLE)
    }

    /// Takes a slot without waiting, by its own worker.
    pub(crate) fn take(&self, slot: usize) {
        self.word.store(admitted(slot), Ordering::Release);
    }

    /// Makes an admitted worker that has no turn wait again, by the worker itself.
    pub(crate) fn keep_waiting(&self) {
        self.word.store(WAITING, Ordering::Release);
    }

    /// Ends a turn, by its own worker.
    pub(crate) fn clear(&self) {
        self.word.store(IDLE, Ordering::Release);
    }

    /// Begins a turn, by its own worker, with as many queries as it may have. Returns `false` if
    /// that is none.
    ///
    /// Only its worker takes of what is left, and only the agent writes a new number. If the
    /// agent writes during this call, the turn was the last one of the former decision, from
    /// which it has its queries: the new number holds in full for later turns, and the step is
    /// not retried. If the agent writes the same number, the turn is the first one of the new
    /// decision.
    pub(crate) fn begin_turn(&self, batch: u32) -> bool {
        let left = self.left.load(Ordering::Acquire);
        let most = decode(left).unwrap_or(u32::MAX);
        let queries = self.budget().unwrap_or(batch).min(most);
        if queries > 0 && left > 0 {
            debug_assert!(left > queries, "a turn takes at most what is left");
            let (taken, order) = (left - queries, Ordering::Relaxed);
            let _ = self.left.compare_exchange(left, taken, order, order);
        }
        self.tokens.store(queries, Ordering::Relaxed);
        queries > 0
    }

    /// Uses one query of the turn. Returns whether any is left.
    pub(crate) fn spend_token(&self) -> bool {
        let left = self.tokens.load(Ordering::Relaxed).saturating_sub(1);
        self.tokens.store(left, Ordering::Relaxed);
        left > 0
    }

    /// Resets the entry for a new connection.
    pub(crate) fn reset(&self) {
        self.clear();
        self.allow(None, None);
        self.set_first(false);
        self.set_client_class(0);
        self.tokens.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn an_entry_is_one_cache_line() {
        assert_eq!((size_of::<GateEntry>(), align_of::<GateEntry>()), (64, 64));
    }

    #[test]
    fn a_turn_takes_at_most_its_budget_of_what_is_left() {
        let entry = GateEntry::default();
        assert!(entry.begin_turn(4), "without limit");
        assert_eq!((entry.left(), entry.tokens.load(Ordering::Relaxed)), (None, 4));
        entry.allow(Some(2), Some(5));
        for (left, tokens) in [(3, 2), (1, 2), (0, 1)] {
            assert!(entry.has_queries() && entry.begin_turn(4));
            let seen = (entry.left(), entry.tokens.load(Ordering::Relaxed));
            assert_eq!(seen, (Some(left), tokens));
        }
        assert!(!entry.has_queries() && !entry.begin_turn(4));
        assert_eq!(entry.left(), Some(0), "none is taken of none");
        entry.allow(None, Some(u32::MAX));
        assert!(entry.begin_turn(4) && entry.left() > Some(u32::MAX - 8));
        entry.allow(Some(0), None);
        assert!(!entry.has_queries() && !entry.begin_turn(4));
        entry.reset();
        assert_eq!((entry.budget(), entry.left()), (None, None));
    }

    #[test]
    fn a_word_that_this_program_cannot_have_written_delays_no_worker() {
        for state in [WAITING, RESTING, LET_GO] {
            let entry =
                GateEntry { word: AtomicU32::new(1 << SLOT_SHIFT | state), ..GateEntry::default() };
            assert_eq!(entry.state(), State::Idle, "{state}");
            assert!(!entry.is_waiting() && !entry.is_resting());
        }
        let entry = GateEntry::default();
        entry.take(7);
        assert_eq!(entry.state(), State::Admitted { slot: 7 });
    }
}
