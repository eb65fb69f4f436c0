//! Proof that a knob works, beyond that its files may be written.
//!
//! Of interrupt coalescing another value is written and read back, then the old one. A driver
//! that reports a parameter need not be able to set it: virtio_net reports an interrupt delay of 0
//! and refuses any other, and the kernel does not even pass on a write of the value that is in
//! force. The old value is in the ledger before the write, so that the guard restores it if the
//! process dies in between.
//!
//! Of all other knobs in files each file gets the text that it holds, and is read again: of cache
//! ways and memory bandwidth the `schemata` of the group of all tasks, of frequencies the governor
//! and the lower bound if it is the hardware's. Other bounds are not written: what is read may be a
//! limit of the moment, such as one of heat or a turbo that is off, and would stay.

use super::MACHINE_KNOBS;
use super::coalescing::Nics;
use crate::Roots;
use crate::drivers::resctrl::Resctrl;
use crate::drivers::{ethtool, text};
use crate::guard::Ledger;
use lull_control::{Capabilities, Capability, Coalescing, Machine, Nic};
use lull_measure::{Missing, Nanos};
use std::path::{Path, PathBuf};

/// Delays to try, of which one is not in force. Drivers that round or have gaps take both.
const DELAYS: [Nanos; 2] = [Nanos::from_micros(20), Nanos::from_micros(50)];

/// The knobs of apps whose shares are in resctrl.
const OF_RESCTRL: [Capability; 2] = [Capability::CacheWays, Capability::MemoryBandwidth];

/// Returns the knobs that can be proven, among those that a machine claims.
pub fn provable(claimed: &Capabilities, roots: &Roots) -> Vec<Capability> {
    let is_provable =
        |knob: &Capability| *knob == Capability::Coalescing || !files_of(*knob, roots).is_empty();
    let knobs = MACHINE_KNOBS.iter().map(|row| row.capability).chain(OF_RESCTRL);
    knobs.filter(|knob| claimed.has(*knob)).filter(is_provable).collect()
}

/// Proves a knob that a machine claims. Returns by which means it is set.
///
/// # Errors
/// The reason why it cannot be set.
pub fn prove(
    knob: Capability,
    machine: &Machine,
    roots: &Roots,
    ledger: &mut Ledger,
) -> Result<String, Missing> {
    if knob == Capability::Coalescing {
        return coalescing(&machine.nics, ledger);
    }
    let means = machine.capabilities.get(knob)?;
    prove_files(knob, roots)?;
    Ok(format!("{means} (written back and read again)"))
}

fn files_of(knob: Capability, roots: &Roots) -> Vec<PathBuf> {
    if OF_RESCTRL.contains(&knob) {
        let resctrl = Resctrl::new(&roots.sys);
        return resctrl.is_mounted().then(|| resctrl.root.join("schemata")).into_iter().collect();
    }
    let row = MACHINE_KNOBS.iter().find(|row| row.capability == knob);
    row.map_or(Vec::new(), |row| (row.files)(roots))
}

fn prove_files(knob: Capability, roots: &Roots) -> Result<(), Missing> {
    files_of(knob, roots).iter().try_for_each(|file| write_back(file))
}

/// Writes a file's content back to it, and reads it again.
fn write_back(file: &Path) -> Result<(), Missing> {
    let refused = |error: text::FileError| Missing::because(error.to_string());
    let before = text::read(file).map_err(refused)?;
    text::write(file, &before).map_err(refused)?;
    let after = text::read(file).map_err(refused)?;
    match after == before {
        true => Ok(()),
        false => Err(Missing::because(format!(
            "`{before}` was written back to {} and `{after}` is in force",
            file.display()
        ))),
    }
}

/// Returns the interfaces whose delay was changed and written back, and why others refused it.
///
/// # Errors
/// The reasons, if no interface took another delay.
fn coalescing(nics: &[Nic], ledger: &mut Ledger) -> Result<String, Missing> {
    let mut knobs = Nics::new(nics);
    let (mut proven, mut reasons) = (Vec::new(), Vec::new());
    for nic in nics {
        match prove_delay(nic, &mut knobs, ledger) {
            Ok(()) => proven.push(nic.name.as_str()),
            Err(why) => reasons.push(why),
        }
    }
    describe_cards(&proven, &reasons)
}

fn describe_cards(proven: &[&str], reasons: &[String]) -> Result<String, Missing> {
    let (proven, refused) = (proven.join(", "), reasons.join("; "));
    match (proven.is_empty(), refused.is_empty()) {
        (true, _) => Err(Missing::because(refused)),
        (false, true) => Ok(format!("ethtool netlink ({proven}; written and read back)")),
        (false, false) => {
            Ok(format!("ethtool netlink ({proven}; written and read back), but not {refused}"))
        }
    }
}

