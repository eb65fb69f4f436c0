//! No modules of a crate use each other in a circle.
//!
//! The rule looks at each module with children on its own and compares its children: child
//! `a` uses child `b` if any file of `a`, however deep, has a path to an item that is
//! defined in `b`, however deep. A path through a re-export counts as a use of the module
//! that defines the item. Children that use each other in a circle are reported together,
//! with one path for each step of a shortest circle.
//!
//! A module and its own parent do not count: a parent declares and re-exports its children,
//! and a child may use what its parent defines for all of them.

use super::modules::{Modules, Use};
use super::tree::Tree;
use super::{Report, Rule, exceptions};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(super) const RULE: Rule = Rule {
    name: "circles",
    about: "modules with the same parent do not use each other in a circle",
    check,
};

/// The uses among the children of one module: by child, the children that it uses, each
/// with the first path that does so.
type Graph<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Use>>;

fn check(tree: &Tree, report: &mut Report) {
    let excused = exceptions::read(tree);
    let mut unneeded: BTreeSet<&str> = excused.circles().collect();
    for src in sources(tree) {
        let uses = Modules::read(&src, tree.rust()).uses();
        for (parent, graph) in graphs(&uses) {
            let directory = [std::slice::from_ref(&src), parent].concat().join("/");
            let found = circles(&graph);
            if !found.is_empty() && unneeded.remove(directory.as_str()) {
                continue;
            }
            for circle in found {
                let (first, _, at) = circle[0];
                let what = format!(
                    "{} modules of {directory} use each other in a circle: {}; move what \
                     several of them need into a module that uses none of them",
                    members(&graph, first).len(),
                    steps(&circle)
                );
                report.add(&at.file, at.line, what);
            }
        }
    }
    for directory in unneeded {
        let what = format!("{directory} has no circle any more; remove its entry");
        report.add(exceptions::PATH, 1, what);
    }
}

/// The directories `src` of all crates.
fn sources(tree: &Tree) -> BTreeSet<String> {
    let src = |path: &str| path.find("/src/").map(|at| path[..at + 4].to_owned());
    let of_crates = tree.rust().filter(|(file, _)| file.crate_name().is_some());
    of_crates.filter_map(|(file, _)| src(&file.path)).collect()
}

/// The graph of each module with children that use each other.
fn graphs(uses: &BTreeSet<Use>) -> BTreeMap<&[String], Graph<'_>> {
    let mut all: BTreeMap<&[String], Graph> = BTreeMap::new();
    for one in uses {
        let same = one.from.iter().zip(&one.to).take_while(|(a, b)| a == b).count();
        if let (Some(from), Some(to)) = (one.from.get(same), one.to.get(same)) {
            let graph = all.entry(&one.from[..same]).or_default();
            graph.entry(from).or_default().entry(to).or_insert(one);
        }
    }
    all
}

/// One step of a circle: the user, what it uses, and where.
type Step<'a> = (&'a str, &'a str, &'a Use);

/// A shortest circle in each group of modules that use each other.
fn circles<'a>(graph: &Graph<'a>) -> Vec<Vec<Step<'a>>> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for &child in graph.keys() {
        let group = members(graph, child);
        if seen.contains(child) || group.is_empty() {
            continue;
        }
        let around = group.iter().filter_map(|&member| path(graph, member, member));
        found.extend(around.min_by_key(Vec::len));
        seen.extend(group);
    }
    found
}

/// The modules that are in a circle with one; none if it is in no circle.
fn members<'a>(graph: &Graph<'a>, one: &'a str) -> BTreeSet<&'a str> {
    let both =
        |&other: &&'a str| path(graph, one, other).is_some() && path(graph, other, one).is_some();
    graph.keys().copied().filter(both).collect()
}

/// A shortest chain of uses between two modules, at least one step long.
fn path<'a>(graph: &Graph<'a>, from: &str, to: &str) -> Option<Vec<Step<'a>>> {
    let mut came_by: BTreeMap<&str, Step<'a>> = BTreeMap::new();
    let mut queue = VecDeque::from([*graph.get_key_value(from)?.0]);
    while let Some(at) = queue.pop_front() {
        for (&next, &witness) in graph.get(at).into_iter().flatten() {
            if !came_by.contains_key(next) {
                came_by.insert(next, (at, next, witness));
                queue.push_back(next);
            }
        }
    }
    let mut steps = vec![*came_by.get(to)?];
    while let Some(first) = steps.last().filter(|step| step.0 != from) {
        steps.push(came_by[first.0]);
    }
    steps.reverse();
    Some(steps)
}

