//! A machine divided between holders, with nothing shared.
//!
//! A holder is one app, or several that share one part (the best-effort apps of PARTIES and
//! Heracles). Every holder has at least the floor of every kind of resource; units without a holder
//! are idle. Policies that partition strictly (PARTIES, CLITE, Heracles, SATORI) move units between
//! holders; those that also share use [`super::regions::Regions`].

use super::placement::CorePlacement;
use super::regions::{Kind, Region, even_shares, totals};
use lull_control::{AppId, AppSpec, Machine, PolicyError, Setting, WayMask, numbered};

/// The party that gives or takes a unit: a holder's index, or `None` for idle units.
pub(crate) type Party = Option<usize>;

/// Units of one kind by holder; their sum never changes.
#[derive(Debug, Clone, PartialEq)]
struct Shares {
    held: Vec<u32>,
    idle: u32,
    floor: u32,
}

/// A machine divided between holders.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Partition {
    holders: Vec<Vec<AppId>>,
    /// Holders whose apps have all exited; they keep nothing.
    retired: Vec<bool>,
    shares: [Option<Shares>; 3],
    placement: CorePlacement,
    step_percent: u32,
}

/// A kind has too few units for each app to have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooFew {
    kind: Kind,
    units: u32,
    holders: usize,
    floor: u32,
}

impl TooFew {
    /// Returns the error of a policy that cannot start.
    pub(crate) fn refuse(self, policy: &'static str) -> PolicyError {
        let Self { kind, units, holders, floor } = self;
        let message = format!(
            "{units} {} cannot be divided between {holders} parties of at least {floor} each: \
             run fewer apps, or choose `arq`, which also shares",
            kind.name()
        );
        PolicyError::Apps { policy, message }
    }
}

impl Partition {
    /// The same for every holder, of every kind that the machine can divide.
    ///
    /// # Errors
    /// If there is less of a kind than the holders' floors.
    pub(crate) fn even(machine: &Machine, holders: Vec<Vec<AppId>>) -> Result<Self, TooFew> {
        let count = holders.len();
        let mut partition = Self {
            shares: Kind::ALL.map(|kind| {
                let there = machine.capabilities.has(kind.capability());
                let (total, floor) = totals(machine, kind).filter(|_| there)?;
                Some(Shares { held: even_shares(total, count), idle: 0, floor })
            }),
            retired: vec![false; count],
            holders,
            placement: CorePlacement::all_shared(machine),
            step_percent: machine.bandwidth.as_ref().map_or(1, |bw| bw.step_percent.into()),
        };
        for kind in Kind::ALL {
            let Some(shares) = &mut partition.shares[kind as usize] else { continue };
            let (units, floor) = totals(machine, kind).unwrap_or_default();
            if shares.held.iter().any(|held| *held < floor) {
                return Err(TooFew { kind, units, holders: count, floor });
            }
            shares.idle = units - shares.held.iter().sum::<u32>();
        }
        if let Some(cores) = &partition.shares[Kind::Cores as usize] {
            partition.placement.divide(&cores.held);
        }
        Ok(partition)
    }

