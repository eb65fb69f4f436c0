//! Processes that are recognised by program, arguments and user.

use super::described::{Described, Descriptions};
use super::globs::{self, GlobError};
use globset::GlobMatcher;
use rustix::process::geteuid;
use std::collections::{BTreeMap, BTreeSet};

/// The properties that the processes of an app share; at least one is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessPattern {
    /// A glob for the path of the program; one without `/` is for its last part.
    pub exe: Option<String>,
    /// A glob for the command line, its arguments joined by blanks.
    pub args: Option<String>,
    /// A glob for the name or the number of the effective user.
    pub user: Option<String>,
}

/// A search for the processes that match a pattern.
#[derive(Debug)]
pub(super) struct PatternSearch {
    exe: Option<(GlobMatcher, bool)>,
    args: Option<GlobMatcher>,
    user: Option<UserGlob>,
    /// The processes that matched at the last call, each with its parent.
    found: BTreeMap<i32, i32>,
    version: u64,
    is_root: bool,
}

/// A glob for users, by name or number.
#[derive(Debug, Clone)]
pub(crate) struct UserGlob(GlobMatcher);

impl UserGlob {
    /// Compiles a glob.
    ///
    /// # Errors
    /// [`GlobError`].
    pub(crate) fn new(glob: &str) -> Result<Self, GlobError> {
        globs::of_text(glob).map(Self)
    }

    /// Whether the number of a user matches, or the name that it has in `/etc/passwd`.
    pub(crate) fn is_match(&self, uid: u32) -> bool {
        self.0.is_match(uid.to_string()) || user_name(uid).is_some_and(|name| self.0.is_match(name))
    }
}

impl ProcessPattern {
    /// Checks the patterns.
    ///
    /// # Errors
    /// The field at fault and the fault.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if self.exe.is_none() && self.args.is_none() && self.user.is_none() {
            let what = "is empty: give exe, args or user";
            return Err(("", what.to_owned()));
        }
        for (key, glob) in [("exe", &self.exe), ("args", &self.args), ("user", &self.user)] {
            if glob.as_ref().is_some_and(String::is_empty) {
                return Err((key, "is empty: leave it out, or name what must match".to_owned()));
            }
            if let Some(glob) = glob {
                globs::of_text(glob).map_err(|error| (key, error.to_string()))?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Display for ProcessPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields = [("exe", &self.exe), ("args", &self.args), ("user", &self.user)];
        let given = fields.into_iter().filter_map(|(key, glob)| Some((key, glob.as_ref()?)));
        let given: Vec<_> = given.map(|(key, glob)| format!("{key} `{glob}`")).collect();
        f.write_str(&given.join(" and "))
    }
}

impl PatternSearch {
    pub(super) fn new(pattern: &ProcessPattern) -> Result<Self, GlobError> {
        let exe = |glob: &String| {
            let is_path = glob.contains('/');
            let glob = if is_path { globs::of_path(glob) } else { globs::of_text(glob) };
            Ok::<_, GlobError>((glob?, is_path))
        };
        let text = |glob: &Option<String>| glob.as_deref().map(globs::of_text).transpose();
        Ok(Self {
            exe: pattern.exe.as_ref().map(exe).transpose()?,
            args: text(&pattern.args)?,
            user: pattern.user.as_deref().map(UserGlob::new).transpose()?,
            found: BTreeMap::new(),
            version: 0,
            is_root: geteuid().is_root(),
        })
    }

    /// The processes that match now, but none whose threads may not be set.
    pub(super) fn processes(&mut self, all: &Descriptions) -> BTreeSet<i32> {
        self.update(all);
        self.found.keys().copied().collect()
    }

    /// Updates the matches; returns the processes that match, or did, and may differ from those at
    /// the last call.
    pub(super) fn update(&mut self, all: &Descriptions) -> BTreeSet<i32> {
        let mut changed = BTreeSet::new();
        for pid in all.changed_since(self.version) {
            let did_match = self.found.remove(&pid).is_some();
            let matching = all.get(pid).filter(|(one, _)| self.matches(one));
            self.found.extend(matching.map(|(_, parent)| (pid, parent)));
            if did_match || matching.is_some() {
                changed.insert(pid);
            }
        }
        self.version = all.version();
        changed
    }

