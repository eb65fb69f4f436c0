//! The gate's shared words: the settings that the agent writes, the state of the round, and
//! the counters.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// How the gate treats workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// Connections are not tracked and no worker waits.
    #[default]
    Off,
    /// Connections are tracked and no worker waits.
    Stats,
    /// A worker that has read a query parks until it is admitted.
    Post,
    /// A worker without a query rests on its entry instead of its socket, and is woken when a
    /// query has arrived and the worker is admitted. A worker that has read a query parks as
    /// in [`Post`](Mode::Post).
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

    /// Returns the mode with this number. An unknown number is `Off`, which is safe.
    const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Stats,
            2 => Self::Post,
            3 => Self::Epoll,
            _ => Self::Off,
        }
    }

    /// Returns the mode that holds for this word: a bypassed gate delays no worker.
    const fn from_word(word: u32) -> Self {
        match Self::from_code(word & !BYPASSED) {
            Self::Post | Self::Epoll if word & BYPASSED != 0 => Self::Stats,
            mode => mode,
        }
    }
}

/// The bit of the mode's word that an operator sets to bypass the gate. Agents keep it. It is in
/// that word because workers read the word anyway.
const BYPASSED: u32 = 1 << 31;

/// How an admitted worker is woken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Waking {
    /// The worker sleeps on the word of its entry, and every process that maps the page can wake
    /// it.
    #[default]
    Futex,
    /// By a signal to its thread, as in the paper. Only threads of its own process can,
    /// since another process cannot trust a thread's number in shared memory.
    Signal,
}

impl Waking {
    const fn code(self) -> u32 {
        match self {
            Self::Futex => 0,
            Self::Signal => 1,
        }
    }

    /// Returns the means with this number. An unknown number is `Futex`, which needs least.
    const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Signal,
            _ => Self::Futex,
        }
    }
}

/// The agent's settings of a gate. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How the gate treats workers.
    pub mode: Mode,
    /// C: the number of workers that may hold a slot at once.
    pub cap: u32,
    /// N: queries or transactions of one turn, for a worker without a budget of its own.
    pub batch: u32,
    /// D, the ISR delay: the pause between rounds; 0 passes slots on immediately.
    pub isr_delay_ns: u64,
    /// How long a slot counts against C. Its holder continues to run after that.
    pub slot_lease_ns: u64,
    /// The age of the agent's heartbeat from which the gate is open.
    pub agent_lease_ns: u64,
    /// The longest wait of one worker.
    pub park_max_ns: u64,
    /// Whether a worker that arrives during a round has a turn in that round.
    pub joins: bool,
    /// Whether connections with [`GateEntry::set_first`](crate::GateEntry::set_first) are admitted
    /// before the others. It costs a second search of the waiting connections.
    pub ranks: bool,
    /// How workers are woken.
    pub waking: Waking,
}

impl Default for Settings {
    /// Off; C 16, one transaction a turn, no delay, leases of 50 ms for a slot and 70 ms for
    /// the agent, waits of at most [`PARK_MAX_NS`]. Cap and slot lease are the values that kept
    /// all of the gain on MariaDB without a convoy (docs/on-call.md); the others are our choice.
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            cap: 16,
            batch: 1,
            isr_delay_ns: 0,
            slot_lease_ns: 50_000_000,
            agent_lease_ns: 70_000_000,
            park_max_ns: PARK_MAX_NS,
            joins: true,
            ranks: false,
            waking: Waking::Futex,
        }
    }
}

impl Settings {
    /// Returns the pause that the gate itself keeps between rounds. In mode epoll it is 0:
    /// the service thread paces the rounds by when it polls the sockets.
    pub const fn pause_ns(&self) -> u64 {
        match self.mode {
            Mode::Epoll => 0,
            Mode::Off | Mode::Stats | Mode::Post => self.isr_delay_ns,
        }
    }
}

/// The longest pause between rounds that a gate keeps. Settings are clamped to this and to
/// the bounds below when they are read, since a page may hold any number.
pub const ISR_DELAY_MAX_NS: u64 = 100_000_000;
/// The break-even time of a deep idle state (REEF, SoCC'25, section 3.2: 1 ms). Rounds of mode
/// epoll are at least this far apart, and shorter idle times are not counted.
pub const BREAK_EVEN_NS: u64 = 1_000_000;
const SLOT_LEASE_NS: (u64, u64) = (1_000_000, 1_000_000_000);
const AGENT_LEASE_NS: (u64, u64) = (10_000_000, 1_000_000_000);
/// No worker waits longer than this, whatever a page holds.
pub const PARK_MAX_NS: u64 = 5_000_000_000;
const PARK_NS: (u64, u64) = (10_000_000, PARK_MAX_NS);

/// The gate's counters since the page was made. Each wraps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Turns begun.
    pub admissions: u64,
    /// Turns that began after a wait.
    pub parks: u64,
    /// Slots that were taken over because their lease had expired.
    pub overruns: u64,
    /// Workers that ran without a slot because the gate opened while they waited.
    pub let_go: u64,
    /// Workers that ran without a slot because they had waited for the longest time allowed.
    pub expired: u64,
    /// Rounds that ended; in mode epoll rounds that the service thread called.
    pub rounds: u64,
    /// Workers for which a query arrived while they rested.
    pub calls: u64,
    /// Signals sent to wake a worker.
    pub signals: u64,
    /// Time in nanoseconds in which no worker held a slot or was called (mode epoll), in
    /// intervals of [`BREAK_EVEN_NS`] or longer.
    pub rested_ns: u64,
}

