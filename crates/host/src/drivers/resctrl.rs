//! The resctrl file system: groups of tasks with their share of cache and
//! memory bandwidth (Documentation/filesystems/resctrl.rst).
//!
//! Seen on 7.2: a text without its newline is EINVAL with the status of an
//! earlier command; a mask with holes is EINVAL and `last_cmd_status` says
//! why; a group too many is ENOSPC; tasks are written one at a time, and one
//! that is gone is ESRCH. Removing a group gives its tasks to the group above.

use super::text::{self, FileError};
use lull_control::WayMask;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// The resources that the hardware can divide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) cache: Option<CacheOffer>,
    pub(crate) bandwidth: Option<BandwidthOffer>,
}

/// Last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheOffer {
    pub(crate) ways: u32,
    pub(crate) min_ways: u32,
    pub(crate) contiguous: bool,
    /// Groups that can exist, the one at the top included.
    pub(crate) groups: u64,
}

/// Memory bandwidth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BandwidthOffer {
    /// The minimum in the schemata's unit.
    pub(crate) min: u64,
    pub(crate) step: u64,
    /// The value that is no limit: 100 on Intel, eighths of GB/s on AMD.
    pub(crate) full: u64,
}

/// Values by resource (`L3`, `MB`) and domain (socket or cluster).
pub(crate) type Schemata = BTreeMap<String, BTreeMap<u32, String>>;

/// Where resctrl is mounted.
#[derive(Debug, Clone)]
pub(crate) struct Resctrl {
    pub(crate) root: PathBuf,
}

impl Resctrl {
    pub(crate) fn new(sys: &Path) -> Self {
        Self { root: sys.join("fs/resctrl") }
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.root.join("info").is_dir() && self.root.join("schemata").exists()
    }

    /// Returns the resources that can be divided here.
    pub(crate) fn offer(&self) -> Result<Offer, FileError> {
        let info = |name: &str| self.root.join("info").join(name);
        let top = self.schemata(&self.root)?;
        let cache = match info("L3").join("cbm_mask").exists() {
            true => Some(cache_offer(&info("L3"))?),
            false => None,
        };
        let bandwidth = match (info("MB").exists(), top.get("MB")) {
            (true, Some(domains)) => Some(bandwidth_offer(&info("MB"), domains)?),
            _ => None,
        };
        Ok(Offer { cache, bandwidth })
    }

    /// Whether code and data are divided apart, which Lull does not do.
    pub(crate) fn is_split(&self) -> bool {
        self.root.join("info/L3CODE").exists()
    }

    pub(crate) fn schemata(&self, group: &Path) -> Result<Schemata, FileError> {
        text::read(&group.join("schemata")).map(|text| parse(&text))
    }

    /// Sets one resource of a group to one value in all its domains.
    pub(crate) fn set(&self, group: &Path, resource: &str, value: &str) -> Result<(), FileError> {
        let domains = self.schemata(group)?.remove(resource).unwrap_or_default();
        let each: Vec<_> = domains.keys().map(|domain| format!("{domain}={value}")).collect();
        let line = format!("{resource}:{}", each.join(";"));
        text::write(&group.join("schemata"), &line).map_err(|error| self.explain(error))
    }

    /// Gives a group the shares of the root group where it has others: the kernel begins a group
    /// with all that no other group has for itself.
    pub(crate) fn copy_shares(&self, group: &Path) -> Result<(), FileError> {
        let now = self.schemata(group)?;
        let differs = |(resource, domains): &(&String, &BTreeMap<u32, String>)| {
            now.get(*resource).is_some_and(|found| found != *domains)
        };
        let of_root = self.schemata(&self.root)?;
        let line = |(resource, domains): (&String, &BTreeMap<u32, String>)| {
            let each: Vec<_> =
                domains.iter().map(|(domain, value)| format!("{domain}={value}")).collect();
            format!("{resource}:{}", each.join(";"))
        };
        let lines: Vec<_> = of_root.iter().filter(differs).map(line).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let text = lines.join("\n");
        text::write(&group.join("schemata"), &text).map_err(|error| self.explain(error))
    }

