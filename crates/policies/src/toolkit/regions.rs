//! Regions in units, and their cores, cache masks and bandwidth percentages.
//!
//! Every app may have an isolated region; all other units are in the one shared region. An app may
//! use its own region and the shared one. Policies that only share, only partition, or do both
//! (Ah-Q, section VI-B) move units between these regions. Every unit is in exactly one region, and
//! no app's usable units fall below a floor.

use super::placement::CorePlacement;
pub(crate) use super::placement::Region;
use super::ways::WayLine;
use lull_control::{AppId, Capability, CoreSet, Machine, Setting};

/// A kind of resource that comes in units, in the order in which policies try them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A unit is one core.
    Cores,
    /// A unit is one way of the last-level cache.
    Ways,
    /// A unit is one step of the memory bandwidth throttle.
    Bandwidth,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 3] = [Self::Cores, Self::Ways, Self::Bandwidth];

    /// Returns its name in the plural, for messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Ways => "cache ways",
            Self::Bandwidth => "steps of memory bandwidth",
        }
    }

    /// The capability a machine needs to divide it.
    pub(crate) const fn capability(self) -> Capability {
        match self {
            Self::Cores => Capability::Cores,
            Self::Ways => Capability::CacheWays,
            Self::Bandwidth => Capability::MemoryBandwidth,
        }
    }
}

/// A move of one unit from one region to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) kind: Kind,
    pub(crate) from: Region,
    pub(crate) to: Region,
}

/// Units of one kind by region; their sum never changes.
#[derive(Debug, Clone, PartialEq)]
struct Units {
    isolated: Vec<u32>,
    shared: u32,
    /// The least that each app must reach.
    floor: u32,
}

impl Units {
    fn all_shared(total: u32, floor: u32, apps: usize) -> Self {
        Self { isolated: vec![0; apps], shared: total, floor: floor.clamp(1, total.max(1)) }
    }

    fn held_by(&self, region: Region) -> u32 {
        match region {
            Region::Isolated(app) => self.isolated[app.index()],
            Region::Shared => self.shared,
        }
    }

    fn of_mut(&mut self, region: Region) -> &mut u32 {
        match region {
            Region::Isolated(app) => &mut self.isolated[app.index()],
            Region::Shared => &mut self.shared,
        }
    }

    fn total(&self) -> u32 {
        self.shared + self.isolated.iter().sum::<u32>()
    }

    /// Whether a region can lose a unit to `to` with every app's floor kept.
    fn can_move(&self, from: Region, to: Region) -> bool {
        if self.held_by(from) == 0 || from == to {
            return false;
        }
        let reach = |app: usize| {
            let own = self.isolated[app] + self.shared;
            let region = Region::Isolated(AppId(app as u16));
            let lost = u32::from(from == Region::Shared || from == region);
            let got = u32::from(to == Region::Shared || to == region);
            own + got - lost
        };
        (0..self.isolated.len()).all(|app| reach(app) >= self.floor)
    }
}

/// All regions of a machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Regions {
    units: [Option<Units>; 3],
    placement: CorePlacement,
    line: WayLine,
    step_percent: u32,
    core_caps: Vec<Option<u32>>,
}

impl Regions {
    /// Everything shared: every kind in `wanted` that the machine can divide.
    pub(crate) fn shared(machine: &Machine, apps: usize, wanted: &[Kind]) -> Self {
        let unit = |kind: Kind| {
            let there = wanted.contains(&kind) && machine.capabilities.has(kind.capability());
            let (total, floor) = totals(machine, kind).filter(|_| there)?;
            Some(Units::all_shared(total, floor, apps))
        };
        let contiguous = machine.cache.as_ref().is_none_or(|cache| cache.contiguous);
        Self {
            units: Kind::ALL.map(unit),
            placement: CorePlacement::all_shared(machine),
            line: WayLine::new(contiguous),
            step_percent: machine.bandwidth.as_ref().map_or(1, |bw| bw.step_percent.into()),
            core_caps: vec![None; apps],
        }
    }

