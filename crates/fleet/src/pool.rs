//! Distinguishes the pods that share cores from those that another program has placed.
//!
//! The kubelet's static CPU manager gives some containers of Guaranteed pods cores of their own,
//! and all other containers the cores that are left, the *shared pool* (`pkg/kubelet/cm/cpumanager`
//! and <https://kubernetes.io/docs/tasks/administer-cluster/cpu-management-policies/>). Pods of the
//! shared pool are apps like those of a node without such a manager, on fewer cores.

use crate::message::Service;
use lull_control::CoreSet;
use std::collections::{BTreeMap, BTreeSet};

/// The cores that a pod may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Placement {
    /// All cores of the node.
    Everywhere,
    /// The cores of the shared pool.
    Pool(CoreSet),
    /// Cores that another program has chosen for it, and the explanation.
    Own(String),
}

/// The cpusets of the pods of a node, as far as they are smaller than the node's.
#[derive(Debug, Clone)]
pub(crate) struct Cpusets {
    node: CoreSet,
    /// Indexed by UID.
    pods: BTreeMap<String, PodCpusets>,
}

#[derive(Debug, Clone)]
struct PodCpusets {
    service: Service,
    cpusets: BTreeSet<CoreSet>,
}

impl Cpusets {
    /// No pod of a node with these cores is known yet.
    pub(crate) const fn new(node: CoreSet) -> Self {
        Self { node, pods: BTreeMap::new() }
    }

    /// Adds cpusets of the containers of a pod. Its UID may have `_` for `-`.
    pub(crate) fn add(
        &mut self,
        uid: &str,
        service: Service,
        cpusets: impl IntoIterator<Item = CoreSet>,
    ) {
        let cpusets = self.smaller(cpusets);
        if !cpusets.is_empty() {
            let new = PodCpusets { service, cpusets: BTreeSet::new() };
            self.pods.entry(uid.replace('-', "_")).or_insert(new).cpusets.extend(cpusets);
        }
    }

    /// Returns those of these cpusets that lack a core of the node; an empty one is none.
    pub(crate) fn smaller(&self, cpusets: impl IntoIterator<Item = CoreSet>) -> BTreeSet<CoreSet> {
        let is_smaller = |cores: &CoreSet| !cores.is_empty() && !self.node.is_subset(cores);
        cpusets.into_iter().filter(is_smaller).collect()
    }

    /// Returns how a pod is placed whose containers have these cpusets.
    pub(crate) fn placement(&self, cpusets: impl IntoIterator<Item = CoreSet>) -> Placement {
        let own = self.smaller(cpusets);
        match own.first() {
            None => Placement::Everywhere,
            Some(cores) if own.len() == 1 && self.is_pool(cores) => Placement::Pool(cores.clone()),
            Some(_) => Placement::Own(self.describe(&own)),
        }
    }

    /// Whether several pods have this cpuset, and none of its cores belongs to one pod alone.
    fn is_pool(&self, cores: &CoreSet) -> bool {
        let count = |cpuset: &CoreSet| {
            self.pods.values().filter(|pod| pod.cpusets.contains(cpuset)).count()
        };
        let guaranteed = self.pods.values().filter(|pod| pod.service == Service::Guaranteed);
        let mut others = guaranteed.flat_map(|pod| &pod.cpusets).filter(|other| *other != cores);
        count(cores) > 1
            && !others.any(|other| !other.intersection(cores).is_empty() && count(other) == 1)
    }

    fn describe(&self, own: &BTreeSet<CoreSet>) -> String {
        let own: Vec<String> = own.iter().map(CoreSet::to_string).collect();
        format!(
            "its cpuset has the cores {} of the node's {}, and is not the pool that other pods \
             share: another program, such as the kubelet's CPU manager, has placed it",
            own.join(" and "),
            self.node
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(text: &str) -> CoreSet {
        text.parse().unwrap()
    }

    /// Pods of a node with eight cores: their class of service and their cpuset.
    fn cpusets(pods: &[(Service, &str)]) -> Cpusets {
        let mut all = Cpusets::new(CoreSet::first(8));
        for (number, (service, text)) in pods.iter().enumerate() {
            all.add(&number.to_string(), *service, [cores(text)]);
        }
        all
    }

    fn is_pool(all: &Cpusets, text: &str) -> bool {
        all.placement([cores(text)]) == Placement::Pool(cores(text))
    }

    #[test]
    fn pods_with_one_cpuset_beside_exclusive_ones_are_the_pool() {
        use Service::{BestEffort, Burstable, Guaranteed};
        let own = [(Guaranteed, "6"), (Guaranteed, "7")];
        let all = cpusets(&[&own[..], &[(Burstable, "0-5"), (BestEffort, "0-5")]].concat());
        assert!(is_pool(&all, "0-5"));
        assert!(!is_pool(&all, "6") && !is_pool(&all, "7"), "cores of their own");
        assert_eq!(all.placement([CoreSet::first(8)]), Placement::Everywhere);
        assert_eq!(all.placement([CoreSet::default()]), Placement::Everywhere);
        // The container that has made the pod's network keeps all cores.
        let both = [CoreSet::first(8), cores("0-5")];
        assert_eq!(all.placement(both), Placement::Pool(cores("0-5")));
        let Placement::Own(why) = all.placement([cores("0-5"), cores("6")]) else {
            panic!("one container has cores of its own")
        };
        assert!(why.contains("the cores 0-5 and 6 of the node's 0-7"), "{why}");
        // Reserved cores are neither in the pool nor exclusive.
        let strict = cpusets(&[(Burstable, "2-7"), (Guaranteed, "2-7")]);
        assert!(is_pool(&strict, "2-7"));
        let mut one = cpusets(&[(Burstable, "2-7")]);
        one.add("0", Burstable, [cores("2-7")]);
        assert!(!is_pool(&one, "2-7"), "no other pod has it");
    }

    #[test]
    fn a_pool_that_is_about_to_change_is_none() {
        use Service::{Burstable, Guaranteed};
        let old = [(Burstable, "0-6"), (Burstable, "0-6"), (Guaranteed, "7")];
        assert!(is_pool(&cpusets(&old), "0-6"));
        let one = [&old[..], &[(Guaranteed, "6")]].concat();
        assert!(!is_pool(&cpusets(&one), "0-6"), "a new pod has one of its cores");
        let new = [(Burstable, "0-5"), (Burstable, "0-5"), (Guaranteed, "6")];
        assert!(is_pool(&cpusets(&new), "0-5"));
    }
}
