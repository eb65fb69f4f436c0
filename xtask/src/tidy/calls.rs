//! Calls that some crate must not make, each with what to write in its place.

use super::source::Rust;
use super::tree::{File, Tree};
use super::{Report, Rule};
use std::collections::BTreeMap;

pub(super) const RULE: Rule = Rule {
    name: "calls",
    about: "no clock, RNG, print, unwrap or hash map where it does not belong",
    check,
};

pub(super) const EXPECTS: Rule = Rule {
    name: "expects",
    about: "at most 3 expects per 1000 lines of a crate (3 in a small one), tests apart",
    check: check_expects,
};

/// Tokens that are not to be written.
struct Ban {
    /// Any of these, as Rust tokens.
    tokens: &'static [&'static str],
    crates: Crates,
    in_tests: bool,
    /// The fault and the correction.
    instead: &'static str,
}

/// Where a ban holds.
enum Crates {
    Only(&'static [&'static str]),
    Except(&'static [&'static str]),
}

const BANS: &[Ban] = &[
    Ban {
        tokens: &["Instant::now", "SystemTime::now", "clock_gettime", "Utc::now", "Local::now"],
        crates: Crates::Except(&[
            "host", "workload", "agent", "fleet", "cli", "preload", "bench", "xtask",
        ]),
        in_tests: true,
        instead: "reads a clock; take the time (Nanos) as an argument",
    },
    Ban {
        tokens: &[
            "rand::rng",
            "rand::random",
            "thread_rng",
            "ThreadRng",
            "make_rng",
            "from_os_rng",
            "from_entropy",
            "OsRng",
            "SysRng",
            "getrandom",
        ],
        crates: Crates::Except(&["agent", "cli"]),
        in_tests: true,
        instead: "draws from the system; take an RNG as an argument, in tests seed_from_u64",
    },
    Ban {
        tokens: &["println!", "eprintln!", "print!", "eprint!"],
        crates: Crates::Except(&["cli", "bench", "testing", "xtask"]),
        in_tests: false,
        instead: "prints; return the value, and the program prints it",
    },
    Ban {
        tokens: &["dbg!"],
        crates: Crates::Except(&[]),
        in_tests: true,
        instead: "is left over from debugging; remove it",
    },
    Ban {
        tokens: &[".unwrap()"],
        crates: Crates::Except(&[]),
        in_tests: false,
        instead: "hides why it cannot fail; return the error, or expect(\"the invariant\")",
    },
    Ban {
        tokens: &["HashMap", "HashSet"],
        crates: Crates::Only(&["measure", "control", "policies", "sim", "oncall", "lab"]),
        in_tests: true,
        instead: "iterates in an order that differs from run to run; use a BTreeMap or BTreeSet",
    },
];

impl Crates {
    fn has(&self, file: &File) -> bool {
        // A build script is a task: its output is instructions to cargo.
        let is_build_script = file.path.ends_with("/build.rs");
        let name = if is_build_script { "xtask" } else { file.crate_name().unwrap_or("") };
        match self {
            Self::Only(names) => names.contains(&name),
            Self::Except(names) => !names.contains(&name),
        }
    }
}

fn check(tree: &Tree, report: &mut Report) {
    for (file, rust) in tree.rust() {
        for ban in BANS.iter().filter(|ban| ban.crates.has(file)) {
            for (tokens, line) in uses(rust, ban) {
                report.add(&file.path, line, format!("{tokens} {}", ban.instead));
            }
        }
    }
}

fn uses<'a>(rust: &'a Rust, ban: &'a Ban) -> impl Iterator<Item = (&'static str, usize)> + 'a {
    let each = ban
        .tokens
        .iter()
        .flat_map(|tokens| rust.lines_with(tokens).into_iter().map(|line| (*tokens, line)));
    each.filter(|(_, line)| ban.in_tests || !rust.is_test(*line))
}

