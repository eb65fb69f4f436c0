//! Finding the processes of an app that is named by cgroup, unit or pattern, repeatedly.
//!
//! What is named may not exist yet, may vanish and may come back. A search that finds nothing
//! is not an error: the app waits.

use super::cgroup::{self, CgroupError};
use super::described::Detail;
use super::globs::{self, GlobError};
use super::identity::{Facts, ProcessId};
use super::own::leave_out_own;
use super::pattern::{PatternSearch, ProcessPattern};
use super::table::ProcessTable;
use crate::Roots;
use globset::GlobMatcher;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Number of processes above which an app is refused: such a number is a mistake.
pub const PROCESSES_MAX: usize = 5_000;

/// Why the processes of an app cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// A cgroup cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A pattern is none.
    #[error(transparent)]
    Glob(#[from] GlobError),
    /// More than [`PROCESSES_MAX`].
    #[error(
        "{what} has {count} processes, and an app has at most {PROCESSES_MAX}: none of them is \
         managed; narrow it with {narrow}"
    )]
    TooMany {
        /// The place that was searched.
        what: String,
        /// How many were found.
        count: usize,
        /// Keys that make it find fewer.
        narrow: &'static str,
    },
}

/// The criterion of an app that may vanish and return.
#[derive(Debug)]
pub(super) enum Search {
    /// One cgroup with those below it, by its path.
    Cgroup(PathBuf),
    /// All cgroups whose path matches, with those below them.
    Cgroups(CgroupGlob),
    /// The cgroup of one systemd unit, with those below it.
    Unit(UnitSearch),
    /// The cgroups of all systemd units whose name matches.
    Units(UnitSearch),
    /// All processes that match.
    Pattern { pattern: ProcessPattern, search: Box<PatternSearch> },
}

/// Identifies a match, so that a search recognises it the next time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupKey {
    /// A process, with those of its descendants that are found too.
    Process(ProcessId),
    /// A cgroup, which a unit has too, with those below it.
    Cgroup(PathBuf),
}

/// Paths of cgroups, matched part by part.
#[derive(Debug)]
pub(super) struct CgroupGlob {
    text: String,
    parts: Vec<GlobMatcher>,
}

/// Cgroups that have the name of a unit.
#[derive(Debug)]
pub(super) struct UnitSearch {
    name: String,
    glob: GlobMatcher,
    /// Where systemd has placed it, or where it was last.
    place: Option<PathBuf>,
    /// Why it cannot start, if systemd knows that.
    obstacle: Option<String>,
}

impl Search {
    pub(super) fn cgroup(path: &Path) -> Result<Self, GlobError> {
        let text = path.to_string_lossy().into_owned();
        if !globs::is_glob(&text) {
            return Ok(Self::Cgroup(path.to_owned()));
        }
        let parts = text.split('/').filter(|part| !part.is_empty()).map(globs::of_path);
        Ok(Self::Cgroups(CgroupGlob { parts: parts.collect::<Result<_, _>>()?, text }))
    }

    /// A unit, which systemd has placed at a cgroup if it is known.
    pub(super) fn unit(name: &str, place: Option<PathBuf>) -> Result<Self, GlobError> {
        let (name, obstacle) = (name.to_owned(), None);
        let search = UnitSearch { glob: globs::of_path(&name)?, name, place, obstacle };
        let is_glob = globs::is_glob(&search.name);
        Ok(if is_glob { Self::Units(search) } else { Self::Unit(search) })
    }

    /// The same with a reason for which a unit cannot start, for messages.
    pub(super) fn with_obstacle(mut self, why: Option<String>) -> Self {
        if let Self::Unit(search) = &mut self {
            search.obstacle = why;
        }
        self
    }

    pub(super) fn pattern(pattern: &ProcessPattern) -> Result<Self, GlobError> {
        let search = PatternSearch::new(pattern)?;
        Ok(Self::Pattern { pattern: pattern.clone(), search: Box::new(search) })
    }

    /// Returns which parts of processes it compares; `None` if it has no pattern.
    pub(super) const fn needed_description(&self) -> Option<Detail> {
        match self {
            Self::Pattern { pattern: ProcessPattern { exe: Some(_), .. }, .. } => Some(Detail::Exe),
            Self::Pattern { .. } => Some(Detail::Args),
            Self::Cgroup(_) | Self::Cgroups(_) | Self::Unit(_) | Self::Units(_) => None,
        }
    }

