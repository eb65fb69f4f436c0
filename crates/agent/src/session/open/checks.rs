//! Checks of a config against this machine, before anything is started.

use super::Agent;
use super::launch::target_of;
use crate::config::{AppOrigin, AppSection, Config, LatencySource};
use crate::error::UsageError;
use crate::library;
use crate::located::InputError;
use lull_control::LatencyOf;
use lull_host::Roots;
use lull_host::apps::{AppHandle, above_lull};
use lull_host::gauges::memory_pressure::MemoryPressure;
use lull_host::gauges::queries::Queries;
use lull_host::gauges::run_queue::RunQueue;

impl Agent<'_> {
    /// Rejects a config that needs a discovery if none was handed in.
    pub(super) fn check_discovery(&self) -> Result<(), InputError> {
        if self.config.agent.discover.is_none() || self.discovery.is_some() {
            return Ok(());
        }
        let message = "is for `lull run` only, and for a program that was built with it: \
                       cargo build --release --features fleet, or the image of the Helm chart";
        Err(self.config.source.error("agent.discover", message))
    }

    /// Rejects apps into which the configured library cannot be preloaded.
    pub(super) fn check_programs(&self) -> Result<(), InputError> {
        for (index, app) in self.config.apps.iter().enumerate() {
            let program = app.start.as_ref().and_then(|argv| argv.first());
            let Some(program) = program.filter(|_| app.latency == LatencySource::Preload) else {
                continue;
            };
            library::check_program(program.as_ref()).map_err(|error| {
                self.config
                    .source
                    .error(&format!("app[{index}].start"), crate::error::describe(&error))
            })?;
        }
        Ok(())
    }
}

/// Rejects apps that are not there: a program that does not exist, a process that has ended, a unit
/// of a machine without systemd. A start finds this out app by app.
pub(super) fn check_present(config: &Config, roots: &Roots) -> Result<(), InputError> {
    for (index, app) in config.apps.iter().enumerate().filter(|(_, app)| app.slot.is_none()) {
        let wrong =
            |key: &str, why: String| config.source.error(&format!("app[{index}].{key}"), why);
        let place = app.origin().map_err(|why| wrong("name", why))?;
        let key = match &place {
            AppOrigin::Start(argv) => {
                // `lull` is this program, wherever it is.
                let program = argv.first().filter(|program| *program != "lull");
                let found = program.map(|program| library::find(program.as_ref())).transpose();
                found.map_err(|error| wrong("start", error.to_string()))?;
                continue;
            }
            AppOrigin::Pid(_) => "pid",
            AppOrigin::Cgroup(_) => "cgroup",
            AppOrigin::Unit(_) => "unit",
            AppOrigin::Match(_) => "match",
            // These are of templates only.
            AppOrigin::Register(_) | AppOrigin::Pods(_) => continue,
        };
        let target = target_of(place).map_err(|error| wrong(key, error.to_string()))?;
        let found = AppHandle::attach(&app.name, &target, roots);
        found.map_err(|error| wrong(key, error.to_string()))?;
    }
    Ok(())
}

/// Rejects apps whose processes would include Lull itself.
pub(in crate::session) fn check_pids(config: &Config, roots: &Roots) -> Result<(), InputError> {
    for (index, app) in config.apps.iter().enumerate() {
        let pid = app.pid.and_then(|pid| i32::try_from(pid).ok());
        let Some((pid, what)) = pid.and_then(|pid| Some((pid, above_lull(pid, roots)?))) else {
            continue;
        };
        let message = format!(
            "process {pid} is {what}, which cannot be an app: name the server's own process"
        );
        return Err(config.source.error(&format!("app[{index}].pid"), message));
    }
    Ok(())
}

/// Rejects a latency that only the kernel sees if this kernel does not support it, of the apps that
/// `concerns` selects.
pub(in crate::session) fn check_kernel(
    config: &Config,
    roots: &Roots,
    concerns: &dyn Fn(&AppSection) -> bool,
) -> Result<(), InputError> {
    for (index, app) in config.apps.iter().enumerate().filter(|(_, app)| concerns(app)) {
        let of = app.latency_of().unwrap_or(LatencyOf::Requests);
        let (key, what, probed) = match of {
            LatencyOf::RunQueue => ("objectives", of.name(), RunQueue::probe(roots)),
            LatencyOf::MemoryPressure => ("objectives", of.name(), MemoryPressure::probe(roots)),
            LatencyOf::Requests if app.latency == LatencySource::Ebpf => {
                ("latency", "`ebpf`", Queries::probe(roots))
            }
            LatencyOf::Requests => continue,
        };
        let at = || format!("{}.{key}", app.entry(index));
        let refused = |why| config.source.error(&at(), format!("{what}: {why}"));
        probed.map_err(refused)?;
    }
    Ok(())
}

/// Refuses a policy of the caller whose name another policy has or which no file can have: the
/// name is part of the record's.
pub(super) fn check_own(config: &Config) -> Result<(), UsageError> {
    let Some(own) = &config.own else { return Ok(()) };
    let name = own.policy.name();
    let is_plain = |letter: char| letter.is_alphanumeric() || "_-.".contains(letter);
    if name.is_empty() || !name.chars().all(is_plain) {
        let why = "its name has letters, digits, `_`, `-` and `.` only";
        return Err(UsageError(format!("policy `{name}`: {why}")));
    }
    if lull_policies::POLICIES.names().any(|other| other == name) {
        return Err(UsageError(format!(
            "policy `{name}`: a policy of Lull has this name: give yours another"
        )));
    }
    Ok(())
}