impl Counters {
    /// Returns the differences to earlier counters.
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
    /// When an operator bypassed the gate, in seconds since 1970.
    bypassed_since_s: AtomicU64,
}

/// The state of the round, on a cache line of its own since workers write it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Ring {
    /// The packed [`Turn`].
    turn: AtomicU64,
    /// The connection from which the next search begins.
    cursor: AtomicU32,
    /// The number of waiting connections, as a hint: any process may have overwritten it.
    pub(crate) waiters: AtomicU32,
}

/// The words of [`Counters`], on cache lines of their own.
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

/// The number of the round, whether a turn has begun in it, and when it may begin.
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

    /// Returns when the round begins, if that is in the future and within the pause. Any
    /// other time was not written by this program.
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
    /// Reads the settings that an agent wrote, each clamped to its bounds. A gate limits the cap
    /// to its slots. A [bypassed](Self::bypass) gate has settings that do not hold.
    pub fn settings(&self) -> Settings {
        let get = |word: &AtomicU64, (low, high): (u64, u64)| {
            word.load(Ordering::Relaxed).clamp(low, high)
        };
        Settings {
            mode: Mode::from_code(self.mode.load(Ordering::Acquire) & !BYPASSED),
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

    /// Writes the settings. The mode is last, so that a gate closes with its new settings.
    /// The caller pumps the gate afterwards, so that no worker waits by the former ones. A bypass
    /// stays.
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
        let written = |word: u32| Some(word & BYPASSED | settings.mode.code());
        let _ = self.mode.fetch_update(Ordering::Release, Ordering::Relaxed, written);
    }

    /// Reads how the gate treats workers: a bypassed gate only tracks them.
    #[inline]
    pub fn mode(&self) -> Mode {
        Mode::from_word(self.mode.load(Ordering::Acquire))
    }

    /// Opens the gate until [`Control::end_bypass`], whatever agents set. `now_s` is in seconds
    /// since 1970. Returns `false` if the gate was bypassed before, since another time. The
    /// caller pumps the gate afterwards, which releases the workers that wait.
    pub fn bypass(&self, now_s: u64) -> bool {
        if self.mode.load(Ordering::Relaxed) & BYPASSED != 0 {
            return false;
        }
        self.bypassed_since_s.store(now_s, Ordering::Relaxed);
        self.mode.fetch_or(BYPASSED, Ordering::Release) & BYPASSED == 0
    }

    /// Ends a bypass: the agent's settings hold again. Returns `false` if there was none.
    pub fn end_bypass(&self) -> bool {
        self.mode.fetch_and(!BYPASSED, Ordering::Release) & BYPASSED != 0
    }

    /// Returns since when the gate is bypassed, in seconds since 1970; `None` if it is not.
    pub fn bypassed_since_s(&self) -> Option<u64> {
        let is_bypassed = self.mode.load(Ordering::Acquire) & BYPASSED != 0;
        is_bypassed.then(|| self.bypassed_since_s.load(Ordering::Relaxed))
    }

    /// Reads how workers are woken.
    pub fn waking(&self) -> Waking {
        Waking::from_code(self.waking.load(Ordering::Relaxed))
    }

    /// Counts a signal that wakes a worker.
    pub fn count_signal(&self) {
        count(&self.counts.signals);
    }

    /// Counts a round of mode epoll, whose end is not observed, when it begins.
    pub fn count_called_round(&self) {
        count(&self.counts.rounds);
    }

    /// Adds an interval in which all workers rested, if it was long enough for a core to save
    /// energy.
    pub fn add_idle_time(&self, idle_ns: u64) {
        if idle_ns >= BREAK_EVEN_NS {
            self.counts.rested_ns.fetch_add(idle_ns, Ordering::Relaxed);
        }
    }

    /// Records the agent's heartbeat.
    pub fn beat(&self, now_ns: u64) {
        self.heartbeat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Returns the time of the agent's last heartbeat; 0 if there was none.
    pub fn heartbeat_ns(&self) -> u64 {
        self.heartbeat_ns.load(Ordering::Relaxed)
    }

    /// Whether workers may be delayed: the mode gates and the agent's heartbeat is recent. A
    /// heartbeat from the future was not the agent's.
    pub fn is_closed(&self, now_ns: u64) -> bool {
        if !self.mode().gates() {
            return false;
        }
        let lease_ns = self.agent_lease_ns.load(Ordering::Relaxed);
        let lease_ns = lease_ns.clamp(AGENT_LEASE_NS.0, AGENT_LEASE_NS.1);
        now_ns.abs_diff(self.heartbeat_ns()) <= lease_ns
    }

    /// Returns the number of waiting connections, if no program has overwritten the count. Use
    /// [`Gate::count_waiters`](crate::Gate::count_waiters) where a wrong number does harm.
    pub fn waiters(&self) -> u32 {
        self.ring.waiters.load(Ordering::Relaxed)
    }

    /// Reads the counters.
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
