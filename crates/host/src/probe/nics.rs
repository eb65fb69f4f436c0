//! Network interfaces whose interrupts can be coalesced, or why there is none.

use crate::Roots;
use crate::drivers::ethtool;
use lull_control::{Nic, NicId};
use lull_measure::{Missing, Nanos};
use rustix::thread::CapabilitySet;

/// Longest delay that is offered. ethtool does not tell a driver's bound; this
/// is about what Intel's server cards take (82599: 1022 us).
const DELAY_MAX: Nanos = Nanos::from_micros(1000);
/// ethtool's own granularity; a driver that rounds is read back.
const DELAY_STEP: Nanos = Nanos::from_micros(1);

/// The interfaces that have a receive delay, in the order of their names.
pub(super) fn nics(roots: &Roots) -> Vec<Nic> {
    let has_delay = |name: &String| ethtool::get(name).is_ok_and(|it| it.rx_us.is_some());
    let names = ethtool::interfaces(&roots.sys).into_iter().filter(has_delay);
    let nic =
        |(id, name)| Nic { id: NicId(id), name, delay_max: DELAY_MAX, delay_step: DELAY_STEP };
    (0..).zip(names).map(nic).collect()
}

/// The means by which delays are set, or why they cannot be.
pub(super) fn settable(roots: &Roots) -> Result<String, Missing> {
    let nics = nics(roots);
    if nics.is_empty() {
        return Err(Missing::because("no network interface here has an interrupt delay to set"));
    }
    let held = rustix::thread::capabilities(None);
    if !held.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN)) {
        let why = "interrupt delays need CAP_NET_ADMIN: run as root, or give the capability";
        return Err(Missing::because(why));
    }
    let names: Vec<_> = nics.iter().map(|nic| nic.name.as_str()).collect();
    Ok(format!("ethtool netlink ({})", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn without_a_card_there_is_a_reason() {
        let roots = Tree::new().roots();
        assert_eq!(nics(&roots), []);
        let why = settable(&roots).unwrap_err();
        assert!(why.reason.contains("no network interface"), "{why}");
    }
}
