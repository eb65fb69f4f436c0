//! Which of our crates may use which: the table of ARCHITECTURE.md, enforced.

use super::tree::Tree;
use super::{Report, Rule, manifests};

pub(super) const RULE: Rule = Rule {
    name: "layers",
    about: "a crate uses only the crates of ours that its row allows (dev and build too)",
    check,
};

/// Shared by tests: any crate's tests may use it, and it uses nothing of ours.
const TESTING: &str = "testing";

/// One row for each crate: its directory, and what it may use.
const LAYERS: &[(&str, &[&str])] = &[
    (TESTING, &[]),
    ("measure", &[]),
    ("oncall", &[]),
    ("control", &["measure"]),
    ("workload", &["measure"]),
    ("policies", &["measure", "control"]),
    ("sim", &["measure", "control", "workload", "oncall"]),
    ("host", &["measure", "control", "oncall"]),
    ("preload", &["oncall"]),
    ("marks", &["measure", "control", "policies", "host"]),
    ("lab", &["measure", "control", "policies", "workload", "sim"]),
    (
        "agent",
        &[
            "measure", "oncall", "control", "workload", "policies", "sim", "host", "preload",
            "marks", "lab",
        ],
    ),
    (
        "fleet",
        &[
            "measure", "oncall", "control", "workload", "policies", "sim", "host", "preload",
            "marks", "lab", "agent",
        ],
    ),
    (
        "cli",
        &[
            "measure", "oncall", "control", "workload", "policies", "sim", "host", "preload",
            "marks", "lab", "agent", "fleet",
        ],
    ),
    (
        "python",
        &["measure", "oncall", "control", "workload", "policies", "sim", "host", "lab", "agent"],
    ),
    (
        "bench",
        &["measure", "oncall", "control", "workload", "policies", "sim", "host", "lab", "agent"],
    ),
    ("fuzz", &["measure", "oncall", "control", "workload", "host", "lab", "agent", "fleet"]),
    // The tasks must build when no crate does.
    ("xtask", &[]),
];

fn check(tree: &Tree, report: &mut Report) {
    for manifest in manifests::all(tree) {
        let (path, name) = (&manifest.file.path, manifest.crate_name);
        let Some((_, allowed)) = LAYERS.iter().find(|(known, _)| *known == name) else {
            let what = format!("unknown crate {name}; add its row to xtask/src/tidy/layers.rs");
            report.add(path, 1, what);
            continue;
        };
        for dependency in manifest.dependencies() {
            let Some(used) = dependency.package.strip_prefix("lull-") else { continue };
            // A crate may use itself to turn on a feature for its own tests.
            if used == name || used == TESTING || allowed.contains(&used) {
                continue;
            }
            let what = format!(
                "{name} must not use {used} (it may use: {}); \
                 move what it needs down, or hand it in",
                if allowed.is_empty() { "nothing of ours".into() } else { allowed.join(", ") }
            );
            report.add(path, manifest.line_of(&dependency.key), what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    #[test]
    fn a_policy_that_knows_the_host_is_refused_in_every_kind_of_dependency() {
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let manifest = format!("[package]\n[{table}]\nlull-host.workspace = true\n");
            let found = findings(&RULE, &[("crates/policies/Cargo.toml", &manifest)]);
            assert_eq!(found.len(), 1, "{table}");
            assert!(
                found[0].starts_with("crates/policies/Cargo.toml:3: policies must not use host")
            );
        }
    }

    #[test]
    fn a_new_name_or_a_target_does_not_hide_a_dependency() {
        let manifest = "[target.'cfg(unix)'.dependencies]\nh = { package = \"lull-host\" }\n";
        assert_eq!(findings(&RULE, &[("crates/policies/Cargo.toml", manifest)]).len(), 1);
    }

    #[test]
    fn an_unknown_crate_needs_a_row() {
        let found = findings(&RULE, &[("crates/utils/Cargo.toml", "[package]\n")]);
        assert!(found[0].contains("add its row"), "{found:?}");
    }

    #[test]
    fn allowed_crates_itself_and_foreign_crates_pass() {
        let manifest = "[dependencies]\nlull-measure.workspace = true\nserde.workspace = true\n\
                        [dev-dependencies]\nlull-control.workspace = true\n";
        assert!(findings(&RULE, &[("crates/control/Cargo.toml", manifest)]).is_empty());
    }

    #[test]
    fn what_a_crate_may_use_may_not_use_it_back() {
        let may = |user: &str, used: &str| {
            LAYERS.iter().any(|(name, allowed)| *name == user && allowed.contains(&used))
        };
        for (name, allowed) in LAYERS {
            assert!(allowed.iter().all(|used| !may(used, name)), "{name} is in a cycle");
        }
    }
}
