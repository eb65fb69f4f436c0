//! Programs that are run to their end.

use anyhow::{Context, Result, bail};
use std::process::{Command, ExitStatus, Stdio};

/// Runs one.
///
/// # Errors
/// If it cannot be started, or fails.
pub(crate) fn done(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status();
    expect(status.with_context(|| format!("cannot start {command:?}"))?, command)
}

/// Runs one and returns its output.
///
/// # Errors
/// As [`done`].
pub(crate) fn read_output(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    expect(output.status, command)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn expect(status: ExitStatus, command: &Command) -> Result<()> {
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn what_a_program_prints_is_returned_and_a_failure_names_it() {
        assert_eq!(read_output(&mut shell("echo two; echo lines")).unwrap(), "two\nlines\n");
        assert!(done(&mut shell("exit 0")).is_ok());
        let why = done(&mut shell("exit 3")).unwrap_err().to_string();
        assert!(why.contains("exit 3") && why.contains("status: 3"), "{why}");
        assert!(done(&mut Command::new("/no/such")).is_err());
    }
}
