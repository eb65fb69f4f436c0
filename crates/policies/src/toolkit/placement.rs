//! Which core belongs to which region.
//!
//! A unit that moves takes one core along; the cores of other regions stay where they are, so that
//! their caches stay warm. Of the cores that a region could give, the first choice is one whose SMT
//! sibling the receiver already has (a physical core divided between two apps isolates neither),
//! then one that splits no pair of the giver, then one in the package where the receiver has most
//! cores. Isolated regions take high numbers first, because kernels keep housekeeping and most
//! interrupts on the low ones.

use lull_control::{AppId, CoreId, CoreSet, Machine};
use std::cmp::Reverse;

/// The region of a core or another unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Region {
    /// Only this app may use it.
    Isolated(AppId),
    /// Every app may use it.
    Shared,
}

/// A core, and the region that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CoreInRegion {
    id: CoreId,
    package: u16,
    smt_leader: CoreId,
    region: Region,
}

/// The region of every core, in order of topology.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CorePlacement {
    cores: Vec<CoreInRegion>,
}

impl CorePlacement {
    /// All cores shared.
    pub(crate) fn all_shared(machine: &Machine) -> Self {
        let shared = |core: &lull_control::Core| CoreInRegion {
            id: core.id,
            package: core.package,
            smt_leader: core.smt_leader,
            region: Region::Shared,
        };
        let mut cores: Vec<_> = machine.cores.iter().map(shared).collect();
        // SMT siblings side by side, whatever the kernel's numbering.
        cores.sort_by_key(|core| (core.package, core.smt_leader, core.id));
        Self { cores }
    }

    /// Gives each app a run of this many cores.
    pub(crate) fn divide(&mut self, shares: &[u32]) {
        let apps = (0u16..).zip(shares);
        let owners = apps.flat_map(|(app, share)| (0..*share).map(move |_| app));
        for (core, app) in self.cores.iter_mut().zip(owners) {
            core.region = Region::Isolated(AppId(app));
        }
    }

    /// Moves one core, the one that fits the receiver best.
    pub(crate) fn hand_over(&mut self, from: Region, to: Region) {
        let near = self.by_package(to);
        let candidates = (0..self.cores.len()).filter(|at| self.cores[*at].region == from);
        let Some(best) = candidates.min_by_key(|at| self.cost(*at, from, to, &near)) else {
            return;
        };
        self.cores[best].region = to;
    }

    /// How many cores of each package are in a region.
    fn by_package(&self, region: Region) -> Vec<usize> {
        let packages = self.cores.iter().map(|core| usize::from(core.package) + 1);
        let mut counts = vec![0; packages.max().unwrap_or(0)];
        for core in self.cores.iter().filter(|core| core.region == region) {
            counts[usize::from(core.package)] += 1;
        }
        counts
    }

    /// Lower is better; ends in the core's number, so there are no ties.
    fn cost(&self, at: usize, from: Region, to: Region, near: &[usize]) -> impl Ord + use<> {
        let core = self.cores[at];
        let (before, after) = self.cores.split_at(at);
        let is_sibling = |other: &&CoreInRegion| other.smt_leader == core.smt_leader;
        // Siblings are side by side, so those of `at` are the runs on both sides of it.
        let siblings = || {
            let left = before.iter().rev().take_while(is_sibling);
            left.chain(after[1..].iter().take_while(is_sibling))
        };
        let of = |region| siblings().filter(|other| other.region == region).count();
        let number = i32::from(core.id.0);
        let order = if to == Region::Shared { number } else { -number };
        (Reverse(of(to)), of(from), Reverse(near[usize::from(core.package)]), order)
    }

    /// The cores that only this app has.
    pub(crate) fn own(&self, app: AppId) -> CoreSet {
        self.cores(|region| region == Region::Isolated(app))
    }

    /// The cores that this app may run on: its own and the shared ones.
    pub(crate) fn reach(&self, app: AppId) -> CoreSet {
        self.cores(|region| region == Region::Shared || region == Region::Isolated(app))
    }

    fn cores(&self, wanted: impl Fn(Region) -> bool) -> CoreSet {
        self.cores.iter().filter(|core| wanted(core.region)).map(|core| core.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Plant;
    use lull_control::conformance::MemoryPlant;

    const A: Region = Region::Isolated(AppId(0));

    /// Two packages of two physical cores, numbered as Linux does: siblings 4 apart.
    fn smt() -> Machine {
        let mut machine = MemoryPlant::new(8, Vec::new()).machine().clone();
        for core in &mut machine.cores {
            core.smt_leader = CoreId(core.id.0 % 4);
            core.package = core.smt_leader.0 / 2;
        }
        machine
    }

    fn taken(placement: &mut CorePlacement, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| {
                placement.hand_over(Region::Shared, A);
                placement.own(AppId(0)).to_string()
            })
            .collect()
    }

    #[test]
    fn an_app_gets_both_siblings_of_a_core_and_then_the_same_package() {
        let mut placement = CorePlacement::all_shared(&smt());
        assert_eq!(taken(&mut placement, 4), ["7", "3,7", "3,6-7", "2-3,6-7"]);
    }

    #[test]
    fn giving_back_splits_no_pair_that_can_stay_whole() {
        let mut placement = CorePlacement::all_shared(&smt());
        taken(&mut placement, 3);
        placement.hand_over(A, Region::Shared);
        assert_eq!(placement.own(AppId(0)).to_string(), "3,7");
    }

    #[test]
    fn runs_keep_siblings_together() {
        let mut placement = CorePlacement::all_shared(&smt());
        placement.divide(&[4, 4]);
        assert_eq!(placement.own(AppId(0)).to_string(), "0-1,4-5");
        assert_eq!(placement.own(AppId(1)).to_string(), "2-3,6-7");
    }

    #[test]
    fn without_smt_the_low_cores_stay_shared_longest() {
        let plain = MemoryPlant::new(4, Vec::new()).machine().clone();
        let mut placement = CorePlacement::all_shared(&plain);
        assert_eq!(taken(&mut placement, 3), ["3", "2-3", "1-3"]);
    }
}
