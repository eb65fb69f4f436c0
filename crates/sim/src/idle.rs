//! Idle states of a core: their savings, the cost of entering them, and a governor that chooses
//! among them.
//!
//! Every machine model uses a list of [`IdleState`]s and, for each core, one
//! [`IdleGovernor`] and one [`IdleTotals`]. The core calls the governor when it runs
//! out of work and reports the length of the stay when it wakes; the totals add up
//! residency, entries and energy.
//!
//! # What an idle interval costs
//!
//! An interval lasts from the last instruction before to the first one after,
//! exit latency included. Its energy in one state is (REEF, SoCC 2025, section 2.1
//! and Fig. 2)
//!
//! ```text
//! E(x) = entry + power * max(x - transition, 0)
//! ```
//!
//! so that short stays cost more than not sleeping at all. Only the figure's
//! two anchors are printed (above C0's power below 300 us, below it from
//! 1000 us on), and no entry energy, so [`EntryCost`] offers what can be fitted to
//! them: one break-even (model A), or a plateau between both anchors (model B).
//! The two agree from the plateau's end on.

mod teo;

use crate::model::{Checked, at_least_0, range, refuse_if};
use lull_measure::{Hertz, Joules, Nanos, Watts};
use serde::{Deserialize, Serialize};
use teo::Teo;

/// One idle state of a core (a C-state).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdleState {
    /// Its name, such as `C6`.
    pub name: String,
    /// The shortest stay for which a governor should choose it.
    pub residency: Nanos,
    /// Time from a wake-up to the first instruction, as in the governor's table.
    pub exit: Nanos,
    /// The same as measured, where the table has an upper bound.
    #[serde(default)]
    pub measured_exit: Option<Nanos>,
    /// Power once in it, whatever the frequency.
    pub watts: Watts,
    /// Power in it for each GHz of the core's frequency: states that only stop
    /// the clock keep its voltage.
    #[serde(default)]
    pub watts_per_ghz: f64,
    /// Time to enter and leave it, in which the entry energy is spent instead
    /// of its power.
    #[serde(default)]
    pub transition: Nanos,
    /// The cost of each entry.
    #[serde(default)]
    pub entry: EntryCost,
}

/// The cost of entering and leaving a state.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum EntryCost {
    /// This many joules each time.
    Energy(Joules),
    /// The energy that makes a stay of `at` cost what `watts` would (model A).
    BreakEven {
        /// The stay.
        at: Nanos,
        /// Power of not entering the state.
        watts: Watts,
    },
    /// The energy that makes all stays between two lengths cost what `watts` would (model B): more
    /// below, less above.
    Plateau {
        /// The shorter stay.
        from: Nanos,
        /// The longer one.
        to: Nanos,
        /// Power of not entering the state.
        watts: Watts,
    },
}

impl Default for EntryCost {
    fn default() -> Self {
        Self::Energy(Joules(0.0))
    }
}

impl IdleState {
    /// A state without entry cost.
    pub fn new(name: &str, residency: Nanos, exit: Nanos, watts: Watts) -> Self {
        Self { name: name.to_owned(), residency, exit, watts, ..Self::default() }
    }

    /// How long a core takes from a wake-up to its first instruction.
    pub fn wake_up(&self) -> Nanos {
        self.measured_exit.unwrap_or(self.exit)
    }

    /// Whether a stay in it takes no energy, however long it is.
    fn is_free(&self) -> bool {
        let is_entry_free = self.entry == EntryCost::Energy(Joules(0.0));
        is_entry_free && self.watts.0 == 0.0 && self.watts_per_ghz == 0.0
    }

    /// Power once in it, on a core at this frequency.
    pub fn power(&self, at: Hertz) -> Watts {
        Watts(self.watts.0 + self.watts_per_ghz * at.as_ghz())
    }

    /// Energy of each entry and exit, on a core at this frequency.
    pub fn entry_energy(&self, at: Hertz) -> Joules {
        match self.entry {
            EntryCost::Energy(energy) => energy,
            EntryCost::BreakEven { at: stay, watts }
            | EntryCost::Plateau { from: stay, watts, .. } => self.entry_for(stay, watts, at),
        }
    }

    /// The entry energy with which a stay costs what `instead` would:
    /// `stay instead - power (stay - transition)`.
    fn entry_for(&self, stay: Nanos, instead: Watts, at: Hertz) -> Joules {
        let slept = stay.saturating_sub(self.transition);
        instead.during(stay) - self.power(at).during(slept)
    }

