//! An app of a control loop that runs with the library.

use super::{PageDirectory, Rules, Runtime, Statistics, now};
use crate::Roots;
use lull_control::LatencySeen;
use lull_measure::{Gauge, Nanos};
use lull_oncall::Settings;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Time between two looks for processes that ended without a word: each looks
/// at every connection's process.
const REAPING: Nanos = Nanos::from_secs(1);

/// One app's on-call runtime, read at the end of each epoch.
///
/// When it is dropped the app runs on, with nobody waiting at its gate.
#[derive(Debug)]
pub struct Watch {
    runtime: Arc<Runtime>,
    statistics: Statistics,
    roots: Roots,
    reaped: Nanos,
}

impl Watch {
    /// Makes the app's page; the app is to be started with [`Watch::environment`].
    ///
    /// # Errors
    /// As [`Runtime::start`].
    pub fn start(settings: &Settings, rules: &Rules, roots: &Roots) -> io::Result<Self> {
        Ok(Self::of(Runtime::start(settings, rules)?, roots))
    }

    /// Takes over the page of a directory, where servers find it that somebody else
    /// has started, or starts.
    ///
    /// # Errors
    /// As [`PageDirectory::open`] and [`Runtime::attach`].
    pub fn attach(
        directory: &Path,
        settings: &Settings,
        rules: &Rules,
        roots: &Roots,
    ) -> io::Result<Self> {
        let directory = PageDirectory::open(directory, None).map_err(io::Error::other)?;
        Ok(Self::of(Runtime::attach(&directory, settings, rules, roots)?, roots))
    }

    fn of(runtime: Runtime, roots: &Roots) -> Self {
        let statistics = runtime.statistics();
        Self { runtime: Arc::new(runtime), statistics, roots: roots.clone(), reaped: now() }
    }

    /// What the app's environment must have, besides the agent's.
    pub fn environment(&self, library: &Path) -> Vec<(String, String)> {
        self.runtime.environment(library)
    }

    /// The runtime itself, for an admission controller.
    pub fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&self.runtime)
    }

    /// What its gate does; `None` if nobody waits there.
    pub(crate) fn gate(&self) -> Option<Settings> {
        Some(self.runtime.settings()).filter(|settings| settings.mode.gates())
    }

    /// Sets what its gate does, from the next turn on.
    pub(crate) fn set_gate(&self, settings: &Settings) {
        self.runtime.set(settings);
    }

    /// Its latency since the last reading, on the server: from when a worker
    /// read a query to its answer, the wait at the gate included.
    pub(crate) fn latency(&mut self) -> Gauge<LatencySeen> {
        let now = now();
        if now >= self.reaped.saturating_add(REAPING) {
            self.reaped = now;
            self.runtime.reap(&self.roots);
        }
        self.statistics.latency()
    }
}