    /// Makes a group; one that is there already stays.
    pub(crate) fn make(&self, group: &Path) -> Result<(), FileError> {
        match std::fs::create_dir(group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                let source = match error.raw_os_error() {
                    Some(libc::ENOSPC) => self.exhausted(&error),
                    _ => error,
                };
                let wanted = Some("a new group".to_owned());
                Err(FileError { path: group.to_owned(), wanted, source })
            }
            _ => Ok(()),
        }
    }

    fn exhausted(&self, error: &io::Error) -> io::Error {
        let names: Vec<_> = self.groups().iter().filter_map(|dir| file_name(dir)).collect();
        io::Error::other(format!(
            "{error}: the hardware has no class of service left beside the groups {}; remove one, \
             or manage fewer apps",
            names.join(", ")
        ))
    }

    /// Puts a task in a group; `false` if it is gone.
    pub(crate) fn add_task(&self, group: &Path, tid: i32) -> Result<bool, FileError> {
        match text::write(&group.join("tasks"), &tid.to_string()) {
            Ok(()) => Ok(true),
            Err(error) if error.source.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(self.explain(error)),
        }
    }

    pub(crate) fn tasks(&self, group: &Path) -> Result<BTreeSet<i32>, FileError> {
        let text = text::read(&group.join("tasks"))?;
        Ok(text.lines().filter_map(|tid| tid.trim().parse().ok()).collect())
    }

    /// The groups below the top.
    pub(crate) fn groups(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let dirs = entries.map(|entry| entry.path());
        dirs.filter(|dir| dir.join("schemata").is_file()).collect()
    }

    /// Adds the kernel's message to the error number.
    fn explain(&self, error: FileError) -> FileError {
        let status = text::read(&self.root.join("info/last_cmd_status")).unwrap_or_default();
        let code = error.source.raw_os_error();
        // If the kernel could not parse the text, the status is that of an earlier write.
        if status.is_empty() || status == "ok" || code != Some(libc::EINVAL) {
            return error;
        }
        let source = io::Error::other(format!("{}: {status}", error.source));
        FileError { source, ..error }
    }
}

