//! Cache ways in a line, and masks that hardware accepts.
//!
//! The shared ways are in the middle, isolated ones on both sides. An app's mask must cover its own
//! ways and the shared ones, and on most Intel parts a mask must be one run. With two apps that
//! have ways of their own, one on each side, this is exact. From the third app on, some region is
//! not next to the middle; its mask then also covers the apps between. It always gets at least its
//! own ways and best-effort apps never use an isolated way, but apps on one side are not fully
//! isolated from those further out. Where masks need not be runs, they are exact.

use lull_control::{AppId, WayMask};

/// The order of the isolated ways: those of `left`, the shared ones, those of `right`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WayLine {
    contiguous: bool,
    /// The apps from the outside in.
    left: Vec<AppId>,
    /// The apps from the outside in.
    right: Vec<AppId>,
}

impl WayLine {
    /// Creates a line in which no region holds ways.
    pub(crate) fn new(contiguous: bool) -> Self {
        Self { contiguous, left: Vec::new(), right: Vec::new() }
    }

    /// All apps on one side, in order; for divisions that share nothing.
    pub(crate) fn divide(&mut self, apps: usize) {
        self.left = (0..apps as u16).map(AppId).collect();
    }

    /// Records which apps hold ways: a new holder joins the emptier side,
    /// next to the shared ways; no other region moves.
    pub(crate) fn note(&mut self, isolated: &[u32]) {
        let holds = |app: &AppId| isolated[app.index()] > 0;
        self.left.retain(holds);
        self.right.retain(holds);
        let known = |line: &Self, app| line.left.contains(&app) || line.right.contains(&app);
        for app in (0..isolated.len() as u16).map(AppId).filter(holds) {
            if known(self, app) {
                continue;
            }
            let side =
                if self.left.len() <= self.right.len() { &mut self.left } else { &mut self.right };
            side.push(app);
        }
    }

    /// The mask of an app, given the own ways of all apps and the shared ways.
    pub(crate) fn mask(&self, app: AppId, isolated: &[u32], shared: u32) -> WayMask {
        let ways = |apps: &[AppId]| -> u32 { apps.iter().map(|app| isolated[app.index()]).sum() };
        let middle = ways(&self.left);
        let place = |side: &[AppId]| side.iter().position(|other| *other == app);
        let own = isolated[app.index()];
        if let Some(at) = place(&self.left) {
            let first = ways(&self.left[..at]);
            return self.join(first, own, middle, shared);
        }
        match place(&self.right) {
            Some(at) => {
                let end = middle + shared + ways(&self.right) - ways(&self.right[..at]);
                self.join(end - own, own, middle, shared)
            }
            None => WayMask::run(middle, shared),
        }
    }

    /// Own and shared ways in one mask, with what lies between if it must be one run.
    fn join(&self, first: u32, own: u32, middle: u32, shared: u32) -> WayMask {
        if shared == 0 {
            return WayMask::run(first, own);
        }
        if !self.contiguous {
            return WayMask(WayMask::run(first, own).0 | WayMask::run(middle, shared).0);
        }
        let start = first.min(middle);
        let end = (first + own).max(middle + shared);
        WayMask::run(start, end - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(contiguous: bool, isolated: &[u32], shared: u32) -> Vec<u64> {
        let mut line = WayLine::new(contiguous);
        line.note(isolated);
        (0..isolated.len() as u16).map(|app| line.mask(AppId(app), isolated, shared).0).collect()
    }

    #[test]
    fn two_holders_are_exact_even_in_runs() {
        let wanted = [0b0001_1111, 0b1111_1100, 0b0001_1100];
        assert_eq!(masks(true, &[2, 3, 0], 3), wanted);
        assert_eq!(masks(false, &[2, 3, 0], 3), wanted);
    }

    #[test]
    fn a_third_holder_costs_the_outer_one_isolation_but_never_reach() {
        // In the line: app 0 (1 way), app 2 (1 way), 2 shared, app 1 (1 way).
        assert_eq!(masks(true, &[1, 1, 1, 0], 2), [0b01111, 0b11100, 0b01110, 0b01100]);
        assert_eq!(masks(false, &[1, 1, 1, 0], 2), [0b01101, 0b11100, 0b01110, 0b01100]);
    }

    #[test]
    fn a_new_app_moves_no_other_to_the_other_side() {
        let mut line = WayLine::new(true);
        line.note(&[0, 2, 0]);
        line.note(&[2, 2, 0]);
        line.note(&[2, 0, 0]);
        line.note(&[2, 0, 1]);
        assert_eq!((line.left, line.right), (vec![AppId(2)], vec![AppId(0)]));
    }

    #[test]
    fn nothing_shared_means_strict_runs() {
        assert_eq!(masks(true, &[2, 3], 0), [0b00011, 0b11100]);
    }
}