const EXPECTS_PER_1000_LINES: usize = 3;

fn check_expects(tree: &Tree, report: &mut Report) {
    let mut crates: BTreeMap<&str, Vec<(&File, &Rust)>> = BTreeMap::new();
    for (file, rust) in tree.rust() {
        crates.entry(file.crate_name().unwrap_or("")).or_default().push((file, rust));
    }
    for (name, files) in crates {
        let (mut lines, mut uses) = (0, Vec::new());
        for (file, rust) in files {
            lines += (1..=file.text.lines().count()).filter(|line| !rust.is_test(*line)).count();
            let here = rust.lines_with(".expect").into_iter().filter(|line| !rust.is_test(*line));
            uses.extend(here.map(|line| (&file.path, line)));
        }
        let allowed = (EXPECTS_PER_1000_LINES * lines.div_ceil(1000)).max(EXPECTS_PER_1000_LINES);
        if let Some((path, line)) = uses.get(allowed) {
            let what = format!(
                "{name} has {} expects in {lines} lines, more than {allowed}; return errors",
                uses.len()
            );
            report.add(path, *line, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    fn in_crate(name: &str, text: &str) -> Vec<String> {
        in_file(&RULE, &format!("crates/{name}/src/a.rs"), text)
    }

    #[test]
    fn every_banned_call_is_found_where_it_is_banned_and_says_what_to_write() {
        for ban in BANS {
            let name = match ban.crates {
                Crates::Only(names) => names[0],
                Crates::Except(_) => "policies",
            };
            for tokens in ban.tokens {
                let call =
                    if tokens.starts_with('.') { format!("x{tokens}") } else { (*tokens).into() };
                let call = if call.ends_with('!') { format!("{call}()") } else { call };
                let found = in_crate(name, &format!("fn f() {{\n    {call};\n}}\n"));
                assert_eq!(found.len(), 1, "{call}: {found:?}");
                assert!(found[0].starts_with(&format!("crates/{name}/src/a.rs:2: {tokens} ")));
            }
        }
    }

    #[test]
    fn a_call_inside_a_macro_or_passed_as_a_value_is_a_call() {
        assert_eq!(in_crate("sim", "fn f() { assert!(g(Instant::now())) }\n").len(), 1);
        assert_eq!(in_crate("sim", "fn f() { g(std::time::Instant::now) }\n").len(), 1);
    }

    #[test]
    fn what_a_crate_is_for_is_allowed_there() {
        let fine = [
            ("host", "fn f() { Instant::now(); }\n"),
            ("cli", "fn f() { println!(); rand::rng(); }\n"),
            ("cli", "fn f(a: HashMap<u8, u8>) {}\n"),
            ("policies", "fn f(a: BTreeMap<u8, u8>) { a.unwrap_or(1) }\n"),
        ];
        for (name, text) in fine {
            assert_eq!(in_crate(name, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn tests_may_unwrap_and_print_but_not_read_clocks() {
        let test = |call: &str| format!("#[cfg(test)]\nmod tests {{ fn f() {{ {call}; }} }}\n");
        assert!(in_crate("sim", &test("x.unwrap()")).is_empty());
        assert!(in_crate("sim", &test("println!()")).is_empty());
        assert_eq!(in_crate("sim", &test("Instant::now()")).len(), 1);
    }

    #[test]
    fn the_fourth_expect_of_a_small_crate_is_found() {
        let path = "crates/sim/src/a.rs";
        let text =
            "fn f() {\n    x.expect(\"so\");\n    x.expect(\"so\");\n    x.expect(\"so\");\n}\n";
        assert!(in_file(&EXPECTS, path, text).is_empty());
        let found = in_file(&EXPECTS, path, &format!("{text}fn g() {{ x.expect(\"so\") }}\n"));
        assert!(found[0].starts_with("crates/sim/src/a.rs:6: sim has 4 expects"), "{found:?}");
    }
}
