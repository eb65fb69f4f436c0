//! A pod that the watcher has sent, and its state in the session.

use super::Setup;
use crate::cgroup::{self, Hierarchy};
use crate::message::{PodOrder, Service};
use crate::pool::{Cpusets, Placement};
use lull_agent::discovery::Workload;
use lull_control::{CoreSet, Objective};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the cgroup of a pod may be missing whose container runs.
pub(super) const CGROUP_WAIT: Duration = Duration::from_secs(10);
/// How long pods may have different cpusets when the shared pool changes: the kubelet sets them one
/// after the other, every ten seconds (`cpuManagerReconcilePeriod`).
pub(super) const POOL_CHANGE_MAX: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct KnownPod {
    pub(super) id: u64,
    pub(super) order: PodOrder,
    objectives: Option<Vec<Objective>>,
    /// Where its cgroup may be; where it was found last comes first.
    paths: Vec<PathBuf>,
    pub(super) standing: Standing,
    pub(super) checked: Instant,
    /// The time since which its cgroup is searched.
    awaited: Instant,
    /// The time since which its cpuset is smaller than the node's and differs from the shared pool.
    pub(super) placed: Option<Instant>,
}

/// The state of a pod in the session.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Standing {
    /// Its cgroup does not exist yet.
    Waits,
    /// The pod was handed to the session.
    Present(Workload),
    /// The pod is not managed, for this reason.
    LeftAlone(String),
}

impl KnownPod {
    /// A pod that was not known before.
    pub(super) fn new(
        id: u64,
        order: PodOrder,
        objectives: Option<Vec<Objective>>,
        setup: &Setup,
        now: Instant,
    ) -> Self {
        let paths = cgroup::candidates(&order, &setup.cgroup_root);
        let standing = Standing::Waits;
        Self { id, order, objectives, paths, standing, checked: now, awaited: now, placed: None }
    }

    /// Takes another order of it; returns whether its cgroup must be looked at.
    pub(super) fn take_order(
        &mut self,
        order: PodOrder,
        objectives: Option<Vec<Objective>>,
        setup: &Setup,
        now: Instant,
    ) -> bool {
        let is_same_place = self.order.is_placed_as(&order);
        let has_started = self.order.is_starting && !order.is_starting;
        if !is_same_place {
            self.paths = cgroup::candidates(&order, &setup.cgroup_root);
        }
        (self.order, self.objectives) = (order, objectives);
        match self.standing {
            Standing::Present(_) => return !is_same_place,
            // The same pod again, whose owner has the reason already.
            Standing::LeftAlone(_) if has_started => {}
            Standing::LeftAlone(_) => (self.standing, self.awaited) = (Standing::Waits, now),
            Standing::Waits if has_started => self.awaited = now,
            Standing::Waits => {}
        }
        true
    }

    /// Makes the workload of a pod again that is where it was; returns it if it differs.
    pub(super) fn renew(&mut self, setup: &Setup) -> Option<Workload> {
        let Standing::Present(known) = &self.standing else { return None };
        let workload = self.workload(setup, known.cgroup.clone(), known.cores.clone());
        if workload == *known {
            return None;
        }
        self.standing = Standing::Present(workload.clone());
        Some(workload)
    }

    /// Changes the session's state of a pod; returns the former one.
    pub(super) fn replace_standing(&mut self, standing: Standing) -> Standing {
        if let Standing::Present(workload) = &standing {
            // The next look begins where it is.
            let is_there = |path: &PathBuf| workload.cgroup.strip_prefix("/") == Ok(path.as_path());
            self.paths.sort_by_key(|path| !is_there(path));
        }
        std::mem::replace(&mut self.standing, standing)
    }

    /// Whether its cgroup has been looked for too long. A pod that is starting may wait for its
    /// image first.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let waits = self.standing == Standing::Waits && !self.order.is_starting;
        waits && now.saturating_duration_since(self.awaited) >= CGROUP_WAIT
    }

    /// Whether its cpuset may soon be that of the shared pool, because the pool changes. A new
    /// Guaranteed pod has its cpuset for good.
    pub(super) fn may_join_pool(&mut self, now: Instant) -> bool {
        let since = *self.placed.get_or_insert(now);
        let is_new = !matches!(self.standing, Standing::Present(_));
        let is_for_good = is_new && self.order.service == Service::Guaranteed;
        !is_for_good && now.saturating_duration_since(since) < POOL_CHANGE_MAX
    }

    /// The cores that the container runtime has set for it.
    pub(super) fn set_cores(&self) -> Option<CoreSet> {
        self.order.cpus.parse().ok()
    }

    /// Returns its standing, or why another program has placed it, by the cpusets of all pods.
    pub(super) fn standing_now<'a>(
        &self,
        setup: &Setup,
        hierarchy: &Hierarchy,
        all: impl Fn() -> &'a Cpusets,
    ) -> Result<Standing, String> {
        let found = hierarchy.find(&self.paths);
        let has_started = |cgroup: &Path| hierarchy.has_started(cgroup);
        if self.order.is_starting && !found.is_some_and(has_started) {
            return Ok(Standing::Waits);
        }
        if self.order.may_be_exclusive {
            return Ok(Standing::LeftAlone(
                "it is Guaranteed with a whole number of CPUs, so that the kubelet's CPU manager \
                 may give it cores of its own; cpu_manager = \"none\" in [kubernetes] says that \
                 it does not"
                    .to_owned(),
            ));
        }
        let Some(cgroup) = found else { return Ok(Standing::Waits) };
        let own = hierarchy.smaller_cpusets(cgroup, self.set_cores());
        // Most often no pod is placed, and the cpusets of the others need not be read.
        let cores = match own.is_empty() {
            true => None,
            false => match all().placement(own) {
                Placement::Everywhere => None,
                Placement::Pool(cores) => Some(cores),
                Placement::Own(why) => return Err(why),
            },
        };
        Ok(Standing::Present(self.workload(setup, Path::new("/").join(cgroup), cores)))
    }

    fn workload(&self, setup: &Setup, cgroup: PathBuf, cores: Option<CoreSet>) -> Workload {
        Workload {
            id: self.id,
            name: self.order.title(),
            // The order was checked on arrival.
            template: setup.templates[usize::from(self.order.template)],
            cgroup,
            cores,
            objectives: self.objectives.clone(),
            pod: Some(Box::new(self.order.identity())),
        }
    }
}
