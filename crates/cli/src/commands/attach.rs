//! `lull attach`: servers that another program starts, under the on-call runtime.
//!
//! A server finds the library and the page by its environment, whether or not an agent
//! runs. This command is the agent: it may start, end and start again while the server runs.

use super::UsageError;
use super::exec::{Watching, at_first, rules, settings};
use crate::cli::AttachArgs;
use crate::say;
use crate::signals;
use lull_agent::library;
use lull_host::Roots;
use lull_host::oncall::{PageDirectory, Runtime, user_number};
use lull_host::plant::Stop;
use lull_measure::Nanos;
use rustix::process::geteuid;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where users are, a line each: `NAME:x:NUMBER:...`.
const USERS: &str = "/etc/passwd";

pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<()> {
    let (settings, rules) = (settings(&args.gate)?, rules(&args.gate)?);
    let owner = args.owner.as_deref().map(user).transpose()?;
    if args.environment {
        check_environment(args)?;
    }
    let directory = PageDirectory::open(&args.directory, owner)?;
    let library = library::write_to(args.library.as_deref().unwrap_or(directory.path()))?;
    if !directory.is_in_memory()? {
        say::notice(format_args!(
            "{} is not in memory (tmpfs): the page is written to disk again and again; \
             remove it when the machine has restarted",
            directory.page_path().display()
        ));
    }
    if args.environment {
        directory.write_rules(&rules)?;
        return print_environment(&library, &directory.page_path());
    }
    let stop = signals::stop_request()?;
    let at_first = at_first(&args.gate, settings);
    let runtime = Runtime::attach(&directory, &at_first, &rules, &Roots::default())?;
    let runtime = Arc::new(runtime);
    let name = directory.path().file_name().unwrap_or_default().to_string_lossy();
    let mut watching = Watching::new(&args.gate, &name, &runtime, settings)?;
    say::notice(format_args!("attached to {}", directory.page_path().display()));
    let end = args.duration.map(|time| Instant::now() + Duration::from_nanos(time.0));
    poll_until_stopped(&stop, end, || watching.poll(&runtime))?;
    watching.finish(&runtime)
}

/// Refuses what servers cannot have by their environment alone, before anything is made.
fn check_environment(args: &AttachArgs) -> Result<(), UsageError> {
    if let Some(name) = args.gate.controller() {
        return Err(UsageError(format!(
            "--environment cannot be used with --concurrency {name}: an admission controller \
             decides only while `lull attach` runs"
        )));
    }
    if !args.gate.areas.is_empty() {
        let what = "--environment cannot be used with --area: threads are in areas only while \
                    `lull attach` runs";
        return Err(UsageError(what.to_owned()));
    }
    [Some(&args.directory), args.library.as_ref()].into_iter().flatten().try_for_each(|path| {
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        check_plain(&whole)
    })
}

/// Calls `look` until a stop is requested or the time is over; `look` returns the time of
/// its next call.
fn poll_until_stopped(
    stop: &Stop,
    end: Option<Instant>,
    mut look: impl FnMut() -> Instant,
) -> anyhow::Result<()> {
    let mut is_over = false;
    while !is_over {
        let next = look();
        let until = end.map_or(next, |end| next.min(end));
        let time = until.saturating_duration_since(Instant::now());
        let span = Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        is_over = stop.wait(span)? || end.is_some_and(|end| Instant::now() >= end);
    }
    Ok(())
}

/// Two lines that a shell's `env` and systemd's `EnvironmentFile` take as they are.
fn print_environment(library: &Path, page: &Path) -> anyhow::Result<()> {
    let lines = [("LD_PRELOAD", library), ("LULL_PAGE", page)];
    for (_, path) in lines {
        check_plain(path)?;
    }
    for (variable, path) in lines {
        writeln!(std::io::stdout(), "{variable}={}", path.display())?;
    }
    Ok(())
}

/// Checks that the loader, a shell and systemd all read a path literally.
fn check_plain(path: &Path) -> Result<(), UsageError> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+@,=".contains(byte);
    if path.as_os_str().as_encoded_bytes().iter().all(is_plain) {
        return Ok(());
    }
    Err(UsageError(format!(
        "{} has characters with a special meaning to the loader, a shell or systemd: name a \
         directory of letters, digits, / . _ - + @ , and =",
        path.display()
    )))
}

/// Returns the number of the user that is to own the page.
///
/// # Errors
/// If no user has that name, or this process is not root and cannot change owners.
fn user(name: &str) -> Result<u32, UsageError> {
    if !geteuid().is_root() {
        let message = "--owner: only root gives files to others; without it the page is yours, \
                       for servers that you start";
        return Err(UsageError(message.to_owned()));
    }
    user_number(name).ok_or_else(|| {
        UsageError(format!("--owner: no user `{name}` in {USERS}: write a name there, or a number"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_means_something_else_to_another_program_is_refused() {
        assert!(check_plain(Path::new("/run/lull-db_1/page+x@y.so")).is_ok());
        for odd in ["/run/a b", "/run/a:b", "/run/$a", "/run/\"a\"", "/run/a%b", "/run/\u{e4}"] {
            let refusal = check_plain(Path::new(odd)).unwrap_err().0;
            assert!(refusal.starts_with(odd), "{refusal}");
        }
    }
}
