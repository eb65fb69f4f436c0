//! `lull lab cpufreq`: a command that sees P-states on cores that have none.
//!
//! The command runs in a mount namespace of its own, in which the files of
//! [`EmulatedCpufreq`] are mounted over the kernel's. Everything outside sees the machine as it is.

use super::UsageError;
use crate::cli::CpufreqArgs;
use crate::{alongside, say, signals};
use anyhow::{Context, bail};
use lull_host::Roots;
use lull_host::emulate::{CpufreqError, CpufreqPlan, EmulateError, EmulatedCpufreq, PState};
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often the files are read: shorter than the shortest epoch of an agent.
const LOOK: Duration = Duration::from_millis(5);
/// Mounts the first argument over the second and the third over `/proc/stat`, and runs the rest.
const MOUNT: &str =
    "mount --bind \"$1\" \"$2\" && mount --bind \"$3\" /proc/stat && shift 3 && exec \"$@\"";

pub(crate) fn run(args: &CpufreqArgs) -> anyhow::Result<()> {
    let stop = signals::stop_request()?;
    let roots = Roots::default();
    let kernel = roots.sys.join("devices/system/cpu/cpufreq");
    if !kernel.is_dir() {
        bail!("{} is missing: the kernel is built without cpufreq", kernel.display());
    }
    let plan = CpufreqPlan {
        directory: args.files.clone(),
        cores: args.cores.clone(),
        frequencies: args.frequencies.clone(),
        period: args.period,
    };
    let mut emulated = EmulatedCpufreq::start(&plan, &roots).map_err(refusal)?;
    announce(&emulated);
    let command = mounted(args, &kernel);
    let is_over = AtomicBool::new(false);
    let (ran, followed) = thread::scope(|scope| {
        let follower = scope.spawn(|| follow(&mut emulated, &is_over));
        let ran = alongside::run(&command, &stop, |_| Ok(()), || Ok(follower.is_finished()));
        is_over.store(true, Ordering::Relaxed);
        (ran, follower.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let name = args.command.first().map(|name| name.display().to_string()).unwrap_or_default();
    ran.with_context(|| format!("`{name}` on emulated P-states"))?;
    Ok(followed?)
}

/// Marks a plan that cannot be emulated as bad input.
fn refusal(error: CpufreqError) -> anyhow::Error {
    match error {
        CpufreqError::Frequencies
        | CpufreqError::Speed(EmulateError::Range { .. } | EmulateError::Period(_)) => {
            UsageError(error.to_string()).into()
        }
        other => other.into(),
    }
}

fn announce(emulated: &EmulatedCpufreq) {
    for (core, states) in emulated.states() {
        let state = |state: &PState| format!("{} ({:.2})", state.frequency, state.slowdown);
        let states: Vec<String> = states.iter().map(state).collect();
        say::notice(format_args!(
            "core {core} plays {}; in brackets how many times slower a loop of known work is",
            states.join(", ")
        ));
    }
}

/// The command, to be started in a mount namespace of its own.
fn mounted(args: &CpufreqArgs, kernel: &Path) -> Vec<OsString> {
    let words = ["unshare", "--mount", "sh", "-c", MOUNT, "sh"];
    let mut command: Vec<OsString> = words.map(OsString::from).to_vec();
    command.push(args.files.join("cpufreq").into());
    command.push(kernel.into());
    command.push(args.files.join("stat").into());
    command.extend(args.command.iter().cloned());
    command
}

fn follow(emulated: &mut EmulatedCpufreq, is_over: &AtomicBool) -> Result<(), CpufreqError> {
    while !is_over.load(Ordering::Relaxed) {
        emulated.follow()?;
        thread::sleep(LOOK);
    }
    Ok(())
}
