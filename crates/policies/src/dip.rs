//! DIP classes: what a policy or a machine can do about interference.
//!
//! Ah-Q (seed 004), sections II to IV: **D**istinguish (who owns each slice of
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
    pub fn of(offered: &Capabilities) -> Self {
        let isolate = offered.has(Capability::Cores) || offered.has(Capability::CacheWays);
        match (isolate, offered.has(Capability::Scheduling)) {
            (false, false) => Self::D,
            (true, false) => Self::DI,
            (false, true) => Self::DP,
            (true, true) => Self::DIP,
        }
    }

    /// The least class that helps (theorem 1 as a rule of thumb): scarce
    /// resources need priority, costly switching needs isolation.
    ///
    /// What counts as scarce (an app above its bound when unmanaged) and as
    /// switch-heavy (over 5 % of busy time spent on switching) is ours; the
    /// paper gives no thresholds.
    pub const fn advised(scarce: bool, switch_heavy: bool) -> Self {
        match (scarce, switch_heavy) {
            (false, false) => Self::None,
            (true, false) => Self::DP,
            (false, true) => Self::DI,
            (true, true) => Self::DIP,
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
        assert_eq!(Dip::of(&none), Dip::D);
        let cores = none.with(Capability::Cores, "sched_setaffinity");
        assert_eq!(Dip::of(&cores), Dip::DI);
        let both = cores.with(Capability::Scheduling, "sched_setattr");
        assert_eq!(Dip::of(&both), Dip::DIP);
        let only = both.without(Capability::Cores, Missing::because("test"));
        assert_eq!(Dip::of(&only), Dip::DP);
    }

    #[test]
    fn the_theorem_asks_for_priority_when_scarce_and_isolation_when_switching_costs() {
        assert_eq!(Dip::advised(false, false), Dip::None);
        assert_eq!(Dip::advised(true, false), Dip::DP);
        assert_eq!(Dip::advised(false, true), Dip::DI);
        assert_eq!(Dip::advised(true, true), Dip::DIP);
    }
}
