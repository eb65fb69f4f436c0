//! The described machine in the simulator's form, with the assumptions and omissions.

use crate::config::{
    CoreGroup, IdleSection, MachineSection, MeasuredPower, NicSection, SchedulerSection,
};
use lull_control::dispatcher::{CoreSpeed, Supply};
use lull_measure::{Hertz, Nanos, Watts};
use lull_sim::idle::IdleState;
use lull_sim::machine::{
    Cache, Card, CoreTypes, Governor, LinuxScheduler, MachineModel, Memory, Power, Scaling,
    Throttle,
};
use lull_sim::netserver::Moderation;

/// Most cores of a simulated machine: a set of cores is a word.
const CORES_MAX: u32 = 64;
/// The frequency where it is unknown, which then only scales counts of cycles.
const FREQUENCY: Hertz = Hertz(1_000_000_000);
/// The step between frequencies of which only the ends are known.
const STEP: Hertz = Hertz(100_000_000);

/// A key below `machine`, and the note on it.
pub(super) type Note = (String, String);

/// A machine without apps, with notes about its assumptions.
pub(super) struct Described {
    pub(super) model: MachineModel,
    pub(super) notes: Vec<Note>,
}

/// Describes a machine to the simulator.
///
/// # Errors
/// The key below `machine` that the simulated machine cannot have, and why.
pub(super) fn described(machine: &MachineSection) -> Result<Described, Note> {
    let cores = machine.core_count();
    if cores > CORES_MAX {
        let why = format!(
            "has {cores} in all, and the simulated machine has {CORES_MAX} at most: describe one \
             socket"
        );
        return Err(("cores".to_owned(), why));
    }
    let first = &machine.cores[0];
    let name = if machine.name.is_empty() { "a machine" } else { &machine.name };
    let frequency = highest(first).unwrap_or(FREQUENCY);
    let mut notes = Vec::new();
    let mut model = MachineModel {
        core_types: core_types(machine, &mut notes),
        scaling: scaling(first, cores as u16, &mut notes),
        idle: idle(&machine.idle, &mut notes),
        scheduler: scheduler(&machine.scheduler, &mut notes),
        memory: memory(machine, &mut notes),
        cache: machine.cache.map(|cache| Cache {
            ways: cache.ways,
            reference_ways: cache.reference_ways,
            way_bytes: cache.way_bytes.unwrap_or_default(),
        }),
        ..MachineModel::plain(name, cores as u16, frequency)
    };
    if let (Some(scaling), Some(latency)) = (&mut model.scaling, machine.transition) {
        scaling.latency = latency;
    }
    model.power = match &machine.power {
        Some(power) => power_of(power, machine, &mut notes)?,
        None => None,
    };
    let mut note = |key: &str, why: &str| notes.push((key.to_owned(), why.to_owned()));
    if machine.cores.iter().any(|group| group.threads_per_core > 1) {
        note("cores[0].threads_per_core", "cores that share a physical core count as whole ones");
    }
    model.card = card(&machine.nic, &mut notes);
    Ok(Described { model, notes })
}

/// The first network card with the times that BayOp's memcached server was fitted to (Dong et al.
/// 2026, on Linux at 2.9 GHz); `None` where no card is stated.
fn card(nics: &[NicSection], notes: &mut Vec<Note>) -> Option<Card> {
    let nic = nics.first()?;
    let [interrupt, receive, clean] = [Nanos(3_100), Nanos(2_400), Nanos(350)];
    let why = format!(
        "assumed: an interrupt takes {interrupt} of a core, a packet {receive} to receive and \
         {clean} to clean up; where no policy sets a delay, the driver chooses it as ixgbe does"
    );
    notes.push(("nic[0].name".to_owned(), why));
    if nics.len() > 1 {
        let why = "is left out: the simulated machine has one network card, the first";
        notes.push(("nic[1].name".to_owned(), why.to_owned()));
    }
    Some(Card {
        moderation: Moderation::Ixgbe,
        delay_max: nic.delay_max,
        delay_step: nic.delay_step,
        buckets: 128,
        connections: 256,
        budget: 64,
        tx_interrupts: true,
        interrupt,
        receive,
        clean,
        request_bytes: 130,
        reply_bytes: 300,
    })
}

