//! The dispatch state among real threads: a clock, a timer, affinities.

use super::own_cores::OwnCores;
use super::state::{ActiveDispatcher, DispatchState, Order, Tally};
use super::{DispatchSetupError, Floor, Speeds, SpeedsError};
use crate::Roots;
use crate::guard::{Restoration, cores_of_process};
use crate::sys::sched::{all_ones, cores_of, mask_from, mask_of, set_mask};
use lull_control::CoreId;
use lull_control::dispatcher::Dispatcher;
use lull_measure::Nanos;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval at which threads with a request are checked for being alive.
const SWEEP: Duration = Duration::from_secs(1);
/// How often a waiting request checks by itself, in case no thread wakes it.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Why nothing can be placed.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// The cores.
    #[error(transparent)]
    Floor(#[from] DispatchSetupError),
    /// A core that this process may not run on.
    #[error("core {0} is not one that this process may run on; `taskset -p $$` shows which are")]
    Core(CoreId),
    /// The cores' frequencies.
    #[error(transparent)]
    Speeds(#[from] SpeedsError),
    /// The system refuses a thread or its affinity.
    #[error("requests cannot be placed: {0}")]
    System(#[from] io::Error),
}

/// Places the requests of this process until it is dropped.
pub struct Dispatch {
    shared: Arc<Shared>,
    timer: Option<JoinHandle<()>>,
}

/// A request under way; its drop ends it.
pub struct Mark {
    shared: Arc<Shared>,
    /// 0: it runs unplaced.
    id: u64,
    tid: i32,
}

struct Shared {
    state: Mutex<State>,
    /// A waiting request may run.
    granted: Condvar,
    /// The timer has an earlier time, or is to stop.
    due: Condvar,
    begun: Instant,
    masks: Masks,
    own: OwnCores,
}

/// Affinities, made ready.
struct Masks {
    /// The cores that the server's threads had.
    whole: CpuSet,
    /// The mask that restores it: all ones if it was all of their cpuset, which they then follow.
    back: CpuSet,
    slowest: CpuSet,
    one: BTreeMap<CoreId, CpuSet>,
}

struct State {
    dispatch: DispatchState,
    stop: bool,
    /// When the timer will wake by itself.
    wakes: Nanos,
    /// Affinities and frequencies that the kernel refused.
    refused: u64,
    /// Where each core takes every speed.
    speeds: Option<Speeds>,
    notices: Vec<String>,
}

impl Dispatch {
    /// Starts placing on these cores, each of a fixed type.
    ///
    /// # Errors
    /// If the cores are not sound or not this process's, or a thread cannot be had.
    pub fn start(floor: Floor, dispatcher: Box<dyn Dispatcher>) -> Result<Self, DispatchError> {
        Self::start_with(floor, dispatcher, None)
    }

    /// Starts placing on cores that each take every speed.
    ///
    /// # Errors
    /// As [`Dispatch::start`]; the frequencies are restored then.
    pub fn start_scaling(
        floor: Floor,
        dispatcher: Box<dyn Dispatcher>,
        speeds: Speeds,
    ) -> Result<Self, DispatchError> {
        Self::start_with(floor, dispatcher, Some(speeds))
    }

    fn start_with(
        floor: Floor,
        dispatcher: Box<dyn Dispatcher>,
        speeds: Option<Speeds>,
    ) -> Result<Self, DispatchError> {
        if floor.ladder.scales() && speeds.is_none() {
            return Err(SpeedsError::Levels(floor.ladder.types().len()).into());
        }
        let whole = mask_of(this_thread())?;
        for (_, core) in floor.all() {
            if !whole.is_set(usize::from(core.0)) {
                return Err(DispatchError::Core(core));
            }
        }
        let dispatch = DispatchState::new(floor, dispatcher)?;
        let mask = |core: CoreId| (core, mask_from(&[core].into_iter().collect()));
        let masks = Masks {
            whole,
            back: if is_all_of_cpuset(&whole) { all_ones() } else { whole },
            slowest: mask_from(dispatch.floor().slowest()),
            one: dispatch.floor().all().map(|(_, core)| mask(core)).collect(),
        };
        let (stop, refused, notices) = (false, 0, Vec::new());
        let state = State { dispatch, stop, wakes: Nanos::ZERO, refused, speeds, notices };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            granted: Condvar::new(),
            due: Condvar::new(),
            begun: Instant::now(),
            masks,
            own: OwnCores::default(),
        });
        let ours = Arc::clone(&shared);
        let timer =
            std::thread::Builder::new().name("lull-dispatch".to_owned()).spawn(move || {
                ours.keep_time();
                // If dispatching ended because a dispatcher failed, this restores frequencies.
                drop(ours.lock());
            })?;
        Ok(Self { shared, timer: Some(timer) })
    }

    /// Begins a request of this thread that arrived this long ago; waits until there
    /// is a core for it.
    pub fn begin(&self, age: Nanos) -> Mark {
        let tid = this_thread();
        self.shared.own.begin(tid, |mask| self.shared.masks.is_given(mask));
        // If a dispatcher panics, the drop of the mark restores the thread's cores.
        let mut mark = Mark { shared: Arc::clone(&self.shared), id: 0, tid };
        mark.id = self.shared.begin(age, tid).unwrap_or(0);
        mark
    }

    /// Lets another dispatcher decide. Returns the former one with its learned state.
    /// `None` if placing has failed.
    pub fn exchange(&self, next: ActiveDispatcher) -> Option<ActiveDispatcher> {
        let mut state = self.shared.lock()?;
        let before = state.dispatch.exchange(self.shared.now(), next);
        self.shared.apply_orders(&mut state);
        Some(before)
    }

    /// Returns the counts since the last call; `None` if placing has failed.
    pub fn take_tally(&self) -> Option<Tally> {
        let now = self.shared.now();
        self.shared.lock().map(|mut state| state.dispatch.take_tally(now))
    }

    /// Ends the placing and restores frequencies; `None` if there is nothing to restore. Requests
    /// under way continue at the former frequency.
    pub fn restore(&self) -> Option<Restoration> {
        let speeds = self.shared.lock()?.speeds.take();
        speeds.and_then(|mut speeds| speeds.restore())
    }

    /// Returns the notices since the last call: frequencies that other programs have set.
    pub fn take_notices(&self) -> Vec<String> {
        self.shared.lock().map_or_else(Vec::new, |mut state| std::mem::take(&mut state.notices))
    }

    /// Affinities and frequencies that the kernel refused so far.
    pub fn refused(&self) -> u64 {
        self.shared.lock().map_or(0, |state| state.refused)
    }

    /// Requests under way.
    pub fn active(&self) -> usize {
        self.shared.lock().map_or(0, |state| state.dispatch.active())
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        if let Some(mut state) = self.shared.lock() {
            state.stop = true;
        }
        self.shared.due.notify_all();
        self.shared.granted.notify_all();
        if let Some(timer) = self.timer.take() {
            // A dispatcher's panic has been a thread's end already; requests then run unplaced.
            let _ = timer.join();
        }
        // Marks may outlive this, and their frequencies must not.
        let _ = self.restore();
    }
}

