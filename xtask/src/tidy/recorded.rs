//! The commits of the lab's recorded rows are in the history.

use super::tree::Tree;
use super::{Report, Rule};

pub(super) const RULE: Rule = Rule {
    name: "recorded",
    about: "each commit in the lab's results.csv is in the history",
    check,
};

const PATH: &str = "crates/lab/src/claims/results.csv";

fn check(tree: &Tree, report: &mut Report) {
    // Without the full history no commit can be found: `run` reports this.
    let Some(file) = tree.file(PATH).filter(|_| !tree.commits.is_empty()) else { return };
    // The first line has the names of the columns, of which the commit is the last.
    for (line, number) in file.text.lines().zip(1..).skip(1) {
        let commit = line.rsplit_once(',').map_or("", |(_, commit)| commit.trim());
        if commit.is_empty() || tree.commits.iter().any(|it| it.hash.starts_with(commit)) {
            continue;
        }
        let what = format!(
            "commit {commit} is not in the history: write the one that recorded the row, or record \
             it again with `lull lab run --save`"
        );
        report.add(PATH, number, what);
    }
}

#[cfg(test)]
mod tests {
    use super::super::commits::Commit;
    use super::*;

    fn lines(hashes: &[&str]) -> Vec<usize> {
        let text = "experiment,row,commit\na,\"b, c\",0123456789ab\na,d,\na,e,deadbeef0000\n";
        let mut tree = Tree::new(&[(PATH, text)]);
        let commit = |hash: &&str| Commit {
            hash: (*hash).to_owned(),
            subject: String::new(),
            body: String::new(),
        };
        tree.commits = hashes.iter().map(commit).collect();
        let mut report = Report::default();
        check(&tree, &mut report);
        report.findings.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_recorded_commit_that_is_not_in_the_history_is_found_with_its_line() {
        assert_eq!(lines(&["0123456789abcdef"]), [4]);
        assert_eq!(lines(&["0123456789abcdef", "deadbeef00001111"]), [0; 0]);
        assert_eq!(lines(&[]), [0; 0], "without the history nothing is known");
    }
}
