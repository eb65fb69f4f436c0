//! Runs a command while settings are held, or waits if there is no command.

use anyhow::{Context, bail};
use lull_host::plant::Stop;
use lull_measure::Nanos;
use std::ffi::OsString;
use std::process::{Child, Command, ExitStatus};

/// How often the command is polled; a signal ends the wait immediately.
const NAP: Nanos = Nanos::from_millis(50);

/// Runs the command to its end, or waits if there is none. A signal, or `is_over`
/// returning true or an error, ends either. `on_start` is called with the number of the command's
/// process.
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
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let is_over = is_over();
        if !matches!(is_over, Ok(false)) {
            end(&mut child)?;
            return is_over.map(|_| ());
        }
        let has_signal = stop.wait(NAP);
        if !matches!(has_signal, Ok(false)) {
            let status = end(&mut child)?;
            has_signal?;
            break status;
        }
    };
    match status.success() {
        true => Ok(()),
        false => bail!("`{}` ended with {status}", program.display()),
    }
}

/// Sends SIGTERM to the command and waits for its end. A terminal signals the command
/// itself, a service manager may signal only this process.
fn end(child: &mut Child) -> anyhow::Result<ExitStatus> {
    let pid = rustix::process::Pid::from_child(child);
    // The process may have ended by itself meanwhile.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    Ok(child.wait()?)
}
