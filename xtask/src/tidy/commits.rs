//! Commits that explain why: an area, a short subject, a body.

use super::tree::Tree;
use super::{Report, Rule, exceptions, words};
use std::path::Path;
use std::process::Command;

pub(super) const RULE: Rule = Rule {
    name: "commits",
    about: "a commit has `area: subject` in 72 characters and a body that says why",
    check,
};

const SUBJECT_MAX: usize = 72;

/// One commit that is not a merge.
pub(super) struct Commit {
    pub(super) hash: String,
    pub(super) subject: String,
    pub(super) body: String,
}

impl Commit {
    /// The commits from the root to HEAD; none where there is no git or no full history.
    pub(super) fn history(root: &Path) -> Vec<Self> {
        let git = |arguments: &[&str]| {
            let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        match git(&["rev-parse", "--is-shallow-repository"]).as_deref().map(str::trim) {
            Some("false") => {}
            _ => return Vec::new(),
        }
        let log = git(&["log", "--no-merges", "--format=%H%x1f%s%x1f%b%x1e", "HEAD"]);
        log.unwrap_or_default().split('\x1e').filter_map(Self::parse).collect()
    }

    fn parse(record: &str) -> Option<Self> {
        let mut parts = record.trim_start().split('\x1f').map(str::to_owned);
        Some(Self { hash: parts.next()?, subject: parts.next()?, body: parts.next()? })
    }

    /// Returns the faults of the message.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let length = self.subject.chars().count();
        if length > SUBJECT_MAX {
            faults.push(format!("the subject has {length} characters, more than {SUBJECT_MAX}"));
        }
        if !has_area(&self.subject) {
            faults.push("the subject has no area; write `area: what it does`".to_owned());
        }
        if self.body.trim().is_empty() {
            faults.push("no body; say why, with numbers where there are any".to_owned());
        }
        if let Some(place) = words::private_place(&format!("{}\n{}", self.subject, self.body)) {
            faults.push(format!("{place} means nothing elsewhere"));
        }
        faults
    }
}

/// Whether a subject begins with areas: `sim: ...`, `host, app: ...`.
fn has_area(subject: &str) -> bool {
    let is_area = |area: &str| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/.".contains(c);
        !area.is_empty() && area.chars().all(fits)
    };
    subject
        .split_once(": ")
        .is_some_and(|(areas, rest)| areas.split(", ").all(is_area) && !rest.trim().is_empty())
}

fn check(tree: &Tree, report: &mut Report) {
    let excused = exceptions::read(tree);
    for commit in tree.commits.iter().filter(|commit| !excused.has_commit(&commit.hash)) {
        for fault in commit.faults() {
            let short: String = commit.hash.chars().take(12).collect();
            report.add(&format!("commit {short}"), 1, format!("{fault} ({:?})", commit.subject));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(subject: &str, body: &str) -> Vec<String> {
        let (subject, body) = (subject.to_owned(), body.to_owned());
        let mut tree = Tree::new(&[(exceptions::PATH, "[[commit]]\nhash = \"bad\"\n")]);
        tree.commits = ["0123456789abcdef", "badbadbad"]
            .map(|hash| Commit { hash: hash.into(), subject: subject.clone(), body: body.clone() })
            .into();
        let mut report = Report::default();
        check(&tree, &mut report);
        report.findings.into_iter().map(|found| format!("{}: {}", found.at, found.what)).collect()
    }

    #[test]
    fn an_area_a_subject_and_a_body_pass() {
        for subject in
            ["sim: count once", "host, app: agree", ".ci: run", &format!("a: {}", "x".repeat(69))]
        {
            assert_eq!(faults(subject, "Because."), [""; 0], "{subject}");
        }
    }

    #[test]
    fn a_long_subject_a_missing_area_and_a_missing_body_are_found_once() {
        let long = format!("a: {}", "x".repeat(70));
        for (subject, body, wanted) in [
            (long.as_str(), "Because.", "73 characters"),
            ("Count once", "Because.", "no area"),
            ("Sim: count once", "Because.", "no area"),
            ("sim: ", "Because.", "no area"),
            ("sim: count once", " \n", "no body"),
            ("sim: count once", concat!("See /wo", "rk/x."), "means nothing"),
        ] {
            let found = faults(subject, body);
            assert_eq!(found.len(), 1, "the listed commit is excused: {found:?}");
            assert!(found[0].starts_with("commit 0123456789ab: "), "{found:?}");
            assert!(found[0].contains(wanted), "{found:?}");
        }
    }

    #[test]
    fn a_directory_without_history_has_no_commits() {
        assert!(Commit::history(Path::new("/proc/self")).is_empty());
    }
}
