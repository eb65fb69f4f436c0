//! Apps whose processes register themselves: a fixed number of *slots* for each template.
//!
//! The socket of [`crate::register`] gives a slot to a process and takes it away; the app of
//! the slot is that process with its descendants.

use super::identity::ProcessId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots of one template. Clones share them.
#[derive(Debug, Clone)]
pub struct ProcessSlots {
    template: Arc<str>,
    taken: Arc<Mutex<Vec<Option<ProcessId>>>>,
}

/// One slot, which is one app of the run.
#[derive(Debug, Clone)]
pub(super) struct ProcessSlot {
    slots: ProcessSlots,
    index: usize,
    /// The process that held the slot at the last check.
    seen: Option<ProcessId>,
}

impl ProcessSlots {
    /// Creates this many free slots of a template.
    pub fn new(template: &str, count: usize) -> Self {
        Self { template: template.into(), taken: Arc::new(Mutex::new(vec![None; count])) }
    }

    /// The name of the template.
    pub fn template(&self) -> &str {
        &self.template
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Gives a process the first free slot and returns its number; `None` if all are taken.
    pub(crate) fn take(&self, process: ProcessId) -> Option<usize> {
        let mut taken = self.lock();
        let free = taken.iter().position(Option::is_none)?;
        taken[free] = Some(process);
        Some(free)
    }

    /// Frees a slot.
    pub(crate) fn free(&self, index: usize) {
        if let Some(slot) = self.lock().get_mut(index) {
            *slot = None;
        }
    }

    /// The process of each slot.
    #[cfg(test)]
    pub(crate) fn processes(&self) -> Vec<Option<ProcessId>> {
        self.lock().clone()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = ProcessSlot> + '_ {
        (0..self.count()).map(|index| ProcessSlot { slots: self.clone(), index, seen: None })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<ProcessId>>> {
        // Each write is a single assignment.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProcessSlot {
    /// The process that has the slot.
    pub(super) fn process(&self) -> Option<ProcessId> {
        self.slots.lock().get(self.index).copied().flatten()
    }

    /// Whether another process has the slot than at the last check.
    pub(super) fn has_news(&self) -> bool {
        self.process() != self.seen
    }

    /// Returns the process of the slot, and whether another one had it before.
    pub(super) fn look(&mut self) -> (Option<ProcessId>, bool) {
        let now = self.process();
        let has_changed = now != self.seen;
        self.seen = now;
        (now, has_changed)
    }

    /// Whether it is not the first of its template.
    pub(super) const fn is_spare(&self) -> bool {
        self.index > 0
    }

    pub(super) fn describe(&self) -> String {
        let (template, count) = (&self.slots.template, self.slots.count());
        format!("slot {} of {count} for registrations as `{template}`", self.index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn process(pid: i32) -> ProcessId {
        ProcessId { pid, start_ticks: 7 }
    }

    #[test]
    fn a_slot_is_taken_once_and_its_app_sees_every_change() {
        let slots = ProcessSlots::new("batch", 2);
        let mut all: Vec<ProcessSlot> = slots.each().collect();
        assert_eq!((slots.take(process(1)), slots.take(process(2))), (Some(0), Some(1)));
        assert_eq!(slots.take(process(3)), None);
        assert!(all[0].has_news());
        assert_eq!(all[0].look(), (Some(process(1)), true));
        assert_eq!(all[0].look(), (Some(process(1)), false));
        slots.free(0);
        assert_eq!(slots.take(process(3)), Some(0));
        assert!(all[0].has_news(), "another process, with no look in between");
        assert_eq!(all[0].look(), (Some(process(3)), true));
        slots.free(9);
        assert!(all[1].is_spare() && !all[0].is_spare());
    }
}
