//! Runs a command while settings are held, or waits if there is no command.

use anyhow::{Context, bail};
use lull_host::apps::GRACE;
use lull_host::plant::Stop;
use lull_measure::Nanos;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::process::{Child, Command};
use std::time::Instant;

/// How often the command is polled; a signal ends the wait immediately.
const NAP: Nanos = Nanos::from_millis(50);

/// Runs the command to its end, or waits if there is none. A signal, or `is_over` returning true
/// or an error, ends either: after a signal the command has as long as it needs, otherwise it is
/// killed after [`GRACE`]. `on_start` is called with the number of the command's process.
///
/// # Errors
/// If the command cannot be started or fails, also after a signal to this process, or `on_start` or
/// `is_over` fails.
pub(crate) fn run(
    command: &[OsString],
    stop: &Stop,
    on_start: impl FnOnce(u32) -> anyhow::Result<()>,
    mut is_over: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let Some((program, arguments)) = command.split_first() else {
        while !is_over()? && !stop.wait(NAP)? {}
        return Ok(());
    };
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    if let Err(error) = on_start(child.id()) {
        end(&mut child)?;
        return Err(error);
    }
    let mut is_ending = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let is_over = is_over();
        if !matches!(is_over, Ok(false)) {
            end(&mut child)?;
            return is_over.map(|_| ());
        }
        if is_ending {
            // The request stays, so that a wait for it would return immediately.
            std::thread::sleep(NAP.into());
            continue;
        }
        match stop.wait(NAP) {
            Ok(false) => {}
            Ok(true) => {
                terminate(&child);
                is_ending = true;
            }
            Err(error) => {
                end(&mut child)?;
                return Err(error.into());
            }
        }
    };
    match status.success() {
        true => Ok(()),
        false => bail!("`{}` ended with {status}", program.display()),
    }
}

/// Sends SIGTERM to the command. A terminal signals the command itself, a service manager may
/// signal only this process.
fn terminate(child: &Child) {
    // The process may have ended by itself meanwhile.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
}

/// Ends the command, by SIGKILL if it has not ended [`GRACE`] after SIGTERM.
fn end(child: &mut Child) -> anyhow::Result<()> {
    terminate(child);
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() >= GRACE {
            child.kill()?;
            child.wait()?;
            break;
        }
        std::thread::sleep(NAP.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_ignores_sigterm_is_killed_where_its_settings_cannot_be_held() {
        let place = tempfile::tempdir().unwrap();
        let [ready, ended] = ["ready", "ended"].map(|name| place.path().join(name));
        let script = format!(
            "trap '' TERM; touch {}; sleep 30 </dev/null >/dev/null 2>&1; touch {}",
            ready.display(),
            ended.display()
        );
        let command = ["sh", "-c", &script].map(OsString::from);
        let is_over = || if ready.exists() { bail!("the guard is lost") } else { Ok(false) };
        let outcome = run(&command, &Stop::new().unwrap(), |_| Ok(()), is_over);
        assert_eq!(outcome.unwrap_err().to_string(), "the guard is lost");
        assert!(!ended.exists(), "it was waited for");
    }
}
