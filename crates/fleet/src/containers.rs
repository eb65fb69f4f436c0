//! The containers of a node that run, as their runtime reports them.

use crate::message::ContainerId;
use crate::nri::{CONTAINERS_MAX, ContainerChange, RuntimeContainer};
use std::collections::{BTreeMap, BTreeSet};

/// All containers that run, by the UID of their pod.
#[derive(Debug, Default)]
pub(crate) struct Containers {
    by_pod: BTreeMap<String, Vec<RuntimeContainer>>,
    /// The pods of all containers.
    pods: BTreeMap<ContainerId, String>,
}

impl Containers {
    /// Takes a change, and returns the UIDs of the pods that it is about.
    pub(crate) fn take(&mut self, change: ContainerChange) -> BTreeSet<String> {
        match change {
            ContainerChange::All(all) => {
                let former = std::mem::take(self);
                let mut pods: BTreeSet<String> = former.by_pod.into_keys().collect();
                for container in all {
                    pods.extend(self.insert(container));
                }
                pods
            }
            ContainerChange::Runs(container) => self.insert(container).into_iter().collect(),
            // The cores of a container that does not run yet may change, too.
            ContainerChange::Changed(container) if self.pods.contains_key(&container.id) => {
                self.insert(container).into_iter().collect()
            }
            ContainerChange::Changed(_) => BTreeSet::new(),
            ContainerChange::Ended(id) => self.remove(id).into_iter().collect(),
        }
    }

    /// Returns the containers of a pod.
    pub(crate) fn of_pod(&self, uid: &str) -> &[RuntimeContainer] {
        self.by_pod.get(uid).map_or(&[], Vec::as_slice)
    }

    fn insert(&mut self, container: RuntimeContainer) -> Option<String> {
        self.remove(container.id);
        if self.pods.len() >= CONTAINERS_MAX {
            return None;
        }
        let pod = container.pod.clone();
        self.pods.insert(container.id, pod.clone());
        self.by_pod.entry(pod.clone()).or_default().push(container);
        Some(pod)
    }

    fn remove(&mut self, id: ContainerId) -> Option<String> {
        let pod = self.pods.remove(&id)?;
        if let Some(of_pod) = self.by_pod.get_mut(&pod) {
            of_pod.retain(|one| one.id != id);
            if of_pod.is_empty() {
                self.by_pod.remove(&pod);
            }
        }
        Some(pod)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::message::Runtime;

    pub(crate) fn container(pod: &str, number: u8, cpus: &str) -> RuntimeContainer {
        RuntimeContainer {
            id: ContainerId { runtime: Runtime::Containerd, number: [number; 32] },
            pod: pod.to_owned(),
            name: "main".to_owned(),
            cpus: cpus.to_owned(),
        }
    }

    #[test]
    fn a_change_names_the_pods_that_it_is_about() {
        let mut containers = Containers::default();
        let mut take = |change| containers.take(change).into_iter().collect::<Vec<_>>();
        assert_eq!(take(ContainerChange::Changed(container("a", 1, "0"))), [""; 0], "no such yet");
        assert_eq!(take(ContainerChange::Runs(container("a", 1, ""))), ["a"]);
        assert_eq!(take(ContainerChange::Changed(container("a", 1, "0"))), ["a"]);
        let all = vec![container("b", 2, ""), container("c", 3, "")];
        assert_eq!(take(ContainerChange::All(all)), ["a", "b", "c"], "a has no container left");
        let ended = |number| ContainerChange::Ended(container("", number, "").id);
        assert_eq!(take(ended(2)), ["b"]);
        assert_eq!(take(ended(2)), [""; 0], "reported by its stop and by its removal");
        assert_eq!(containers.of_pod("c"), [container("c", 3, "")]);
        assert!(containers.of_pod("a").is_empty() && containers.of_pod("b").is_empty());
    }
}
