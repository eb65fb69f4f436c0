//! The part of a recorded run that a replay needs.

use lull_control::{AppSpec, EpochRule, Machine, Rules};
use lull_measure::{Latency, Nanos, RequestSample};
use lull_workload::arrivals::Process;

/// A run, or the part of one that was under one policy.
#[derive(Debug, Clone)]
pub struct Recording {
    /// The machine, restricted to the cores that the run might use.
    pub machine: Machine,
    /// The apps as policies knew them.
    pub apps: Vec<AppSpec>,
    /// The rules of the controller; their list of cores is not used.
    pub rules: Rules,
    /// How epochs were paced.
    pub epoch: EpochRule,
    /// Blocks of epochs; the policy restarted at the begin of each.
    pub blocks: Vec<Vec<RecordedEpoch>>,
    /// Time at the beginning of every block that is not counted.
    pub skip: Nanos,
    /// Indexed by app: the distribution of the gaps of its clients, if they ran on the same
    /// machine.
    pub clients: Vec<Option<Process>>,
}

/// One epoch.
#[derive(Debug, Clone, Default)]
pub struct RecordedEpoch {
    /// Its length as it was.
    pub length: Nanos,
    /// Indexed by app.
    pub apps: Vec<RecordedAppEpoch>,
    /// Busy time of the machine's cores over the epoch's length, all processes included.
    pub busy_cores: Option<f64>,
}

/// One epoch of one app.
#[derive(Debug, Clone, Default)]
pub struct RecordedAppEpoch {
    /// Latencies of all requests answered.
    pub latency: Option<Latency>,
    /// Requests due, per second.
    pub offered_per_s: Option<f64>,
    /// Requests answered, per second.
    pub completed_per_s: Option<f64>,
    /// CPU time used, in cores.
    pub cpu: Option<f64>,
    /// Time its threads waited for a core, in cores.
    pub waiting: Option<f64>,
    /// Work of a best-effort app, in its own unit.
    pub progress_per_s: Option<f64>,
    /// Threads alive.
    pub threads: Option<u32>,
    /// Some of the requests one by one.
    pub sample: RequestSample,
}

/// Why a recording cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// No epoch is left after the beginnings.
    #[error("no epoch is left after the first {skip} of each block: record longer, or skip less")]
    Short {
        /// The time that is left out.
        skip: Nanos,
    },
    /// No app is latency-critical.
    #[error(
        "it has no latency-critical app: a replay is about requests; record a run whose config \
         has one"
    )]
    NoRequests,
    /// An app has objectives, but no requests were seen.
    #[error(
        "no request of `{app}` was recorded: let its clients push their latencies (`lull load` \
         does) and record again"
    )]
    Silent {
        /// The app.
        app: String,
    },
    /// The CPU time of requests is unknown.
    #[error(
        "the CPU time of `{app}` was not recorded, so that what its requests demand is unknown; \
         `lull check` shows why `cpu-time` is missing"
    )]
    NoDemand {
        /// The app.
        app: String,
    },
    /// The cores are of several kinds, and the model has only one.
    #[error(
        "its machine has {types} types of cores, and the model of a replay has one: nothing \
         predicted would hold"
    )]
    CoreTypes {
        /// How many.
        types: usize,
    },
    /// The model has at most 64 cores.
    #[error("its machine has {cores} cores, and the model of a replay at most 64")]
    Cores {
        /// How many.
        cores: usize,
    },
}

impl Recording {
    /// Checks that the recording has all that a replay needs.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub fn check(&self) -> Result<(), Unfit> {
        let (types, cores) = (self.machine.core_types.len(), self.machine.cores.len());
        if types > 1 {
            return Err(Unfit::CoreTypes { types });
        }
        if !(1..=64).contains(&cores) {
            return Err(Unfit::Cores { cores });
        }
        if !self.apps.iter().any(AppSpec::is_latency_critical) {
            return Err(Unfit::NoRequests);
        }
        if self.counted().next().is_none() {
            return Err(Unfit::Short { skip: self.skip });
        }
        for (at, spec) in self.apps.iter().enumerate() {
            let app = || spec.name.clone();
            let seen = || self.counted().filter_map(move |epoch| epoch.apps.get(at));
            if spec.is_latency_critical()
                && seen().all(|it| it.latency.as_ref().is_none_or(Latency::is_empty))
            {
                return Err(Unfit::Silent { app: app() });
            }
            if seen().all(|it| it.cpu.is_none_or(|cpu| cpu <= 0.0)) {
                return Err(Unfit::NoDemand { app: app() });
            }
        }
        Ok(())
    }

    /// Returns how many epochs of a block belong to its beginning.
    pub(super) fn lead(&self, block: &[RecordedEpoch]) -> usize {
        let mut elapsed = Nanos::ZERO;
        let begins = |epoch: &RecordedEpoch| {
            let is_lead = elapsed < self.skip;
            elapsed += epoch.length;
            is_lead
        };
        let count = block.iter().map(begins).take_while(|is_lead| *is_lead).count();
        count.min(block.len())
    }

    /// The epochs that count, in order.
    pub(super) fn counted(&self) -> impl Iterator<Item = &RecordedEpoch> + Clone {
        self.blocks.iter().flat_map(|block| &block[self.lead(block)..])
    }
}