    /// Describes the searched place, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Cgroup(path) => format!("cgroup {}", path.display()),
            Self::Cgroups(glob) => format!("cgroups {}", glob.text),
            Self::Unit(UnitSearch { name, obstacle: Some(why), .. }) => {
                format!("unit `{name}`, {why}")
            }
            Self::Unit(unit) => format!("unit `{}`", unit.name),
            Self::Units(units) => format!("units `{}`", units.name),
            Self::Pattern { pattern, .. } => format!("processes with {pattern}"),
        }
    }

    /// Whether processes may be there, found at less cost than by listing all processes.
    ///
    /// What the table does not know yet counts, because it may be an app's.
    pub(super) fn may_have_processes(&mut self, table: &ProcessTable) -> bool {
        match self {
            Self::Pattern { .. } => true,
            _ => self.of_cgroups(table).is_ok_and(|pids| !pids.is_empty()),
        }
    }

    /// The processes now; none if there is nothing of that name.
    pub(super) fn processes(&mut self, table: &ProcessTable) -> Result<BTreeSet<i32>, SearchError> {
        let found = match self {
            Self::Pattern { search, .. } => {
                table.descriptions().map(|all| search.processes(all)).unwrap_or_default()
            }
            _ => self.of_cgroups(table)?,
        };
        self.check_count(found.len()).map(|()| found)
    }

    /// The processes that a pattern finds, or has found, and that may differ from those at the last
    /// call; `None` of other searches, and if too many are found.
    pub(super) fn changed(&mut self, table: &ProcessTable) -> Option<BTreeSet<i32>> {
        let Self::Pattern { search, .. } = self else { return None };
        let changed = search.update(table.descriptions()?);
        (search.found().len() <= PROCESSES_MAX).then_some(changed)
    }

    /// Whether a pattern found this process at the last call.
    pub(super) fn finds(&self, pid: i32) -> bool {
        matches!(self, Self::Pattern { search, .. } if search.found().contains_key(&pid))
    }

    /// The process of this number, if a pattern finds it, and neither its parent nor a child of it.
    pub(super) fn alone(&self, pid: i32, table: &ProcessTable) -> Option<ProcessId> {
        let Self::Pattern { search, .. } = self else { return None };
        let found = search.found();
        let parent = found.get(&pid)?;
        let has_kin = found.contains_key(parent) || found.values().any(|parent| *parent == pid);
        let start_ticks = table.facts(pid)?.start_ticks;
        (!has_kin).then_some(ProcessId { pid, start_ticks })
    }

    /// Refuses more processes than an app may have.
    pub(super) fn check_count(&self, count: usize) -> Result<(), SearchError> {
        if count <= PROCESSES_MAX {
            return Ok(());
        }
        let narrow = match self {
            Self::Pattern { .. } => "a stricter exe, args or user",
            _ => "a cgroup or unit further down",
        };
        Err(SearchError::TooMany { what: self.describe(), count, narrow })
    }

    /// Returns the present processes by match: each cgroup, and each process that matches with the
    /// descendants that match.
    pub(super) fn groups(
        &mut self,
        table: &ProcessTable,
    ) -> Result<BTreeMap<GroupKey, BTreeSet<i32>>, SearchError> {
        let mut groups: BTreeMap<GroupKey, BTreeSet<i32>> = BTreeMap::new();
        if matches!(self, Self::Pattern { .. }) {
            let found = self.processes(table)?;
            for pid in &found {
                if let Some(first) = first_of(*pid, &found, table) {
                    groups.entry(GroupKey::Process(first)).or_default().insert(*pid);
                }
            }
            return Ok(groups);
        }
        for place in self.places(table.roots())? {
            let pids = listed(&place, table)?;
            if !pids.is_empty() {
                groups.insert(GroupKey::Cgroup(place), pids);
            }
        }
        self.check_count(groups.values().map(BTreeSet::len).sum())?;
        Ok(groups)
    }

    fn of_cgroups(&mut self, table: &ProcessTable) -> Result<BTreeSet<i32>, CgroupError> {
        let mut found = BTreeSet::new();
        for place in self.places(table.roots())? {
            found.extend(listed(&place, table)?);
        }
        Ok(found)
    }

    /// The directories of the cgroups that are found.
    fn places(&mut self, roots: &Roots) -> Result<Vec<PathBuf>, CgroupError> {
        Ok(match self {
            Self::Cgroup(path) => match cgroup::find(roots, path) {
                Ok(place) => vec![place],
                Err(CgroupError::NotFound { .. }) => Vec::new(),
                Err(error) => return Err(error),
            },
            Self::Cgroups(glob) => cgroup::matching(roots, &glob.parts)?,
            Self::Unit(unit) => unit.find(roots)?.into_iter().collect(),
            Self::Units(units) => cgroup::named(roots, &units.glob, false)?,
            Self::Pattern { .. } => Vec::new(),
        })
    }
}