    /// Energy of an idle interval spent in it.
    pub fn energy(&self, span: Nanos, at: Hertz) -> Joules {
        let flat = self.power(at).during(span.saturating_sub(self.transition));
        match self.entry {
            EntryCost::Plateau { from, to, watts } if span > from => {
                let beyond = span.saturating_sub(to);
                watts.during(span.saturating_sub(beyond)) + self.power(at).during(beyond)
            }
            _ => self.entry_energy(at) + flat,
        }
    }

    /// The stay from which on it costs no more than `instead`; `None` if it never does.
    pub fn break_even(&self, instead: Watts, at: Hertz) -> Option<Nanos> {
        let power = self.power(at);
        if power.0 >= instead.0 {
            return None;
        }
        // The entry energy can be saved before the transition is over: there is then no
        // time in the state at the break-even.
        let entry = self.entry_energy(at);
        let awake = Nanos::from_secs_f64(entry.0 / instead.0);
        if awake <= self.transition {
            return Some(awake);
        }
        let fixed = entry.0 - power.during(self.transition).0;
        Some(Nanos::from_secs_f64(fixed / (instead.0 - power.0)))
    }
}

/// Checks that all numbers are in range, the states go from shallow to deep, and each deeper one
/// saves energy from some stay on at this frequency.
pub(crate) fn check(states: &[IdleState], at: Hertz) -> Checked {
    let key = |index: usize, name: &str| format!("idle[{index}].{name}");
    for (index, state) in states.iter().enumerate() {
        at_least_0(state.watts.0, &key(index, "watts"))?;
        at_least_0(state.watts_per_ghz, &key(index, "watts_per_ghz"))?;
        let joules = state.entry_energy(Hertz(0)).0;
        range(joules, joules >= 0.0, "0 J or more", &key(index, "entry"))?;
        if let EntryCost::Plateau { from, to, .. } = state.entry {
            let name = key(index, "entry.plateau.to");
            range(to.as_secs_f64(), from <= to, "`from` or longer", &name)?;
        }
    }
    let order = "is below that of the state before: order the states from shallow to deep";
    let never = "the state never pays: it must draw less than the one before";
    for (before, pair) in states.windows(2).enumerate() {
        let is_shorter = pair[1].residency < pair[0].residency;
        refuse_if(is_shorter, key(before + 1, "residency"), order)?;
        refuse_if(pair[1].exit < pair[0].exit, key(before + 1, "exit"), order)?;
        let pays = pair[1].break_even(pair[0].power(at), at).is_some();
        refuse_if(!pays, key(before + 1, "watts"), never)?;
    }
    Ok(())
}

/// How a core chooses its idle state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdleRule {
    /// Chooses by a prediction of the idle time, as Linux's menu governor.
    #[default]
    Menu,
    /// Chooses by whether recent stays ended before the next timer, as Linux's teo governor.
    Teo,
    /// Always this state, by its index: what a test with one state allowed does.
    Always(usize),
}

/// Intervals that a prediction looks back on (menu.c: INTERVALS).
const LOOKS_BACK: usize = 8;
/// Predictions without a pattern assume this if nothing else is known: a tick at 250 Hz.
const TICK: Nanos = Nanos(4_000_000);

/// One core's idle governor.
///
/// Linux's `drivers/cpuidle/governors/menu.c` as it stood until 6.11, without
/// what a model has no use for (stopping the tick, latency requests): the
/// expected stay is the shorter of the next timer, corrected by how early past
/// stays ended, and the typical one of the last eight stays. The deepest state
/// is chosen whose residency is within it, and whose exit latency is within it
/// divided by `1 + 10 n`, n threads of this core waiting for I/O. That divisor
/// is what keeps cores of an I/O-bound server out of deep states.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IdleGovernor {
    rule: IdleRule,
    stays_us: [f64; LOOKS_BACK],
    next: usize,
    seen: usize,
    /// Stays over the timer that was ahead, by the magnitude of that, without
    /// and with I/O waiters.
    corrections: [f64; 2 * MAGNITUDES],
    /// The bin that the present stay is to correct, and the timer ahead.
    pending: Option<(usize, f64)>,
    teo: Teo,
}

/// Powers of ten of microseconds that corrections are kept for: below 10 us
/// to 0.1 s and more.
const MAGNITUDES: usize = 6;

impl IdleGovernor {
    /// Creates a governor without history.
    pub fn new(rule: IdleRule) -> Self {
        Self { rule, corrections: [1.0; 2 * MAGNITUDES], ..Self::default() }
    }