    /// The kinds that are divided.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        Kind::ALL.into_iter().filter(|kind| self.shares(*kind).is_some())
    }

    /// How many holders there are.
    pub(crate) fn holders(&self) -> usize {
        self.holders.len()
    }

    /// The apps of a holder.
    pub(crate) fn apps(&self, holder: usize) -> &[AppId] {
        &self.holders[holder]
    }

    /// Units of a kind that a holder has; 0 for a kind that is not divided.
    pub(crate) fn units_of(&self, kind: Kind, holder: usize) -> u32 {
        self.shares(kind).map_or(0, |shares| shares.held[holder])
    }

    /// Units of a kind in all.
    pub(crate) fn total(&self, kind: Kind) -> u32 {
        self.shares(kind).map_or(0, |shares| shares.idle + shares.held.iter().sum::<u32>())
    }

    /// The least of a kind that a holder keeps.
    pub(crate) fn floor(&self, kind: Kind) -> u32 {
        self.shares(kind).map_or(0, |shares| shares.floor)
    }

    /// Whether a party has a unit that it can give away.
    pub(crate) fn can_give(&self, kind: Kind, from: Party) -> bool {
        self.shares(kind).is_some_and(|shares| match from {
            Some(holder) => shares.held[holder] > self.floor_of(holder, shares),
            None => shares.idle > 0,
        })
    }

    /// Moves a unit; `false`, and nothing changes, if the giver has none to give.
    pub(crate) fn shift(&mut self, kind: Kind, from: Party, to: Party) -> bool {
        let can = from != to && self.can_give(kind, from);
        if can {
            self.carry(kind, from, to);
        }
        can
    }

    /// Notes that a holder's apps have all exited: it gives all it has to
    /// another party, its floor too. Whether that is news.
    pub(crate) fn retire(&mut self, holder: usize, to: Party) -> bool {
        if std::mem::replace(&mut self.retired[holder], true) {
            return false;
        }
        for kind in Kind::ALL {
            while self.shift(kind, Some(holder), to) {}
        }
        true
    }

    /// Whether a holder's apps have all exited.
    pub(crate) fn is_retired(&self, holder: usize) -> bool {
        self.retired[holder]
    }

    fn floor_of(&self, holder: usize, shares: &Shares) -> u32 {
        if self.retired[holder] { 0 } else { shares.floor }
    }

    /// Changes a kind to these units by holder, with as few moves as possible. Their sum must not
    /// exceed the units of the kind.
    pub(crate) fn set(&mut self, kind: Kind, wanted: &[u32]) {
        let Some(shares) = self.shares(kind) else { return };
        let spare = |held: &[u32]| (0..held.len()).find(|at| held[*at] > wanted[*at]);
        let lacking = |held: &[u32]| (0..held.len()).find(|at| held[*at] < wanted[*at]);
        let mut held = shares.held.clone();
        let mut idle = shares.idle;
        loop {
            let from = spare(&held);
            let to = lacking(&held);
            if (from, to) == (None, None) || (from.is_none() && idle == 0) {
                return;
            }
            self.carry(kind, from, to);
            match from {
                Some(holder) => held[holder] -= 1,
                None => idle -= 1,
            }
            match to {
                Some(holder) => held[holder] += 1,
                None => idle += 1,
            }
        }
    }

    fn carry(&mut self, kind: Kind, from: Party, to: Party) {
        let Some(shares) = &mut self.shares[kind as usize] else { return };
        match from {
            Some(holder) => shares.held[holder] -= 1,
            None => shares.idle -= 1,
        }
        match to {
            Some(holder) => shares.held[holder] += 1,
            None => shares.idle += 1,
        }
        if kind == Kind::Cores {
            self.placement.hand_over(region(from), region(to));
        }
    }

    fn shares(&self, kind: Kind) -> Option<&Shares> {
        self.shares[kind as usize].as_ref()
    }

    /// The settings that make it real, for every app.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            let Some(shares) = self.shares(kind) else { continue };
            let living = |holder: &usize| !self.retired[*holder];
            for holder in (0..self.holders.len()).filter(living) {
                let apps = &self.holders[holder];
                all.extend(apps.iter().map(|app| self.setting(kind, shares, holder, *app)));
            }
        }
        all
    }

    fn setting(&self, kind: Kind, shares: &Shares, holder: usize, app: AppId) -> Setting {
        let units = shares.held[holder];
        match kind {
            Kind::Cores => Setting::Cores(app, self.placement.own(number(holder))),
            Kind::Ways => {
                let first = shares.held[..holder].iter().sum();
                Setting::CacheWays(app, WayMask::run(first, units))
            }
            Kind::Bandwidth => {
                let percent = units * self.step_percent;
                Setting::MemoryBandwidth(app, percent.min(100) as u8)
            }
        }
    }

    /// Units by holder, as a trajectory prints them: `3 3 2 +0`.
    #[cfg(test)]
    pub(crate) fn line(&self, kind: Kind) -> String {
        let held = (0..self.holders()).map(|holder| format!("{} ", self.units_of(kind, holder)));
        held.collect::<String>()
            + &format!("+{}", self.shares(kind).map_or(0, |shares| shares.idle))
    }
}

/// Returns a holder's index as an app id, because placement only compares ids.
fn number(holder: usize) -> AppId {
    AppId(holder as u16)
}

fn region(party: Party) -> Region {
    party.map_or(Region::Shared, |holder| Region::Isolated(number(holder)))
}