fn steps(circle: &[Step]) -> String {
    let one = |(from, to, at): &Step| format!("{from} uses {to} ({}:{})", at.file, at.line);
    circle.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    fn check(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (format!("crates/sim/src/{path}"), *text)).collect();
        findings(
            &RULE,
            &files.iter().map(|(path, text)| (path.as_str(), *text)).collect::<Vec<_>>(),
        )
    }

    #[test]
    fn two_modules_that_use_each_other_are_found_with_both_lines() {
        let found = check(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::B;\npub struct A;\n"),
            ("b.rs", "pub struct B;\nfn f() -> super::a::A {}\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        let wanted = "crates/sim/src/a.rs:1: 2 modules of crates/sim/src use each other in a \
                      circle: a uses b (crates/sim/src/a.rs:1), b uses a (crates/sim/src/b.rs:2)";
        assert!(found[0].starts_with(wanted), "{found:?}");
    }

    #[test]
    fn a_circle_over_three_folders_and_through_macros_is_found_once() {
        let found = check(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("a/deep.rs", "fn f() { assert!(crate::b::f()); }\n"),
            ("a/mod.rs", "mod deep;\npub fn f() {}\n"),
            ("b.rs", "pub mod inner { pub fn g() { super::super::c::f(); } }\n"),
            ("c.rs", "pub fn f() { use crate::a::*; }\n"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("3 modules of crates/sim/src use each other"), "{found:?}");
    }

    #[test]
    fn a_circle_within_a_folder_names_the_folder() {
        let found = check(&[
            ("a.rs", "mod x;\nmod y;\n"),
            ("a/x.rs", "use super::y::Y;\npub struct X;\n"),
            ("a/y.rs", "use super::x::X;\npub struct Y;\n"),
        ]);
        assert!(found[0].contains("2 modules of crates/sim/src/a use"), "{found:?}");
    }

    #[test]
    fn a_path_through_a_re_export_counts_as_one_to_the_item_itself() {
        for (root, through) in [
            ("pub use b::B;\n", "use crate::B;\n"),
            ("pub use self::b::B as C;\n", "use super::C as D;\n"),
            ("pub use b::*;\n", "fn f(b: crate::B) {}\n"),
        ] {
            let lib = format!("mod a;\nmod b;\n{root}");
            let a = format!("{through}pub struct A;\n");
            let found = check(&[
                ("lib.rs", &lib),
                ("a.rs", &a),
                ("b.rs", "use crate::a::A;\npub struct B;\n"),
            ]);
            assert_eq!(found.len(), 1, "{root}{through}");
        }
    }

    #[test]
    fn parents_and_children_tests_and_other_crates_make_no_circle() {
        let found = check(&[
            ("lib.rs", "mod a;\nmod b;\npub struct R(a::A);\npub use a::A;\n"),
            ("a.rs", "use crate::R;\nuse lull_measure::b::X;\nmod x;\npub struct A(x::X);\n"),
            ("a/x.rs", "use super::A;\npub struct X;\n"),
            ("b.rs", "use crate::a::A;\npub struct B;\n"),
            ("c.rs", "pub struct C;\n#[cfg(test)]\nmod tests { use crate::d::D; }\n"),
            ("d.rs", "use crate::c::C;\npub struct D;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn an_excused_circle_passes_and_its_entry_goes_with_it() {
        let list = "[[circle]]\nmodules = \"crates/sim/src\"\nreason = \"not yet cut apart\"\n";
        let (a, b) = ("crates/sim/src/a.rs", "crates/sim/src/b.rs");
        let circle = [(a, "use crate::b::B;"), (b, "pub struct B(crate::a::A);")];
        assert!(findings(&RULE, &[circle[0], circle[1], (exceptions::PATH, list)]).is_empty());
        let found = findings(&RULE, &[circle[0], (exceptions::PATH, list)]);
        assert!(found[0].contains("crates/sim/src has no circle any more"), "{found:?}");
    }
}