    /// The index of the state to enter, `timer` before the core's next timer
    /// (`None`: not known), with this many of its threads waiting for I/O.
    pub fn choose(&mut self, states: &[IdleState], timer: Option<Nanos>, io_waiters: u32) -> usize {
        let last = states.len().saturating_sub(1);
        if let IdleRule::Always(index) = self.rule {
            return index.min(last);
        }
        if self.rule == IdleRule::Teo {
            return self.teo.choose(states, timer.unwrap_or(TICK));
        }
        let expected_us = self.expect(timer, io_waiters);
        let patience_us = expected_us / (1.0 + 10.0 * f64::from(io_waiters));
        let fits = |state: &IdleState| {
            state.residency.as_micros_f64() <= expected_us
                && state.exit.as_micros_f64() <= patience_us
        };
        states.iter().rposition(fits).unwrap_or(0)
    }

    /// Records how long the core was idle.
    pub fn note_stay(&mut self, stay: Nanos) {
        // A rule without a choice learns nothing.
        if let IdleRule::Always(_) = self.rule {
            return;
        }
        self.teo.note_stay(stay);
        let stay_us = stay.as_micros_f64();
        if let Some((bucket, timer_us)) = self.pending.take() {
            // A moving mean over about eight stays (menu.c: DECAY).
            let share = (stay_us / timer_us).min(1.0);
            self.corrections[bucket] += (share - self.corrections[bucket]) / 8.0;
        }
        self.stays_us[self.next] = stay_us;
        self.next = (self.next + 1) % LOOKS_BACK;
        self.seen = (self.seen + 1).min(LOOKS_BACK);
    }

    /// Expected length of the stay that begins, in microseconds.
    fn expect(&mut self, timer: Option<Nanos>, io_waiters: u32) -> f64 {
        let timer_us = timer.unwrap_or(TICK).as_micros_f64().max(1.0);
        let magnitude = (timer_us.log10().floor() as usize).min(MAGNITUDES - 1);
        let bucket = magnitude + if io_waiters > 0 { MAGNITUDES } else { 0 };
        self.pending = Some((bucket, timer_us));
        let corrected_us = timer_us * self.corrections[bucket];
        self.typical_us().map_or(corrected_us, |typical_us| typical_us.min(corrected_us))
    }

    /// Returns the mean of the last stays without the longest outliers, if at least six of eight
    /// are left and hardly vary (menu.c: get_typical_interval).
    fn typical_us(&self) -> Option<f64> {
        if self.seen < LOOKS_BACK {
            return None;
        }
        let mut sorted = self.stays_us;
        sorted.sort_unstable_by(f64::total_cmp);
        (LOOKS_BACK * 3 / 4..=LOOKS_BACK).rev().find_map(|kept| {
            let stays = &sorted[..kept];
            let mean = stays.iter().sum::<f64>() / kept as f64;
            let variance = stays.iter().map(|stay| (stay - mean).powi(2)).sum::<f64>();
            let variance = variance / kept as f64;
            (variance <= 400.0 || mean * mean > 36.0 * variance).then_some(mean)
        })
    }
}

/// Idle time and energy of one core.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct IdleTotals {
    /// Time in each state.
    pub residency: Vec<Nanos>,
    /// Entries into each state.
    pub entries: Vec<u64>,
    /// Energy of all idle intervals.
    pub energy: Joules,
}

impl IdleTotals {
    /// Creates totals of zero for this many states.
    pub fn new(states: usize) -> Self {
        Self { residency: vec![Nanos::ZERO; states], entries: vec![0; states], energy: Joules(0.0) }
    }

    /// Adds a part of an idle interval: what its first `to` cost beyond its
    /// first `from`, entry included if it begins at zero.
    pub fn spend_part(
        &mut self,
        states: &[IdleState],
        index: usize,
        (from, to): (Nanos, Nanos),
        at: Hertz,
    ) {
        let state = &states[index];
        self.entries[index] += u64::from(from == Nanos::ZERO);
        self.residency[index] += to - from;
        if state.is_free() {
            return;
        }
        let before = if from == Nanos::ZERO { Joules(0.0) } else { state.energy(from, at) };
        self.energy += state.energy(to, at) - before;
    }

    /// Adds another ledger over the same states.
    pub fn add(&mut self, other: &Self) {
        for (ours, theirs) in self.residency.iter_mut().zip(&other.residency) {
            *ours += *theirs;
        }
        for (ours, theirs) in self.entries.iter_mut().zip(&other.entries) {
            *ours += theirs;
        }
        self.energy += other.energy;
    }

