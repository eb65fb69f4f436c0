//! The queue between the thread of an agent and the interpreter.

use crate::observation::Numbers;
use lull_agent::error::describe;
use lull_agent::located::InputError;
use lull_control::{AppSpec, Setting};
use lull_measure::entropy::SystemEntropy;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Observations that wait at most; the oldest are dropped. With epochs of half a second they are
/// those of five minutes.
const WAITING_MAX: usize = 600;

/// Facts that are known once the agent has started.
#[derive(Clone)]
pub(super) struct Facts {
    pub(super) record: PathBuf,
    pub(super) page: Option<String>,
    pub(super) machine: lull_control::Machine,
    pub(super) apps: Vec<AppSpec>,
}

/// Why a run failed.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// The config cannot be used here.
    Input(InputError),
    /// Knobs could not be restored: the text, and which.
    Left(String, Vec<String>),
    /// Anything else, in the words of the command.
    Other(String),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let input = error.chain().find_map(|cause| cause.downcast_ref::<InputError>());
        input.cloned().map_or_else(|| Self::Other(describe(&error)), Self::Input)
    }
}

/// The observation of one epoch.
pub(super) struct EpochObservation {
    pub(super) number: u64,
    pub(super) numbers: Numbers,
    pub(super) entropy: SystemEntropy,
    pub(super) policy: String,
    pub(super) is_safe: bool,
    pub(super) journal: Vec<String>,
    pub(super) shadow: Vec<String>,
    pub(super) settings: Vec<Setting>,
}

/// The end of a run: its description, or the error.
pub(super) type End = Result<String, Failure>;

/// The reports of an agent's thread.
pub(super) struct Feed {
    state: Mutex<State>,
    changed: Condvar,
}

/// Reports that were not taken yet.
pub(super) struct State {
    facts: Option<Facts>,
    waiting: VecDeque<EpochObservation>,
    dropped: u64,
    notices: Vec<String>,
    end: Option<End>,
    /// A byte is in it for each observation that waits, and one for the end, which stays.
    bell: (UnixStream, UnixStream),
}

impl State {
    /// The facts of the run once it has started.
    pub(super) fn facts(&mut self) -> Option<Facts> {
        self.facts.clone()
    }

    /// Takes the oldest observation that waits.
    pub(super) fn take(&mut self) -> Option<EpochObservation> {
        let seen = self.waiting.pop_front()?;
        self.silence();
        Some(seen)
    }

    fn ring(&self) {
        // The buffer of a socket is longer than the queue, so that no byte is lost.
        let _ = (&self.bell.1).write(&[0]);
    }

    fn silence(&self) {
        let _ = (&self.bell.0).read(&mut [0]);
    }
}

impl Feed {
    /// An agent that has not started yet.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub(super) fn new() -> io::Result<Self> {
        let bell = UnixStream::pair()?;
        bell.0.set_nonblocking(true)?;
        bell.1.set_nonblocking(true)?;
        let state = State {
            facts: None,
            waiting: VecDeque::new(),
            dropped: 0,
            notices: Vec::new(),
            end: None,
            bell,
        };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(super) fn notice(&self, text: &str) {
        self.locked().notices.push(text.to_owned());
    }

    pub(super) fn open(&self, facts: Facts) {
        self.locked().facts = Some(facts);
        self.changed.notify_all();
    }

    pub(super) fn push(&self, seen: EpochObservation) {
        let mut state = self.locked();
        if state.waiting.len() == WAITING_MAX {
            state.take();
            state.dropped += 1;
        }
        state.waiting.push_back(seen);
        state.ring();
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn close(&self, end: End) {
        let mut state = self.locked();
        state.end = Some(end);
        state.ring();
        drop(state);
        self.changed.notify_all();
    }

    /// Takes the oldest observation that waits.
    pub(super) fn take(&self) -> Option<EpochObservation> {
        self.locked().take()
    }

    pub(super) fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.locked().notices)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.locked().dropped
    }

    pub(super) fn end(&self) -> Option<End> {
        self.locked().end.clone()
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.locked().bell.0.as_raw_fd()
    }

    /// Waits until `take` has something, the agent has ended or `span` is over; returns it, and
    /// whether the agent has ended.
    pub(super) fn wait_for<T>(
        &self,
        take: impl Fn(&mut State) -> Option<T>,
        span: Duration,
    ) -> (Option<T>, bool) {
        let mut taken = None;
        let has_nothing = |state: &mut State| {
            taken = take(state);
            taken.is_none() && state.end.is_none()
        };
        let waited = self.changed.wait_timeout_while(self.locked(), span, has_nothing);
        let is_over = waited.unwrap_or_else(PoisonError::into_inner).0.end.is_some();
        (taken, is_over)
    }

    /// Waits until the agent has ended.
    pub(super) fn wait_for_end(&self) -> End {
        let state = self.locked();
        let ended = self.changed.wait_while(state, |state| state.end.is_none());
        let state = ended.unwrap_or_else(PoisonError::into_inner);
        state.end.clone().expect("waited for until it is there")
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
