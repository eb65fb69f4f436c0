//! The frequencies of cores that each take every speed (EETL-DVFS, section 4.2).
//!
//! A type of the ladder is a frequency here, and a core's domain is set to that
//! of its request. Everything that holds for knobs holds here: old values are
//! durable before the first write, a guard puts them back if this process dies,
//! what is set is read back, the administrator's bounds stand, and a domain that
//! another program sets is left alone from then on.
//!
//! At the start every core is set to every frequency once, the slowest last: one
//! that cannot be set is reported before any request depends on it. A change is some
//! ten system calls; the paper's hardware took 50 to 90 us for it (section 5.4).

use super::Floor;
use crate::Roots;
use crate::guard::{
    GuardCommand, GuardError, GuardHandle, Ledger, LedgerError, Recovery, Restoration, StateDir,
    spawn,
};
use crate::knobs::{Frequencies, FrequencyOutcome, KnobError, Watched};
use crate::own_directory::DirectoryError;
use crate::probe::{self, ProbeError, policies};
use lull_control::{CoreId, CoreSet, DomainId, FrequencyDomain, Knob};
use lull_measure::Hertz;
use std::collections::BTreeMap;

/// Why the frequencies of cores cannot be set for requests.
#[derive(Debug, thiserror::Error)]
pub enum SpeedsError {
    /// No core types are stated.
    #[error("cores that each take every speed need a frequency for each of {0} core types")]
    Levels(usize),
    /// The machine cannot be made out.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A core without a frequency driver.
    #[error("core {0} has no frequency that can be set; `lull check` says why")]
    NoDomain(CoreId),
    /// Cores that cannot be set apart.
    #[error("cores {0} and {1} share one frequency: name one core of each domain")]
    Shared(CoreId, CoreId),
    /// A frequency that a core does not have.
    #[error("core {core} does not take {wanted}: the nearest it takes is {nearest}")]
    NoStep {
        /// The core.
        core: CoreId,
        /// The requested value.
        wanted: Hertz,
        /// The nearest speed that the core has.
        nearest: Hertz,
    },
    /// The administrator's bounds forbid it.
    #[error("core {core} is held at {held} where {wanted} was set: see its scaling_max_freq")]
    Held {
        /// The core.
        core: CoreId,
        /// The requested speed.
        wanted: Hertz,
        /// The outcome.
        held: Hertz,
    },
    /// The knob.
    #[error(transparent)]
    Knob(#[from] KnobError),
    /// Old values cannot be saved.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The place for them cannot be had.
    #[error(transparent)]
    State(#[from] DirectoryError),
    /// No guard could be started.
    #[error("{0}; frequencies are not set without a guard")]
    Guard(#[from] GuardError),
}

/// Old values. They are restored when this is dropped, or by the guard if the process dies.
#[derive(Debug)]
pub struct Safety {
    ledger: Option<Ledger>,
    guard: Option<GuardHandle>,
    /// The changes that an earlier agent left when it died, and their restoration.
    pub recovery: Option<Recovery>,
}

impl Safety {
    /// Takes the state directory and starts a guard.
    ///
    /// # Errors
    /// If another agent has the directory, or no guard can be started.
    pub fn open(dir: StateDir, roots: &Roots, guard: GuardCommand) -> Result<Self, SpeedsError> {
        let opened = Ledger::open(dir, roots)?;
        let guard = match spawn(guard, &opened.ledger) {
            Ok(guard) => guard,
            Err(error) => {
                // The ledger has no entry yet.
                opened.ledger.close()?;
                return Err(error.into());
            }
        };
        let recovery = opened.recovery;
        Ok(Self { ledger: Some(opened.ledger), guard: Some(guard), recovery })
    }

    /// A ledger without a guard.
    #[cfg(test)]
    pub(super) fn unguarded(ledger: Ledger) -> Self {
        Self { ledger: Some(ledger), guard: None, recovery: None }
    }

    /// Puts everything back; `None` if that was done before.
    fn end(&mut self) -> Option<Restoration> {
        let ledger = self.ledger.take()?;
        let restored = ledger.restore();
        // Otherwise the guard and `lull restore` have another try.
        if restored.failed.is_empty()
            && ledger.close().is_ok()
            && let Some(guard) = self.guard.take()
        {
            // All is as it was: a guard that lingers ends with this process.
            let _ = guard.finish();
        }
        Some(restored)
    }
}

impl Drop for Safety {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Sets the frequency of each of some cores; its drop puts all back.
#[derive(Debug)]
pub struct Speeds {
    frequencies: Frequencies,
    domains: BTreeMap<CoreId, DomainId>,
    /// Indexed by core type.
    levels: Vec<Hertz>,
    safety: Safety,
}

impl Speeds {
    /// The cores of a floor, with the frequency of each core type; they are at
    /// the slowest then.
    ///
    /// # Errors
    /// If a core has no frequency of its own or does not take one of them;
    /// everything is restored then.
    pub fn open(
        floor: &Floor,
        levels: &[Hertz],
        roots: &Roots,
        safety: Safety,
    ) -> Result<Self, SpeedsError> {
        let types = floor.ladder.types().len();
        if levels.len() != types {
            return Err(SpeedsError::Levels(types));
        }
        let machine = probe::machine(roots)?;
        let domains = domains(&machine.domains, floor.slowest(), levels)?;
        let ours: Vec<DomainId> = domains.values().copied().collect();
        let frequencies = policies(roots).filter(|(id, _)| ours.contains(id));
        let frequencies = Frequencies::new(frequencies);
        let mut speeds = Self { frequencies, domains, levels: levels.to_vec(), safety };
        for core in speeds.domains.keys().copied().collect::<Vec<_>>() {
            (0..types).rev().try_for_each(|kind| speeds.try_out(core, kind))?;
        }
        Ok(speeds)
    }

    fn try_out(&mut self, core: CoreId, kind: usize) -> Result<(), SpeedsError> {
        let wanted = self.levels[kind];
        match self.write(core, kind)? {
            Some(FrequencyOutcome::Held(held)) => Err(SpeedsError::Held { core, wanted, held }),
            Some(_) => Ok(()),
            None => Err(SpeedsError::NoDomain(core)),
        }
    }

    /// Sets a core to the speed of a type. A core that another program has set is left alone.
    pub(super) fn set(&mut self, core: CoreId, kind: usize) -> Result<(), KnobError> {
        self.write(core, kind).map(|_| ())
    }

    fn write(&mut self, core: CoreId, kind: usize) -> Result<Option<FrequencyOutcome>, KnobError> {
        let Some(domain) = self.domains.get(&core) else { return Ok(None) };
        let Some(ledger) = &mut self.safety.ledger else { return Ok(None) };
        self.frequencies.set(*domain, self.levels[kind], ledger).map(Some)
    }

    /// Releases domains that other programs have set, keeps a guard running, and returns
    /// notices. Without a guard everything is restored, and nothing is set any more. To be called
    /// about once a second.
    pub(super) fn maintain(&mut self) -> Vec<String> {
        let Watched { changes, mut notices } = self.frequencies.watch();
        for one in changes {
            notices.push(format!(
                "{} was set by another program, from {} to {}: Lull leaves it alone from now on",
                one.whom,
                one.ours.value(),
                one.found.value()
            ));
            let knob = one.ours.knob();
            self.domains.retain(|_, domain| Knob::Frequency(*domain) != knob);
            let released = self.safety.ledger.as_mut().map(|ledger| ledger.release(&one.keys));
            notices.extend(released.and_then(Result::err).map(|error| error.to_string()));
        }
        if let Some(Err(error)) = self.safety.guard.as_mut().map(GuardHandle::poll) {
            notices.push(SpeedsError::Guard(error).to_string());
            notices.extend(self.restore().map(|restored| restored.to_string()));
            self.safety.guard = None;
        }
        notices
    }

    /// Puts everything back; `None` if that was done before.
    pub(super) fn restore(&mut self) -> Option<Restoration> {
        // The old frequencies are no other program's.
        self.frequencies.restored();
        self.safety.end()
    }
}

/// The domain of each core, one core each, which takes every level.
pub(super) fn domains(
    all: &[FrequencyDomain],
    cores: &CoreSet,
    levels: &[Hertz],
) -> Result<BTreeMap<CoreId, DomainId>, SpeedsError> {
    let mut found: BTreeMap<CoreId, DomainId> = BTreeMap::new();
    for core in cores.iter() {
        let domain = all.iter().find(|domain| domain.cores.contains(core));
        let domain = domain.ok_or(SpeedsError::NoDomain(core))?;
        if let Some((other, _)) = found.iter().find(|(_, id)| **id == domain.id) {
            return Err(SpeedsError::Shared(*other, core));
        }
        for wanted in levels.iter().copied() {
            let nearest = domain.nearest(wanted).ok_or(SpeedsError::NoDomain(core))?;
            if nearest != wanted {
                return Err(SpeedsError::NoStep { core, wanted, nearest });
            }
        }
        found.insert(core, domain.id);
    }
    Ok(found)
}
