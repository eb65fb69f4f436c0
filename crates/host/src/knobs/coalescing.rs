//! Interrupt coalescing of network interfaces, as policies steer it: the
//! driver's own adaptive delay, or a fixed one for both directions.
//!
//! `lull hold coalescing=...` sets single parameters instead
//! ([`super::hold`]); both share driver, ledger and guard.

use super::{ChangedSetting, KnobError, SaveOld};
use crate::Roots;
use crate::drivers::ethtool::{self, Coalescing as Parameters};
use crate::guard::{Key, Original};
use lull_control::{Coalescing, Nic, NicId, Setting};
use lull_measure::{Missing, Nanos};
use rustix::thread::CapabilitySet;
use std::collections::BTreeMap;

/// Longest delay that is offered. ethtool does not report a driver's bound; this
/// is about what Intel's server cards accept (82599: 1022 us).
const DELAY_MAX: Nanos = Nanos::from_micros(1000);
/// ethtool's own granularity; a driver that rounds is read back.
const DELAY_STEP: Nanos = Nanos::from_micros(1);

/// The interfaces that have a receive delay, in the order of their names.
pub(crate) fn nics(roots: &Roots) -> Vec<Nic> {
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

/// The interfaces of this machine and Lull's last settings.
#[derive(Debug)]
pub(crate) struct Nics {
    names: Vec<String>,
    /// Indexed by interface: the values that its driver made of those set, unless others wrote
    /// since.
    set: BTreeMap<NicId, Coalescing>,
}

impl Nics {
    pub(crate) fn new(nics: &[Nic]) -> Self {
        let names = nics.iter().map(|nic| nic.name.clone()).collect();
        Self { names, set: BTreeMap::new() }
    }

    /// How an interface interrupts now; `None` if it cannot be read.
    pub(crate) fn get(&self, nic: NicId) -> Option<Coalescing> {
        ethtool::get(self.name(nic)?).ok().and_then(read)
    }

    pub(crate) fn set(
        &mut self,
        nic: NicId,
        wanted: Coalescing,
        save: &mut impl SaveOld,
    ) -> Result<(), KnobError> {
        let name = self.name(nic).unwrap_or_default().to_owned();
        let before = ethtool::get(&name)?;
        let whole = written(wanted, &before);
        let change = whole.unlike(&before);
        ethtool::refuse_cut_off(&name, &change)?;
        let original = |ours| Original::Coalescing { nic: name.clone(), was: before, ours };
        save.values(&[original([before.texts(), whole.texts()].concat())])?;
        ethtool::set(&name, &change)?;
        // Drivers round (e1000e: 900 to 902 us). The value read back is recorded, so that rounding
        // does not count as another writer's change.
        let kept = ethtool::get(&name)?;
        self.set.insert(nic, read(kept).unwrap_or(wanted));
        save.values(&[original(kept.texts())])?;
        Ok(())
    }

    /// Interfaces that another program has set since, each reported once.
    pub(crate) fn watch(&mut self) -> Vec<ChangedSetting> {
        let mut changed = Vec::new();
        for (nic, ours) in self.set.clone() {
            let Some(found) = self.get(nic).filter(|found| *found != ours) else { continue };
            let whom = self.name(nic).unwrap_or_default().to_owned();
            self.set.remove(&nic);
            let (ours, found) = (Setting::Coalescing(nic, ours), Setting::Coalescing(nic, found));
            let keys = vec![Key::Nic(whom.clone())];
            changed.push(ChangedSetting { ours, found, keys, whom });
        }
        changed
    }

    /// Whether the ledger's key belongs to this interface.
    pub(crate) fn is_of(&self, nic: NicId, key: &Key) -> bool {
        matches!((self.name(nic), key), (Some(name), Key::Nic(nic)) if nic == name)
    }

    /// Forgets the settings, after they were restored.
    pub(crate) fn restored(&mut self) {
        self.set.clear();
    }

    fn name(&self, nic: NicId) -> Option<&str> {
        self.names.get(usize::from(nic.0)).map(String::as_str)
    }
}

/// Reads the delay from an interface's parameters; `None` if it has none to set.
fn read(found: Parameters) -> Option<Coalescing> {
    if found.adaptive_rx == Some(true) {
        return Some(Coalescing::Adaptive);
    }
    found.rx_us.map(|us| Coalescing::Delay(Nanos::from_micros(us.into())))
}

/// Returns the parameters to write: both directions where the driver has both.
fn written(wanted: Coalescing, before: &Parameters) -> Parameters {
    let adaptive = |has: Option<bool>| has.map(|_| wanted == Coalescing::Adaptive);
    let us = match wanted {
        Coalescing::Adaptive => None,
        Coalescing::Delay(delay) => Some((delay.0 / 1000) as u32),
    };
    Parameters {
        rx_us: us.filter(|_| before.rx_us.is_some()),
        tx_us: us.filter(|_| before.tx_us.is_some()),
        adaptive_rx: adaptive(before.adaptive_rx),
        adaptive_tx: adaptive(before.adaptive_tx),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Parameters = Parameters {
        rx_us: Some(3),
        tx_us: Some(5),
        adaptive_rx: Some(true),
        adaptive_tx: Some(false),
    };

    #[test]
    fn a_fixed_delay_turns_adaptation_off_in_both_directions() {
        let delay = Coalescing::Delay(Nanos::from_micros(200));
        let now = written(delay, &WHOLE);
        assert_eq!((now.rx_us, now.tx_us), (Some(200), Some(200)));
        assert_eq!((now.adaptive_rx, now.adaptive_tx), (Some(false), Some(false)));
        assert_eq!(read(now), Some(delay));
    }

    #[test]
    fn what_a_driver_lacks_is_not_written() {
        let e1000e = Parameters { rx_us: Some(3), ..Parameters::default() };
        let now = written(Coalescing::Delay(Nanos::from_micros(50)), &e1000e);
        assert_eq!(now, Parameters { rx_us: Some(50), ..Parameters::default() });
        assert_eq!(written(Coalescing::Adaptive, &e1000e), Parameters::default());
        assert_eq!(read(Parameters::default()), None);
    }

    #[test]
    fn adaptation_is_given_back_without_touching_delays() {
        let fixed = Parameters { adaptive_rx: Some(false), ..WHOLE };
        let now = written(Coalescing::Adaptive, &fixed);
        assert_eq!((now.rx_us, now.adaptive_rx, now.adaptive_tx), (None, Some(true), Some(true)));
    }

    #[test]
    fn an_interface_that_is_gone_has_no_state() {
        let nic = Nic {
            id: NicId(0),
            name: "lull-none".to_owned(),
            delay_max: Nanos(1),
            delay_step: Nanos(1),
        };
        let mut nics = Nics::new(&[nic]);
        assert_eq!(nics.get(NicId(0)), None);
        assert_eq!(nics.get(NicId(7)), None);
        let error = nics
            .set(NicId(0), Coalescing::Adaptive, &mut crate::testing::Saved::default())
            .unwrap_err();
        assert!(error.to_string().contains("lull-none"), "{error}");
        assert_eq!(nics.watch(), []);
    }

    #[test]
    fn without_a_card_there_is_a_reason() {
        let roots = crate::testing::Tree::new().roots();
        assert_eq!(nics(&roots), []);
        let why = settable(&roots).unwrap_err();
        assert!(why.reason.contains("no network interface"), "{why}");
    }
}