/// The types of cores of several speeds; `None` where all are alike. Where the power of a busy
/// core is known, it is that of the mean core.
fn core_types(machine: &MachineSection, notes: &mut Vec<Note>) -> Option<CoreTypes> {
    let first = &machine.cores[0];
    let (mut types, mut counts): (Vec<CoreSpeed>, Vec<u32>) = (Vec::new(), Vec::new());
    let all: f64 = machine.cores.iter().map(|group| f64::from(group.count) * group.speed).sum();
    let mean = all / f64::from(machine.core_count());
    let busy = machine.power.map_or(1.0, |power| power.busy_core_watts);
    for (at, group) in machine.cores.iter().enumerate() {
        match types.last().is_some_and(|last| last.speed == group.speed) {
            true => *counts.last_mut()? += group.count,
            false => {
                types.push(CoreSpeed::new(&group.name, group.speed, busy * group.speed / mean));
                counts.push(group.count);
            }
        }
        let frequencies = |group: &CoreGroup| (group.lowest, group.highest, group.steps.clone());
        if frequencies(group) != frequencies(first) {
            let why = "is left out: all cores have the frequencies of the first group";
            notes.push((format!("cores[{at}].highest"), why.to_owned()));
        }
    }
    if types.len() == 1 {
        return None;
    }
    if machine.power.is_some() {
        let why = "a busy core takes in proportion to its speed and frequency: how types differ \
                   is not stated";
        notes.push(("power.busy_core_watts".to_owned(), why.to_owned()));
    }
    Some(CoreTypes { types, supply: Supply::Fixed(counts) })
}

fn highest(group: &CoreGroup) -> Option<Hertz> {
    group.highest.or_else(|| group.steps.last().copied())
}

/// Frequencies in even steps or as they are listed; `None` where there is one, or none is known.
fn scaling(group: &CoreGroup, cores: u16, notes: &mut Vec<Note>) -> Option<Scaling> {
    let mut note = |key: &str, why: String| notes.push((format!("cores[0]{key}"), why));
    let lowest = group.lowest.or_else(|| group.steps.first().copied());
    let (Some(lowest), Some(highest)) = (lowest, highest(group)) else {
        note(
            "",
            "states no frequencies: cores have one, and cycles are counted at 1GHz".to_owned(),
        );
        return None;
    };
    if lowest >= highest {
        return None;
    }
    let gaps = || group.steps.windows(2).map(|pair| pair[1].0 - pair[0].0);
    // A table of acpi-cpufreq ends with the turbo's place, one megahertz above the step before.
    let step = gaps().max().map_or(STEP, Hertz);
    if gaps().next().is_none() {
        note(".highest", format!("assumed: frequencies in steps of {step}, none being listed"));
    }
    let is_uneven = gaps().any(|gap| gap != step.0);
    let is_whole = group.steps.first() == Some(&lowest) && group.steps.last() == Some(&highest);
    let steps = match (is_uneven, is_whole) {
        (true, true) => group.steps.clone(),
        (true, false) => {
            note(".steps", format!("do not reach both ends: simulated in steps of {step}"));
            Vec::new()
        }
        (false, _) => Vec::new(),
    };
    let stated = group.domain.unwrap_or(u32::from(cores)).min(u32::from(cores)) as u16;
    let domain = if cores.is_multiple_of(stated) { stated } else { cores };
    if domain != stated {
        note(".domain", format!("does not divide {cores} cores evenly: all share one frequency"));
    }
    note(".highest", "a frequency that no policy sets is the highest".to_owned());
    let (governor, latency) = (Governor::Performance, Nanos::ZERO);
    Some(Scaling { lowest, step, steps, governor, domain, latency })
}

/// Idle states. The simulator orders them by power; where that is unknown any falling numbers
/// do, since energy is not measured then.
fn idle(sections: &[IdleSection], notes: &mut Vec<Note>) -> Vec<IdleState> {
    if sections.is_empty() {
        return Vec::new();
    }
    if sections.iter().any(|state| state.watts.is_none()) {
        let why = "without the watts of each state, only the time to leave them is simulated";
        notes.push(("idle".to_owned(), why.to_owned()));
    }
    let count = sections.len();
    let are_known = sections.iter().all(|state| state.watts.is_some());
    let state = |(at, section): (usize, &IdleSection)| {
        let rank = (count - at) as f64;
        let watts = section.watts.filter(|_| are_known).unwrap_or(rank);
        let residency = section.residency.unwrap_or(section.exit);
        IdleState::new(&section.name, residency, section.exit, Watts(watts))
    };
    sections.iter().enumerate().map(state).collect()
}

