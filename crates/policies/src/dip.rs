//! DIP classes: the abilities of a policy or a machine against interference.
//!
//! Ah-Q (Liu et al. 2024), sections II to IV: **D**istinguish (who owns each slice of
//! a resource is known), **I**solate (a slice is one app's alone over many
//! time slices) and **P**rioritise (the owner may change within a time slice
//! by criticality). Isolation and priority both presume distinction (lemmas 1
//! and 2), which leaves five classes.

use lull_control::{Capabilities, Capability};
use serde::Serialize;
use std::fmt;

/// One of the five classes of figure 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dip {
    /// No ability: apps share as they come.
    None,
    /// Distinguish only.
    D,
    /// Distinguish and isolate.
    DI,
    /// Distinguish and prioritise.
    DP,
    /// All three.
    DIP,
}

/// Isolation or priority was claimed without distinction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DipError;

impl fmt::Display for DipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("isolation and priority presume distinction (lemmas 1 and 2)")
    }
}

impl std::error::Error for DipError {}

impl Dip {
    /// All classes.
    pub const ALL: [Self; 5] = [Self::None, Self::D, Self::DI, Self::DP, Self::DIP];

    /// The class of these abilities.
    ///
    /// # Errors
    /// If isolation or priority is claimed without distinction.
    pub const fn classify(
        distinguish: bool,
        isolate: bool,
        prioritise: bool,
    ) -> Result<Self, DipError> {
        match (distinguish, isolate, prioritise) {
            (false, false, false) => Ok(Self::None),
            (false, ..) => Err(DipError),
            (true, false, false) => Ok(Self::D),
            (true, true, false) => Ok(Self::DI),
            (true, false, true) => Ok(Self::DP),
            (true, true, true) => Ok(Self::DIP),
        }
    }

    /// The class of what a plant offers: its apps are known, so it can
    /// distinguish; cores or ways isolate, scheduling classes prioritise.
    pub fn offered_by(capabilities: &Capabilities) -> Self {
        let isolate =
            capabilities.has(Capability::Cores) || capabilities.has(Capability::CacheWays);
        match (isolate, capabilities.has(Capability::Scheduling)) {
            (false, false) => Self::D,
            (true, false) => Self::DI,
            (false, true) => Self::DP,
            (true, true) => Self::DIP,
        }
    }

    /// The share of the CPU time above which switching counts as costly. The paper gives no
    /// threshold.
    pub const COSTLY_SWITCHING: f64 = 0.05;

    /// The least class that helps (theorem 1 as a rule of thumb): scarce
    /// resources need priority, costly switching needs isolation.
    ///
    /// Resources are scarce if an app is above its bound. `switching_share` is the share of the
    /// CPU time that switches take.
    pub const fn advised(scarce: bool, switching_share: f64) -> Self {
        match (scarce, switching_share > Self::COSTLY_SWITCHING) {
            (false, false) => Self::None,
            (true, false) => Self::DP,
            (false, true) => Self::DI,
            (true, true) => Self::DIP,
        }
    }

    /// Whether this class has all abilities of another one.
    pub const fn includes(self, other: Self) -> bool {
        match other {
            Self::None => true,
            Self::D => !matches!(self, Self::None),
            Self::DI => matches!(self, Self::DI | Self::DIP),
            Self::DP => matches!(self, Self::DP | Self::DIP),
            Self::DIP => matches!(self, Self::DIP),
        }
    }

    /// Returns the guarantee that a resource of this class can give under co-location (theorem 1).
    pub const fn can(self) -> &'static str {
        match self {
            Self::None => "needs nothing while no resource is scarce",
            Self::D => "account the use of each app, and refuse more work",
            Self::DI => {
                "keep other apps out of resources that an app owns: its tail does not rise with \
                 their load, and no owner changes"
            }
            Self::DP => "serve critical apps first where resources are scarce, and leave none idle",
            Self::DIP => {
                "isolate resources that are costly to switch; serve critical apps first elsewhere"
            }
        }
    }

    /// Returns the guarantee that it cannot give.
    pub const fn cannot(self) -> &'static str {
        match self {
            Self::None | Self::D => {
                "protect an app from the load of other apps: its tail rises with theirs"
            }
            Self::DI => "lend resources that their owner leaves idle: scarce ones are wasted",
            Self::DP => {
                "avoid the cost of changing owners: context switches, and cold caches after them"
            }
            Self::DIP => "meet a bound that the app misses even alone on the whole machine",
        }
    }

    /// Its abilities, written as a sum.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::D => "D",
            Self::DI => "D+I",
            Self::DP => "D+P",
            Self::DIP => "D+I+P",
        }
    }
}

/// The limit that holds for any machine (theorem 2, TLT).
pub const TLT: &str = "whatever the class, throughput is at most RLP/TL (1 - f)/(1 - q) with RLP \
    requests outstanding, tail TL at quantile q and f of all latency below it: a shorter tail \
    allows more throughput, it does not give it";

/// One resource, and what can be done with it here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ResourceDip {
    /// The name of the resource.
    pub resource: &'static str,
    /// The class of its knobs together.
    pub class: Dip,
    /// The means or the reason for a lack, ability by ability.
    pub distinguish: Ability,
    /// Slices that stay one app's.
    pub isolate: Ability,
    /// Slices that go to critical apps first.
    pub prioritise: Ability,
    /// [`Dip::can`].
    pub can: &'static str,
    /// [`Dip::cannot`].
    pub cannot: &'static str,
}

