//! The knobs of a machine, one file each: get, set, verify by reading back, restore.
//!
//! Before the first write of a knob its old value is durable in the guard's ledger. The ledger
//! restores the values: it holds every thread's old value, also after this process has died.
//!
//! A knob of the machine (not of an app) is its file, its field of `MachineKnobs` and its row of
//! `MACHINE_KNOBS`; probing, reading, writing, watching and restoring follow from the row. The
//! knob's name and its values are defined in `lull_control::KNOBS`.

mod coalescing;
mod cores;
mod energy_preference;
mod error;
mod frequency;
pub mod hold;
mod idle_latency;
mod partitions;
pub mod proof;
mod scheduling;
mod setting_files;
mod threads;
mod throttle;
mod uncore;

pub(crate) use coalescing::nics;
pub(crate) use cores::{Affinity, cores};
pub use error::KnobError;
pub(crate) use frequency::{Frequencies, FrequencyOutcome};
pub(crate) use partitions::{Partitions, Share, Taken};
pub(crate) use scheduling::{check as check_scheduling, scheduling, scheduling_from};
pub(crate) use threads::{Change, Means, ThreadKnob, ThreadValue, Threads};

use crate::drivers::cpufreq::policies;
use crate::guard::{Key, Ledger, LedgerError, Original, ThreadWrite};
use crate::{LiveThread, Roots};
use coalescing::Nics;
use energy_preference::EnergyPreferences;
use idle_latency::IdleLatency;
use lull_control::{Capability, Dial, DialId, EnergyPreference, Knob, Machine, Setting};
use lull_measure::{Missing, Nanos};
use std::path::PathBuf;
use throttle::Throttle;
use uncore::Uncores;

/// The knobs of the machine and Lull's last settings of them.
#[derive(Debug)]
pub(crate) struct MachineKnobs {
    throttle: Throttle,
    pub(crate) frequencies: Frequencies,
    nics: Nics,
    uncores: Uncores,
    idle: IdleLatency,
    preferences: EnergyPreferences,
}

/// One kind of knob of the machine.
pub(crate) struct MachineKnob {
    /// The row of `lull_control::KNOBS` that it implements.
    pub(crate) capability: Capability,
    /// Returns the means by which it is set, or the reason why it cannot be.
    pub(crate) settable: fn(&Roots) -> Result<String, Missing>,
    /// The dials of this kind; their numbers are given later. Empty for all other scopes.
    dials: fn(&Roots) -> Vec<Dial>,
    /// The files that it writes, where rewriting the present content changes nothing and proves
    /// that they can be written.
    files: fn(&Roots) -> Vec<PathBuf>,
    /// Its state now; `None` where it cannot be read or has no single value.
    get: fn(&MachineKnobs, Knob) -> Option<Setting>,
    /// Saves the old value, writes, and reads back.
    set: fn(&mut MachineKnobs, &Setting, &mut Means<'_, Ledger>) -> Result<(), KnobError>,
    /// Returns the changes by other programs since the last call, each once.
    watch: fn(&mut MachineKnobs) -> Watched,
    /// Forgets the settings, after all were restored.
    restored: fn(&mut MachineKnobs),
    /// Whether the ledger's key names this knob.
    is_of: fn(&MachineKnobs, Knob, &Key) -> bool,
    /// Why less than wanted was set, where the write succeeded.
    pub(crate) limited: &'static str,
}

/// The result of checking one kind of knob.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) changes: Vec<ChangedSetting>,
    /// Errors that stopped nothing.
    pub(crate) notices: Vec<String>,
}

impl Watched {
    /// Whether nothing was found.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.notices.is_empty()
    }
}

/// A knob that another program has set since Lull did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChangedSetting {
    pub(crate) ours: Setting,
    pub(crate) found: Setting,
    /// The file or interface, for people.
    pub(crate) whom: String,
    /// The keys that the ledger has for it.
    pub(crate) keys: Vec<Key>,
}

/// Why a write that succeeded left another value, where a knob has no reason of its own.
pub(crate) const OTHER_WRITER: &str = "another writer was faster";