/// Removes a group; whether it was there.
///
/// # Errors
/// The kernel's error.
pub(crate) fn remove(group: &Path) -> io::Result<bool> {
    match std::fs::remove_dir(group) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn file_name(dir: &Path) -> Option<String> {
    Some(dir.file_name()?.to_string_lossy().into_owned())
}

fn cache_offer(info: &Path) -> Result<CacheOffer, FileError> {
    let mask = text::read(&info.join("cbm_mask"))?;
    let WayMask(mask) = parse_mask(&mask).unwrap_or(WayMask(0));
    let min_ways = text::read_number(&info.join("min_cbm_bits"))?.max(1);
    let groups = text::read_number(&info.join("num_closids"))?;
    // Before 6.7 the kernel accepted contiguous masks only, and had no such file.
    let sparse = text::read(&info.join("sparse_masks")).is_ok_and(|text| text == "1");
    let (ways, min_ways) = (mask.count_ones(), u32::try_from(min_ways).unwrap_or(1));
    Ok(CacheOffer { ways, min_ways, contiguous: !sparse, groups })
}

fn bandwidth_offer(info: &Path, top: &BTreeMap<u32, String>) -> Result<BandwidthOffer, FileError> {
    let min = text::read_number(&info.join("min_bandwidth"))?;
    let step = text::read_number(&info.join("bandwidth_gran"))?.max(1);
    // Percent on Intel. AMD counts absolutely, and its top group begins without a limit.
    let highest = top.values().filter_map(|value| value.parse().ok()).max().unwrap_or(100);
    let full = if highest <= 100 { 100 } else { highest };
    Ok(BandwidthOffer { min, step, full })
}

impl BandwidthOffer {
    /// The value nearest to a share in percent that can be set.
    pub(crate) fn value(&self, percent: u8) -> u64 {
        let exact = self.full * u64::from(percent.min(100)) / 100;
        (exact.div_ceil(self.step) * self.step).clamp(self.min.max(1), self.full)
    }

    /// The share in percent that a value is, to the nearest.
    pub(crate) fn percent(&self, value: u64) -> u8 {
        let value = value.min(self.full);
        u8::try_from((value * 100 + self.full / 2) / self.full.max(1)).unwrap_or(100)
    }
}

/// A mask as resctrl writes it, hexadecimal.
pub(crate) fn parse_mask(text: &str) -> Option<WayMask> {
    u64::from_str_radix(text.trim(), 16).ok().map(WayMask)
}

fn parse(text: &str) -> Schemata {
    let line = |line: &str| {
        let (resource, domains) = line.trim().split_once(':')?;
        let domain = |one: &str| {
            let (id, value) = one.split_once('=')?;
            Some((id.trim().parse().ok()?, value.trim().to_owned()))
        };
        Some((resource.trim().to_owned(), domains.split(';').filter_map(domain).collect()))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::Tree;

    /// A made-up mount: two sockets, eight ways, Intel's bandwidth.
    pub(crate) fn mounted(tree: &Tree) {
        for (name, text) in [
            ("schemata", "    MB:0=100;1=100\n    L3:0=ff;1=ff\n"),
            ("tasks", "1\n2\n"),
            ("info/last_cmd_status", "ok\n"),
            ("info/L3/cbm_mask", "ff\n"),
            ("info/L3/min_cbm_bits", "1\n"),
            ("info/L3/num_closids", "4\n"),
            ("info/L3/sparse_masks", "0\n"),
            ("info/MB/min_bandwidth", "10\n"),
            ("info/MB/bandwidth_gran", "10\n"),
        ] {
            tree.write(&format!("sys/fs/resctrl/{name}"), text);
        }
    }

    /// The files that a kernel would make in a new group.
    pub(crate) fn group(tree: &Tree, name: &str) {
        tree.write(&format!("sys/fs/resctrl/{name}/schemata"), "MB:0=100;1=100\nL3:0=ff;1=ff\n");
        tree.write(&format!("sys/fs/resctrl/{name}/tasks"), "");
    }

    #[test]
    fn an_offer_is_what_info_says() {
        let tree = Tree::new();
        let resctrl = Resctrl::new(&tree.roots().sys);
        assert!(!resctrl.is_mounted());
        mounted(&tree);
        assert!(resctrl.is_mounted() && !resctrl.is_split());
        let offer = resctrl.offer().unwrap();
        let cache = CacheOffer { ways: 8, min_ways: 1, contiguous: true, groups: 4 };
        assert_eq!(offer.cache, Some(cache));
        assert_eq!(offer.bandwidth, Some(BandwidthOffer { min: 10, step: 10, full: 100 }));
        tree.write("sys/fs/resctrl/info/L3/sparse_masks", "1\n");
        assert!(!resctrl.offer().unwrap().cache.unwrap().contiguous);
        tree.remove("sys/fs/resctrl/info/L3/num_closids");
        assert!(resctrl.offer().unwrap_err().to_string().contains("num_closids"));
    }

    #[test]
    fn a_share_is_rounded_to_what_can_be_set() {
        let intel = BandwidthOffer { min: 10, step: 10, full: 100 };
        assert_eq!([0, 5, 33, 50, 100].map(|percent| intel.value(percent)), [10, 10, 40, 50, 100]);
        let amd = BandwidthOffer { min: 1, step: 1, full: 2048 };
        assert_eq!((amd.value(50), amd.percent(1024), amd.percent(amd.value(33))), (1024, 50, 33));
    }

    #[test]
    fn schemata_are_read_with_any_indent_and_set_in_all_domains() {
        let tree = Tree::new();
        mounted(&tree);
        let resctrl = Resctrl::new(&tree.roots().sys);
        let found = resctrl.schemata(&resctrl.root).unwrap();
        assert_eq!(found["L3"][&1], "ff");
        resctrl.set(&resctrl.root, "L3", "f").unwrap();
        assert_eq!(text::read(&resctrl.root.join("schemata")).unwrap(), "L3:0=f;1=f");
    }

    #[test]
    fn a_refusal_carries_what_the_kernel_says_beside_the_number() {
        let tree = Tree::new();
        mounted(&tree);
        let resctrl = Resctrl::new(&tree.roots().sys);
        let status = "The mask 5 has non-consecutive 1-bits\n";
        tree.write("sys/fs/resctrl/info/last_cmd_status", status);
        text::faults::refuse("schemata", 0, libc::EINVAL);
        let error = resctrl.set(&resctrl.root, "L3", "5").unwrap_err().to_string();
        text::faults::clear();
        assert!(error.contains("non-consecutive"), "{error}");
    }

    #[test]
    fn a_task_that_is_gone_is_no_error() {
        let tree = Tree::new();
        mounted(&tree);
        let resctrl = Resctrl::new(&tree.roots().sys);
        text::faults::refuse("tasks", 0, libc::ESRCH);
        assert!(!resctrl.add_task(&resctrl.root, 7).unwrap());
        text::faults::clear();
        assert!(resctrl.add_task(&resctrl.root, 8).unwrap());
        assert_eq!(resctrl.tasks(&resctrl.root).unwrap(), BTreeSet::from([8]));
    }

    #[test]
    fn a_group_that_cannot_be_had_says_which_there_are() {
        let tree = Tree::new();
        mounted(&tree);
        group(&tree, "virt-1");
        let resctrl = Resctrl::new(&tree.roots().sys);
        let error = resctrl.exhausted(&io::Error::from_raw_os_error(libc::ENOSPC)).to_string();
        assert!(error.contains("virt-1") && error.contains("class of service"), "{error}");
    }
}
