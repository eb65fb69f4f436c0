//! Network cards that refuse delays which other cards take.
//!
//! A level of coalescing sets all cards. A driver that reports a delay need not be able to set it
//! (virtio_net), so that one card could take the knob out of a search for the others, too. Drivers
//! may also have gaps: a card leaves only after it has refused several delays.

use super::space::Space;
use lull_control::{Coalescing, NicId, Setting};

/// Delays that a card must have refused to leave a search.
const LEAST: usize = 2;

/// The delays that network cards have refused in a search.
#[derive(Debug, Clone, Default)]
pub struct CardRefusals(Vec<(NicId, Coalescing)>);

impl CardRefusals {
    /// Records a setting that was refused; settings of other knobs are ignored.
    pub fn note(&mut self, refused: &Setting) {
        if let Setting::Coalescing(card, wanted) = refused
            && !self.0.contains(&(*card, *wanted))
        {
            self.0.push((*card, *wanted));
        }
    }

    /// Returns the space without the cards that refuse their delays; `None` if there is no such
    /// card, or no other one.
    pub fn without_refusing(&self, space: &Space) -> Option<Space> {
        let count = |card: NicId| self.0.iter().filter(|it| it.0 == card).count();
        let mut cards: Vec<NicId> = self.0.iter().map(|it| it.0).collect();
        cards.sort_unstable();
        cards.dedup();
        cards.retain(|card| count(*card) >= LEAST);
        let left = cards.iter().try_fold(space.clone(), |left, card| left.without_card(*card))?;
        (left != *space).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lc_spec, machine};
    use lull_control::{Capability, Nic};
    use lull_measure::Nanos;

    #[test]
    fn a_card_that_refused_two_delays_leaves_if_another_one_stays() {
        let mut two = machine(4);
        let second = Nic { id: NicId(1), ..two.nics[0].clone() };
        two.nics.push(second);
        let space = Space::from_machine(&two, &[lc_spec("a")], &[Capability::Coalescing]).unwrap();
        let mut refusals = CardRefusals::default();
        let mut note = |card: u16, us: u64| {
            let delay = Coalescing::Delay(Nanos::from_micros(us));
            refusals.note(&Setting::Coalescing(NicId(card), delay));
            refusals.without_refusing(&space)
        };
        assert_eq!(note(1, 20), None);
        assert_eq!(note(1, 20), None, "the same delay");
        let left = note(1, 100).unwrap();
        let settings = left.settings(&left.fastest());
        assert!(matches!(settings[..], [Setting::Coalescing(NicId(0), _)]), "{settings:?}");
        assert!(note(0, 4).is_some(), "a card may have gaps");
        assert_eq!(note(0, 20), None, "no card is left");
    }
}
