//! Frequency domains: P-states, energy, residency.

use crate::model::{Cores, HardwareModel, PState};
use lull_measure::{Joules, Watts};

/// All kinds of core group of a model.
#[derive(Debug, Clone, Default)]
pub(crate) struct MachineParts {
    /// Core groups, and the index of the machine of each.
    pub(crate) groups: Vec<Cores>,
    /// Static power of each machine, `None` where no power is modelled.
    pub(crate) machines: Vec<(Option<Watts>, u64)>,
}

/// The slowly changing side of a lane.
#[derive(Debug, Clone, Default)]
pub(crate) struct Domain {
    /// The core group.
    pub(crate) group: u32,
    /// The machine.
    pub(crate) machine: u32,
    /// Present P-state.
    pub(crate) pstate: usize,
    /// Busy time that has been turned into energy.
    pub(crate) billed_ns: u64,
    /// Dynamic energy since the start.
    pub(crate) dynamic: f64,
    /// Busy time and dynamic energy when counting began.
    pub(crate) forgot_busy_ns: u64,
    pub(crate) forgot_dynamic: f64,
    /// Time in each P-state up to `since_ns`.
    pub(crate) residency_ns: Vec<u64>,
    /// Start of the present stay, or of counting.
    pub(crate) since_ns: u64,
    /// Changes of frequency.
    pub(crate) switches: u64,
    /// Sequence number of the timer that ends the present transition.
    pub(crate) resumes: Option<u64>,
}

impl MachineParts {
    /// Adds a machine and returns the indices of it and of its first group.
    pub(crate) fn add(&mut self, machine: &HardwareModel) -> (u32, u32) {
        let first = self.groups.len() as u32;
        self.groups.extend(machine.cores.iter().cloned());
        let modelled = machine.cores.iter().all(|group| !group.pstates.is_empty());
        self.machines.push((modelled.then_some(machine.static_watts), machine.transition.0));
        (self.machines.len() as u32 - 1, first)
    }

    /// The present P-state of a domain; `None` if its cores have one fixed speed.
    pub(crate) fn pstate(&self, domain: &Domain) -> Option<PState> {
        self.groups[domain.group as usize].pstates.get(domain.pstate).copied()
    }

    /// Work per nanosecond of one core of a group in P-state number `pstate`.
    pub(crate) fn speed(&self, group: u32, pstate: usize) -> f64 {
        let cores = &self.groups[group as usize];
        match (cores.pstates.first(), cores.pstates.get(pstate)) {
            (Some(top), Some(state)) => {
                cores.speed * (state.frequency.0 as f64 / top.frequency.0 as f64)
            }
            _ => cores.speed,
        }
    }
}

impl Domain {
    /// A domain of a group, in its first P-state.
    pub(crate) fn new(group: u32, machine: u32, cores: &Cores) -> Self {
        let residency_ns = vec![0; cores.pstates.len()];
        Self { group, machine, pstate: cores.start, residency_ns, ..Self::default() }
    }

    /// Turns the busy time since the last bill into energy at the present P-state.
    pub(crate) fn bill(&mut self, hardware: &MachineParts, busy_ns: u64, now_ns: u64) {
        self.dynamic = self.dynamic_energy(hardware, busy_ns).0;
        self.billed_ns = busy_ns;
        if let Some(time) = self.residency_ns.get_mut(self.pstate) {
            *time += now_ns - self.since_ns;
        }
        self.since_ns = now_ns;
    }

    /// Restarts all counts.
    pub(crate) fn forget(&mut self, hardware: &MachineParts, busy_ns: u64, now_ns: u64) {
        self.bill(hardware, busy_ns, now_ns);
        (self.forgot_busy_ns, self.forgot_dynamic) = (busy_ns, self.dynamic);
        self.residency_ns.fill(0);
        self.switches = 0;
    }

    /// Dynamic energy from the start up to now.
    pub(crate) fn dynamic_energy(&self, hardware: &MachineParts, busy_ns: u64) -> Joules {
        let activity = hardware.groups[self.group as usize].activity;
        let busy_s = (busy_ns - self.billed_ns) as f64 / 1e9;
        let power = hardware.pstate(self).map_or(0.0, |state| state.dynamic_power(activity).0);
        Joules(self.dynamic + power * busy_s)
    }
}
