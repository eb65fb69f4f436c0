//! Classes of clients: which class's connection has the next free slot.
//!
//! Each class has a weight, an order and a share that it always gets. Of the classes with
//! waiting connections
//!
//! 1. one that has had no turn for as long as its least share allows comes first,
//! 2. then those of the lowest order (strict priority),
//! 3. and among these the one with the earliest start tag: start-time fair queueing (Goyal,
//!    Vin and Cheng 1996) with one turn as the unit of work. A class whose connections have
//!    not waited has saved no credit.
//!
//! Within a class, connections are served in the order in which they began to wait. Each class
//! has a queue of *tickets*: a ring of connections' numbers, with two counters that only rise.
//! The queue is a hint: the bitmap of the gate says which connections wait, and a waiting
//! connection without a valid ticket is found there. So a process that is killed between two
//! steps, or a program that overwrites the queue, changes the order and strands no worker.
//!
//! Class 0 holds all connections that no rule names. Without classes ([`ClientClasses::count`]
//! is 0) the gate serves the ring of connections.

use crate::gate_entry::{GateEntry, Id};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The number of classes, with the one of all other clients.
pub const CLIENT_CLASSES: usize = 8;
/// Orders are numbered below this.
pub const CLIENT_ORDERS: usize = 8;
/// The largest weight of a class.
pub const CLIENT_WEIGHT_MAX: u32 = 1000;
/// The largest number of turns within which a class has one.
pub const CLIENT_TURN_WITHIN_MAX: u32 = 10_000;

/// The virtual time of a turn of a class of weight 1.
const TURN_COST: u64 = 1 << 24;

/// How a class of clients is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassShare {
    /// Its share of turns in proportion to the other classes of its order, 1 to
    /// [`CLIENT_WEIGHT_MAX`].
    pub weight: u32,
    /// Classes of a lower order are served before it; below [`CLIENT_ORDERS`].
    pub order: u32,
    /// While its connections wait, the class has one of this many turns whatever its order; at most
    /// [`CLIENT_TURN_WITHIN_MAX`].
    pub turn_within: u32,
}

impl Default for ClassShare {
    fn default() -> Self {
        Self { weight: 1, order: 0, turn_within: 100 }
    }
}

impl ClassShare {
    /// Returns the share of a class that has at least `least_share` of the turns while it waits; a
    /// fraction of a turn is rounded in its favour. `None` if a number is out of its range.
    pub fn new(weight: u32, order: u32, least_share: f64) -> Option<Self> {
        let is_sound = (1..=CLIENT_WEIGHT_MAX).contains(&weight)
            && (order as usize) < CLIENT_ORDERS
            && (1.0 / f64::from(CLIENT_TURN_WITHIN_MAX)..=1.0).contains(&least_share);
        // One turn within fewer turns is a larger share.
        is_sound.then(|| Self { weight, order, turn_within: (1.0 / least_share) as u32 })
    }
}

/// One class: its share, and the state of its queue.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct ClientClass {
    weight: AtomicU32,
    order: AtomicU32,
    turn_within: AtomicU32,
    /// The number of all turns when it had its last one.
    last_turn: AtomicU32,
    /// The virtual time at which its last turn ends.
    finish: AtomicU64,
    /// The oldest ticket that may be valid, and the next one.
    head: AtomicU64,
    tail: AtomicU64,
    /// Turns begun, those without a wait included.
    turns: AtomicU64,
}

/// The classes of a gate.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ClientClasses {
    /// The number of classes; 0 if the gate has none.
    count: AtomicU32,
    /// Turns that began after a wait.
    turns: AtomicU32,
    /// The virtual time of each order.
    clocks: [AtomicU64; CLIENT_ORDERS],
    classes: [ClientClass; CLIENT_CLASSES],
}

impl ClientClass {
    fn order(&self) -> usize {
        (self.order.load(Ordering::Relaxed) as usize).min(CLIENT_ORDERS - 1)
    }

    /// Returns the virtual time of one of its turns.
    fn cost(&self) -> u64 {
        TURN_COST / u64::from(self.weight.load(Ordering::Relaxed).clamp(1, CLIENT_WEIGHT_MAX))
    }

    /// Returns when its next turn begins in the virtual time of its order, which is `clock`.
    /// That is at most the cost of one turn ahead: any other time was not written by this
    /// program, and must not make the class wait.
    fn start(&self, clock: u64) -> u64 {
        clock.wrapping_add(self.ahead(self.finish.load(Ordering::Relaxed), clock))
    }

    fn ahead(&self, finish: u64, clock: u64) -> u64 {
        let ahead = finish.wrapping_sub(clock).cast_signed();
        u64::try_from(ahead).map_or(0, |ahead| ahead.min(self.cost()))
    }

