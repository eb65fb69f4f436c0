//! The main rule of Linux's timer events oriented idle governor, `drivers/cpuidle/governors/teo.c`
//! (6.6).
//!
//! Every stay is counted in the bin of an idle state: that of the deepest whose residency is
//! within it. A stay as long as the next timer promised is a *hit* of the timer's bin, a shorter
//! one an *intercept* of its own. If intercepts of shallower states outweigh what else there was,
//! the governor chooses the state of their median, else the deepest that the timer allows.
//!
//! Missing against Linux 6.6:
//!
//! - recent intercepts: Linux also chooses a shallower state if more than half of the last nine
//!   stays were intercepts of shallower states, so that it reacts faster to a change;
//! - the next timer: cores of the models have none, so that it is always taken as 4 ms away (a
//!   tick at 250 Hz);
//! - utilisation of the core, latency requests, and stopping the tick.

use super::IdleState;
use lull_measure::Nanos;

/// The weight of a new event, and the rate at which counts decay (teo.c: PULSE, DECAY_SHIFT).
const PULSE: u32 = 1024;
const DECAY_SHIFT: u32 = 3;

/// Recent stays by the states that they would have suited.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Teo {
    bins: Vec<Bin>,
    /// The timer ahead of the present stay, and the exit latency of the state chosen for it.
    pending: Option<(Nanos, Nanos)>,
}

/// Stays that suit one state.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bin {
    residency: Nanos,
    hits: u32,
    intercepts: u32,
}

impl Teo {
    /// The index of the state to enter, this long before the core's next timer.
    pub(super) fn choose(&mut self, states: &[IdleState], timer: Nanos) -> usize {
        if self.bins.len() != states.len() {
            let bin =
                |state: &IdleState| Bin { residency: state.residency, hits: 0, intercepts: 0 };
            self.bins = states.iter().map(bin).collect();
        }
        let last = states.len().saturating_sub(1);
        let shallower = &self.bins[..last];
        let hits: u32 = shallower.iter().map(|bin| bin.hits).sum();
        let intercepts: u32 = shallower.iter().map(|bin| bin.intercepts).sum();
        let total: u32 = self.bins.iter().map(|bin| bin.hits + bin.intercepts).sum();
        let mut chosen = last;
        if 2 * intercepts > total - hits {
            let mut sum = 0;
            chosen = (0..last)
                .rev()
                .find(|at| {
                    sum += shallower[*at].intercepts;
                    2 * sum > intercepts
                })
                .unwrap_or(0);
        }
        while chosen > 0 && states[chosen].residency > timer {
            chosen -= 1;
        }
        self.pending = Some((timer, states[chosen].exit));
        chosen
    }

    /// Records how long the core was idle, exit latency included.
    pub(super) fn note_stay(&mut self, stay: Nanos) {
        let Some((timer, exit)) = self.pending.take() else { return };
        let measured = match stay {
            stay if stay >= timer => Nanos::MAX,
            stay if stay >= exit => Nanos(stay.0 - exit.0 / 2),
            stay => Nanos(stay.0 / 2),
        };
        let bin_of = |span: Nanos, bins: &[Bin]| {
            bins.iter().rposition(|bin| bin.residency <= span.min(timer)).unwrap_or(0)
        };
        for bin in &mut self.bins {
            bin.hits -= bin.hits >> DECAY_SHIFT;
            bin.intercepts -= bin.intercepts >> DECAY_SHIFT;
        }
        let (of_timer, of_stay) = (bin_of(timer, &self.bins), bin_of(measured, &self.bins));
        match of_timer == of_stay {
            true => self.bins[of_timer].hits += PULSE,
            false => self.bins[of_stay].intercepts += PULSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Watts;

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    fn states() -> Vec<IdleState> {
        let state = |name, residency, exit, watts| {
            IdleState::new(name, us(residency), us(exit), Watts(watts))
        };
        vec![state("C1", 2, 2, 1.5), state("C1E", 20, 10, 1.2), state("C6", 400, 133, 0.3)]
    }

    fn after(stays_us: &[u64], timer: Nanos) -> usize {
        let (states, mut teo) = (states(), Teo::default());
        for stay in stays_us {
            teo.choose(&states, timer);
            teo.note_stay(us(*stay));
        }
        teo.choose(&states, timer)
    }

    #[test]
    fn the_timer_is_believed_until_stays_end_early() {
        assert_eq!(after(&[], us(4000)), 2);
        assert_eq!(after(&[], us(100)), 1, "C6 would stay longer than the timer");
        assert_eq!(after(&[], us(1)), 0);
        assert_eq!(after(&[4000; 8], us(4000)), 2, "hits of the timer");
        assert_eq!(after(&[100; 8], us(4000)), 1, "intercepted, each in the bin of C1E");
        assert_eq!(after(&[10; 8], us(4000)), 0);
    }

    #[test]
    fn the_median_of_early_stays_decides_and_old_ones_are_forgotten() {
        let mixed = [10, 100, 100, 10, 100, 100, 10, 100];
        assert_eq!(after(&mixed, us(4000)), 1);
        let mut changed = vec![10; 20];
        changed.extend([4000; 20]);
        assert_eq!(after(&changed, us(4000)), 2);
    }
}