/// Returns the power model, if the power of every idle state is known, too. The measured powers are
/// that of the machine with all cores in their deepest state, and that of a busy core beyond it.
fn power_of(
    measured: &MeasuredPower,
    machine: &MachineSection,
    notes: &mut Vec<Note>,
) -> Result<Option<Power>, Note> {
    let is_known = |state: &IdleSection| state.watts.is_some();
    if machine.idle.is_empty() || !machine.idle.iter().all(is_known) {
        let why = "is left out: it needs [[machine.idle]] with the watts of each state";
        notes.push(("power".to_owned(), why.to_owned()));
        return Ok(None);
    }
    let deepest = machine.idle.last().and_then(|state| state.watts).unwrap_or_default();
    let cores = deepest * f64::from(machine.core_count());
    let around = measured.base_watts - cores;
    if around < 0.0 {
        let why = format!(
            "is {} W, less than the {cores} W of all cores in their deepest idle state: it is the \
             power of the whole machine with all cores idle",
            measured.base_watts
        );
        return Err(("power.base_watts".to_owned(), why));
    }
    // Core types state what a busy core takes.
    let has_types = machine.cores.iter().any(|group| group.speed != machine.cores[0].speed);
    let busy = if has_types { 0.0 } else { measured.busy_core_watts };
    if !has_types {
        let why = "a busy core takes the same at every frequency: how it scales is not stated";
        notes.push(("power.busy_core_watts".to_owned(), why.to_owned()));
    }
    Ok(Some(Power {
        active_base: Watts(deepest + busy),
        active_dynamic: Watts(0.0),
        leakage: Watts(0.0),
        voltage_ratio: 1.0,
        fixed: Watts(around),
        uncore: Watts(0.0),
        uncore_scales: 0.0,
    }))
}

/// Memory whose peak is known; otherwise its latency does not depend on its load.
fn memory(machine: &MachineSection, notes: &mut Vec<Note>) -> Option<Memory> {
    let bandwidth = machine.bandwidth?;
    let throttle = bandwidth.min_percent.map(|min_percent| Throttle {
        min_percent,
        step_percent: bandwidth.step_percent.unwrap_or(min_percent),
    });
    let Some(peak_bytes_per_s) = bandwidth.peak_bytes_per_s else {
        let why = "without peak_bytes_per_s memory is unlimited and its bandwidth is not a knob";
        notes.push(("bandwidth".to_owned(), why.to_owned()));
        return None;
    };
    Some(Memory { peak_bytes_per_s, queueing: bandwidth.queueing, throttle })
}