    /// Time in all states.
    pub fn idle(&self) -> Nanos {
        self.residency.iter().copied().sum()
    }

    /// Time in the deepest state.
    pub fn deepest(&self) -> Nanos {
        self.residency.last().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NO_CLOCK: Hertz = Hertz(0);
    const C0: Watts = Watts(3.0);

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    /// C6 of the E5-2650 v4 with the spec's example powers.
    fn c6(entry: EntryCost) -> IdleState {
        let transition = us(133);
        IdleState { transition, entry, ..IdleState::new("C6", us(400), us(133), Watts(0.3)) }
    }

    fn model_a() -> IdleState {
        c6(EntryCost::BreakEven { at: us(1000), watts: C0 })
    }

    fn model_b() -> IdleState {
        c6(EntryCost::Plateau { from: us(300), to: us(1000), watts: C0 })
    }

    fn mean_power(state: &IdleState, span: Nanos) -> f64 {
        state.energy(span, NO_CLOCK).over(span).unwrap().0
    }

    fn xeon() -> Vec<IdleState> {
        vec![
            IdleState::new("C1", us(2), us(2), Watts(1.5)),
            IdleState::new("C1E", us(20), us(10), Watts(1.2)),
            model_a(),
        ]
    }

    #[test]
    fn one_break_even_gives_the_worked_example() {
        // 1000 3.0 - 0.3 (1000 - 133) = 2739.9 W us; 300 us at 9.30 W, 5000 us at 0.84 W.
        let state = model_a();
        assert!((state.entry_energy(NO_CLOCK).0 * 1e6 - 2739.9).abs() < 1e-6);
        for (span, watts) in [(300, 9.30), (1000, 3.0), (5000, 0.84)] {
            assert!((mean_power(&state, us(span)) - watts).abs() < 0.005, "{span}");
        }
        assert_eq!(state.break_even(C0, NO_CLOCK), Some(us(1000)));
    }

    #[test]
    fn a_plateau_keeps_both_anchors_of_figure_2_and_meets_the_other_model_after_it() {
        let (a, b) = (model_a(), model_b());
        assert!(mean_power(&b, us(299)) > 3.0);
        for span in [300, 500, 999, 1000] {
            assert!((mean_power(&b, us(span)) - 3.0).abs() < 1e-9, "{span}");
        }
        for span in [1001, 2000, 5000] {
            assert!(mean_power(&b, us(span)) < 3.0, "{span}");
            assert!((mean_power(&b, us(span)) - mean_power(&a, us(span))).abs() < 1e-9);
        }
    }

    #[test]
    fn a_state_that_draws_more_than_waiting_never_pays() {
        assert_eq!(model_a().break_even(Watts(0.3), NO_CLOCK), None);
        let free = IdleState::new("C1", us(2), us(2), Watts(1.0));
        assert_eq!(free.break_even(C0, NO_CLOCK), Some(Nanos::ZERO));
    }

    #[test]
    fn states_out_of_order_or_range_are_refused_by_key() {
        let refused = |change: &dyn Fn(&mut Vec<IdleState>)| {
            let mut states = xeon();
            change(&mut states);
            check(&states, NO_CLOCK).unwrap_err().to_string()
        };
        assert_eq!(check(&xeon(), NO_CLOCK), Ok(()));
        assert!(refused(&|states| states.reverse()).contains("[1].residency"));
        assert!(refused(&|states| states[0].exit = us(50)).contains("[1].exit"));
        assert!(refused(&|states| states[1].watts = Watts(f64::NAN)).contains("[1].watts: is NaN"));
        let gains = EntryCost::Energy(Joules(-1.0));
        assert!(refused(&|states| states[2].entry = gains).contains("[2].entry"));
        let folded = EntryCost::Plateau { from: us(900), to: us(300), watts: C0 };
        assert!(refused(&|states| states[2].entry = folded).contains("entry.plateau.to"));
    }

    #[test]
    fn regular_stays_are_expected_again_and_outliers_are_not() {
        let mut governor = IdleGovernor::new(IdleRule::Menu);
        let states = xeon();
        for stay in [50, 50, 3000, 52, 49, 51, 50, 50] {
            governor.note_stay(us(stay));
        }
        assert_eq!(governor.choose(&states, None, 0), 1, "50 us: C1E, for its 20 us, not C6");
        for _ in 0..8 {
            governor.note_stay(us(2000));
        }
        assert_eq!(governor.choose(&states, None, 0), 2);
        assert_eq!(governor.choose(&states, Some(us(15)), 0), 0, "a timer rings in 15 us");
    }

    #[test]
    fn threads_that_wait_for_io_keep_a_core_from_deep_states() {
        let states = xeon();
        let mut governor = IdleGovernor::new(IdleRule::Menu);
        for _ in 0..8 {
            governor.note_stay(us(2000));
        }
        // 2000/(1 + 10 n) us of patience for an exit of 133 us: one waiter is one too many
        // at 2000/11 = 181 > 133 only just not, two are (95).
        assert_eq!(governor.choose(&states, None, 1), 2);
        assert_eq!(governor.choose(&states, None, 2), 1);
    }

    #[test]
    fn timers_that_never_ring_are_believed_less_and_less() {
        let states = xeon();
        let mut governor = IdleGovernor::new(IdleRule::Menu);
        assert_eq!(governor.choose(&states, None, 0), 2, "at first the tick is believed");
        // Stays without a pattern, all far from the tick's 4 ms.
        for stay in [30, 400, 90, 250, 20, 600, 140, 60].iter().cycle().take(64) {
            governor.choose(&states, None, 0);
            governor.note_stay(us(*stay));
        }
        assert!(governor.choose(&states, None, 0) < 2);
    }

    #[test]
    fn one_allowed_state_is_always_entered() {
        let mut governor = IdleGovernor::new(IdleRule::Always(2));
        assert_eq!(governor.choose(&xeon(), Some(Nanos(1)), 100), 2);
    }

    #[test]
    fn states_read_from_toml_with_their_entry_cost() {
        let text = r#"
            name = "C6"
            residency = "400us"
            exit = "80us"
            watts = 0.3
            entry = { break-even = { at = "1ms", watts = 3.0 } }
        "#;
        let state: IdleState = toml::from_str(text).unwrap();
        assert_eq!(state.entry, EntryCost::BreakEven { at: us(1000), watts: C0 });
        let error = toml::from_str::<IdleState>(&format!("{text}\nentri = 1")).unwrap_err();
        assert!(error.to_string().contains("entri"), "{error}");
    }

    proptest! {
        #[test]
        fn longer_stays_cost_more_in_all_and_less_a_second(
            short_us in 1u64..20_000,
            more_us in 1u64..20_000,
            joined in any::<bool>(),
        ) {
            let state = if joined { model_a() } else { model_b() };
            let (short, long) = (us(short_us), us(short_us + more_us));
            prop_assert!(state.energy(long, NO_CLOCK).0 >= state.energy(short, NO_CLOCK).0 - 1e-15);
            prop_assert!(mean_power(&state, long) <= mean_power(&state, short) + 1e-9);
        }

        #[test]
        fn a_ledger_is_the_sum_of_its_intervals(stays in prop::collection::vec(
            (0usize..3, 1u64..5000), 0..50
        )) {
            let states = xeon();
            let mut ledger = IdleTotals::new(states.len());
            for (index, stay) in &stays {
                let part = (Nanos::ZERO, us(*stay));
                ledger.spend_part(&states, *index, part, Hertz::from_khz(2_000_000));
            }
            let total: Nanos = stays.iter().map(|(_, stay)| us(*stay)).sum();
            prop_assert_eq!(ledger.idle(), total);
            prop_assert_eq!(ledger.entries.iter().sum::<u64>(), stays.len() as u64);
            let energy: f64 = stays
                .iter()
                .map(|(index, stay)| states[*index].energy(us(*stay), NO_CLOCK).0)
                .sum();
            prop_assert!((ledger.energy.0 - energy).abs() < 1e-12);
        }

        #[test]
        fn an_interval_in_parts_costs_what_it_costs_in_one(
            cuts_us in prop::collection::vec(1u64..2000, 1..6),
        ) {
            let states = xeon();
            let (mut parts, mut whole) = (IdleTotals::new(3), IdleTotals::new(3));
            let mut from = Nanos::ZERO;
            for cut in &cuts_us {
                let to = from + us(*cut);
                parts.spend_part(&states, 2, (from, to), NO_CLOCK);
                from = to;
            }
            whole.spend_part(&states, 2, (Nanos::ZERO, from), NO_CLOCK);
            prop_assert_eq!(&parts.residency, &whole.residency);
            prop_assert_eq!(&parts.entries, &whole.entries);
            prop_assert!((parts.energy.0 - whole.energy.0).abs() < 1e-12);
        }
    }
}
