//! The names under which clients push: those of apps, and for pods `NAMESPACE/NAME`.

use crate::discovery::PodIdentity;
use std::collections::BTreeMap;

/// The apps by name.
#[derive(Debug)]
pub(super) struct AppNames {
    /// Their places are the numbers of the apps.
    apps: Vec<String>,
    /// The pods that are apps.
    pods: BTreeMap<String, u16>,
}

impl AppNames {
    pub(super) const fn new(apps: Vec<String>) -> Self {
        Self { apps, pods: BTreeMap::new() }
    }

    /// Continues with other names, without those of apps that were removed.
    pub(super) fn rename(&mut self, apps: Vec<String>) {
        self.apps = apps;
    }

    /// Notes which pod an app is from now on.
    pub(super) fn assign(&mut self, app: u16, pod: Option<&PodIdentity>) {
        self.pods.retain(|_, of| *of != app);
        if let Some(pod) = pod {
            self.pods.insert(pod.path(), app);
        }
    }

    /// Returns the number of an app.
    ///
    /// # Errors
    /// If there is no such app, with the names that exist.
    pub(super) fn number(&self, name: &str) -> Result<u16, String> {
        if let Some(app) = self.pods.get(name) {
            return Ok(*app);
        }
        let app = self.apps.iter().position(|app| app == name && !app.is_empty());
        app.and_then(|app| u16::try_from(app).ok()).ok_or_else(|| {
            let known = self.apps.iter().filter(|app| !app.is_empty());
            let known = known.map(String::as_str).collect::<Vec<_>>().join(", ");
            match name.contains('/') {
                true => format!("no pod `{name}` is an app of this node's agent"),
                false => format!("no app is called `{name}`: the apps are {known}"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_pushed_for_by_its_name_as_long_as_it_is_an_app() {
        let mut names = AppNames::new(vec!["web".to_owned(), "critical-1".to_owned()]);
        let pod = |name: &str| PodIdentity {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            ..PodIdentity::default()
        };
        names.assign(1, Some(&pod("a")));
        assert_eq!((names.number("shop/a"), names.number("web")), (Ok(1), Ok(0)));
        names.assign(1, Some(&pod("b")));
        assert!(names.number("shop/a").unwrap_err().contains("no pod `shop/a`"));
        assert_eq!(names.number("shop/b"), Ok(1));
        names.assign(1, None);
        assert!(names.number("shop/b").is_err());
        assert!(names.number("db").unwrap_err().contains("the apps are web, critical-1"));
    }

    #[test]
    fn an_app_that_was_removed_has_no_name_and_the_others_have_their_numbers() {
        let mut names = AppNames::new(vec!["a".to_owned(), "b".to_owned()]);
        names.rename(["", "b", "c"].map(str::to_owned).to_vec());
        assert_eq!((names.number("b"), names.number("c")), (Ok(1), Ok(2)));
        assert!(names.number("").is_err());
        let refused = names.number("a").unwrap_err();
        assert_eq!(refused, "no app is called `a`: the apps are b, c");
    }
}
