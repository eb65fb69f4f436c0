//! Dispatched requests that lose their core before they are answered: abandoned ones, and those
//! whose core a policy takes from the app.

use super::{MachineSimulation, NEVER_NS, State};

impl MachineSimulation {
    /// Takes a request off its core or out of the queue, unanswered.
    pub(super) fn abandon(&mut self, slot: u32) {
        let (app, request) = (self.dispatching().app, self.dispatching().slots[slot as usize]);
        match request.on {
            Some((thread, _)) => {
                let left = self.threads[thread].core;
                self.take_off(thread);
                self.free_thread(thread);
                self.release(slot);
                // A thread that was only queued leaves the core to the thread that runs there.
                self.pick_if_idle(left);
            }
            None => self.dispatching().waiting.retain(|waiting| *waiting != slot),
        }
        self.apps[app].lost += 1;
        self.apps[app].outstanding.decrement(self.now_ns);
        self.send_again(&request.task);
        let dispatching = self.dispatching();
        dispatching.counts.abandoned += 1;
        dispatching.remove(slot);
        self.redispatch();
    }

    /// Binds the displaced threads of the dispatched app whose core it may not use any more to free
    /// cores, of the same type if there is one. The oldest request goes first. Requests that get no
    /// core wait again, and their threads sleep. All other displaced threads are still to be
    /// placed.
    pub(in crate::machine) fn rebind(&mut self, displaced: &[usize]) {
        let app = self.dispatching().app;
        let allowed = self.apps[app].treatment.mask;
        let mut moved = Vec::new();
        for thread in displaced.iter().copied() {
            let Some(from) = self.threads[thread].bound else { continue };
            if allowed & 1 << from == 0 {
                let dispatching = self.dispatching();
                let slot = dispatching.of_thread[thread];
                moved.push((dispatching.slots[slot as usize].id, slot, thread, from));
            }
        }
        moved.sort_unstable();
        for (_, slot, thread, from) in moved {
            let kind = self.cores[from].supply.kind;
            let dispatching = self.dispatching();
            let free = allowed & !dispatching.taken;
            let alike = free & dispatching.of_type[kind];
            let usable = if alike == 0 { free } else { alike };
            if usable == 0 {
                self.wait_again(slot, thread);
                continue;
            }
            let (move_ns, scales) = (dispatching.move_ns, dispatching.ladder.scales());
            let core = usable.trailing_zeros() as usize;
            self.threads[thread].stall_ns = move_ns;
            self.bind(slot, thread, core);
            self.take_cores(1 << from, 1 << core);
            if scales {
                self.set_kind(core, kind);
            }
        }
    }

    /// Puts a request whose thread is on no core and in no queue of a core back among those that
    /// wait, in order of age and with the work that is left.
    fn wait_again(&mut self, slot: u32, thread: usize) {
        let left_ns = self.threads[thread].left_ns;
        self.free_thread(thread);
        self.release(slot);
        let dispatching = self.dispatching();
        // Ages concern running requests; only the age `abandon` concerns one that waits too.
        dispatching.stop_timer(slot);
        let abandon_ns = dispatching.abandon_ns;
        let request = &mut dispatching.slots[slot as usize];
        request.left_ns = left_ns;
        let id = request.id;
        let slots = &dispatching.slots;
        let at = dispatching.waiting.partition_point(|other| slots[*other as usize].id < id);
        dispatching.waiting.insert(at, slot);
        if abandon_ns != NEVER_NS {
            self.set_request_timer(slot, abandon_ns);
        }
    }

    /// A thread that is on no core and in no queue sleeps, free for another request.
    fn free_thread(&mut self, thread: usize) {
        let freed = &mut self.threads[thread];
        (freed.state, freed.stall_ns) = (State::Sleeping, 0);
        let app = freed.app;
        self.task_queue_mut(app).into_iter().for_each(|task_queue| task_queue.free.push(thread));
    }
}