/// Every kind of knob of the machine.
pub(crate) const MACHINE_KNOBS: &[MachineKnob] = &[
    MachineKnob {
        capability: Capability::RealTimeThrottle,
        settable: throttle::settable,
        dials: |_| Vec::new(),
        files: |_| Vec::new(),
        get: |all, _| all.throttle.get().ok().map(Setting::RealTimeThrottle),
        set: |all, wanted, means| match wanted {
            Setting::RealTimeThrottle(is_on) => {
                all.throttle.set(*is_on, means.save, means.is_privileged)
            }
            other => Err(misplaced(other)),
        },
        watch: |all| Watched { changes: all.throttle.watch().into_iter().collect(), ..none() },
        restored: |all| all.throttle.restored(),
        is_of: |all, _, key| *key == all.throttle.key(),
        limited: OTHER_WRITER,
    },
    MachineKnob {
        capability: Capability::Frequency,
        settable: frequency::settable,
        dials: |_| Vec::new(),
        files: frequency::files,
        get: |all, knob| {
            let Knob::Frequency(domain) = knob else { return None };
            Some(Setting::Frequency(domain, all.frequencies.get(domain)?))
        },
        set: |all, wanted, means| match wanted {
            Setting::Frequency(domain, hertz) => {
                all.frequencies.set(*domain, *hertz, means.save).map(drop)
            }
            other => Err(misplaced(other)),
        },
        watch: |all| all.frequencies.watch(),
        restored: |all| all.frequencies.restored(),
        is_of: |all, knob, key| match knob {
            Knob::Frequency(domain) => all.frequencies.is_of(domain, key),
            _ => false,
        },
        limited: OTHER_WRITER,
    },
    MachineKnob {
        capability: Capability::Coalescing,
        settable: coalescing::settable,
        dials: |_| Vec::new(),
        files: |_| Vec::new(),
        get: |all, knob| {
            let Knob::Coalescing(nic) = knob else { return None };
            Some(Setting::Coalescing(nic, all.nics.get(nic)?))
        },
        set: |all, wanted, means| match wanted {
            Setting::Coalescing(nic, how) => all.nics.set(*nic, *how, means.save),
            other => Err(misplaced(other)),
        },
        watch: |all| Watched { changes: all.nics.watch(), ..none() },
        restored: |all| all.nics.restored(),
        is_of: |all, knob, key| matches!(knob, Knob::Coalescing(nic) if all.nics.is_of(nic, key)),
        limited: "the driver took another delay, or has none for packets sent",
    },
    MachineKnob {
        capability: Capability::UncoreFrequency,
        settable: uncore::settable,
        dials: uncore::dials,
        files: uncore::files,
        get: |all, knob| {
            let Knob::UncoreFrequency(dial) = knob else { return None };
            Some(Setting::UncoreFrequency(dial, all.uncores.files.get(dial)?))
        },
        set: |all, wanted, means| match wanted {
            Setting::UncoreFrequency(dial, most) => all.uncores.set(*dial, *most, means.save),
            other => Err(misplaced(other)),
        },
        watch: |all| Watched { changes: all.uncores.files.watch(), ..none() },
        restored: |all| all.uncores.files.restored(),
        is_of: |all, knob, key| match knob {
            Knob::UncoreFrequency(dial) => all.uncores.files.is_of(dial, key),
            _ => false,
        },
        limited: "the nearest frequency within the bounds that the owner had",
    },
    MachineKnob {
        capability: Capability::IdleLatency,
        settable: idle_latency::settable,
        dials: |_| Vec::new(),
        files: idle_latency::files,
        get: |all, _| all.idle.get().map(Setting::IdleLatency),
        set: |all, wanted, means| match wanted {
            Setting::IdleLatency(at_most) => all.idle.set(*at_most, means.save),
            other => Err(misplaced(other)),
        },
        watch: |all| Watched { changes: all.idle.watch().into_iter().collect(), ..none() },
        restored: |all| all.idle.restored(),
        is_of: |all, _, key| all.idle.is_of(key),
        limited: "the deepest idle state within it",
    },
    MachineKnob {
        capability: Capability::EnergyPreference,
        settable: energy_preference::settable,
        dials: |_| Vec::new(),
        files: energy_preference::files,
        get: |all, knob| {
            let Knob::EnergyPreference(domain) = knob else { return None };
            Some(Setting::EnergyPreference(domain, all.preferences.get(domain)?))
        },
        set: |all, wanted, means| match wanted {
            Setting::EnergyPreference(domain, to) => {
                all.preferences.prefer(*domain, *to, means.save)
            }
            other => Err(misplaced(other)),
        },
        watch: |all| Watched { changes: all.preferences.watch(), ..none() },
        restored: |all| all.preferences.restored(),
        is_of: |all, knob, key| match knob {
            Knob::EnergyPreference(domain) => all.preferences.is_of(domain, key),
            _ => false,
        },
        limited: OTHER_WRITER,
    },
];

