//! The gauges and knobs of this machine: the means, or the reason why one is missing.

use crate::Roots;
use crate::gauges::energy::Energy;
use crate::gauges::events::Events;
use crate::gauges::idle::IdleResidency;
use crate::gauges::queries::Queries;
use crate::gauges::utilisation::Utilisation;
use crate::knobs::MACHINE_KNOBS;
use crate::sys::sched::{SchedState, scheduling_of, set_scheduling};
use lull_control::{Capabilities, Capability};
use lull_measure::Missing;
use rustix::thread::{CapabilitySet, gettid};
use std::io;

/// The permissions of this process over threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// This process holds `CAP_SYS_NICE`: it may set any thread, and can undo every change.
    pub any_thread: bool,
    /// The means by which scheduling classes can be set and restored, or the reason why not.
    pub scheduling: Result<String, Missing>,
}

impl Rights {
    /// Found out by trying on a thread that ends right after.
    ///
    /// Limits, capabilities, user namespaces and security modules all have a
    /// say; nothing but a trial takes all of them into account.
    pub fn of_this_process() -> Self {
        let trial = std::thread::Builder::new().spawn(try_scheduling);
        let outcome = trial.and_then(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the trial thread panicked")))
        });
        Self {
            any_thread: has_sys_nice(),
            scheduling: outcome.map_err(|error| cannot_schedule(&error)),
        }
    }
}

fn has_sys_nice() -> bool {
    let held = rustix::thread::capabilities(None);
    held.is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
}

/// Sets each scheduling class on the calling thread and restores it. Returns which classes
/// could be set.
fn try_scheduling() -> io::Result<String> {
    let me = gettid().as_raw_nonzero().get();
    let before = scheduling_of(me)?;
    let there_and_back = |state: SchedState| {
        set_scheduling(me, state)?;
        set_scheduling(me, before)
    };
    let idle = SchedState { policy: libc::SCHED_IDLE.cast_unsigned(), rt_priority: 0, ..before };
    there_and_back(idle)?;
    let round_robin =
        SchedState { policy: libc::SCHED_RR.cast_unsigned(), rt_priority: 1, nice: 0 };
    Ok(match there_and_back(round_robin) {
        Ok(()) => "sched_setattr".to_owned(),
        Err(error) => format!("sched_setattr without SCHED_RR ({error})"),
    })
}

fn cannot_schedule(error: &io::Error) -> Missing {
    Missing::because(format!(
        "a scheduling class could not be restored ({error}): run as root, give CAP_SYS_NICE, \
         or raise RLIMIT_NICE to 20"
    ))
}

/// Returns the capabilities of the machine under these roots for a process with these rights.
pub fn capabilities(roots: &Roots, rights: &Rights) -> Capabilities {
    let shares = super::shares::shares(roots);
    let found = [
        (Capability::Cores, Ok(cores(rights))),
        (Capability::Scheduling, rights.scheduling.clone()),
        (Capability::CacheWays, shares.ways),
        (Capability::MemoryBandwidth, shares.percent),
        (Capability::GateCap, Err(no_gate())),
        (Capability::GateBatch, Err(no_gate())),
        (Capability::GateDelay, Err(no_gate())),
        (Capability::TailLatency, Ok(tail_latency(roots))),
        (Capability::Progress, Ok("pushed, instructions retired, or CPU time".to_owned())),
        (Capability::CpuTime, crate::gauges::app_time::probe(roots)),
        (Capability::Utilisation, Utilisation::probe(roots)),
        (Capability::IdleResidency, IdleResidency::probe(roots)),
        (Capability::SchedulerEvents, Events::probe(roots)),
        (Capability::Instructions, crate::gauges::counters::probe(roots)),
        (Capability::Energy, Energy::probe(roots)),
    ];
    let of_machine = MACHINE_KNOBS.iter().map(|row| (row.capability, (row.settable)(roots)));
    found.into_iter().chain(of_machine).fold(Capabilities::default(), |all, (what, finding)| {
        match finding {
            Ok(means) => all.with_capability(what, means),
            Err(why) => all.without(what, why),
        }
    })
}

fn cores(rights: &Rights) -> String {
    let whose = if rights.any_thread { "" } else { " of one's own processes" };
    format!("sched_setaffinity{whose}")
}

/// Describes the sources of latency: those that need nothing of the kernel, and the others.
fn tail_latency(roots: &Roots) -> String {
    let always = "pushed by clients or the app, seen by a preloaded library";
    match Queries::probe(roots) {
        Ok(means) => format!("{always}, or {means}"),
        Err(why) => format!("{always}; not at sockets: {why}"),
    }
}

/// A gate belongs to an app and not to the machine.
fn no_gate() -> Missing {
    Missing::because(
        "no app has a gate: give one latency = \"preload\" and concurrency = 16 in the config",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn every_capability_is_stated_with_means_or_reason() {
        for roots in [Roots::default(), Tree::new().roots()] {
            let found = capabilities(&roots, &Rights::of_this_process());
            for capability in Capability::ALL {
                match found.get(capability) {
                    Ok(means) => assert!(!means.is_empty(), "{capability}"),
                    Err(why) => {
                        assert!(!why.reason.contains("does not offer"), "{capability}: {why}");
                    }
                }
            }
        }
    }

    #[test]
    fn whoever_may_schedule_any_thread_can_put_classes_back() {
        let rights = Rights::of_this_process();
        if rights.any_thread {
            assert!(rights.scheduling.is_ok(), "{rights:?}");
        }
    }
}
