//! The properties of every plant, as one suite; and a small plant in memory that has them.
//!
//! The same body runs against [`MemoryPlant`], the host and the simulator. A
//! plant that passes can be put under any policy that its capabilities allow.

mod churn;
mod memory;

pub use churn::check_churn;
pub use memory::{MemoryApp, MemoryPlant};

use crate::{
    AppId, ApplyOutcome, Capability, Coalescing, CoreId, CoreSet, DialId, DomainId, KNOBS, Knob,
    KnobRow, KnobScope, Machine, NicId, Plant, Setting, Value, ValueKind, WayMask, numbered,
};
use lull_measure::Nanos;

/// A required property, and the function that panics if it does not hold.
type Property<P> = (&'static str, fn(&mut P, Nanos));

/// Runs every property on a fresh plant each; panics with the property's name.
///
/// `epoch` is the length of the few epochs that are observed; a host waits
/// that long.
pub fn check<P: Plant>(epoch: Nanos, mut make: impl FnMut() -> P) {
    let properties: [Property<P>; 9] = [
        ("the machine is consistent", machine_is_consistent),
        ("an observation is complete and time advances", observation_is_complete),
        ("a capability claimed is a capability delivered", capabilities_are_delivered),
        ("what is in force already is not written again", in_force_is_not_rewritten),
        ("what was set reads back", what_was_set_reads_back),
        ("a knob that is missing refuses", missing_knobs_refuse),
        ("nonsense is refused and changes nothing", nonsense_is_refused),
        ("outcomes answer the settings in order", outcomes_are_in_order),
        ("restore puts every knob back", restore_puts_back),
    ];
    for (name, property) in properties {
        // The test harness shows it only for a failing run, where it names the property.
        let mut plant = make();
        let run = std::panic::AssertUnwindSafe(|| property(&mut plant, epoch));
        if let Err(panic) = std::panic::catch_unwind(run) {
            let cause = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            panic!("conformance: {name}: {cause}");
        }
    }
}

fn machine_is_consistent<P: Plant>(plant: &mut P, _: Nanos) {
    let machine = plant.machine();
    assert!(!machine.cores.is_empty(), "a machine has cores");
    for (index, core) in machine.cores.iter().enumerate() {
        assert_eq!(core.id.0 as usize, index, "cores are listed by number");
        assert!(core.core_type < machine.core_types.len(), "{core:?} has an unknown type");
    }
    let speeds: Vec<_> = machine.core_types.iter().map(|kind| kind.speed).collect();
    assert!(speeds.is_sorted() && speeds[0] == 1.0, "types ascend from speed 1: {speeds:?}");
    for domain in &machine.domains {
        assert!(domain.cores.is_subset(&machine.all_cores()), "{domain:?} has unknown cores");
        assert!(domain.steps.is_sorted(), "{domain:?} has unsorted steps");
    }
    let has = |capability| machine.capabilities.has(capability);
    if has(Capability::Frequency) {
        assert!(machine.domains.iter().any(|domain| !domain.steps.is_empty()), "no steps");
    }
    let apps = plant.apps().len();
    for row in KNOBS.iter().filter(|row| row.scope != KnobScope::App && has(row.capability)) {
        let name = row.name;
        assert!(!machine.knobs(row, apps).is_empty(), "{name} without what it belongs to");
    }
    assert!(machine.gates.iter().all(|gate| gate.app.index() < apps), "a gate of an unknown app");
    assert!(!has(Capability::CacheWays) || machine.cache.is_some(), "ways without a cache");
    assert!(!has(Capability::MemoryBandwidth) || machine.bandwidth.is_some(), "no bandwidth");
    let (idle, preferences) = (&machine.idle_latencies, &machine.energy_preferences);
    assert!(!has(Capability::IdleLatency) || idle.len() > 1, "one idle state is no choice");
    assert!(!has(Capability::EnergyPreference) || preferences.len() > 1, "no preferences");
    assert!(idle.is_sorted() && preferences.is_sorted(), "unsorted {idle:?} {preferences:?}");
}

fn observation_is_complete<P: Plant>(plant: &mut P, epoch: Nanos) {
    let mut last = Nanos::ZERO;
    for _ in 0..3 {
        let seen = plant.observe(epoch).expect("the plant can be observed");
        assert_eq!(seen.apps.len(), plant.apps().len(), "one entry an app");
        assert_eq!(seen.cores.len(), plant.machine().cores.len(), "one entry a core");
        // A host may wake late, never early; a simulator is exact.
        assert!(seen.epoch >= epoch.scale(0.99), "epoch of {} for {epoch}", seen.epoch);
        assert!(
            seen.time >= last + seen.epoch.scale(0.99),
            "time went from {last} to {}",
            seen.time
        );
        last = seen.time;
        for used in seen.cores.iter().filter_map(|core| core.utilisation.as_ref().ok()) {
            assert!((0.0..=1.0).contains(used), "utilisation {used}");
        }
    }
}

fn capabilities_are_delivered<P: Plant>(plant: &mut P, epoch: Nanos) {
    let seen = plant.observe(epoch).expect("the plant can be observed");
    let settings = plant.settings();
    let state_of = |knob| settings.iter().find(|setting| setting.knob() == knob);
    let has = |capability| plant.machine().capabilities.has(capability);
    for (app, _) in numbered(plant.apps()).filter(|(app, _)| seen.apps[app.index()].alive) {
        for row in KNOBS.iter().filter(|row| row.scope == KnobScope::App && has(row.capability)) {
            assert!(state_of((row.knob)(app.0)).is_some(), "no {} of {app:?}", row.name);
        }
    }
    if let Ok(energy) = &seen.energy {
        let measured = matches!(energy.source, crate::EnergySource::Measured(_));
        assert_eq!(measured, has(Capability::Energy), "energy source {}", energy.source);
        assert!(energy.energy.0 >= 0.0, "energy {}", energy.energy);
    }
}

fn in_force_is_not_rewritten<P: Plant>(plant: &mut P, _: Nanos) {
    let settings = plant.settings();
    for outcome in plant.apply(&settings).outcomes {
        assert_eq!(outcome.got, ApplyOutcome::Already, "{:?}", outcome.wanted);
    }
}

fn what_was_set_reads_back<P: Plant>(plant: &mut P, _: Nanos) {
    for wanted in plausible(plant) {
        let first = plant.apply(std::slice::from_ref(&wanted)).outcomes;
        let [outcome] = first.as_slice() else { panic!("one outcome for one setting: {first:?}") };
        // A knob may refuse (it says why); then there is nothing to read back.
        let Some(now) = outcome.in_force() else { continue };
        assert!(plant.settings().contains(now), "{now:?} is not in force");
        let again = plant.apply(std::slice::from_ref(now));
        assert_eq!(again.outcomes[0].got, ApplyOutcome::Already, "{now:?} was written twice");
    }
}

fn missing_knobs_refuse<P: Plant>(plant: &mut P, _: Nanos) {
    let before = plant.settings();
    let lacks = |capability| !plant.machine().capabilities.has(capability);
    let missing = KNOBS.iter().filter(|row| lacks(row.capability));
    let missing: Vec<_> = missing.filter_map(|row| example(row, 0)).collect();
    assert_all_refused(plant, &missing);
    assert_eq!(plant.settings(), before, "a missing knob changed something");
}

fn nonsense_is_refused<P: Plant>(plant: &mut P, _: Nanos) {
    let before = plant.settings();
    let belongs_to_something = |row: &&KnobRow| row.scope != KnobScope::Machine;
    let absent = KNOBS.iter().filter(belongs_to_something).filter_map(|row| example(row, u16::MAX));
    let no_such_core: CoreSet = [CoreId(u16::MAX)].into_iter().collect();
    let nonsense = [
        Setting::Cores(AppId(0), CoreSet::default()),
        Setting::Cores(AppId(0), no_such_core),
        Setting::GateBatch(AppId(0), 0),
        Setting::GateDelay(AppId(0), Nanos::from_secs(3600)),
    ];
    let nonsense: Vec<_> = absent.chain(nonsense).collect();
    assert_all_refused(plant, &nonsense);
    assert_eq!(plant.settings(), before, "nonsense changed something");
}

fn outcomes_are_in_order<P: Plant>(plant: &mut P, _: Nanos) {
    let wanted = plausible(plant);
    let answered = plant.apply(&wanted).outcomes;
    let echoed: Vec<_> = answered.into_iter().map(|outcome| outcome.wanted).collect();
    assert_eq!(echoed, wanted);
}

fn restore_puts_back<P: Plant>(plant: &mut P, epoch: Nanos) {
    let before = plant.settings();
    let wanted = plausible(plant);
    let _ = plant.apply(&wanted);
    plant.observe(epoch).expect("the plant can be observed");
    for _ in 0..2 {
        for outcome in plant.restore().outcomes {
            assert!(outcome.in_force().is_some(), "not restored: {outcome:?}");
        }
        assert_eq!(plant.settings(), before);
    }
}

fn assert_all_refused<P: Plant>(plant: &mut P, settings: &[Setting]) {
    for outcome in plant.apply(settings).outcomes {
        let ApplyOutcome::Refused { why } = &outcome.got else { panic!("accepted: {outcome:?}") };
        assert!(!why.is_empty(), "a refusal says why: {outcome:?}");
    }
}

/// A setting of the knob of a row that belongs to the app, domain or interface of this number.
fn example(row: &KnobRow, number: u16) -> Option<Setting> {
    (row.knob)(number).set_to(row.values.example())
}

/// Returns one valid setting of every knob that the plant claims to have and that is not a switch
/// of the whole machine.
pub fn plausible<P: Plant>(plant: &P) -> Vec<Setting> {
    let machine = plant.machine();
    let rows = KNOBS.iter().filter(|row| machine.capabilities.has(row.capability));
    let knobs = rows.flat_map(|row| machine.knobs(row, plant.apps().len()));
    knobs.filter_map(|knob| knob.set_to(modest(machine, knob)?)).collect()
}

/// A value of a knob that costs a machine little while a test runs.
fn modest(machine: &Machine, knob: Knob) -> Option<Value> {
    let row = knob.row();
    Some(match row.values {
        ValueKind::Switch => return None,
        ValueKind::Cores => Value::Cores(CoreSet::first(1)),
        ValueKind::Ways => Value::Ways(WayMask::run(0, 2)),
        ValueKind::Frequency if row.scope == KnobScope::Dial => {
            Value::Frequency(machine.dial(DialId(knob.number()))?.lowest)
        }
        ValueKind::Frequency => {
            Value::Frequency(*machine.domain(DomainId(knob.number()))?.steps.first()?)
        }
        ValueKind::Coalescing => {
            let nic = machine.nic(NicId(knob.number()))?;
            Value::Coalescing(Coalescing::Delay(nic.nearest(nic.delay_max / 2)))
        }
        ValueKind::Time if row.scope == KnobScope::Machine => {
            Value::Time(*machine.idle_latencies.first()?)
        }
        ValueKind::Time => Value::Time(machine.gate(knob.app()?)?.delay_max / 100),
        ValueKind::EnergyPreference => {
            Value::EnergyPreference(*machine.energy_preferences.first()?)
        }
        ValueKind::Scheduling | ValueKind::Percent | ValueKind::Count => row.values.example(),
    })
}