    /// Everything divided evenly, nothing shared: each app gets the same
    /// number of units, the first ones one more each where some are left over.
    ///
    /// `None` if there are fewer units of some kind than apps.
    pub(crate) fn even(machine: &Machine, apps: usize, wanted: &[Kind]) -> Option<Self> {
        let mut regions = Self::shared(machine, apps, wanted);
        for kind in Kind::ALL {
            let Some(units) = &mut regions.units[kind as usize] else { continue };
            let shares = even_shares(units.shared, apps);
            if apps > 0 && shares.iter().any(|share| *share < units.floor) {
                return None;
            }
            match kind {
                Kind::Cores => regions.placement.divide(&shares),
                Kind::Ways => regions.line.divide(apps),
                Kind::Bandwidth => {}
            }
            units.shared -= shares.iter().sum::<u32>();
            units.isolated = shares;
        }
        Some(regions)
    }

    /// Units of a kind in a region; 0 for a kind that is not divided here.
    pub(crate) fn units_in(&self, kind: Kind, region: Region) -> u32 {
        self.units(kind).map_or(0, |units| units.held_by(region))
    }

    /// Units of a kind in all regions.
    #[cfg(test)]
    pub(crate) fn total(&self, kind: Kind) -> u32 {
        self.units(kind).map_or(0, Units::total)
    }

    /// The most cores an app's isolated region may grow to: its thread count,
    /// beyond which a core of its own is a core wasted.
    pub(crate) fn cap_cores(&mut self, app: AppId, cap: Option<u32>) {
        self.core_caps[app.index()] = cap;
    }

    /// Whether the region can give a unit of this kind to another region.
    pub(crate) fn can_give(&self, kind: Kind, from: Region) -> bool {
        let gives = |to| self.units(kind).is_some_and(|units| units.can_move(from, to));
        let apps = (0..self.core_caps.len()).map(|app| Region::Isolated(AppId(app as u16)));
        gives(Region::Shared) || apps.into_iter().any(gives)
    }

    /// Whether a unit can move: it is there, every app keeps its floor, and
    /// the receiver is not at its cap.
    pub(crate) fn can_move(&self, to_move: Move) -> bool {
        let Move { kind, from, to } = to_move;
        let room = match (kind, to) {
            (Kind::Cores, Region::Isolated(app)) => {
                self.core_caps[app.index()].is_none_or(|cap| self.units_in(kind, to) < cap)
            }
            _ => true,
        };
        room && self.units(kind).is_some_and(|units| units.can_move(from, to))
    }

    /// Moves a unit; `false`, and nothing changes, if it cannot move.
    pub(crate) fn shift(&mut self, to_move: Move) -> bool {
        if !self.can_move(to_move) {
            return false;
        }
        self.carry(to_move);
        true
    }

    /// Returns all that an app holds alone to the shared region; whether that was anything.
    pub(crate) fn release(&mut self, app: AppId) -> bool {
        let from = Region::Isolated(app);
        let mut any = false;
        for kind in Kind::ALL {
            while self.units_in(kind, from) > 0 {
                self.carry(Move { kind, from, to: Region::Shared });
                any = true;
            }
        }
        any
    }

    fn carry(&mut self, Move { kind, from, to }: Move) {
        let Some(units) = &mut self.units[kind as usize] else { return };
        *units.of_mut(from) -= 1;
        *units.of_mut(to) += 1;
        match kind {
            Kind::Cores => self.placement.hand_over(from, to),
            Kind::Ways => self.line.note(&units.isolated),
            Kind::Bandwidth => {}
        }
    }

    fn units(&self, kind: Kind) -> Option<&Units> {
        self.units[kind as usize].as_ref()
    }

