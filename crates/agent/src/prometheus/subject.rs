//! The pod that the queries of a template are about: `$namespace`, `$pod`, `$container` and `$uid`
//! in a query are replaced by its names, which have no character that PromQL would read otherwise.

use crate::discovery::PodIdentity;
use lull_host::gauges::reported::Generation;
use std::sync::{Arc, Mutex, PoisonError};

/// In a regular expression of a whole pod: any container.
const ANY_CONTAINER: &str = ".*";

/// The pod, which the control loop changes and the thread of the queries reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Subject {
    pod: Arc<Mutex<Option<PodIdentity>>>,
    generation: Generation,
}

impl Subject {
    /// Queries are about this pod from now on.
    pub(crate) fn set(&self, pod: Option<PodIdentity>) {
        let mut now = self.pod.lock().unwrap_or_else(PoisonError::into_inner);
        *now = pod;
        self.generation.advance();
    }

    /// Numbers the pods that queries are about.
    pub(super) const fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Returns a query with the names of the pod; `None` while there is no pod.
    pub(super) fn fill(&self, query: &str) -> Option<String> {
        let pod = self.pod.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
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
}
