//! Cache ways and memory bandwidth that resctrl can divide, or why it cannot.

use crate::Roots;
use crate::drivers::resctrl::{CacheOffer, Offer, Resctrl};
use crate::files::read_text;
use lull_control::{BandwidthControl, CacheControl};
use lull_measure::Missing;
use rustix::fs::{Access, access};

/// The divisible resources, and for each the means or the reason why not.
pub(super) struct Shares {
    pub(super) cache: Option<CacheControl>,
    pub(super) bandwidth: Option<BandwidthControl>,
    pub(super) ways: Result<String, Missing>,
    pub(super) percent: Result<String, Missing>,
}

/// Returns the resources that resctrl offers under these roots.
pub(super) fn shares(roots: &Roots) -> Shares {
    match usable(roots) {
        Ok(offer) => offered(roots, &offer),
        Err(why) => {
            Shares { cache: None, bandwidth: None, ways: Err(why.clone()), percent: Err(why) }
        }
    }
}

fn offered(roots: &Roots, offer: &Offer) -> Shares {
    let none = |what: &str| Missing::because(format!("resctrl is there, but {what} here"));
    let cache = offer.cache.as_ref().map(|cache| CacheControl {
        ways: cache.ways,
        contiguous: cache.contiguous,
        size_bytes: cache_bytes(roots),
    });
    let percent_of =
        |value: u64, full: u64| u8::try_from(value.saturating_mul(100).div_ceil(full)).unwrap_or(1);
    let bandwidth = offer.bandwidth.as_ref().map(|offer| BandwidthControl {
        min_percent: percent_of(offer.min, offer.full).max(1),
        step_percent: percent_of(offer.step, offer.full).max(1),
    });
    let ways =
        |cache: &CacheOffer| format!("resctrl ({} ways, {} groups)", cache.ways, cache.groups);
    Shares {
        ways: offer
            .cache
            .as_ref()
            .map(ways)
            .ok_or_else(|| none("the last-level cache cannot be divided")),
        percent: match &bandwidth {
            Some(share) => Ok(format!("resctrl (steps of {} %)", share.step_percent)),
            None => Err(none("memory bandwidth cannot be divided")),
        },
        cache,
        bandwidth,
    }
}

fn usable(roots: &Roots) -> Result<Offer, Missing> {
    let resctrl = Resctrl::new(&roots.sys);
    let schemata = resctrl.root.join("schemata");
    if !resctrl.is_mounted() {
        return Err(not_mounted(roots));
    }
    if resctrl.is_split() {
        return Err(Missing::because(
            "resctrl is mounted with cdp, which divides code and data apart: mount it without",
        ));
    }
    if let Err(error) = access(&schemata, Access::WRITE_OK) {
        let path = schemata.display();
        return Err(Missing::because(format!("{path} cannot be written: {error}; run as root")));
    }
    resctrl.offer().map_err(|error| Missing::because(error.to_string()))
}

fn not_mounted(roots: &Roots) -> Missing {
    let known = read_text(&roots.proc.join("filesystems")).unwrap_or_default();
    let mount = roots.sys.join("fs/resctrl");
    Missing::because(match known.lines().any(|line| line.trim_end().ends_with("resctrl")) {
        true => format!("resctrl is not mounted: mount -t resctrl resctrl {}", mount.display()),
        false => "no resctrl: the processor or the kernel cannot divide cache or memory bandwidth"
            .to_owned(),
    })
}

/// Size of the last-level cache of core 0; 0 where the kernel does not say.
fn cache_bytes(roots: &Roots) -> u64 {
    let file = roots.sys.join("devices/system/cpu/cpu0/cache/index3/size");
    let text = read_text(&file).unwrap_or_default();
    let (digits, factor) = match text.strip_suffix('M') {
        Some(digits) => (digits, 1 << 20),
        None => (text.strip_suffix('K').unwrap_or(&text), 1 << 10),
    };
    digits.parse::<u64>().map_or(0, |number| number.saturating_mul(factor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::resctrl::tests::mounted;
    use crate::testing::Tree;

    #[test]
    fn a_mount_is_a_cache_and_a_bandwidth_with_means() {
        let tree = Tree::new();
        mounted(&tree);
        tree.write("sys/devices/system/cpu/cpu0/cache/index3/size", "30720K\n");
        let found = shares(&tree.roots());
        let cache = CacheControl { ways: 8, contiguous: true, size_bytes: 30 << 20 };
        assert_eq!(found.cache, Some(cache));
        let bandwidth = BandwidthControl { min_percent: 10, step_percent: 10 };
        assert_eq!(found.bandwidth, Some(bandwidth));
        assert_eq!(found.ways.unwrap(), "resctrl (8 ways, 4 groups)");
    }

    #[test]
    fn every_reason_says_what_to_do() {
        let tree = Tree::new();
        let why = |tree: &Tree| shares(&tree.roots()).ways.unwrap_err().to_string();
        assert!(why(&tree).contains("no resctrl"));
        tree.write("proc/filesystems", "nodev\tresctrl\n");
        assert!(why(&tree).contains("mount -t resctrl"));
        mounted(&tree);
        tree.write("sys/fs/resctrl/info/L3CODE/cbm_mask", "ff\n");
        assert!(why(&tree).contains("cdp"));
    }

    #[test]
    fn a_cache_without_bandwidth_says_so() {
        let tree = Tree::new();
        mounted(&tree);
        tree.write("sys/fs/resctrl/schemata", "L3:0=ff\n");
        let found = shares(&tree.roots());
        assert!(found.ways.is_ok() && found.bandwidth.is_none());
        assert!(found.percent.unwrap_err().reason.contains("bandwidth cannot be divided"));
    }
}
