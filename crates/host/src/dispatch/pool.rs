//! The cores of a dispatch: which are idle, and at which speed each one is.

use super::Floor;
use lull_control::CoreId;
use lull_control::dispatcher::Ladder;
use std::collections::BTreeMap;

/// Cores of fixed types, or cores that each take every speed.
pub(super) struct Pool {
    /// Idle cores: by type, or all in the first list where they scale.
    idle: Vec<Vec<CoreId>>,
    /// How many of them, as dispatchers are shown.
    free: Vec<u32>,
    /// Requests running on each type.
    busy: Vec<u32>,
    /// The speed that each core with its own frequency was last set to, as an index.
    speeds: Option<BTreeMap<CoreId, usize>>,
}

impl Pool {
    /// All cores of a floor, idle, those that scale at the slowest speed.
    pub(super) fn new(floor: &Floor) -> Self {
        let types = floor.ladder.types().len();
        let mut idle = vec![Vec::new(); types];
        for (kind, core) in floor.all() {
            idle[kind].push(core);
        }
        let scales = floor.ladder.scales();
        let speeds = scales.then(|| floor.all().map(|(_, core)| (core, 0)).collect());
        let free = free_of(&floor.ladder);
        Self { idle, free, busy: vec![0; types], speeds }
    }

    /// Idle cores by type; the same number for all where cores scale.
    pub(super) fn free(&self) -> &[u32] {
        &self.free
    }

    /// Requests running by type.
    pub(super) fn busy(&self) -> &[u32] {
        &self.busy
    }

    /// Requests running.
    pub(super) fn running(&self) -> usize {
        self.busy.iter().map(|busy| *busy as usize).sum()
    }

    /// Whether cores change their own speed.
    pub(super) fn scales(&self) -> bool {
        self.speeds.is_some()
    }

    /// An idle core for a request of this type.
    pub(super) fn take(&mut self, kind: usize) -> Option<CoreId> {
        let list = if self.scales() { 0 } else { kind };
        let core = self.idle.get_mut(list)?.pop()?;
        self.count_free(kind, |free| free - 1);
        self.busy[kind] += 1;
        Some(core)
    }

    /// A request of this type has left its core.
    pub(super) fn give_back(&mut self, kind: usize, core: CoreId) {
        let list = if self.scales() { 0 } else { kind };
        self.idle[list].push(core);
        self.count_free(kind, |free| free + 1);
        self.busy[kind] -= 1;
    }

    /// A request stays on its core, which becomes another type.
    pub(super) fn change(&mut self, from: usize, to: usize) {
        self.busy[from] -= 1;
        self.busy[to] += 1;
    }

    /// Whether a core must be set to be of this type; it counts as set then.
    pub(super) fn must_set(&mut self, core: CoreId, kind: usize) -> bool {
        let Some(speeds) = &mut self.speeds else { return false };
        speeds.insert(core, kind) != Some(kind)
    }

    /// Idle cores above the slowest speed; they count as set to it then.
    pub(super) fn slow_down_idle(&mut self) -> Vec<CoreId> {
        let Some(speeds) = &mut self.speeds else { return Vec::new() };
        let mut fast = self.idle[0].clone();
        fast.retain(|core| speeds.insert(*core, 0) != Some(0));
        fast
    }

    fn count_free(&mut self, kind: usize, change: impl Fn(u32) -> u32) {
        if self.scales() {
            self.free.iter_mut().for_each(|free| *free = change(*free));
        } else {
            self.free[kind] = change(self.free[kind]);
        }
    }
}

fn free_of(ladder: &Ladder) -> Vec<u32> {
    (0..ladder.types().len()).map(|kind| ladder.cores(kind) as u32).collect()
}
