//! The settings that `bayop` knows from before, for the knobs that it searches now.

use super::Bayop;
use crate::search::Space;
use lull_control::{Capability, Plan};

impl Bayop {
    /// Adds the config's settings of exactly the knobs that are searched.
    pub(super) fn add_known(&mut self) {
        let allowed = self.protocol.map_or(0.0, |it| 1.0 - it.percentile.fraction());
        for one in &self.config.known {
            let Some(point) = one.point(&self.space) else { continue };
            // Limits may have taken its level from the search: the nearest one was not measured.
            let is_near = |(a, b): (&f64, &f64)| (a - b).abs() <= 0.02 * a.abs().max(b.abs());
            let is_same = self.space.values(&point).iter().zip(&one.values).all(is_near);
            let list = match one.is_shown(allowed, self.config.final_floor) {
                _ if one.refuted && !is_same => continue,
                _ if one.refuted => &mut self.refuted,
                true if is_same => &mut self.known,
                _ => &mut self.hints,
            };
            list.push((one.rate_per_s, point));
        }
    }

    /// Takes a knob that cannot be set out of the search. Trials with it have no useful readings,
    /// so the search begins again with the other knobs. Returns whether the config has settings of
    /// exactly those knobs.
    pub(super) fn leave(&mut self, knob: Capability, left: Space) -> bool {
        let Some(axis) = self.space.dimensions().iter().position(|it| it.knob == knob) else {
            return false;
        };
        for list in [&mut self.known, &mut self.hints, &mut self.refuted] {
            for (_, point) in list.iter_mut() {
                point.0.remove(axis);
            }
        }
        self.space = left;
        self.plan = Plan::keep();
        let before = self.known.len();
        self.add_known();
        self.known.len() > before
    }
}
