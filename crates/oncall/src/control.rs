//! What the agent sets, and what the gate as a whole keeps.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What the gate does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is watched, nobody waits.
    #[default]
    Off,
    /// Statistics only.
    Stats,
    /// A worker that has its query parks until it is admitted.
    Post,
    /// A worker without a query rests, off its socket, and is called when it has
    /// one and is admitted; one that has read a query all the same parks as in
    /// [`Post`](Mode::Post).
    Epoll,
}

impl Mode {
    /// Whether workers that have a query may be made to wait.
    pub const fn gates(self) -> bool {
        matches!(self, Self::Post | Self::Epoll)
    }

    const fn code(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::Stats => 1,
            Self::Post => 2,
            Self::Epoll => 3,
        }
    }

    /// What an unknown number means is safe: nothing is done.
    const fn of_code(code: u32) -> Self {
        match code {
            1 => Self::Stats,
            2 => Self::Post,
            3 => Self::Epoll,
            _ => Self::Off,
        }
    }
}

/// How a worker that may run is told so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Waking {
    /// By the word of its seat, on which it sleeps; anybody who shares the page can.
    #[default]
    Futex,
    /// By a signal to its thread, as in the paper. Only threads of its own
    /// process do that: nobody else may believe a thread's number.
    Signal,
}

impl Waking {
    const fn code(self) -> u32 {
        match self {
            Self::Futex => 0,
            Self::Signal => 1,
        }
    }

    /// An unknown number is what needs the least.
    const fn of_code(code: u32) -> Self {
        match code {
            1 => Self::Signal,
            _ => Self::Futex,
        }
    }
}

/// What the agent sets, as a value. Times in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What the gate does.
    pub mode: Mode,
    /// C: workers that may hold a slot at once.
    pub cap: u32,
    /// N: queries (transactions) that a worker may run a turn, where it has no budget of its own.
    pub batch: u32,
    /// D, the ISR delay: pause between rounds; 0 hands slots on at once.
    pub isr_delay_ns: u64,
    /// How long a slot counts against C; its holder runs on after that.
    pub slot_lease_ns: u64,
    /// How long the agent may be silent before the gate opens.
    pub agent_lease_ns: u64,
    /// The longest that one worker waits, whatever happens.
    pub park_max_ns: u64,
    /// Whether who arrives during a round has its turn in it.
    pub joins: bool,
    /// Whether some go before the others ([`Seat::set_first`](crate::Seat::set_first)):
    /// those that wait are looked through twice then.
    pub ranks: bool,
    /// How workers are woken.
    pub waking: Waking,
}

impl Default for Settings {
    /// Off; C 16, one transaction a turn, no delay, 50 ms for a slot, 70 ms for the agent,
    /// 10 s at most. Cap and slot lease are those that kept all of the gain
    /// and no convoy on MariaDB (docs/on-call.md); the others are ours.
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            cap: 16,
            batch: 1,
            isr_delay_ns: 0,
            slot_lease_ns: 50_000_000,
            agent_lease_ns: 70_000_000,
            park_max_ns: 10_000_000_000,
            joins: true,
            ranks: false,
            waking: Waking::Futex,
        }
    }
}

impl Settings {
    /// The pause that the gate itself keeps between rounds. In mode epoll there
    /// is none: rounds are as far apart as the looks at the sockets.
    pub const fn pause_ns(&self) -> u64 {
        match self.mode {
            Mode::Epoll => 0,
            Mode::Off | Mode::Stats | Mode::Post => self.isr_delay_ns,
        }
    }
}

/// Bounds within which a setting is believed: a page may hold anything.
///
/// The longest pause between rounds that a gate keeps.
pub const ISR_DELAY_MAX_NS: u64 = 100_000_000;
/// From which stay on a deep idle state pays (REEF, SoCC'25, section 3.2: 1 ms):
/// workers are not called sooner after each other, and shorter rests do not count.
pub const BREAK_EVEN_NS: u64 = 1_000_000;
const SLOT_LEASE_NS: (u64, u64) = (1_000_000, 1_000_000_000);
const AGENT_LEASE_NS: (u64, u64) = (10_000_000, 1_000_000_000);
const PARK_NS: (u64, u64) = (10_000_000, 60_000_000_000);