/// Every latency-critical app for itself, then all best-effort apps together.
pub(crate) fn best_effort_together(apps: &[AppSpec]) -> Vec<Vec<AppId>> {
    let is_lc = |(_, spec): &(AppId, &AppSpec)| spec.is_latency_critical();
    let (critical, rest): (Vec<_>, Vec<_>) = numbered(apps).partition(is_lc);
    let mut holders: Vec<_> = critical.into_iter().map(|(app, _)| vec![app]).collect();
    if !rest.is_empty() {
        holders.push(rest.into_iter().map(|(app, _)| app).collect());
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::MemoryPlant;
    use lull_control::{CoreSet, Plant};
    use proptest::prelude::*;

    fn machine(cores: u16) -> Machine {
        MemoryPlant::new(cores, Vec::new()).machine().clone()
    }

    fn alone(count: u16) -> Vec<Vec<AppId>> {
        (0..count).map(|app| vec![AppId(app)]).collect()
    }

    fn cores(partition: &Partition, app: u16) -> CoreSet {
        let of = |setting| match setting {
            Setting::Cores(of, cores) if of == AppId(app) => Some(cores),
            _ => None,
        };
        partition.settings().into_iter().find_map(of).unwrap()
    }

    #[test]
    fn it_begins_even_in_all_kinds() {
        let partition = Partition::even(&machine(8), alone(3)).unwrap();
        let lines = Kind::ALL.map(|kind| partition.line(kind));
        assert_eq!(lines, ["3 3 2 +0", "7 7 6 +0", "4 3 3 +0"]);
    }

    #[test]
    fn too_many_holders_are_refused_with_the_kind_and_the_numbers() {
        let few = Partition::even(&machine(2), alone(3)).unwrap_err();
        let text = few.refuse("clite").to_string();
        assert!(text.contains("2 cores") && text.contains("3 parties"), "{text}");
        let mut narrow = machine(8);
        narrow.cache.as_mut().unwrap().ways = 2;
        let text = Partition::even(&narrow, alone(3)).unwrap_err().refuse("clite").to_string();
        assert!(text.contains("2 cache ways"), "{text}");
    }

    #[test]
    fn holders_of_several_apps_give_them_the_same() {
        let partition =
            Partition::even(&machine(4), vec![vec![AppId(1)], vec![AppId(0), AppId(2)]]);
        let partition = partition.unwrap();
        assert_eq!(cores(&partition, 0), cores(&partition, 2));
        assert!(cores(&partition, 0).intersection(&cores(&partition, 1)).is_empty());
    }

    #[test]
    fn a_floor_is_kept_and_idle_units_can_be_taken() {
        let mut partition = Partition::even(&machine(2), alone(2)).unwrap();
        assert!(!partition.shift(Kind::Cores, Some(0), Some(1)));
        assert!(partition.shift(Kind::Ways, Some(0), None));
        assert_eq!(partition.line(Kind::Ways), "9 10 +1");
        assert!(partition.shift(Kind::Ways, None, Some(1)));
        assert_eq!(partition.line(Kind::Ways), "9 11 +0");
    }

    #[test]
    fn who_has_exited_keeps_nothing_and_has_no_settings() {
        let mut partition = Partition::even(&machine(4), alone(2)).unwrap();
        assert!(partition.retire(0, Some(1)));
        assert!(!partition.retire(0, Some(1)), "no news the second time");
        assert_eq!(partition.line(Kind::Cores), "0 4 +0");
        assert_eq!(cores(&partition, 1), CoreSet::first(4));
        assert_eq!(partition.settings().len(), 3);
    }

    #[test]
    fn parts_are_set_as_wanted_and_bystanders_keep_their_cores() {
        let mut partition = Partition::even(&machine(8), alone(3)).unwrap();
        let before = cores(&partition, 2);
        partition.set(Kind::Cores, &[1, 5, 2]);
        assert_eq!(partition.line(Kind::Cores), "1 5 2 +0");
        assert_eq!(cores(&partition, 2), before);
        partition.set(Kind::Cores, &[1, 1, 2]);
        assert_eq!(partition.line(Kind::Cores), "1 1 2 +4");
        partition.set(Kind::Cores, &[3, 3, 2]);
        assert_eq!(partition.line(Kind::Cores), "3 3 2 +0");
    }

    proptest! {
        #[test]
        fn no_ranges_overlap_and_no_unit_is_lost(
            moves in prop::collection::vec((0usize..3, 0usize..4, 0usize..4), 0..60),
        ) {
            let mut partition = Partition::even(&machine(7), alone(3)).unwrap();
            let totals = Kind::ALL.map(|kind| partition.total(kind));
            let party = |number: usize| (number < 3).then_some(number);
            for (kind, from, to) in moves {
                partition.shift(Kind::ALL[kind], party(from), party(to));
                prop_assert_eq!(totals, Kind::ALL.map(|kind| partition.total(kind)));
                let (mut seen, mut ways) = (CoreSet::default(), 0u64);
                for setting in partition.settings() {
                    match setting {
                        Setting::Cores(_, cores) => {
                            prop_assert!(!cores.is_empty());
                            prop_assert!(cores.intersection(&seen).is_empty());
                            seen = seen.union(&cores);
                        }
                        Setting::CacheWays(_, mask) => {
                            prop_assert!(mask.count() > 0 && mask.is_contiguous());
                            prop_assert!(mask.0 & ways == 0);
                            ways |= mask.0;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}
