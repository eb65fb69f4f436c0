//! How the config says where the processes of an app are.

use lull_host::apps::{ProcessPattern, check_glob};
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::{Component, PathBuf};

/// How an app comes under the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppOrigin {
    /// Started by the agent.
    Start(Vec<String>),
    /// A running process and its descendants.
    Pid(u32),
    /// All processes of a cgroup, or of all that match.
    Cgroup(PathBuf),
    /// All processes of a systemd unit, or of all that match.
    Unit(String),
    /// All processes that match.
    Match(ProcessPattern),
    /// A process that registers itself.
    Register(RegisterAs),
    /// A pod of the node.
    Pods(PodsAs),
}

/// The template under which processes register themselves, and the users that may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisterAs {
    /// The name of the template.
    pub template: String,
    /// A glob for the users that may register.
    pub users: String,
}

/// Selects the pods of a node that are apps of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsAs {
    /// The name of the template.
    pub template: String,
    /// The label selector of the pods.
    pub selector: String,
}

/// The app of a template that an app is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateSlot {
    /// The number of the template.
    pub template: usize,
    /// The number of the app among those of the template, from 0.
    pub index: usize,
}

/// `match` of `[[app]]`: what the processes of an app have in common. All keys that are given
/// must match the whole name; each is a glob (`*`, `?`, `[ab]`, `{a,b}`).
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(inline)]
pub struct MatchSection {
    /// The path of the program; without `/` the last part of it.
    #[schemars(example = &"memcached")]
    pub exe: Option<String>,
    /// The command line, its arguments joined by blanks.
    #[schemars(example = &"*--port 11211*")]
    pub args: Option<String>,
    /// The effective user, by the name in `/etc/passwd` or by number.
    #[schemars(example = &"memcache")]
    pub user: Option<String>,
}

impl MatchSection {
    pub(super) fn pattern(&self) -> ProcessPattern {
        let Self { exe, args, user } = self.clone();
        ProcessPattern { exe, args, user }
    }
}

impl AppOrigin {
    /// Checks the patterns by which an app is found.
    ///
    /// # Errors
    /// The key at fault and the fault.
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        let glob = |key: &str, text: &str| match text {
            "" => Err((key.to_owned(), "is empty: name what is looked for".to_owned())),
            _ => check_glob(text).map_err(|error| (key.to_owned(), error.to_string())),
        };
        match self {
            Self::Unit(unit) => glob("unit", unit),
            Self::Cgroup(path) if path.components().any(|one| one == Component::ParentDir) => {
                Err(("cgroup".to_owned(), "leads upwards by `..`: write the whole path".to_owned()))
            }
            Self::Cgroup(path) => glob("cgroup", &path.to_string_lossy()),
            Self::Match(pattern) => pattern.check().map_err(|(field, message)| {
                let dot = if field.is_empty() { "" } else { "." };
                (format!("match{dot}{field}"), message)
            }),
            Self::Register(one) => glob("register", &one.users),
            Self::Start(_) | Self::Pid(_) | Self::Pods(_) => Ok(()),
        }
    }
}