    /// The processes that matched at the last call, each with its parent as it was first seen.
    pub(super) const fn found(&self) -> &BTreeMap<i32, i32> {
        &self.found
    }

    fn matches(&self, process: &Described) -> bool {
        if !self.is_root && process.uid != geteuid().as_raw() {
            return false;
        }
        let of_exe = |(glob, is_path): &(GlobMatcher, bool)| {
            let name = process.exe.rsplit('/').next().unwrap_or(&process.exe);
            glob.is_match(if *is_path { process.exe.as_str() } else { name })
        };
        self.exe.as_ref().is_none_or(of_exe)
            && self.args.as_ref().is_none_or(|glob| glob.is_match(&process.args))
            && self.user.as_ref().is_none_or(|glob| glob.is_match(process.uid))
    }
}

/// The name of a user in `/etc/passwd`; users of other directories are named by number.
fn user_name(uid: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = lines.find(|fields| fields.get(2).is_some_and(|it| it.parse() == Ok(uid)))?;
    found.first().map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Roots;
    use crate::apps::ProcessTable;
    use crate::apps::described::Detail;
    use std::process::{Child, Command};

    /// Ends its process when dropped.
    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn pattern(exe: Option<&str>, args: Option<&str>, user: Option<&str>) -> ProcessPattern {
        let own = |text: Option<&str>| text.map(str::to_owned);
        ProcessPattern { exe: own(exe), args: own(args), user: own(user) }
    }

    /// Whether a search of an agent with the number `own` finds `pid`.
    fn finds_as(own: i32, pattern: &ProcessPattern, pid: i32) -> bool {
        let mut table = ProcessTable::new(&Roots::default()).unwrap();
        table.describe(own, Detail::Exe);
        let mut search = PatternSearch::new(pattern).unwrap();
        search.processes(table.descriptions().unwrap()).contains(&pid)
    }

    /// Whether a search that is no part of this process's family finds `pid`.
    fn finds(pattern: &ProcessPattern, pid: i32) -> bool {
        finds_as(i32::MAX, pattern, pid)
    }

    #[test]
    fn all_given_fields_must_match_a_whole_name() {
        let child = Ends(Command::new("sleep").arg("3077").spawn().unwrap());
        let pid = child.0.id().cast_signed();
        let uid = geteuid().as_raw().to_string();
        let args = Some("sleep 3077");
        while !finds(&pattern(None, args, None), pid) {
            // The child has not executed its program yet.
            std::thread::yield_now();
        }
        assert!(finds(&pattern(None, Some("*3077"), Some(&uid)), pid));
        assert!(!finds(&pattern(None, Some("sleep 307"), None), pid));
        assert!(!finds(&pattern(Some("no-such-program"), args, None), pid));
        assert!(!finds(&pattern(None, args, Some("no-such-user")), pid));
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
        let name = exe.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(finds(&pattern(Some(&name), args, None), pid));
        assert!(finds(&pattern(exe.to_str(), args, None), pid));
        assert!(!finds(&pattern(Some("/no/such/place/*"), args, None), pid));
    }

    #[test]
    fn what_the_agent_started_and_the_agent_itself_are_never_found() {
        let child = Ends(Command::new("sleep").arg("3078").spawn().unwrap());
        let all = pattern(None, Some("*"), None);
        let own = std::process::id().cast_signed();
        let found = |pid| finds_as(own, &all, pid);
        assert!(!found(child.0.id().cast_signed()) && !found(own) && !found(1));
    }

    #[test]
    fn a_pattern_needs_a_field_and_names_the_one_at_fault() {
        assert_eq!(ProcessPattern::default().check().unwrap_err().0, "");
        assert_eq!(pattern(Some("a"), Some("b["), None).check().unwrap_err().0, "args");
        assert!(pattern(None, None, Some("www*")).check().is_ok());
    }
}