/// Every dial of the machine, numbered in the order of the rows.
pub(crate) fn dials(roots: &Roots) -> Vec<Dial> {
    let found = MACHINE_KNOBS.iter().flat_map(|row| (row.dials)(roots));
    (0..).zip(found).map(|(number, dial)| Dial { id: DialId(number), ..dial }).collect()
}

/// The limits of the idle states' exit latency that can be set.
pub(crate) fn idle_latencies(roots: &Roots) -> Vec<Nanos> {
    idle_latency::limits(roots)
}

/// The energy-performance preferences that every frequency domain can be set to.
pub(crate) fn energy_preferences(roots: &Roots) -> Vec<EnergyPreference> {
    energy_preference::offered(roots)
}

fn none() -> Watched {
    Watched::default()
}

/// A setting of another row: a mistake of the caller, refused and not written.
fn misplaced(setting: &Setting) -> KnobError {
    KnobError::Nonsense(format!("{setting} is not a setting of this knob"))
}

impl MachineKnobs {
    /// The knobs of the machine under these roots.
    pub(crate) fn new(roots: &Roots, machine: &Machine) -> Self {
        Self {
            throttle: Throttle::new(roots),
            frequencies: Frequencies::new(policies(roots)),
            nics: Nics::new(&machine.nics),
            uncores: Uncores::new(roots, machine),
            idle: IdleLatency::new(roots),
            preferences: EnergyPreferences::of_domains(roots),
        }
    }

    /// The row of a knob; `None` for knobs of apps and their gates.
    pub(crate) fn row(knob: Knob) -> Option<&'static MachineKnob> {
        MACHINE_KNOBS.iter().find(|row| row.capability == knob.capability())
    }

    /// The state of a knob of the machine.
    pub(crate) fn get(&self, knob: Knob) -> Option<Setting> {
        (Self::row(knob)?.get)(self, knob)
    }

    /// Sets a knob of the machine, its old value saved first.
    pub(crate) fn set(
        &mut self,
        wanted: &Setting,
        means: &mut Means<'_, Ledger>,
    ) -> Result<(), KnobError> {
        let row = Self::row(wanted.knob()).ok_or_else(|| misplaced(wanted))?;
        (row.set)(self, wanted, means)
    }

    /// Returns the changes of all knobs by other programs since the last call.
    pub(crate) fn watch(&mut self) -> Watched {
        let mut all = none();
        for row in MACHINE_KNOBS {
            let Watched { changes, notices } = (row.watch)(self);
            all.changes.extend(changes);
            all.notices.extend(notices);
        }
        all
    }

    /// Forgets the settings, after all were restored.
    pub(crate) fn restored(&mut self) {
        MACHINE_KNOBS.iter().for_each(|row| (row.restored)(self));
    }

    /// Whether the ledger's key names this knob.
    pub(crate) fn is_of(&self, knob: Knob, key: &Key) -> bool {
        Self::row(knob).is_some_and(|row| (row.is_of)(self, knob, key))
    }
}

/// Where old values are saved before the first write.
pub(crate) trait SaveOld {
    /// Saves how threads are scheduled now, unless that is known already, and the values that are
    /// written to them next.
    fn threads(&mut self, writes: &[ThreadWrite]) -> Result<(), LedgerError>;
    /// Saves new processes again that have been set by others since they were saved.
    fn changed_threads(&mut self, threads: &[LiveThread]) -> Result<(), LedgerError>;
    /// How a thread was scheduled before Lull first set it or its process, if that is saved.
    fn owners(&self, thread: LiveThread) -> Option<Original>;
    /// Saves other values together; those known already are skipped.
    fn values(&mut self, originals: &[Original]) -> Result<(), LedgerError>;
}

impl SaveOld for Ledger {
    fn threads(&mut self, writes: &[ThreadWrite]) -> Result<(), LedgerError> {
        self.record_writes(writes)
    }

    fn changed_threads(&mut self, threads: &[LiveThread]) -> Result<(), LedgerError> {
        self.record_changed(threads)
    }

    fn owners(&self, thread: LiveThread) -> Option<Original> {
        Self::owners(self, thread)
    }

    fn values(&mut self, originals: &[Original]) -> Result<(), LedgerError> {
        self.record(originals)
    }
}
