//! Levels of an on-call gate's numbers: C, N and D.
//!
//! ```text
//! C   1 to the workers behind the gate, or 4 a core where their number is unknown
//! N   1 to 32
//! D   none, then 1/64 to 1 of a quarter of the bound
//! ```
//!
//! The steps are those of powers of two and their halves (1, 2, 3, 4, 6, 8, 12
//! ...): what a gate does goes with the logarithm of C and N. N beyond 32 makes
//! other connections wait too long (REEF has 8 and 2; Li et al., SoCC'25, section
//! 3.4); D beyond a quarter of the bound leaves too little of it for the work. The
//! paper's D begins at 1 ms, the break-even of its idle states, and ends at
//! 100 ms; the gate's own bound is the same, and shorter rests are searched since
//! a bound of microseconds leaves no others.

use super::level::{Level, scaled};
use lull_control::{AppSpec, GateControl, Machine, Setting};
use lull_measure::Nanos;

/// The largest C for each core, where the number of workers is unknown.
const WORKERS_A_CORE: u32 = 4;
/// The lowest end of the range: a slot spans the client's round trips, and transactions of MariaDB
/// wanted 16 to 32 on two cores (docs/on-call.md).
const CAP_TOP_MIN: u32 = 32;
/// The largest N that is tried.
const BATCH_TOP: u32 = 32;
/// Part of the bound that D is at most.
const DELAY_PART: u64 = 4;
/// Halvings of the longest D.
const HALVINGS: u32 = 6;
/// A rest below this is none: a wake-up takes some microseconds.
const DELAY_MIN: Nanos = Nanos::from_micros(50);

/// All gates at one C.
pub(super) fn caps(machine: &Machine) -> Result<Vec<Level>, String> {
    let unknown = (WORKERS_A_CORE * machine.cores.len() as u32).max(CAP_TOP_MIN);
    let top = |gate: &GateControl| gate.workers.unwrap_or(unknown).min(gate.cap_max);
    counts(machine, top, |gate, cap| Setting::GateCap(gate.app, cap.min(gate.cap_max)))
}

/// All gates at one N.
pub(super) fn batches(machine: &Machine) -> Result<Vec<Level>, String> {
    let top = |gate: &GateControl| BATCH_TOP.min(gate.batch_max);
    counts(machine, top, |gate, batch| Setting::GateBatch(gate.app, batch.min(gate.batch_max)))
}

/// All gates at one D.
pub(super) fn delays(machine: &Machine, apps: &[AppSpec]) -> Result<Vec<Level>, String> {
    let longest = some(machine)?.iter().map(|gate| gate.delay_max).min().unwrap_or(Nanos::ZERO);
    let bound = apps.iter().filter(|app| app.is_latency_critical()).find_map(AppSpec::tail);
    let Some((_, bound)) = bound else {
        return Err("no latency-critical app has a tail objective, of whose bound the longest \
                    delay is a quarter"
            .to_owned());
    };
    let top = longest.min(bound / DELAY_PART);
    let halved = (0..=HALVINGS).rev().map(|times| whole_micros(top / (1u64 << times)));
    let all = [Nanos::ZERO].into_iter().chain(halved.filter(|delay| *delay >= DELAY_MIN));
    let level = |delay: Nanos| {
        let set = |gate: &GateControl| Setting::GateDelay(gate.app, delay);
        (delay.as_micros_f64(), machine.gates.iter().map(set).collect())
    };
    Ok(scaled(all.map(level).collect(), f64::sqrt))
}

/// Counts from 1 to the highest top of any gate.
fn counts(
    machine: &Machine,
    top: impl Fn(&GateControl) -> u32,
    set: impl Fn(&GateControl, u32) -> Setting,
) -> Result<Vec<Level>, String> {
    let top = some(machine)?.iter().map(top).max().unwrap_or(1);
    let level = |count: u32| {
        let settings = machine.gates.iter().map(|gate| set(gate, count)).collect();
        (f64::from(count), settings)
    };
    Ok(scaled(steps(top).into_iter().map(level).collect(), f64::ln))
}

/// Powers of two, the means of each two of them, and the top.
fn steps(top: u32) -> Vec<u32> {
    let powers = (0..u32::BITS).map(|power| 1u32 << power);
    let all = powers.flat_map(|power| [power, power.saturating_add(power / 2)]);
    let mut below: Vec<u32> = all.take_while(|step| *step < top).collect();
    below.dedup();
    below.push(top.max(1));
    below
}

fn some(machine: &Machine) -> Result<&[GateControl], String> {
    match machine.gates.as_slice() {
        [] => Err("no app has a gate".to_owned()),
        gates => Ok(gates),
    }
}

fn whole_micros(time: Nanos) -> Nanos {
    Nanos(time.0 / 1000 * 1000)
}