    /// The settings that make the regions real, for every app.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let apps = (0..self.core_caps.len()).map(|app| AppId(app as u16));
        let of_kind = |kind: Kind| {
            let units = self.units(kind);
            apps.clone().filter_map(move |app| units.map(|units| self.setting(kind, units, app)))
        };
        Kind::ALL.into_iter().flat_map(of_kind).collect()
    }

    fn setting(&self, kind: Kind, units: &Units, app: AppId) -> Setting {
        match kind {
            Kind::Cores => Setting::Cores(app, self.cores(app)),
            Kind::Ways => {
                Setting::CacheWays(app, self.line.mask(app, &units.isolated, units.shared))
            }
            Kind::Bandwidth => {
                let reach = units.shared + units.held_by(Region::Isolated(app));
                let all = reach == units.total();
                let percent = if all { 100 } else { reach * self.step_percent };
                Setting::MemoryBandwidth(app, percent.min(100) as u8)
            }
        }
    }

    /// The cores that an app reaches.
    fn cores(&self, app: AppId) -> CoreSet {
        self.placement.reach(app)
    }

    /// Units of a kind by region, as a trajectory prints them: `xapian:2 shared:8`.
    #[cfg(test)]
    pub(crate) fn line(&self, kind: Kind, names: &[(AppId, &str)]) -> String {
        let isolated = names
            .iter()
            .map(|(app, name)| format!("{name}:{} ", self.units_in(kind, Region::Isolated(*app))));
        isolated.collect::<String>() + &format!("shared:{}", self.units_in(kind, Region::Shared))
    }
}

/// Units and floor of a kind on a machine; `None` where it cannot be divided.
pub(crate) fn totals(machine: &Machine, kind: Kind) -> Option<(u32, u32)> {
    match kind {
        Kind::Cores => Some((machine.cores.len() as u32, 1)),
        Kind::Ways => machine.cache.as_ref().map(|cache| (cache.ways, 1)),
        Kind::Bandwidth => machine.bandwidth.as_ref().map(|bandwidth| {
            let step = u32::from(bandwidth.step_percent.max(1));
            (100 / step, u32::from(bandwidth.min_percent).div_ceil(step))
        }),
    }
}

