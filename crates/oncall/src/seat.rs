//! A connection's place in the gate: does it wait, may it run, with which slot.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Number of a connection in its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

impl Id {
    /// As an index, which is still to be checked against the table it is for.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// It neither waits nor holds a slot.
const IDLE: u32 = 0;
/// It waits for a slot; others may change the word.
const WAITING: u32 = 1;
/// It was told to run without a slot.
const LET_GO: u32 = 2;
/// It holds a slot, whose number stands above [`SLOT_SHIFT`].
const ADMITTED: u32 = 3;
/// It rests until a query comes; others may change the word.
const RESTING: u32 = 4;
const STATE_MASK: u32 = 0xff;
const SLOT_SHIFT: u32 = 8;

/// A number of queries as it stands in a seat, where zeros are none that was set.
fn written(queries: Option<u32>) -> u32 {
    queries.map_or(0, |queries| queries.saturating_add(1))
}

/// What was [`written`].
const fn number(word: u32) -> Option<u32> {
    word.checked_sub(1)
}

/// What a seat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Idle,
    Resting,
    Waiting,
    LetGo,
    Admitted { slot: usize },
}

/// One connection's part of the gate, a cache line.
///
/// Only its worker changes `word`, but for *waiting*, which whoever admits it
/// or lets it go takes away in one step, and *resting*, which whoever says that
/// a query has come makes *waiting*.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Seat {
    /// The word that its worker sleeps on.
    word: AtomicU32,
    /// The last round that is past for it: it has no turn in that one.
    round: AtomicU32,
    /// What is left of this turn's queries.
    tokens: AtomicU32,
    /// Queries a turn: 0 as the gate's batch, else one more than the number.
    budget: AtomicU32,
    /// Queries that turns may still take until the agent's next decision: 0
    /// without limit, else one more than the number.
    left: AtomicU32,
    /// 1 if it goes before those without, where there are ranks.
    first: AtomicU32,
    /// When it began to wait.
    asked_ns: AtomicU64,
}

impl Seat {
    /// The word to sleep on, and its value while it is to be slept on.
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
    pub fn is_admitted(&self) -> bool {
        matches!(self.state(), State::Admitted { .. })
    }

    /// When its worker began to wait, if it waits, in nanoseconds of the gate's clock.
    pub fn asked_ns(&self) -> u64 {
        self.asked_ns.load(Ordering::Relaxed)
    }

    /// Queries that it may run a turn; `None` as the gate's batch.
    pub fn budget(&self) -> Option<u32> {
        number(self.budget.load(Ordering::Relaxed))
    }

    /// Sets how many queries it may run a turn (n_k); 0 makes it miss its
    /// turns, `None` is the gate's batch. Who raises it from 0 pumps the gate after.
    pub fn set_budget(&self, queries: Option<u32>) {
        self.budget.store(written(queries), Ordering::Relaxed);
    }

    /// Queries that its turns may still take until the agent's next decision;
    /// `None` without limit.
    pub fn left(&self) -> Option<u32> {
        number(self.left.load(Ordering::Acquire))
    }

    /// The agent's decision: so many queries a turn ([`Seat::set_budget`]), and
    /// so many in all until the next decision, `None` without limit. A turn takes
    /// its queries from these as it begins, and what it does not use does not
    /// come back; with none left, turns are missed. Who gives queries to one
    /// that had none pumps the gate after.
    pub fn allow(&self, batch: Option<u32>, queries: Option<u32>) {
        self.set_budget(batch);
        // Last: who sees what is left sees how much of it a turn may take. A swap,
        // not a store, for it is in order with what a worker takes meanwhile.
        self.left.swap(written(queries), Ordering::AcqRel);
    }

    /// Whether a turn that began now would have a query.
    pub(crate) fn has_queries(&self) -> bool {
        self.left() != Some(0) && self.budget() != Some(0)
    }

    /// Whether it goes before those without, where [`Settings::ranks`](crate::Settings) says so.
    pub fn goes_first(&self) -> bool {
        self.first.load(Ordering::Relaxed) == 1
    }

