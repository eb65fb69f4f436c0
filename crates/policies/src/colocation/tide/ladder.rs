//! The levels: how much of the machine best-effort work may use.
//!
//! At the top level best-effort work may use everything. Below it one kind of resource is
//! withdrawn unit by unit to its floor, then the next. If scheduling classes can put
//! latency-critical apps first, cores need no restriction and are withdrawn last; otherwise they
//! are withdrawn first.

use crate::toolkit::regions::{Kind, totals};
use lull_control::{AppId, CoreSet, Machine, Setting, WayMask};

/// The resources that best-effort work may use at one level, in units by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LevelResources {
    units: [Option<u32>; 3],
}

/// All levels, the lowest first.
#[derive(Debug, Clone)]
pub(super) struct Ladder {
    levels: Vec<LevelResources>,
    cores: Vec<lull_control::CoreId>,
    ways: u32,
    steps: u32,
    step_percent: u32,
}

impl Ladder {
    /// The levels of this machine; `first` puts latency-critical apps first on cores.
    pub(super) fn new(machine: &Machine, first: bool) -> Self {
        let order = match first {
            true => [Kind::Ways, Kind::Bandwidth, Kind::Cores],
            false => [Kind::Cores, Kind::Ways, Kind::Bandwidth],
        };
        let has = |kind: Kind| machine.capabilities.has(kind.capability());
        let of = |kind| totals(machine, kind).filter(|_| has(kind));
        let mut reach =
            LevelResources { units: Kind::ALL.map(|kind| of(kind).map(|(total, _)| total)) };
        let mut levels = vec![reach];
        for kind in order {
            let Some((total, floor)) = of(kind) else { continue };
            for units in (floor..total).rev() {
                reach.units[kind as usize] = Some(units);
                levels.push(reach);
            }
        }
        levels.reverse();
        let total = |kind| of(kind).map_or(0, |(total, _)| total);
        Self {
            levels,
            cores: machine.cores.iter().map(|core| core.id).collect(),
            ways: total(Kind::Ways),
            steps: total(Kind::Bandwidth),
            step_percent: machine.bandwidth.as_ref().map_or(1, |bw| bw.step_percent.into()),
        }
    }

    /// Ways that can be divided.
    pub(super) const fn ways(&self) -> u32 {
        self.ways
    }

    /// The level at which best-effort work reaches everything.
    pub(super) fn top(&self) -> usize {
        self.levels.len() - 1
    }

    /// The highest level at which best-effort work has at most this many cores.
    pub(super) fn with_cores(&self, most: u32) -> usize {
        let fits = |reach: &LevelResources| {
            reach.units[Kind::Cores as usize].is_none_or(|has| has <= most)
        };
        self.levels.iter().rposition(fits).unwrap_or(0)
    }

    /// The settings of an app at a level; latency-critical apps reach everything.
    pub(super) fn settings(&self, level: usize, app: AppId, critical: bool) -> Vec<Setting> {
        let reach = self.levels[level];
        let units = |kind: Kind, all: u32| {
            reach.units[kind as usize].map(|units| if critical { all } else { units })
        };
        let count = self.cores.len() as u32;
        // Kernels keep housekeeping on low cores, and so do we with best-effort work.
        let cores =
            |units: u32| self.cores.iter().copied().take(units as usize).collect::<CoreSet>();
        let cores = units(Kind::Cores, count).map(|units| Setting::Cores(app, cores(units)));
        let mask = |units| Setting::CacheWays(app, WayMask::run(0, units));
        let ways = units(Kind::Ways, self.ways).map(mask);
        let percent = |units: u32| match units == self.steps {
            true => 100,
            false => (units * self.step_percent).min(100) as u8,
        };
        let bandwidth = units(Kind::Bandwidth, self.steps)
            .map(|units| Setting::MemoryBandwidth(app, percent(units)));
        cores.into_iter().chain(ways).chain(bandwidth).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cores_only, machine};

    fn texts(ladder: &Ladder, level: usize, critical: bool) -> Vec<String> {
        let settings = ladder.settings(level, AppId(0), critical);
        settings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_top_is_everything_and_the_bottom_the_floors() {
        let ladder = Ladder::new(&machine(4), true);
        assert_eq!(ladder.top(), 3 + 19 + 9);
        let all = ["cores 0-3", "cache ways 0xfffff", "memory bandwidth 100 %"];
        assert_eq!(texts(&ladder, ladder.top(), false), all);
        assert_eq!(
            texts(&ladder, 0, false),
            ["cores 0", "cache ways 0x1", "memory bandwidth 10 %"]
        );
        assert_eq!(texts(&ladder, 0, true), all, "latency-critical apps reach everything");
    }

    #[test]
    fn with_priority_ways_go_first_and_without_it_cores() {
        let below_top = |first| {
            let ladder = Ladder::new(&machine(4), first);
            texts(&ladder, ladder.top() - 1, false)
        };
        assert_eq!(below_top(true)[1], "cache ways 0x7ffff");
        assert_eq!(below_top(false)[0], "cores 0-2");
    }

    #[test]
    fn a_machine_with_cores_alone_has_a_level_a_core() {
        let ladder = Ladder::new(&cores_only(4), false);
        assert_eq!(ladder.top(), 3);
        assert_eq!(ladder.with_cores(2), 1);
        assert_eq!((ladder.with_cores(0), ladder.with_cores(9)), (0, 3));
        assert_eq!(texts(&ladder, 1, false), ["cores 0-1"]);
    }
}
