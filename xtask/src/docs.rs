//! The pages of the book that the binary writes about itself.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::{Command, ExitCode};

/// Each generated page and the arguments with which `lull` prints it.
const PAGES: &[(&str, &[&str])] = &[
    ("docs/policies.md", &["policies", "--markdown"]),
    ("docs/config-keys.md", &["keys", "--markdown"]),
    ("docs/metrics.md", &["metrics", "--markdown"]),
    ("docs/grafana.json", &["metrics", "--grafana"]),
    ("docs/grafana-fleet.json", &["metrics", "--grafana-fleet"]),
    ("docs/reproduction.md", &["lab", "claims", "--markdown"]),
];

/// Writes every page, or with `check` only compares.
///
/// # Errors
/// If `lull` does not build, refuses the arguments, or a page cannot be written.
pub(crate) fn run(root: &Path, check: bool) -> Result<ExitCode> {
    let mut lull = Command::new("cargo");
    lull.args(["run", "--quiet", "--release", "--package", "lull-cli", "--bin", "lull", "--"]);
    each(root, check, &lull)
}

/// Compares every page with what the program prints that is in a folder of
/// the target directory, such as `debug`.
///
/// # Errors
/// If there is no such program or it refuses the arguments.
pub(crate) fn check_built(root: &Path, folder: &str) -> Result<ExitCode> {
    each(root, true, &Command::new(crate::release::target(root).join(folder).join("lull")))
}

fn each(root: &Path, check: bool, lull: &Command) -> Result<ExitCode> {
    let mut stale = 0;
    for (page, arguments) in PAGES {
        let wanted = print(root, lull, arguments)?;
        let path = root.join(page);
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        let Some(line) = first_difference(&found, &wanted) else { continue };
        if check {
            println!("{page}:{line}: not what the binary prints; run cargo xtask docs");
            stale += 1;
        } else {
            std::fs::create_dir_all(path.parent().unwrap_or(root))?;
            std::fs::write(&path, wanted).with_context(|| format!("cannot write {page}"))?;
            println!("docs: wrote {page}");
        }
    }
    if stale == 0 {
        println!("docs: {} pages are what the binary prints", PAGES.len());
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// Returns the output of the program for `arguments`.
fn print(root: &Path, lull: &Command, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(lull.get_program());
    command.args(lull.get_args()).args(arguments);
    command.current_dir(root).stderr(std::process::Stdio::inherit());
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("`lull {}` failed ({})", arguments.join(" "), output.status);
    }
    String::from_utf8(output.stdout).context("the page is not UTF-8")
}

/// The first line, counted from one, in which two texts differ.
fn first_difference(found: &str, wanted: &str) -> Option<usize> {
    if found == wanted {
        return None;
    }
    let same = |(a, b): &(&str, &str)| a == b;
    Some(found.lines().zip(wanted.lines()).take_while(same).count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_page_is_pointed_at_where_it_differs() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(2));
        assert_eq!(first_difference("", "a\n"), Some(1));
        assert_eq!(first_difference("a\nb", "a\nb\n"), Some(3), "the last newline counts");
    }
}