/// Counts of what the gate did since it was made; each wraps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns begun.
    pub admissions: u64,
    /// Turns that began after a wait.
    pub parks: u64,
    /// Slots that were taken over because their lease had run out.
    pub overruns: u64,
    /// Workers let go because the gate opened while they waited.
    pub let_go: u64,
    /// Workers that ran on because they had waited for as long as anybody may.
    pub expired: u64,
    /// Rounds ended; in mode epoll those that were called.
    pub rounds: u64,
    /// Workers for whom a query came while they rested.
    pub calls: u64,
    /// Signals that woke a worker, or were to.
    pub signals: u64,
    /// Time in which nobody had a slot and nobody was called (mode epoll), in
    /// stretches of [`BREAK_EVEN_NS`] or longer, in nanoseconds.
    pub rested_ns: u64,
}

impl Counters {
    /// What was counted since these were.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            admissions: self.admissions.wrapping_sub(before.admissions),
            parks: self.parks.wrapping_sub(before.parks),
            overruns: self.overruns.wrapping_sub(before.overruns),
            let_go: self.let_go.wrapping_sub(before.let_go),
            expired: self.expired.wrapping_sub(before.expired),
            rounds: self.rounds.wrapping_sub(before.rounds),
            calls: self.calls.wrapping_sub(before.calls),
            signals: self.signals.wrapping_sub(before.signals),
            rested_ns: self.rested_ns.wrapping_sub(before.rested_ns),
        }
    }
}

/// The gate's shared words.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Control {
    mode: AtomicU32,
    cap: AtomicU32,
    batch: AtomicU32,
    joins: AtomicU32,
    ranks: AtomicU32,
    waking: AtomicU32,
    isr_delay_ns: AtomicU64,
    slot_lease_ns: AtomicU64,
    agent_lease_ns: AtomicU64,
    park_max_ns: AtomicU64,
    heartbeat_ns: AtomicU64,
    pub(crate) ring: Ring,
    pub(crate) counts: Counts,
}

/// Where the round stands. A cache line of its own: workers write it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Ring {
    /// [`Turn`], packed.
    turn: AtomicU64,
    /// The connection that is looked at next.
    cursor: AtomicU32,
    /// How many bits are set among those that wait.
    pub(crate) waiters: AtomicU32,
}

/// The counters of [`Counters`], on a line of their own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Counts {
    pub(crate) admissions: AtomicU64,
    pub(crate) parks: AtomicU64,
    pub(crate) overruns: AtomicU64,
    pub(crate) let_go: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) rounds: AtomicU64,
    pub(crate) calls: AtomicU64,
    signals: AtomicU64,
    rested_ns: AtomicU64,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The round, whether anybody had a turn in it, and when it may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn(u64);

const ROUND_MASK: u64 = 0xffff;
const BEGUN: u64 = 0x1_0000;
const TIME_AT: u32 = 17;
const TIME_UNIT: u32 = 10;

impl Turn {
    pub(crate) const fn round(self) -> u32 {
        (self.0 & ROUND_MASK) as u32
    }

    pub(crate) const fn has_begun(self) -> bool {
        self.0 & BEGUN != 0
    }

    pub(crate) const fn begun(self) -> Self {
        Self(self.0 | BEGUN)
    }

    pub(crate) const fn next(self, begins_ns: u64) -> Self {
        let round = (self.0.wrapping_add(1)) & ROUND_MASK;
        Self(round | (begins_ns >> TIME_UNIT) << TIME_AT)
    }

    /// When the round begins, if that is within the longest pause from now:
    /// anything else was not written by this program.
    pub(crate) fn pause_until(self, now_ns: u64, isr_delay_ns: u64) -> Option<u64> {
        let begins = (self.0 >> TIME_AT) << TIME_UNIT;
        let left = begins.checked_sub(now_ns).filter(|left| *left > 0)?;
        (left <= isr_delay_ns).then_some(begins)
    }
}

impl Ring {
    pub(crate) fn turn(&self) -> Turn {
        Turn(self.turn.load(Ordering::Acquire))
    }

