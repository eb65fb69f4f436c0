//! The text of every file: markers left behind, private places, width, blanks.

use super::tree::{File, Tree};
use super::{Report, Rule};

pub(super) const MARKERS: Rule = Rule {
    name: "markers",
    about: "a marker for later work names its issue: (#12)",
    check: check_markers,
};

pub(super) const PLACES: Rule = Rule {
    name: "places",
    about: "no host of a package registry and no path of one workplace",
    check: check_places,
};

pub(super) const WIDTH: Rule = Rule {
    name: "width",
    about: "at most 100 columns in code, addresses and what others wrote (vendor/) apart",
    check: check_width,
};

pub(super) const BLANKS: Rule =
    Rule { name: "blanks", about: "no blanks at the end of a line", check: check_blanks };

// These words are put together here, or this file would break its own rules.
const LATER: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const PRIVATE: [&str; 8] = [
    concat!("crates.io", "/api"),
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("pypi", ".org"),
    concat!("files.", "pythonhosted.org"),
    concat!("deb.", "debian.org"),
    concat!("registry.", "npmjs.org"),
    concat!("/wo", "rk/"),
];
const COLUMNS_MAX: usize = 100;

fn each_line<'a>(files: impl Iterator<Item = &'a File>, mut see: impl FnMut(&File, usize, &str)) {
    for file in files {
        file.text.lines().zip(1..).for_each(|(line, number)| see(file, number, line));
    }
}

fn check_markers(tree: &Tree, report: &mut Report) {
    each_line(tree.files.iter(), |file, number, line| {
        for word in LATER {
            let after = word_in(line, word).map(|at| line[at + word.len()..].trim_start());
            if after.is_some_and(|after| !names_issue(after)) {
                let what = format!("{word} without an issue; do it now, or write {word}(#12)");
                report.add(&file.path, number, what);
            }
        }
    });
}

fn names_issue(after: &str) -> bool {
    let after = after.strip_prefix('(').unwrap_or(after);
    after.strip_prefix('#').is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
}

/// Where `word` begins in `line`, if it is not part of a longer word.
fn word_in(line: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .map(|(at, _)| at)
        .find(|at| !line[..*at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part))
}

/// The first private place that `text` names.
pub(super) fn private_place(text: &str) -> Option<&'static str> {
    // A directory of that name inside a longer path or an address is not a private path.
    let stands_alone = |at: usize, place: &str| {
        let longer = |c: char| c.is_alphanumeric() || "._-~*}".contains(c);
        !place.starts_with('/') || !text[..at].ends_with(longer)
    };
    let names =
        |place: &&'static str| text.match_indices(*place).any(|(at, _)| stands_alone(at, place));
    PRIVATE.iter().copied().find(|place| names(place))
}

fn check_places(tree: &Tree, report: &mut Report) {
    each_line(tree.files.iter(), |file, number, line| {
        if let Some(place) = private_place(line) {
            let what = format!("{place} means nothing elsewhere; name what the reader needs");
            report.add(&file.path, number, what);
        }
    });
}

fn check_width(tree: &Tree, report: &mut Report) {
    let code = ["rs", "sh", "c", "h", "py", "js", "ts", "css"];
    let is_ours = |file: &&File| file.is_any_of(&code) && !file.path.contains("/vendor/");
    each_line(tree.files.iter().filter(is_ours), |file, number, line| {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX && !line.contains("://") {
            let what = format!("{columns} columns, more than {COLUMNS_MAX}; wrap the line");
            report.add(&file.path, number, what);
        }
    });
}

fn check_blanks(tree: &Tree, report: &mut Report) {
    each_line(tree.files.iter(), |file, number, line| {
        if line.ends_with([' ', '\t']) {
            report.add(&file.path, number, "blanks at the end of the line; remove them");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::in_file;
    use super::*;

    #[test]
    fn a_marker_needs_an_issue() {
        for word in LATER {
            for bad in [format!("// {word}: later\n"), format!("{word}\n"), format!("({word} #)\n")]
            {
                assert_eq!(in_file(&MARKERS, "a.md", &bad).len(), 1, "{bad}");
            }
            for good in
                [format!("{word}(#12): x\n"), format!("{word} #7\n"), format!("lull-{word}S\n")]
            {
                assert!(in_file(&MARKERS, "a.md", &good).is_empty(), "{good}");
            }
        }
    }

    #[test]
    fn each_private_place_is_found_in_any_kind_of_file() {
        for place in PRIVATE {
            for path in ["a.md", "Cargo.lock", ".ci/run"] {
                assert_eq!(in_file(&PLACES, path, &format!("see {place}x\n")).len(), 1, "{place}");
            }
        }
    }

    #[test]
    fn a_directory_below_another_is_nobodys_workplace() {
        let line = format!("var{0}a docs.rs/x {{run}}{0}b\n", concat!("/wo", "rk/"));
        assert!(in_file(&PLACES, "a.md", &line).is_empty());
    }

    #[test]
    fn a_hundred_columns_pass_and_one_more_fails_but_for_addresses_and_prose() {
        let (fits, wide) = (format!("{}\n", "é".repeat(100)), format!("{}\n", "é".repeat(101)));
        assert!(in_file(&WIDTH, "a.py", &fits).is_empty());
        assert_eq!(in_file(&WIDTH, "a.py", &wide).len(), 1);
        assert!(in_file(&WIDTH, "a.md", &wide).is_empty());
        assert!(in_file(&WIDTH, "web/vendor/a.js", &wide).is_empty());
        assert!(in_file(&WIDTH, "a.py", &format!("# https://{wide}")).is_empty());
    }

    #[test]
    fn blanks_at_the_end_are_found() {
        assert_eq!(in_file(&BLANKS, "a.md", "x \ny\t\nz\n").len(), 2);
    }
}
