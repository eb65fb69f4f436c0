//! Proof that a knob works: another value is written and read back, then the old one.
//!
//! A driver that reports a parameter need not be able to set it: virtio_net reports an interrupt
//! delay of 0 and refuses any other, and the kernel does not even pass on a write of the value
//! that is in force. The old value is in the ledger before the write, so that the guard restores
//! it if the process dies in between.

use super::coalescing::Nics;
use crate::drivers::ethtool;
use crate::guard::Ledger;
use lull_control::{Coalescing, Nic};
use lull_measure::{Missing, Nanos};

/// Delays to try, of which one is not in force. Drivers that round or have gaps take both.
const DELAYS: [Nanos; 2] = [Nanos::from_micros(20), Nanos::from_micros(50)];

/// Returns the interfaces whose delay was changed and written back, or why none could be.
///
/// # Errors
/// The reasons, if no interface took another delay.
pub fn coalescing(nics: &[Nic], ledger: &mut Ledger) -> Result<String, Missing> {
    let mut knobs = Nics::new(nics);
    let (mut proven, mut reasons) = (Vec::new(), Vec::new());
    for nic in nics {
        match prove(nic, &mut knobs, ledger) {
            Ok(()) => proven.push(nic.name.as_str()),
            Err(why) => reasons.push(why),
        }
    }
    match proven.is_empty() {
        true => Err(Missing::because(reasons.join("; "))),
        false => Ok(format!("ethtool netlink ({}; written and read back)", proven.join(", "))),
    }
}

fn prove(nic: &Nic, knobs: &mut Nics, ledger: &mut Ledger) -> Result<(), String> {
    let name = nic.name.as_str();
    let read = || ethtool::get(name).map_err(|error| error.to_string());
    let before = read()?;
    let is_other = |delay: &&Nanos| before.rx_us.map(u64::from) != Some(delay.0 / 1000);
    let delay = DELAYS.iter().find(is_other).copied().unwrap_or(DELAYS[0]);
    let written = knobs.set(nic.id, Coalescing::Delay(delay), ledger);
    let found = written.map_err(|error| error.to_string()).and_then(|()| read());
    // Also after an error: a driver may have taken one of two parameters.
    let _ = ledger.restore();
    knobs.restored();
    let after = read()?;
    if after != before {
        return Err(format!("{name}: {before:?} was written back and {after:?} is in force"));
    }
    match found? {
        changed if changed.rx_us != before.rx_us => Ok(()),
        _ => Err(format!("{name} accepts a delay of {delay} and keeps the one it has")),
    }
}