fn prove_delay(nic: &Nic, knobs: &mut Nics, ledger: &mut Ledger) -> Result<(), String> {
    let name = nic.name.as_str();
    let read = || ethtool::get(name).map_err(|error| error.to_string());
    let before = read()?;
    let is_other = |delay: &&Nanos| before.rx_us.map(u64::from) != Some(delay.0 / 1000);
    let delay = DELAYS.iter().find(is_other).copied().unwrap_or(DELAYS[0]);
    let written = knobs.set(nic.id, Coalescing::Delay(delay), ledger);
    let found = written.map_err(|error| error.to_string()).and_then(|()| read());
    // Restore also after an error: a driver may have accepted one of two parameters.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::cpufreq::tests::{DIR, policy};
    use crate::drivers::text::faults;
    use crate::testing::Tree;

    fn idle_states() -> Tree {
        let tree = Tree::new();
        for (state, exit_us) in [0, 2, 133].iter().enumerate() {
            let dir = format!("sys/devices/system/cpu/cpu0/cpuidle/state{state}");
            tree.write(&format!("{dir}/latency"), &format!("{exit_us}\n"));
            tree.write(&format!("{dir}/disable"), "0\n");
        }
        tree
    }

    #[test]
    fn knobs_in_files_are_proven_by_writing_what_they_hold() {
        let roots = idle_states().roots();
        let claimed = Capabilities::default()
            .with_capability(Capability::Coalescing, "test")
            .with_capability(Capability::IdleLatency, "test")
            .with_capability(Capability::Frequency, "test");
        let tree = idle_states();
        let provable = |roots: &Roots| provable(&claimed, roots);
        assert_eq!(provable(&roots), [Capability::Coalescing], "the files are gone");
        let all = [Capability::Coalescing, Capability::IdleLatency];
        assert_eq!(provable(&tree.roots()), all);
        let files = files_of(Capability::IdleLatency, &tree.roots());
        assert_eq!((files.len(), files.iter().all(|file| write_back(file).is_ok())), (3, true));
    }

    #[test]
    fn of_frequencies_the_governor_and_the_lower_bound_of_the_hardware_are_written() {
        let tree = Tree::new();
        policy(&tree, DIR, "schedutil userspace");
        let names = || {
            let files = files_of(Capability::Frequency, &tree.roots());
            assert!(files.iter().all(|file| write_back(file).is_ok()));
            let name = |file: PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
            files.into_iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["scaling_governor", "scaling_min_freq"]);
        tree.write(&format!("{DIR}/scaling_min_freq"), "900000\n");
        assert_eq!(names(), ["scaling_governor"], "it may be a limit of the moment");
        faults::refuse("scaling_governor", 0, libc::EROFS);
        let why = prove_files(Capability::Frequency, &tree.roots()).unwrap_err();
        faults::clear();
        assert!(why.reason.contains("scaling_governor") && why.reason.contains("read-only"));
    }

    #[test]
    fn shares_of_cache_and_bandwidth_are_proven_by_the_group_of_all_tasks() {
        let tree = Tree::new();
        let knob = Capability::CacheWays;
        assert!(files_of(knob, &tree.roots()).is_empty(), "resctrl is not mounted");
        tree.write("sys/fs/resctrl/info/L3/cbm_mask", "fff\n");
        let before = "    L3:0=fff;1=fff\n    MB:0=100;1=100\n";
        tree.write("sys/fs/resctrl/schemata", before);
        for knob in OF_RESCTRL {
            let claimed = Capabilities::default().with_capability(knob, "test");
            assert_eq!(provable(&claimed, &tree.roots()), [knob]);
            prove_files(knob, &tree.roots()).unwrap();
        }
        let after = text::read(&tree.path("sys/fs/resctrl/schemata")).unwrap();
        assert_eq!(after, before.trim());
        faults::refuse("resctrl/schemata", 0, libc::EPERM);
        let why = prove_files(knob, &tree.roots()).unwrap_err();
        faults::clear();
        assert!(why.reason.contains("resctrl/schemata"), "{}", why.reason);
    }

    #[test]
    fn of_two_cards_the_one_that_refuses_is_named_beside_the_other() {
        let why = "eth1 accepts a delay of 20us and keeps the one it has".to_owned();
        let both = describe_cards(&["eth0"], std::slice::from_ref(&why)).unwrap();
        assert!(both.contains("eth0; written") && both.ends_with(&why), "{both}");
        let none = describe_cards(&[], std::slice::from_ref(&why)).unwrap_err();
        assert!(none.reason.contains(&why), "{none}");
        assert!(!describe_cards(&["eth0"], &[]).unwrap().contains("but not"));
    }

    #[test]
    fn a_file_that_refuses_what_it_holds_is_no_knob() {
        let tree = idle_states();
        let file = tree.path("sys/devices/system/cpu/cpu0/cpuidle/state1/disable");
        faults::refuse("state1/disable", 0, libc::EPERM);
        let why = write_back(&file).unwrap_err();
        faults::clear();
        assert!(why.reason.contains("state1/disable") && why.reason.contains("run as root"));
        assert_eq!(text::read(&file).unwrap(), "0");
    }
}