#[cfg(test)]
mod tests {
    use super::super::Space;
    use super::*;
    use crate::testing::{be_spec, lc_spec, machine};
    use lull_control::{AppId, Capability};

    const GATE: GateControl = GateControl {
        app: AppId(0),
        workers: None,
        cap_max: 256,
        batch_max: 1024,
        delay_max: Nanos::from_millis(100),
    };

    fn gated(cores: u16, gates: &[GateControl]) -> Machine {
        machine(cores).with_gates(gates.to_vec(), "test")
    }

    fn values(machine: &Machine, apps: &[AppSpec], knob: Capability) -> Vec<f64> {
        let space = Space::from_machine(machine, apps, &[knob]).unwrap();
        space.dimensions()[0].levels.iter().map(|level| level.value).collect()
    }

    #[test]
    fn steps_are_powers_of_two_and_between_and_end_at_the_top() {
        assert_eq!(steps(1), [1]);
        assert_eq!(steps(5), [1, 2, 3, 4, 5]);
        assert_eq!(steps(32), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
        assert_eq!(steps(40), [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40]);
        assert_eq!(steps(u32::MAX).last(), Some(&u32::MAX));
    }

    #[test]
    fn c_ends_at_the_workers_or_at_four_a_core() {
        let last = |gate: GateControl, cores| {
            let all = values(&gated(cores, &[gate]), &[lc_spec("a")], Capability::GateCap);
            *all.last().unwrap()
        };
        assert_eq!(last(GATE, 24), 96.0);
        assert_eq!(last(GATE, 2), 32.0);
        assert_eq!(last(GateControl { workers: Some(12), ..GATE }, 24), 12.0);
        assert_eq!(last(GateControl { workers: Some(4096), ..GATE }, 2), 256.0);
    }

    #[test]
    fn d_is_none_or_up_to_a_quarter_of_the_bound() {
        let apps = [lc_spec("a")];
        // The bound is 10 ms; what is below 50 us is not tried.
        let all = values(&gated(4, &[GATE]), &apps, Capability::GateDelay);
        assert_eq!(all, [0.0, 78.0, 156.0, 312.0, 625.0, 1250.0, 2500.0]);
        let short = GateControl { delay_max: Nanos::from_micros(200), ..GATE };
        let all = values(&gated(4, &[short]), &apps, Capability::GateDelay);
        assert_eq!(all, [0.0, 50.0, 100.0, 200.0]);
    }

    #[test]
    fn all_three_are_searched_together_and_begin_with_the_server_by_itself() {
        let second = GateControl { app: AppId(1), ..GATE };
        let machine = gated(4, &[GATE, second]);
        let apps = [lc_spec("a"), lc_spec("b")];
        let space = Space::from_machine(&machine, &apps, &Capability::OF_GATES).unwrap();
        assert_eq!(space.size(), 10 * 10 * 7);
        let fastest = space.fastest();
        assert_eq!(space.values(&fastest), [32.0, 1.0, 0.0]);
        assert_eq!(
            space.describe(&fastest),
            "gate-cap 32 workers, gate-batch 1 transactions, gate-delay 0 us"
        );
        let caps = [AppId(0), AppId(1)].map(|app| Setting::GateCap(app, 32));
        assert!(caps.iter().all(|cap| space.settings(&fastest).contains(cap)));
        // C 8 lies in the middle of 1 to 64 on a scale of logarithms.
        let wide = gated(16, &[GateControl { workers: Some(64), ..GATE }]);
        let space = Space::from_machine(&wide, &apps, &[Capability::GateCap]).unwrap();
        let at = |value: f64| space.coordinates(&space.nearest(&[value]))[0];
        assert!((at(8.0) - 0.5).abs() < 1e-9 && at(1.0) == 0.0 && at(64.0) == 1.0);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        let refused = |machine: &Machine, apps: &[AppSpec], knob| {
            Space::from_machine(machine, apps, &[knob]).unwrap_err().to_string()
        };
        let apps = [lc_spec("a")];
        let why = refused(&machine(4), &apps, Capability::GateCap);
        assert!(why.contains("no gate-cap to search"), "{why}");
        let gated = gated(4, &[GATE]);
        let why = refused(&gated, &[be_spec("b")], Capability::GateDelay);
        assert!(why.contains("tail objective"), "{why}");
        let one = GateControl { workers: Some(1), ..GATE };
        let why = refused(&machine(4).with_gates(vec![one], "test"), &apps, Capability::GateCap);
        assert!(why.contains("one level only"), "{why}");
        // Not searched unless it is named: its numbers were chosen by an operator.
        let usual = Space::from_machine(&gated, &apps, &[]).unwrap();
        assert!(usual.dimensions().iter().all(|it| !Capability::OF_GATES.contains(&it.knob)));
    }
}
