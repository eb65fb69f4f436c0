//! The test programs of the workspace, which cargo builds and this program runs.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One program with tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) file: PathBuf,
    /// The directory of its package, in which tests run.
    directory: PathBuf,
    package: String,
    /// How cargo selects it: `--lib`, or `--test e2e`.
    target: String,
}

impl Program {
    /// The package and the target, for people.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.package, self.target.trim_start_matches("--"))
    }

    /// How many of its tests run at once where a program that computes runs one: end-to-end tests
    /// wait for processes most of their time.
    pub(super) fn tests_per_thread(&self) -> usize {
        if self.target == "--test e2e" { 3 } else { 1 }
    }

    /// The command that runs it again.
    pub(super) fn cargo(&self, profile: &[&str], arguments: &[&str]) -> String {
        let profile: String = profile.iter().map(|flag| format!(" {flag}")).collect();
        let command = format!("cargo test{profile} -p {} --all-features", self.package);
        let arguments = arguments.join(" ");
        format!("{command} {} -- {arguments}", self.target)
    }

    /// Its start in its package's directory, as cargo starts it.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command
    }
}

/// Builds the programs that a `cargo test` with these arguments would run.
///
/// # Errors
/// If cargo cannot be started, or they do not build.
pub(super) fn build(root: &Path, arguments: &[&str]) -> Result<Vec<Program>> {
    let output = Command::new("cargo")
        .current_dir(root)
        .args(arguments)
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests do not build");
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(parse).collect())
}

/// Reads one message of cargo (doc.rust-lang.org/cargo, "External tools"); none if it is
/// not about a program with tests.
fn parse(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["profile"]["test"].as_bool() == Some(true);
    let file = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let (directory, target) = (manifest.parent()?.to_owned(), &message["target"]);
    let name = target["name"].as_str()?;
    let target = match target["kind"][0].as_str()? {
        kind @ ("test" | "bin" | "example") => format!("--{kind} {name}"),
        _ => "--lib".to_owned(),
    };
    // `path+file:///a/crates/sim#lull-sim@0.1.0`, or without the name if the directory is
    // called like the package.
    let (_, id) = message["package_id"].as_str()?.rsplit_once('#')?;
    let package = match id.split_once('@') {
        Some((package, _)) => package.to_owned(),
        None => directory.file_name()?.to_string_lossy().into_owned(),
    };
    Some(Program { file, directory, package, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r##"{"reason":"compiler-artifact",
        "package_id":"path+file:///a/crates/app#lull-app@0.1.0",
        "manifest_path":"/a/crates/app/Cargo.toml",
        "target":{"kind":["test"],"name":"e2e"},
        "profile":{"test":true},"executable":"/a/target/debug/deps/e2e-1"}"##;

    #[test]
    fn a_program_with_tests_is_read_from_a_message_of_cargo() {
        let program = parse(MESSAGE).unwrap();
        assert_eq!(program.name(), "lull-app test e2e");
        assert_eq!(program.directory, Path::new("/a/crates/app"));
        let again = "cargo test --release -p lull-app --all-features --test e2e -- --ignored";
        assert_eq!(program.cargo(&["--release"], &["--ignored"]), again);
        let library = MESSAGE.replace("[\"test\"]", "[\"rlib\",\"cdylib\"]");
        let library = parse(&library).unwrap();
        assert_eq!(library.name(), "lull-app lib");
        assert!(library.tests_per_thread() < program.tests_per_thread());
        let short = MESSAGE.replace("#lull-app@0.1.0", "#0.1.0");
        assert_eq!(parse(&short).unwrap().name(), "app test e2e");
    }

    #[test]
    fn other_messages_are_passed_over() {
        let library = MESSAGE.replace("\"/a/target/debug/deps/e2e-1\"", "null");
        let product = MESSAGE.replace("\"test\":true", "\"test\":false");
        for line in ["", "text", "{}", &library, &product] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