    /// Says whether it goes before those without.
    pub fn set_first(&self, first: bool) {
        self.first.store(u32::from(first), Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> State {
        match self.word.load(Ordering::Acquire) {
            // Exactly: what no step of ours takes away would never end.
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
        self.asked_ns.store(now_ns, Ordering::Relaxed);
        self.word.store(WAITING, Ordering::Release);
    }

    pub(crate) fn past_round(&self) -> u32 {
        self.round.load(Ordering::Relaxed)
    }

    /// One step from a state that others may change; `false` if it is another.
    fn step(&self, from: u32, to: u32) -> bool {
        self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes a waiting worker's wait away; `false` if it does not wait.
    fn leave_wait(&self, to: u32) -> bool {
        self.step(WAITING, to)
    }

    /// Its own worker rests.
    pub(crate) fn rest(&self) {
        self.word.store(RESTING, Ordering::Release);
    }

    /// Its own worker rests no more; `false` if a query came or it was let go meanwhile.
    pub(crate) fn rise(&self) -> bool {
        self.step(RESTING, IDLE)
    }

    /// A query has come for a resting worker, which waits from now on; `false`
    /// if it does not rest. The times are written first: whoever sees it wait
    /// reads them. If it does not rest after all, they are a little newer than
    /// its own.
    pub(crate) fn ask(&self, now_ns: u64, past_round: u32) -> bool {
        if !self.is_resting() {
            return false;
        }
        self.round.store(past_round, Ordering::Relaxed);
        self.asked_ns.store(now_ns, Ordering::Relaxed);
        self.step(RESTING, WAITING)
    }

    /// Gives a waiting worker a slot; `false` if it does not wait any more.
    pub(crate) fn admit(&self, slot: usize) -> bool {
        self.leave_wait(ADMITTED | (slot as u32) << SLOT_SHIFT)
    }

    /// Lets a waiting or resting worker run without a slot; `false` if it does neither any more.
    pub(crate) fn let_go(&self) -> bool {
        // It may go from resting to waiting in between, and never back by itself.
        self.step(RESTING, LET_GO) || self.leave_wait(LET_GO)
    }

    /// Its own worker stops waiting; `false` if it was admitted or let go meanwhile.
    pub(crate) fn give_up(&self) -> bool {
        self.leave_wait(IDLE)
    }

    /// Its own worker takes a slot without waiting.
    pub(crate) fn take(&self, slot: usize) {
        self.word.store(ADMITTED | (slot as u32) << SLOT_SHIFT, Ordering::Release);
    }

    /// Its own worker was admitted, has no turn after all, and waits on.
    pub(crate) fn wait_on(&self) {
        self.word.store(WAITING, Ordering::Release);
    }

    /// Its own worker ends its turn.
    pub(crate) fn clear(&self) {
        self.word.store(IDLE, Ordering::Release);
    }

    /// Its own worker begins a turn with as many queries as it may have;
    /// `false` if that is none.
    ///
    /// Only its worker takes of what is left, and only the agent writes it
    /// anew. If the agent does so in the middle of this, the turn was the last
    /// of the decision before, of which it had its queries: what was written is
    /// whole for those to come, and nothing is to be tried again. Where the
    /// agent writes the same number, the turn is the first of the new decision.
    pub(crate) fn begin_turn(&self, batch: u32) -> bool {
        let left = self.left.load(Ordering::Acquire);
        let most = number(left).unwrap_or(u32::MAX);
        let queries = self.budget().unwrap_or(batch).min(most);
        if queries > 0 && left > 0 {
            let (taken, order) = (left - queries, Ordering::Relaxed);
            let _ = self.left.compare_exchange(left, taken, order, order);
        }
        self.tokens.store(queries, Ordering::Relaxed);
        queries > 0
    }

    /// Takes one token; whether any is left.
    pub(crate) fn spend(&self) -> bool {
        let left = self.tokens.load(Ordering::Relaxed).saturating_sub(1);
        self.tokens.store(left, Ordering::Relaxed);
        left > 0
    }

    /// For a new connection: nothing of the last one stays.
    pub(crate) fn reset(&self) {
        self.clear();
        self.allow(None, None);
        self.set_first(false);
        self.tokens.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(loom))]
    #[test]
    fn a_seat_is_one_cache_line() {
        assert_eq!((size_of::<Seat>(), align_of::<Seat>()), (64, 64));
    }

    #[test]
    fn a_turn_takes_what_it_may_have_of_what_is_left() {
        let seat = Seat::default();
        assert!(seat.begin_turn(4), "without limit");
        assert_eq!((seat.left(), seat.tokens.load(Ordering::Relaxed)), (None, 4));
        seat.allow(Some(2), Some(5));
        for (left, tokens) in [(3, 2), (1, 2), (0, 1)] {
            assert!(seat.has_queries() && seat.begin_turn(4));
            let seen = (seat.left(), seat.tokens.load(Ordering::Relaxed));
            assert_eq!(seen, (Some(left), tokens));
        }
        assert!(!seat.has_queries() && !seat.begin_turn(4));
        assert_eq!(seat.left(), Some(0), "none is taken of none");
        seat.allow(None, Some(u32::MAX));
        assert!(seat.begin_turn(4) && seat.left() > Some(u32::MAX - 8));
        seat.allow(Some(0), None);
        assert!(!seat.has_queries() && !seat.begin_turn(4));
        seat.reset();
        assert_eq!((seat.budget(), seat.left()), (None, None));
    }

    #[test]
    fn a_word_that_nobody_of_ours_wrote_holds_no_worker_up() {
        for state in [WAITING, RESTING, LET_GO] {
            let seat = Seat { word: AtomicU32::new(1 << SLOT_SHIFT | state), ..Seat::default() };
            assert_eq!(seat.state(), State::Idle, "{state}");
            assert!(!seat.is_waiting() && !seat.is_resting());
        }
        let seat = Seat::default();
        seat.take(7);
        assert_eq!(seat.state(), State::Admitted { slot: 7 });
    }
}
