//! What a policy sets on the cores: which parties may use them, and their frequencies.

use super::{Cores, Ready};
use crate::oversubscribed::model::{Governor, OversubscribedModel};
use lull_measure::Hertz;
use std::collections::VecDeque;

impl Cores {
    /// Cores that a party may use.
    pub(in crate::oversubscribed) fn allowed(&self, party: usize) -> &[bool] {
        &self.allowed[party]
    }

    /// Whether threads may run on a core: not on the scheduler's own.
    pub(in crate::oversubscribed) fn may_serve(&self, core: usize) -> bool {
        self.schedule.agent() != Some(core)
    }

    /// Confines a party to these cores. Returns the cores whose events must be
    /// rescheduled.
    pub(in crate::oversubscribed) fn confine(
        &mut self,
        model: &OversubscribedModel,
        party: usize,
        cores: Vec<bool>,
        now_ns: u64,
    ) -> Vec<usize> {
        self.allowed[party] = cores;
        let (mut timed, mut displaced) = (Vec::new(), Vec::new());
        for index in 0..self.all.len() {
            if self.allowed[party][index] {
                continue;
            }
            let core = &mut self.all[index];
            let party_of = &self.party_of;
            let goes = |ready: &Ready| party_of[ready.0 as usize] == party;
            let queue = std::mem::take(&mut core.queue);
            let (go, stay): (VecDeque<_>, VecDeque<_>) = queue.into_iter().partition(goes);
            core.queue = stay;
            displaced.extend(go.into_iter().map(|ready| (index, ready)));
            if core.thread.is_some() && core.party == party && core.cut_at(now_ns) {
                timed.push(index);
            }
        }
        for (index, (thread, work)) in displaced {
            self.schedule.moves(thread, index, self.last[thread as usize]);
            timed.extend(self.wake(model, thread, work, now_ns));
        }
        timed
    }

    /// Sets a core's frequency, or returns it to the governor. Returns whether the
    /// core's event must be rescheduled.
    pub(in crate::oversubscribed) fn hold(
        &mut self,
        model: &OversubscribedModel,
        index: usize,
        held: Option<Hertz>,
        now_ns: u64,
    ) -> bool {
        let core = &mut self.all[index];
        core.held = held;
        let free = match model.frequency.governor {
            Governor::Performance => model.frequency.highest,
            Governor::Powersave => model.frequency.lowest,
            Governor::Ondemand { .. } => core.frequency,
        };
        core.change(model, held.unwrap_or(free), now_ns)
    }

    /// Whether a core is idle although a thread that may run on it is queued,
    /// other than the one that its own core is waking up for.
    #[cfg(test)]
    pub(in crate::oversubscribed) fn wastes(&self) -> bool {
        let queued = |index: usize| {
            let all = self.all.iter().flat_map(|core| {
                let wakes = matches!(core.state, super::State::Idle { wakes: true, .. });
                core.queue.iter().skip(usize::from(wakes))
            });
            let mut all = all.chain(self.schedule.in_line());
            all.any(|(thread, _)| self.allowed[self.party_of[*thread as usize]][index])
        };
        let mut cores = self.all.iter().enumerate();
        cores.any(|(index, core)| core.may_take() && queued(index))
    }

    /// Threads that run or want to.
    #[cfg(test)]
    pub(in crate::oversubscribed) fn runnable(&self) -> usize {
        let one = |core: &super::Core| core.queue.len() + usize::from(core.thread.is_some());
        self.all.iter().map(one).sum::<usize>() + self.schedule.in_line().count()
    }
}