/// Returns Linux's fair class as in replays, with the machine's stated values.
fn scheduler(stated: &SchedulerSection, notes: &mut Vec<Note>) -> LinuxScheduler {
    let usual = LinuxScheduler::default();
    let mut assumed = Vec::new();
    let mut or = |stated: Option<Nanos>, usual: Nanos, what: &str| {
        stated.unwrap_or_else(|| {
            assumed.push(format!("{what} of {usual}"));
            usual
        })
    };
    let scheduler = LinuxScheduler {
        slice: or(stated.slice, Nanos::from_millis(3), "slice"),
        real_time_slice: or(stated.real_time_slice, usual.real_time_slice, "real_time_slice"),
        switch_cost: or(stated.switch_cost, Nanos::from_micros(2), "switch_cost"),
        wakeup_lead: Some(Nanos::ZERO),
        ..usual
    };
    if !assumed.is_empty() {
        let why = format!("assumed, since not stated: {}", assumed.join(", "));
        notes.push(("scheduler".to_owned(), why));
    }
    scheduler
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(text: &str) -> Result<Described, Note> {
        let machine: MachineSection = toml::from_str(text).unwrap();
        assert_eq!(machine.check(), Ok(()));
        described(&machine)
    }

    #[test]
    fn what_is_stated_is_simulated_and_what_is_not_is_noted() {
        let text = "transition = \"10us\"\n[[cores]]\ncount = 4\ndomain = 2\n\
                    steps = [\"1GHz\", \"1.5GHz\", \"2GHz\"]\n\
                    [scheduler]\nslice = \"3ms\"\nreal_time_slice = \"100ms\"\n\
                    switch_cost = \"1us\"\n[cache]\nways = 8\n[bandwidth]\nmin_percent = 10\n";
        let Described { model, notes } = describe(text).unwrap();
        let scaling = model.scaling.unwrap();
        assert_eq!((scaling.domain, scaling.step), (2, Hertz(500_000_000)));
        assert_eq!(scaling.latency, Nanos::from_micros(10));
        assert_eq!((model.cores, model.frequency), (4, Hertz(2_000_000_000)));
        assert_eq!(model.scheduler.switch_cost, Nanos::from_micros(1));
        let keys: Vec<&str> = notes.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["cores[0].highest", "bandwidth"]);
        assert_eq!((model.memory, model.power), (None, None));
    }

    #[test]
    fn uneven_frequencies_are_simulated_as_they_are_listed() {
        let scaling = |more: &str| {
            let steps = "steps = [\"1GHz\", \"1.6GHz\", \"2GHz\"]";
            let described = describe(&format!("[[cores]]\ncount = 4\n{steps}\n{more}")).unwrap();
            let is_noted = described.notes.iter().any(|(key, _)| key == "cores[0].steps");
            (described.model.scaling.unwrap().steps.len(), is_noted)
        };
        assert_eq!(scaling(""), (3, false));
        assert_eq!(scaling("highest = \"2.4GHz\""), (0, true));
    }

    #[test]
    fn the_first_network_card_is_simulated_with_times_that_are_noted() {
        let nic = |name| {
            format!("[[nic]]\nname = \"{name}\"\ndelay_max = \"1022us\"\ndelay_step = \"2us\"\n")
        };
        let cores = "[[cores]]\ncount = 4\n";
        let described = describe(&format!("{cores}{}{}", nic("eth0"), nic("eth1"))).unwrap();
        let card = described.model.card.unwrap();
        assert_eq!((card.delay_max, card.delay_step), (Nanos(1_022_000), Nanos(2_000)));
        let notes = &described.notes;
        let note_for = |at| notes.iter().find(|(key, _)| key == at).map(|(_, why)| why.as_str());
        assert!(note_for("nic[0].name").unwrap().contains("an interrupt takes"), "{notes:?}");
        assert!(note_for("nic[1].name").unwrap().starts_with("is left out"), "{notes:?}");
        assert_eq!(describe(cores).unwrap().model.card, None);
    }

    #[test]
    fn power_is_simulated_only_if_all_of_it_is_known() {
        let text = |deep: &str| {
            format!(
                "[[cores]]\ncount = 2\nhighest = \"1GHz\"\n\
                 [[idle]]\nname = \"C1\"\nexit = \"2us\"\nwatts = 1.0\n\
                 [[idle]]\nname = \"C6\"\nexit = \"100us\"\n{deep}\n\
                 [power]\nbase_watts = 10.0\nbusy_core_watts = 4.0\n"
            )
        };
        let known = describe(&text("watts = 0.2")).unwrap().model;
        let Power { active_base, fixed, .. } = known.power.unwrap();
        // All idle it takes the 10 W that were measured, and 4 W more for each busy core.
        assert!((fixed.0 + 2.0 * 0.2 - 10.0).abs() < 1e-12);
        assert!((fixed.0 + active_base.0 + 0.2 - 14.0).abs() < 1e-12);
        let little = text("watts = 0.2").replace("base_watts = 10.0", "base_watts = 0.3");
        let (key, why) = describe(&little).err().unwrap();
        assert_eq!(key, "power.base_watts");
        assert!(why.contains("0.3 W, less than the 0.4 W of all cores"), "{why}");
        let unknown = describe(&text("")).unwrap();
        assert_eq!((unknown.model.power, unknown.model.idle.len()), (None, 2));
        assert!(unknown.notes.iter().any(|(key, _)| key == "power"), "{:?}", unknown.notes);
    }

    #[test]
    fn a_machine_beyond_the_simulator_is_refused_by_key() {
        assert_eq!(describe("[[cores]]\ncount = 65\n").err().unwrap().0, "cores");
    }

    #[test]
    fn groups_of_cores_of_several_speeds_are_types() {
        let groups = "cores = [{ count = 2 }, { count = 1, name = \"slow\" }, \
                      { count = 1, speed = 3.0, name = \"fast\" }]\n\
                      power = { base_watts = 10.0, busy_core_watts = 3.0 }\n";
        let Described { model, notes } = describe(groups).unwrap();
        let CoreTypes { types, supply } = model.core_types.unwrap();
        assert_eq!((model.cores, supply), (4, Supply::Fixed(vec![3, 1])));
        let types: Vec<_> = types.iter().map(|one| (one.speed, one.watts.0)).collect();
        // Their mean is the 3 W of the mean core.
        assert_eq!(types, [(1.0, 2.0), (3.0, 6.0)]);
        assert!(notes.iter().any(|(key, _)| key == "power.busy_core_watts"), "{notes:?}");
        let alike = "[[cores]]\ncount = 4\nspeed = 2.0\n";
        assert_eq!(describe(alike).unwrap().model.core_types, None);
    }
}