/// One ability with regard to one resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// The ability is present, by this means.
    By(String),
    /// The ability is missing, for this reason.
    Missing(String),
}

impl Ability {
    fn from_capability(offered: &Capabilities, capability: Capability) -> Self {
        match offered.get(capability) {
            Ok(means) => Self::By(means.to_owned()),
            Err(why) => Self::Missing(why.to_string()),
        }
    }

    /// Whether it is there.
    pub const fn is_there(&self) -> bool {
        matches!(self, Self::By(_))
    }
}

/// The class of each resource that co-located apps fight for.
///
/// Cores: the kernel always knows whose thread runs. Cache and bandwidth:
/// an app's share is known only where hardware labels requests (Intel RDT, AMD QoS),
/// and no hardware gives a way or a byte to critical apps first.
pub fn by_resource(offered: &Capabilities) -> Vec<ResourceDip> {
    let labelled = |resource, capability| {
        let isolate = Ability::from_capability(offered, capability);
        let none = "no hardware serves one app's requests before another's".to_owned();
        resource_dip(resource, [isolate.clone(), isolate, Ability::Missing(none)])
    };
    let known = Ability::By("the kernel's account of threads".to_owned());
    let cores =
        [Capability::Cores, Capability::Scheduling].map(|it| Ability::from_capability(offered, it));
    let [isolate, prioritise] = cores;
    vec![
        resource_dip("cores", [known, isolate, prioritise]),
        labelled("cache ways", Capability::CacheWays),
        labelled("memory bandwidth", Capability::MemoryBandwidth),
    ]
}

fn resource_dip(resource: &'static str, abilities: [Ability; 3]) -> ResourceDip {
    let [distinguish, isolate, prioritise] = abilities;
    let there = [&distinguish, &isolate, &prioritise].map(Ability::is_there);
    // Isolation and priority come with distinction above, so that every set is legal.
    let class = Dip::classify(there[0], there[1], there[2]).unwrap_or(Dip::None);
    let (can, cannot) = (class.can(), class.cannot());
    ResourceDip { resource, class, distinguish, isolate, prioritise, can, cannot }
}

impl fmt::Display for Dip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for Dip {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Missing;

    #[test]
    fn of_eight_combinations_five_are_legal() {
        let all = (0..8).map(|bits| Dip::classify(bits & 1 > 0, bits & 2 > 0, bits & 4 > 0));
        let legal: Vec<_> = all.filter_map(Result::ok).collect();
        assert_eq!(legal.len(), 5);
        assert!(Dip::ALL.iter().all(|class| legal.contains(class)));
        assert_eq!(Dip::classify(false, true, false), Err(DipError));
        assert_eq!(Dip::classify(false, false, true), Err(DipError));
    }

    #[test]
    fn a_machine_without_knobs_can_only_tell_apps_apart() {
        let none = Capabilities::default();
        assert_eq!(Dip::offered_by(&none), Dip::D);
        let cores = none.with_capability(Capability::Cores, "sched_setaffinity");
        assert_eq!(Dip::offered_by(&cores), Dip::DI);
        let both = cores.with_capability(Capability::Scheduling, "sched_setattr");
        assert_eq!(Dip::offered_by(&both), Dip::DIP);
        let only = both.without(Capability::Cores, Missing::because("test"));
        assert_eq!(Dip::offered_by(&only), Dip::DP);
    }

    #[test]
    fn each_resource_has_the_class_of_its_own_knobs() {
        let some = Capabilities::default()
            .with_capability(Capability::Cores, "sched_setaffinity")
            .with_capability(Capability::Scheduling, "sched_setattr")
            .with_capability(Capability::CacheWays, "resctrl")
            .without(Capability::MemoryBandwidth, Missing::because("no MBA"));
        let all = by_resource(&some);
        let classes: Vec<_> = all.iter().map(|one| (one.resource, one.class)).collect();
        let wanted =
            [("cores", Dip::DIP), ("cache ways", Dip::DI), ("memory bandwidth", Dip::None)];
        assert_eq!(classes, wanted);
        assert_eq!(all[2].isolate, Ability::Missing("no MBA".to_owned()));
        assert_eq!(by_resource(&Capabilities::default())[0].class, Dip::D);
    }

    #[test]
    fn no_class_promises_what_another_of_its_lacks_denies() {
        let promises: std::collections::BTreeSet<_> = Dip::ALL.iter().map(|it| it.can()).collect();
        assert_eq!(promises.len(), Dip::ALL.len());
        assert!(Dip::ALL.iter().all(|class| !class.cannot().is_empty()));
    }

    #[test]
    fn the_theorem_asks_for_priority_when_scarce_and_isolation_when_switching_costs() {
        let (cheap, costly) = (Dip::COSTLY_SWITCHING, Dip::COSTLY_SWITCHING + 0.01);
        assert_eq!(Dip::advised(false, cheap), Dip::None);
        assert_eq!(Dip::advised(true, cheap), Dip::DP);
        assert_eq!(Dip::advised(false, costly), Dip::DI);
        assert_eq!(Dip::advised(true, costly), Dip::DIP);
    }

    #[test]
    fn a_class_includes_those_with_fewer_of_its_abilities() {
        let count = |class: Dip| Dip::ALL.iter().filter(|other| class.includes(**other)).count();
        assert_eq!(Dip::ALL.map(count), [1, 2, 3, 3, 5]);
        assert!(!Dip::DI.includes(Dip::DP) && !Dip::DP.includes(Dip::DI));
    }
}