/// Equal shares; the first holders have one unit more each where some are left over.
pub(super) fn even_shares(total: u32, apps: usize) -> Vec<u32> {
    let count = apps.max(1) as u32;
    (0..apps as u32).map(|app| total / count + u32::from(app < total % count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::MemoryPlant;
    use lull_control::{Plant, WayMask};
    use proptest::prelude::*;

    const A: Region = Region::Isolated(AppId(0));
    const B: Region = Region::Isolated(AppId(1));

    fn machine(cores: u16) -> Machine {
        MemoryPlant::new(cores, Vec::new()).machine().clone()
    }

    fn cores_of(regions: &Regions, app: u16) -> String {
        regions.cores(AppId(app)).to_string()
    }

    fn core(from: Region, to: Region) -> Move {
        Move { kind: Kind::Cores, from, to }
    }

    #[test]
    fn an_even_split_gives_the_first_apps_what_is_left_over() {
        assert_eq!(even_shares(8, 3), [3, 3, 2]);
        let even = Regions::even(&machine(8), 3, &[Kind::Cores, Kind::Ways]).unwrap();
        let cores: Vec<_> = (0..3).map(|app| cores_of(&even, app)).collect();
        assert_eq!(cores, ["0-2", "3-5", "6-7"]);
        let masks = even.settings().into_iter().filter_map(|setting| match setting {
            Setting::CacheWays(_, mask) => Some(mask),
            _ => None,
        });
        let wanted = [WayMask::run(0, 7), WayMask::run(7, 7), WayMask::run(14, 6)];
        assert_eq!(masks.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn more_apps_than_cores_have_no_even_split() {
        assert!(Regions::even(&machine(2), 3, &[Kind::Cores]).is_none());
    }

    #[test]
    fn a_move_leaves_the_cores_of_third_parties_alone() {
        let mut regions = Regions::shared(&machine(8), 3, &Kind::ALL);
        for _ in 0..2 {
            assert!(regions.shift(core(Region::Shared, A)));
            assert!(regions.shift(core(Region::Shared, B)));
        }
        let before: Vec<_> = (0..2).map(|app| regions.placement.own(AppId(app))).collect();
        assert!(regions.shift(core(Region::Shared, A)));
        assert!(before[0].is_subset(&regions.placement.own(AppId(0))));
        assert_eq!(before[1], regions.placement.own(AppId(1)));
    }

    #[test]
    fn the_last_core_that_an_app_without_its_own_can_reach_stays_shared() {
        let mut regions = Regions::shared(&machine(3), 2, &[Kind::Cores]);
        assert!(regions.shift(core(Region::Shared, A)));
        assert!(regions.shift(core(Region::Shared, A)));
        assert!(!regions.shift(core(Region::Shared, A)), "the other app would have no core");
        assert!(regions.shift(core(Region::Shared, B)), "it may have the last one for itself");
        assert!(!regions.shift(core(B, A)), "and now keeps it");
    }

    #[test]
    fn an_app_gets_no_more_cores_than_it_has_threads() {
        let mut regions = Regions::shared(&machine(8), 1, &[Kind::Cores]);
        regions.cap_cores(AppId(0), Some(2));
        assert!(regions.shift(core(Region::Shared, A)) && regions.shift(core(Region::Shared, A)));
        assert!(!regions.shift(core(Region::Shared, A)));
    }

    #[test]
    fn bandwidth_is_what_an_app_reaches_in_percent() {
        let mut regions = Regions::shared(&machine(2), 2, &[Kind::Bandwidth]);
        for _ in 0..3 {
            regions.shift(Move { kind: Kind::Bandwidth, from: Region::Shared, to: A });
        }
        let wanted =
            [Setting::MemoryBandwidth(AppId(0), 100), Setting::MemoryBandwidth(AppId(1), 70)];
        assert_eq!(regions.settings(), wanted);
    }

    #[test]
    fn a_kind_that_the_machine_cannot_divide_is_left_out() {
        let mut bare = machine(4);
        bare.cache = None;
        let regions = Regions::shared(&bare, 1, &Kind::ALL);
        assert_eq!(regions.total(Kind::Ways), 0);
        assert!(!regions.can_give(Kind::Ways, Region::Shared));
        assert_eq!(regions.settings().len(), 2);
    }

    fn any_region(apps: u16) -> impl Strategy<Value = Region> {
        (0..=apps).prop_map(move |number| match number {
            number if number < apps => Region::Isolated(AppId(number)),
            _ => Region::Shared,
        })
    }

    fn any_move(apps: u16) -> impl Strategy<Value = Move> {
        let kind = prop::sample::select(Kind::ALL.to_vec());
        (kind, any_region(apps), any_region(apps)).prop_map(|(kind, from, to)| Move {
            kind,
            from,
            to,
        })
    }

    proptest! {
        #[test]
        fn units_are_conserved_and_every_setting_is_legal(
            cores in 1u16..12,
            contiguous: bool,
            moves in prop::collection::vec(any_move(4), 0..80),
        ) {
            let mut machine = machine(cores);
            machine.cache.as_mut().unwrap().contiguous = contiguous;
            let mut regions = Regions::shared(&machine, 4, &Kind::ALL);
            let totals = Kind::ALL.map(|kind| regions.total(kind));
            for to_move in moves {
                let before = regions.clone();
                if !regions.shift(to_move) {
                    prop_assert_eq!(&before, &regions);
                }
                prop_assert_eq!(totals, Kind::ALL.map(|kind| regions.total(kind)));
                for setting in regions.settings() {
                    let legal = match setting {
                        Setting::Cores(app, set) => {
                            let own = regions.units_in(Kind::Cores, Region::Isolated(app));
                            let reach = own + regions.units_in(Kind::Cores, Region::Shared);
                            set.len() as u32 == reach && reach > 0
                        }
                        Setting::CacheWays(_, mask) => {
                            mask.count() > 0 && (!contiguous || mask.is_contiguous())
                        }
                        Setting::MemoryBandwidth(_, percent) => (10..=100).contains(&percent),
                        _ => false,
                    };
                    prop_assert!(legal, "{regions:?}");
                }
            }
        }

        #[test]
        fn releasing_everything_shares_everything(
            moves in prop::collection::vec(any_move(3), 0..40),
        ) {
            let fresh = Regions::shared(&machine(6), 3, &Kind::ALL);
            let mut regions = fresh.clone();
            for to_move in moves {
                regions.shift(to_move);
            }
            for app in 0..3 {
                regions.release(AppId(app));
            }
            prop_assert_eq!(regions, fresh);
        }
    }
}