    pub(crate) fn change(&self, from: Turn, to: Turn) -> bool {
        self.turn.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn cursor(&self) -> usize {
        self.cursor.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn set_cursor(&self, next: usize) {
        self.cursor.store(next as u32, Ordering::Relaxed);
    }
}

impl Control {
    /// What the agent set, each within its bounds; a gate cuts the cap to its slots.
    pub fn settings(&self) -> Settings {
        let get = |word: &AtomicU64, (low, high): (u64, u64)| {
            word.load(Ordering::Relaxed).clamp(low, high)
        };
        Settings {
            mode: self.mode(),
            cap: self.cap.load(Ordering::Relaxed).max(1),
            batch: self.batch.load(Ordering::Relaxed).max(1),
            isr_delay_ns: get(&self.isr_delay_ns, (0, ISR_DELAY_MAX_NS)),
            slot_lease_ns: get(&self.slot_lease_ns, SLOT_LEASE_NS),
            agent_lease_ns: get(&self.agent_lease_ns, AGENT_LEASE_NS),
            park_max_ns: get(&self.park_max_ns, PARK_NS),
            joins: self.joins.load(Ordering::Relaxed) != 0,
            ranks: self.ranks.load(Ordering::Relaxed) != 0,
            waking: self.waking(),
        }
    }

    /// Sets everything. The mode is last, so that a gate closes with its new
    /// settings. Who sets it pumps the gate after, so that nobody waits for
    /// what is no longer asked for.
    pub fn set(&self, settings: &Settings) {
        self.cap.store(settings.cap, Ordering::Relaxed);
        self.batch.store(settings.batch, Ordering::Relaxed);
        self.joins.store(u32::from(settings.joins), Ordering::Relaxed);
        self.ranks.store(u32::from(settings.ranks), Ordering::Relaxed);
        self.waking.store(settings.waking.code(), Ordering::Relaxed);
        self.isr_delay_ns.store(settings.isr_delay_ns, Ordering::Relaxed);
        self.slot_lease_ns.store(settings.slot_lease_ns, Ordering::Relaxed);
        self.agent_lease_ns.store(settings.agent_lease_ns, Ordering::Relaxed);
        self.park_max_ns.store(settings.park_max_ns, Ordering::Relaxed);
        self.mode.store(settings.mode.code(), Ordering::Release);
    }

    /// What the gate does.
    pub fn mode(&self) -> Mode {
        Mode::of_code(self.mode.load(Ordering::Acquire))
    }

    /// How workers are woken.
    pub fn waking(&self) -> Waking {
        Waking::of_code(self.waking.load(Ordering::Relaxed))
    }

    /// Somebody has woken a worker by signal.
    pub fn signalled(&self) {
        count(&self.counts.signals);
    }

    /// Workers that rested were called: a round of mode epoll, whose end nobody tells.
    pub fn called(&self) {
        count(&self.counts.rounds);
    }

    /// All workers have rested for so long; what is too short for a core to gain
    /// by it does not count.
    pub fn rested(&self, rest_ns: u64) {
        if rest_ns >= BREAK_EVEN_NS {
            self.counts.rested_ns.fetch_add(rest_ns, Ordering::Relaxed);
        }
    }

    /// The agent lives at this time.
    pub fn beat(&self, now_ns: u64) {
        self.heartbeat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// When the agent was last known to live; 0 if it never was.
    pub fn heartbeat_ns(&self) -> u64 {
        self.heartbeat_ns.load(Ordering::Relaxed)
    }

    /// Whether workers may be made to wait: the mode says so and the agent
    /// lives. A heartbeat from the future was not the agent's.
    pub fn is_closed(&self, now_ns: u64) -> bool {
        if !self.mode().gates() {
            return false;
        }
        let lease_ns = self.agent_lease_ns.load(Ordering::Relaxed);
        let lease_ns = lease_ns.clamp(AGENT_LEASE_NS.0, AGENT_LEASE_NS.1);
        now_ns.abs_diff(self.heartbeat_ns()) <= lease_ns
    }

    /// How many connections wait, about: exact when nobody moves.
    pub fn waiters(&self) -> u32 {
        self.ring.waiters.load(Ordering::Relaxed)
    }

    /// What the gate did so far.
    pub fn counters(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            admissions: get(&self.counts.admissions),
            parks: get(&self.counts.parks),
            overruns: get(&self.counts.overruns),
            let_go: get(&self.counts.let_go),
            expired: get(&self.counts.expired),
            rounds: get(&self.counts.rounds),
            calls: get(&self.counts.calls),
            signals: get(&self.counts.signals),
            rested_ns: get(&self.counts.rested_ns),
        }
    }
}