impl Mark {
    /// Its number; 0 of one that runs unplaced.
    pub const fn id(&self) -> u64 {
        self.id
    }
}

impl Masks {
    /// Whether requests are given these cores. A thread that is started within a request inherits
    /// them; one that its owner has pinned to the same cores looks the same.
    fn is_given(&self, mask: &CpuSet) -> bool {
        *mask == self.slowest || self.one.values().any(|one| one == mask)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.id != 0 {
            self.shared.end(self.id);
        }
        // The thread goes back to the cores of its owner: to begin its next request it must not
        // have to wait for this one's core. One that has ended has no affinity to set.
        let masks = &self.shared.masks;
        let own = self.shared.own.end(self.tid).filter(|own| *own != masks.whole);
        let _ = set_mask(self.tid, own.as_ref().unwrap_or(&masks.back));
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        self.begun.elapsed().into()
    }

    /// The state; `None` after a panic in a dispatcher, whose state is then not to be
    /// trusted: requests run unplaced, at the frequencies that were there before.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.lock().map_err(|poisoned| drop(poisoned.into_inner().speeds.take())).ok()
    }

    /// The request's number; `None` if it is to run unplaced.
    fn begin(&self, age: Nanos, tid: i32) -> Option<u64> {
        let mut state = self.lock()?;
        let now = self.now();
        let id = state.dispatch.arrive(now, now.saturating_sub(age), tid);
        self.apply_orders(&mut state);
        while !state.dispatch.may_run(id) && !state.stop {
            state = self.granted.wait_timeout(state, LOOK_UP).ok()?.0;
        }
        Some(id)
    }

    fn end(&self, id: u64) {
        let Some(mut state) = self.lock() else { return };
        state.dispatch.leave(self.now(), id);
        self.apply_orders(&mut state);
    }

    /// Carries out orders for threads, and wakes the waiting ones.
    fn apply_orders(&self, state: &mut State) {
        let any = state.dispatch.has_orders();
        while state.dispatch.has_orders() {
            for order in state.dispatch.take_orders() {
                self.carry_out(order, state);
            }
        }
        if any {
            self.granted.notify_all();
        }
        if state.dispatch.next_due() < state.wakes {
            self.due.notify_one();
        }
    }

    fn carry_out(&self, order: Order, state: &mut State) {
        let (tid, mask) = match order {
            Order::Speed(core, kind) => {
                let outcome = state.speeds.as_mut().map(|speeds| speeds.set(core, kind));
                state.refused += u64::from(matches!(outcome, Some(Err(_))));
                return;
            }
            Order::On(tid, core) => (tid, self.masks.one.get(&core)),
            Order::Slowest(tid) => (tid, Some(&self.masks.slowest)),
        };
        let Some(Err(error)) = mask.map(|mask| set_mask(tid, mask)) else { return };
        if error.raw_os_error() == Some(libc::ESRCH) {
            self.own.forget(tid);
            state.dispatch.end_thread(self.now(), tid);
        } else {
            // The request runs where it was, which is slower or takes more energy, and still
            // correct.
            state.refused += 1;
        }
    }

    /// The timer's life.
    fn keep_time(&self) {
        let mut swept = Instant::now();
        let Some(mut state) = self.lock() else { return };
        while !state.stop {
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                self.end_dead_threads(&mut state);
                let problems = state.speeds.as_mut().map(Speeds::maintain);
                state.notices.extend(problems.into_iter().flatten());
            }
            let now = self.now();
            state.dispatch.tick(now);
            self.apply_orders(&mut state);
            let due = state.dispatch.next_due();
            let wait = Duration::from(due.saturating_sub(now)).min(SWEEP);
            state.wakes = now.saturating_add(wait.into());
            let Ok((back, _)) = self.due.wait_timeout(state, wait) else { return };
            state = back;
        }
    }

    fn end_dead_threads(&self, state: &mut State) {
        let is_dead = |tid: &i32| !std::path::Path::new(&format!("/proc/self/task/{tid}")).exists();
        for tid in state.dispatch.threads().filter(is_dead).collect::<Vec<_>>() {
            self.own.forget(tid);
            state.dispatch.end_thread(self.now(), tid);
        }
    }
}

/// Whether this process's cpuset has these cores and no others.
fn is_all_of_cpuset(mask: &CpuSet) -> bool {
    let process = std::process::id().cast_signed();
    cores_of_process(&Roots::default(), process).is_some_and(|cores| cores == cores_of(mask))
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
