//! Requests on their way: due, sent by a client that may run here too, served,
//! answered.

use super::MachineSimulation;
use super::app::Work;
use super::card::Packet;
use super::queue::{Pass, State, Task, TaskQueue};

impl MachineSimulation {
    /// The tasks and threads of an app that has tasks.
    pub(super) fn task_queue_mut(&mut self, app: usize) -> Option<&mut TaskQueue> {
        match &mut self.apps[app].work {
            Work::Requests(requests) => Some(&mut requests.task_queue),
            Work::Clients(task_queue) => Some(task_queue),
            Work::Connections { .. } | Work::Endless | Work::EventLoops | Work::Phases { .. } => {
                None
            }
        }
    }

    pub(super) fn expect_arrival(&mut self, app: usize) {
        if let Some(next) = self.next_query_ns(app) {
            return self.set_clock(self.cores.len() + app, next);
        }
        let Work::Requests(requests) = &mut self.apps[app].work else { return };
        let mut next = requests.source.next_ns();
        // Requests that were due while the app was absent, which a closed source never has.
        while next < self.now_ns {
            next = requests.source.next_ns();
        }
        self.set_clock(self.cores.len() + app, next);
    }

    /// A request of this app is due.
    pub(super) fn arrival(&mut self, app: usize) {
        let now_ns = self.now_ns;
        if let Work::Connections { gate } = self.apps[app].work {
            self.query_due(app, gate);
            return self.expect_arrival(app);
        }
        let state = &mut self.apps[app];
        state.due(now_ns);
        let Work::Requests(requests) = &mut state.work else { return };
        let (first, task) = requests.send((app, state.life), now_ns);
        // A client on the machine itself sends without the card.
        match first == app {
            true => self.receive(Packet::Request(app, task)),
            false => self.submit(first, task),
        }
        self.expect_arrival(app);
    }

    /// A task for an app: a free thread wakes for it, or it waits.
    pub(super) fn submit(&mut self, app: usize, task: Task) {
        if self.is_dispatched(app) {
            return self.dispatch_arrival(task);
        }
        let Some(task_queue) = self.task_queue_mut(app) else { return };
        match task_queue.free.pop() {
            Some(thread) => {
                self.threads[thread].task = task;
                self.threads[thread].left_ns = task.work_ns;
                self.place(thread, true);
            }
            None => task_queue.queue.push_back(task),
        }
    }

    /// Ends a thread's task: the thread takes the next of its app, or sleeps; and its request
    /// continues.
    pub(super) fn finish_task(&mut self, core: usize, thread: usize) {
        let app = self.threads[thread].app;
        let done = self.threads[thread].task;
        let Some(task_queue) = self.task_queue_mut(app) else { return };
        let next = task_queue.queue.pop_front();
        if next.is_none() {
            task_queue.free.push(thread);
        }
        let is_awaited = self.is_awaited(&done);
        if is_awaited && self.is_last(done) {
            self.apps[done.owner].answer(self.now_ns, &done);
            self.send_again(&done);
            if done.pass == Pass::Serve {
                self.transmit(core);
            }
        }
        match next {
            Some(task) => {
                self.threads[thread].task = task;
                self.threads[thread].left_ns = task.work_ns;
                self.retime(core);
            }
            None => self.sleep(core, thread),
        }
        if is_awaited {
            self.pass_on(done);
        }
        if self.is_dispatched(app) {
            self.dispatched_ends(thread);
        }
    }

    /// Lets the client of an answered request think, if it is one that waits for answers, or lets
    /// the tier that sent it continue.
    pub(super) fn send_again(&mut self, done: &Task) {
        if self.return_to_tier(done) {
            return;
        }
        let at_ns = self.now_ns + done.delay_ns as u64;
        let Work::Requests(requests) = &mut self.apps[done.owner].work else { return };
        if requests.source.answered(at_ns, done.connection) {
            self.expect_arrival(done.owner);
        }
    }

    /// Whether the app whose request it is has not departed since the request was due.
    fn is_awaited(&self, task: &Task) -> bool {
        self.apps[task.owner].life == task.life
    }

    /// Whether a request is answered when this task is done.
    fn is_last(&self, done: Task) -> bool {
        match done.pass {
            Pass::Send => false,
            Pass::Serve => self.client_of(done.owner).is_none(),
            Pass::Take => true,
        }
    }

    pub(super) fn client_of(&self, app: usize) -> Option<usize> {
        let Work::Requests(requests) = &self.apps[app].work else { return None };
        requests.client.as_ref().map(|(client, _, _)| *client)
    }

    fn pass_on(&mut self, done: Task) {
        let next = match done.pass {
            Pass::Send => {
                let pass = Pass::Serve;
                Some((done.owner, Task { pass, work_ns: done.served_ns, ..done }))
            }
            Pass::Serve => self
                .client_of(done.owner)
                .map(|client| (client, Task { pass: Pass::Take, work_ns: done.client_ns, ..done })),
            Pass::Take => None,
        };
        if let Some((app, task)) = next {
            self.submit(app, task);
        }
    }

    /// When the oldest unanswered request of an app was due.
    pub(super) fn oldest_ns(&self, app: usize) -> Option<u64> {
        if let Work::Connections { gate } = self.apps[app].work {
            return self.gated[gate].oldest_ns(app);
        }
        if self.is_dispatched(app) {
            return self.dispatching.as_ref().and_then(|dispatching| dispatching.oldest_ns());
        }
        if let Some(loops) = &self.loops {
            return loops.oldest_ns();
        }
        let Work::Requests(requests) = &self.apps[app].work else { return None };
        let clients = requests.client.as_ref().map(|(client, _, _)| *client);
        let served = self.threads.iter().filter(|thread| {
            let works = thread.app == app || Some(thread.app) == clients;
            works && thread.state != State::Sleeping
        });
        let at_clients = clients.and_then(|client| match &self.apps[client].work {
            Work::Clients(task_queue) => Some(&task_queue.queue),
            _ => None,
        });
        let queued = requests.task_queue.queue.iter().chain(at_clients.into_iter().flatten());
        let tasks = served.map(|thread| &thread.task).chain(queued);
        tasks
            .filter(|task| task.owner == app && self.is_awaited(task))
            .map(|task| task.arrived_ns)
            .min()
    }
}