    /// Returns by how many turns the class is past its least share, if it is; `turns` is the number
    /// of all.
    fn overdue(&self, turns: u32) -> Option<u32> {
        let within = self.turn_within.load(Ordering::Relaxed).clamp(1, CLIENT_TURN_WITHIN_MAX);
        let since = turns.wrapping_sub(self.last_turn.load(Ordering::Relaxed));
        (since.wrapping_add(1)).checked_sub(within)
    }
}

impl ClientClasses {
    /// Returns the number of classes, with that of all other clients; 0 if there are none.
    pub fn count(&self) -> usize {
        (self.count.load(Ordering::Acquire) as usize).min(CLIENT_CLASSES)
    }

    /// Sets the classes; the first is that of all other clients, and none turns them off.
    /// Returns `false` if there are more than [`CLIENT_CLASSES`].
    pub fn set(&self, shares: &[ClassShare]) -> bool {
        for (class, share) in self.classes.iter().zip(shares) {
            class.weight.store(share.weight, Ordering::Relaxed);
            class.order.store(share.order, Ordering::Relaxed);
            class.turn_within.store(share.turn_within, Ordering::Relaxed);
            class.last_turn.store(self.turns.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.count.store(shares.len().min(CLIENT_CLASSES) as u32, Ordering::Release);
        shares.len() <= CLIENT_CLASSES
    }

    /// Returns how a class is served; `None` beyond the last.
    pub fn share(&self, at: usize) -> Option<ClassShare> {
        let class = self.classes.get(at).filter(|_| at < self.count())?;
        Some(ClassShare {
            weight: class.weight.load(Ordering::Relaxed),
            order: class.order.load(Ordering::Relaxed),
            turn_within: class.turn_within.load(Ordering::Relaxed),
        })
    }

    /// Returns the turns that a class has begun since the page was made; 0 beyond the last.
    pub fn turns(&self, at: usize) -> u64 {
        self.classes.get(at).map_or(0, |class| class.turns.load(Ordering::Relaxed))
    }

    /// Returns the class of an entry, and its number: a number that does not exist is 0.
    fn class_of(&self, entry: &GateEntry) -> (usize, &ClientClass) {
        let at = Some(entry.client_class()).filter(|at| *at < self.count()).unwrap_or(0);
        (at, &self.classes[at])
    }

    /// Counts a turn that began without a wait: no class waited, so that it costs nothing.
    pub(crate) fn count_turn(&self, entry: &GateEntry) {
        if self.count() > 0 {
            self.class_of(entry).1.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Charges a turn that began after a wait to its class.
    pub(crate) fn charge(&self, entry: &GateEntry) {
        if self.count() == 0 {
            return;
        }
        let (_, class) = self.class_of(entry);
        let clock = &self.clocks[class.order()];
        let now = clock.load(Ordering::Relaxed);
        let start = class.start(now);
        let after = |finish: u64| {
            let start = now.wrapping_add(class.ahead(finish, now));
            Some(start.wrapping_add(class.cost()))
        };
        let _ = class.finish.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        let turns = self.turns.fetch_add(1, Ordering::Relaxed);
        if class.overdue(turns).is_none() {
            // A turn out of order does not advance the time of the others.
            let later = |clock: u64| (start.wrapping_sub(clock).cast_signed() > 0).then_some(start);
            let _ = clock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        }
        class.last_turn.store(turns.wrapping_add(1), Ordering::Relaxed);
        class.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the class that is served next: of those that have tickets and are not `tried`.
    fn next(&self, tried: u32) -> Option<usize> {
        let turns = self.turns.load(Ordering::Relaxed);
        let has_tickets = |at: &usize| {
            let class = &self.classes[*at];
            let is_empty = class.head.load(Ordering::Relaxed) == class.tail.load(Ordering::Acquire);
            tried & (1 << at) == 0 && !is_empty
        };
        let rank = |at: &usize| {
            let class = &self.classes[*at];
            let (order, overdue) = (class.order(), class.overdue(turns));
            let clock = self.clocks[order].load(Ordering::Relaxed);
            let late = overdue.map_or(0, |turns| u64::from(turns) + 1);
            (u64::MAX - late, order, class.start(clock).wrapping_sub(clock))
        };
        (0..self.count()).filter(has_tickets).min_by_key(rank)
    }
}

#[cfg(test)]
impl ClientClasses {
    /// Overwrites the state of all queues, as a hostile program could.
    pub(crate) fn overwrite(&self, seed: u64) {
        let mut next = seed;
        let mut next = || {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            next
        };
        for clock in &self.clocks {
            clock.store(next(), Ordering::Relaxed);
        }
        self.turns.store(next() as u32, Ordering::Relaxed);
        for class in &self.classes {
            let words = [&class.finish, &class.head, &class.tail, &class.turns];
            words.into_iter().for_each(|word| word.store(next(), Ordering::Relaxed));
            let words = [&class.weight, &class.order, &class.turn_within, &class.last_turn];
            words.into_iter().for_each(|word| word.store(next() as u32, Ordering::Relaxed));
        }
    }
}

/// The queues of a gate's classes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClassQueues<'a> {
    pub(crate) classes: &'a ClientClasses,
    /// The rings of all classes, one after the other: a connection's number plus one.
    places: &'a [AtomicU32],
}

impl<'a> ClassQueues<'a> {
    /// Returns queues in these places, as many for each class.
    pub(crate) const fn new(classes: &'a ClientClasses, places: &'a [AtomicU32]) -> Self {
        Self { classes, places }
    }

    /// Whether the gate has classes.
    pub(crate) fn are_used(&self) -> bool {
        self.capacity() > 0 && self.classes.count() > 0
    }

    const fn capacity(&self) -> u64 {
        (self.places.len() / CLIENT_CLASSES) as u64
    }

    fn place(&self, at: usize, ticket: u64) -> Option<&'a AtomicU32> {
        let within = ticket.checked_rem(self.capacity())?;
        self.places.get(at * self.capacity() as usize + within as usize)
    }

    /// Adds a waiting connection to the queue of its class, unless it is there.
    pub(crate) fn push(&self, id: Id, entry: &GateEntry) {
        let (at, class) = self.classes.class_of(entry);
        // Each try is one that another thread has skipped before the place was written.
        for _ in 0..3 {
            let is_there = entry.ticket().is_some_and(|ticket| {
                let behind = ticket.wrapping_sub(class.head.load(Ordering::Acquire));
                behind < self.capacity() && self.holder(at, ticket) == Some(id)
            });
            if is_there {
                return;
            }
            let ticket = class.tail.fetch_add(1, Ordering::AcqRel);
            entry.set_ticket(ticket);
            if let Some(place) = self.place(at, ticket) {
                place.store(id.0.wrapping_add(1), Ordering::Release);
            }
            // Either the next look at the head sees that the ticket was skipped, or the thread that
            // skips it sees the position (`first`).
            fence(Ordering::SeqCst);
        }
    }

    fn holder(&self, at: usize, ticket: u64) -> Option<Id> {
        self.place(at, ticket)?.load(Ordering::Acquire).checked_sub(1).map(Id)
    }

    /// Returns the connection that is served next: the first of its class for which `is_fit`
    /// holds. `is_valid` is whether the connection with this number waits with this ticket.
    pub(crate) fn next(
        &self,
        is_valid: impl Fn(Id, u64) -> bool,
        is_fit: impl Fn(Id) -> bool,
    ) -> Option<Id> {
        let mut tried = 0;
        while let Some(at) = self.classes.next(tried) {
            let first = self.first(at, &is_valid, &is_fit);
            if first.is_some() {
                return first;
            }
            tried |= 1 << at;
        }
        None
    }

    fn first(
        &self,
        at: usize,
        is_valid: impl Fn(Id, u64) -> bool,
        is_fit: impl Fn(Id) -> bool,
    ) -> Option<Id> {
        let class = &self.classes.classes[at];
        let tail = class.tail.load(Ordering::Acquire);
        let mut head = class.head.load(Ordering::Acquire);
        // A ring that has overflowed has lost its oldest tickets.
        let length = tail.wrapping_sub(head).min(self.capacity());
        let mut is_front = true;
        for step in (0..length).rev() {
            let ticket = tail.wrapping_sub(step + 1);
            match self.holder(at, ticket).filter(|id| is_valid(*id, ticket)) {
                Some(id) if is_fit(id) => return Some(id),
                Some(_) => is_front = false,
                None if is_front => {
                    let next = ticket.wrapping_add(1);
                    let order = (Ordering::AcqRel, Ordering::Relaxed);
                    is_front = class.head.compare_exchange(head, next, order.0, order.1).is_ok();
                    head = next;
                    if is_front {
                        // The place may have been written since it was read (`push`).
                        fence(Ordering::SeqCst);
                        let late = self.holder(at, ticket).filter(|id| is_valid(*id, ticket));
                        if let Some(id) = late.filter(|id| is_fit(*id)) {
                            return Some(id);
                        }
                    }
                }
                None => {}
            }
        }
        None
    }
}
