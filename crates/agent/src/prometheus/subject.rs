//! The pod that the queries of a template are about: `$namespace`, `$pod`, `$container` and `$uid`
//! in a query are replaced by its names, which have no character that PromQL would read otherwise.

use crate::discovery::PodIdentity;
use lull_host::gauges::reported::Generation;
use lull_measure::Nanos;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The regular expression for any container of a pod.
const ANY_CONTAINER: &str = ".*";
/// Longest wait for a pod: then the thread checks whether it is still needed.
const POD_WAIT: Duration = Duration::from_secs(10);

/// The pod, which the control loop changes and the thread of the queries reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    shared: Arc<Shared>,
    generation: Generation,
}

#[derive(Debug, Default)]
struct Shared {
    pod: Mutex<Option<PodIdentity>>,
    has_changed: Condvar,
}

impl Shared {
    fn pod(&self) -> MutexGuard<'_, Option<PodIdentity>> {
        self.pod.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subject {
    /// Queries are about this pod from now on.
    pub(crate) fn set(&self, pod: Option<PodIdentity>) {
        let mut now = self.shared.pod();
        *now = pod;
        self.generation.advance();
        self.shared.has_changed.notify_all();
    }

    /// Waits for this time, or if no pod is the app, until one is: most apps of a template may be
    /// free, and each has a thread.
    pub(super) fn pause(&self, span: Nanos) {
        let pod = self.shared.pod();
        if pod.is_none() {
            let changed = &self.shared.has_changed;
            drop(changed.wait_timeout_while(pod, POD_WAIT, |pod| pod.is_none()));
        } else {
            drop(pod);
            std::thread::sleep(span.into());
        }
    }

    /// Numbers the pods that queries are about.
    pub(super) const fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Returns a query with the names of the pod; `None` while there is no pod.
    pub(super) fn fill(&self, query: &str) -> Option<String> {
        let pod = self.shared.pod().clone()?;
        let container = if pod.container.is_empty() { ANY_CONTAINER } else { &pod.container };
        let query = query.replace("$namespace", &pod.namespace).replace("$pod", &pod.name);
        Some(query.replace("$container", container).replace("$uid", &pod.uid))
    }
}

/// Whether a query distinguishes pods.
pub(crate) fn names_pod(query: &str) -> bool {
    query.contains("$pod") || query.contains("$uid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_about_the_pod_that_is_the_app() {
        let query = r#"x{namespace="$namespace",pod="$pod",container=~"$container",uid="$uid"}"#;
        let subject = Subject::default();
        assert_eq!((subject.fill(query), subject.generation().get()), (None, 0));
        let pod = PodIdentity {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            uid: "1a".to_owned(),
            ..PodIdentity::default()
        };
        subject.set(Some(pod.clone()));
        let filled = subject.fill(query).unwrap();
        assert_eq!(filled, r#"x{namespace="shop",pod="web-0",container=~".*",uid="1a"}"#);
        assert_eq!(subject.generation().get(), 1, "answers about its predecessor are void");
        subject.set(Some(PodIdentity { container: "main".to_owned(), ..pod }));
        assert!(subject.fill(query).unwrap().contains(r#"container=~"main""#));
        assert!(names_pod(query) && !names_pod("rate(x[5s])"));
    }
    #[test]
    fn a_thread_without_a_pod_waits_for_one() {
        let subject = Subject::default();
        let of_loop = subject.clone();
        let setting = std::thread::spawn(move || of_loop.set(Some(PodIdentity::default())));
        subject.pause(Nanos::ZERO);
        assert!(subject.fill("up").is_some());
        setting.join().unwrap();
    }
}