/// The processes of a cgroup but those of which no app is made; none if it was removed meanwhile.
pub(super) fn listed(place: &Path, table: &ProcessTable) -> Result<BTreeSet<i32>, CgroupError> {
    let mut found = match cgroup::processes(place) {
        Err(_) if !place.join("cgroup.procs").exists() => return Ok(BTreeSet::new()),
        listed => listed?,
    };
    leave_out_own(&mut found, table);
    Ok(found)
}

/// The furthest ancestor of a process, or itself, up to which all were found.
fn first_of(pid: i32, found: &BTreeSet<i32>, table: &ProcessTable) -> Option<ProcessId> {
    let facts = table.facts(pid)?;
    let mut first = ProcessId { pid, start_ticks: facts.start_ticks };
    let mut parent = facts.parent;
    for _ in found {
        // A parent that ended is still named, and its number may be that of a younger process.
        let older = |facts: &&Facts| facts.start_ticks <= first.start_ticks;
        let Some(facts) = table.facts(parent).filter(older).filter(|_| found.contains(&parent))
        else {
            break;
        };
        first = ProcessId { pid: parent, start_ticks: facts.start_ticks };
        parent = facts.parent;
    }
    Some(first)
}

impl UnitSearch {
    /// The directory of the unit: where it was, else wherever a cgroup has its name.
    fn find(&mut self, roots: &Roots) -> Result<Option<PathBuf>, CgroupError> {
        let there = self.place.as_ref().and_then(|place| cgroup::find(roots, place).ok());
        if there.is_some() {
            return Ok(there);
        }
        let found = cgroup::named(roots, &self.glob, true)?.pop();
        self.place.clone_from(&found);
        // A unit that has a cgroup has been started.
        self.obstacle = self.obstacle.take().filter(|_| found.is_none());
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cgroup_tree as tree;

    fn found(search: &mut Search, roots: &Roots) -> Vec<i32> {
        let table = ProcessTable::new(roots).unwrap();
        search.of_cgroups(&table).unwrap().into_iter().collect()
    }

    /// A tree of either version, as systemd makes it.
    fn units(hierarchy: &str) -> (tempfile::TempDir, Roots) {
        let at = |path: &str| format!("{hierarchy}{path}cgroup.procs");
        let files = [
            (at(""), "1\n"),
            (at("system.slice/"), ""),
            (at("system.slice/web-a.service/"), "11\n"),
            (at("system.slice/web-a.service/worker/"), "12\n"),
            (at("system.slice/system-web.slice/web-b.service/"), "13\n"),
            (at("system.slice/db.service/"), "14\n"),
        ];
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        tree(&files)
    }

    #[test]
    fn units_are_found_by_name_and_glob_wherever_they_are_in_either_version() {
        for hierarchy in ["", "systemd/", "unified/"] {
            let (_tree, roots) = units(hierarchy);
            let unit = |name: &str| found(&mut Search::unit(name, None).unwrap(), &roots);
            assert_eq!(unit("web-b.service"), [13], "{hierarchy}");
            assert_eq!(unit("web-*.service"), [11, 12, 13], "{hierarchy}");
            assert_eq!(unit("web-[b].service"), [13], "{hierarchy}");
            assert_eq!(unit("no*.service"), [0; 0], "{hierarchy}");
        }
    }

    #[test]
    fn a_unit_that_vanishes_is_found_again_where_it_comes_back() {
        let (tree, roots) = units("systemd/");
        let table = ProcessTable::new(&roots).unwrap();
        let top = tree.path().join("sys/fs/cgroup/systemd");
        let place = Some("/system.slice/db.service".into());
        let mut search = Search::unit("db.service", place).unwrap();
        assert_eq!(found(&mut search, &roots), [14]);
        std::fs::remove_dir_all(top.join("system.slice/db.service")).unwrap();
        assert_eq!(found(&mut search, &roots), [0; 0]);
        assert!(!search.may_have_processes(&table));
        std::fs::create_dir_all(top.join("other.slice/db.service")).unwrap();
        std::fs::write(top.join("other.slice/db.service/cgroup.procs"), "15\n").unwrap();
        assert_eq!(found(&mut search, &roots), [15]);
        assert!(search.may_have_processes(&table));
    }

    #[test]
    fn a_glob_of_cgroups_matches_part_by_part_and_takes_what_is_below() {
        let (_tree, roots) = units("");
        let glob = |path: &str| found(&mut Search::cgroup(path.as_ref()).unwrap(), &roots);
        assert_eq!(glob("system.slice/web-*.service"), [11, 12]);
        assert_eq!(glob("/system.slice/*/web-?.service"), [13]);
        assert_eq!(glob("*/db.service"), [14]);
        assert_eq!(glob("db*"), [0; 0]);
        let absolute = roots.sys.join("fs/cgroup/system.slice/d*").display().to_string();
        assert_eq!(glob(&absolute), [14]);
    }

    #[test]
    fn a_cgroup_that_does_not_exist_yet_has_no_process() {
        let (tree, roots) = units("");
        let mut search = Search::cgroup("late".as_ref()).unwrap();
        assert_eq!(found(&mut search, &roots), [0; 0]);
        let place = tree.path().join("sys/fs/cgroup/late");
        std::fs::create_dir(&place).unwrap();
        std::fs::write(place.join("cgroup.procs"), "21\n").unwrap();
        assert_eq!(found(&mut search, &roots), [21]);
    }

    #[test]
    fn a_cgroup_that_is_removed_while_it_is_read_has_no_process() {
        let (_tree, roots) = units("");
        let table = ProcessTable::new(&roots).unwrap();
        let place = cgroup::find(&roots, Path::new("system.slice/db.service")).unwrap();
        assert_eq!(listed(&place, &table).unwrap(), BTreeSet::from([14]));
        std::fs::remove_dir_all(&place).unwrap();
        assert_eq!(listed(&place, &table).unwrap(), BTreeSet::new());
        // One that is there and cannot be read is an error.
        std::fs::create_dir_all(place.join("cgroup.procs")).unwrap();
        assert!(listed(&place, &table).is_err());
    }

    #[test]
    fn a_cgroup_with_the_agent_alone_has_no_process_of_an_app() {
        let own = std::process::id();
        let (_tree, roots) = tree(&[("user.slice/cgroup.procs", &format!("1\n{own}\n"))]);
        let roots = Roots { proc: Roots::default().proc, ..roots };
        let table = ProcessTable::new(&roots).unwrap();
        let mut search = Search::cgroup("user.slice".as_ref()).unwrap();
        assert!(search.processes(&table).unwrap().is_empty());
        assert!(!search.may_have_processes(&table), "it is not looked for again and again");
        // A number that the table does not know may be that of an app.
        std::fs::write(roots.sys.join("fs/cgroup/user.slice/cgroup.procs"), "2147483647\n")
            .unwrap();
        assert!(search.may_have_processes(&table));
    }

    #[test]
    fn too_many_processes_are_refused_with_what_to_narrow() {
        let all: String = (2..=PROCESSES_MAX + 2).map(|pid| format!("{pid}\n")).collect();
        let (_tree, roots) = tree(&[("all/cgroup.procs", &all)]);
        let table = ProcessTable::new(&roots).unwrap();
        let refused = Search::cgroup("all".as_ref()).unwrap().processes(&table).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("5001") && text.contains("at most 5000"), "{text}");
        assert!(text.contains("narrow it"), "{text}");
    }
}
