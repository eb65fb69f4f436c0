//! Requests on their way: due, sent by a client that may run here too, served,
//! answered.

use super::model::{Activity, ClosedClients, NodeClient, NodeModel};
use super::queue::{Pass, State, Task, TaskQueue};
use super::{NodeSimulation, Work, check};
use crate::model::Draw;
use crate::order::NEVER_NS;
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_measure::Nanos;
use lull_workload::arrivals::Arrivals;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Requests of an app, and the workers that have none.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    source: RequestSource,
    work: (Draw, Stream),
    delay: Option<(Draw, Stream)>,
    /// The client's app, and what a pass through it costs.
    client: Option<(usize, Draw, Stream)>,
    desk: TaskQueue,
}

/// When requests are due.
#[derive(Debug, Clone)]
enum RequestSource {
    /// At a rate, whatever is answered.
    Open(Box<Arrivals<Stream>>),
    /// As long after an answer as its client thinks.
    Closed {
        think: (Draw, Stream),
        /// When each client that thinks sends next.
        due_ns: BinaryHeap<Reverse<u64>>,
    },
}

impl RequestSource {
    fn closed(closed: &ClosedClients, mut stream: Stream) -> Self {
        let draw = closed.think.draw();
        let due_ns = (0..closed.clients).map(|_| Reverse(draw.sample(&mut stream) as u64));
        Self::Closed { due_ns: due_ns.collect(), think: (draw, stream) }
    }

    /// When the next one is due; an open source goes on by it.
    fn next_ns(&mut self) -> u64 {
        match self {
            Self::Open(arrivals) => arrivals.next().map_or(NEVER_NS, |at: Nanos| at.0),
            Self::Closed { due_ns, .. } => due_ns.peek().map_or(NEVER_NS, |Reverse(at)| *at),
        }
    }

    /// The request that was due is sent.
    fn sent(&mut self) {
        if let Self::Closed { due_ns, .. } = self {
            due_ns.pop();
        }
    }

    /// A client has the answer at this instant; whether it will send again.
    fn answered(&mut self, at_ns: u64) -> bool {
        let Self::Closed { think: (draw, stream), due_ns } = self else { return false };
        due_ns.push(Reverse(at_ns + draw.sample(stream) as u64));
        true
    }
}

impl Requests {
    /// Creates the requests of a checked model's app with this number; `None` if the app
    /// serves none.
    pub(super) fn new(
        model: &NodeModel,
        number: usize,
        threads: std::ops::Range<usize>,
        streams: Replication,
    ) -> Option<Self> {
        let Activity::Requests { work, load, closed, arrivals, delay, client } =
            &model.app[number].activity
        else {
            return None;
        };
        let stream = |purpose| streams.stream(purpose, number);
        let gaps = stream(StreamPurpose::Arrivals);
        let source = match closed {
            Some(closed) => RequestSource::closed(closed, gaps),
            None => {
                let schedule = check::schedule(load).expect("the model is checked");
                RequestSource::Open(Box::new(Arrivals::new(*arrivals, schedule, gaps)))
            }
        };
        let client = client.as_ref().map(|NodeClient { app, work }| {
            let app = model.app_named(app).expect("the model is checked");
            (app, work.draw(), stream(StreamPurpose::Client))
        });
        Some(Self {
            source,
            work: (work.draw(), stream(StreamPurpose::Work)),
            delay: delay.map(|delay| (delay.draw(), stream(StreamPurpose::Delay))),
            client,
            desk: TaskQueue { free: threads.rev().collect(), ..TaskQueue::default() },
        })
    }

    /// Draws all demands of a request when it is due, so that every policy receives the
    /// same requests.
    fn draw(&mut self, (owner, life): (usize, u32), now_ns: u64) -> (usize, Task) {
        let served_ns = self.work.0.sample(&mut self.work.1);
        let delay_ns = self.delay.as_mut().map_or(0.0, |(draw, stream)| draw.sample(stream));
        let mut task = Task {
            owner,
            life,
            pass: Pass::Serve,
            arrived_ns: now_ns,
            work_ns: served_ns,
            client_ns: 0.0,
            served_ns,
            delay_ns,
        };
        match &mut self.client {
            None => (owner, task),
            Some((app, draw, stream)) => {
                task.pass = Pass::Send;
                task.work_ns = draw.sample(stream);
                task.client_ns = draw.sample(stream);
                (*app, task)
            }
        }
    }
}

impl NodeSimulation {
    /// The tasks and threads of an app that has tasks.
    pub(super) fn desk_mut(&mut self, app: usize) -> Option<&mut TaskQueue> {
        match &mut self.apps[app].work {
            Work::Requests(requests) => Some(&mut requests.desk),
            Work::Clients(desk) => Some(desk),
            Work::Endless | Work::Phases { .. } => None,
        }
    }

    pub(super) fn expect_arrival(&mut self, app: usize) {
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
        let state = &mut self.apps[app];
        state.arrived += 1;
        state.outstanding.rise(now_ns);
        let Work::Requests(requests) = &mut state.work else { return };
        requests.source.sent();
        let (first, task) = requests.draw((app, state.life), now_ns);
        self.submit(first, task);
        self.expect_arrival(app);
    }

    /// A task for an app: a free thread wakes for it, or it waits.
    fn submit(&mut self, app: usize, task: Task) {
        let Some(desk) = self.desk_mut(app) else { return };
        match desk.free.pop() {
            Some(thread) => {
                self.threads[thread].task = task;
                self.threads[thread].left_ns = task.work_ns;
                self.place(thread, true);
            }
            None => desk.queue.push_back(task),
        }
    }

    /// A thread has done its task: the next of its app, or sleep; and its
    /// request goes on.
    pub(super) fn finish_task(&mut self, core: usize, thread: usize) {
        let app = self.threads[thread].app;
        let done = self.threads[thread].task;
        let Some(desk) = self.desk_mut(app) else { return };
        let next = desk.queue.pop_front();
        if next.is_none() {
            desk.free.push(thread);
        }
        let is_awaited = self.is_awaited(&done);
        if is_awaited && self.is_last(done) {
            self.apps[done.owner].answer(self.now_ns, done);
            self.send_again(done);
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
    }

    /// The client of an answered request thinks, if it is one that waits for answers.
    fn send_again(&mut self, done: Task) {
        let at_ns = self.now_ns + done.delay_ns as u64;
        let Work::Requests(requests) = &mut self.apps[done.owner].work else { return };
        if requests.source.answered(at_ns) {
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
        let Work::Requests(requests) = &self.apps[app].work else { return None };
        let clients = requests.client.as_ref().map(|(client, _, _)| *client);
        let served = self.threads.iter().filter(|thread| {
            let works = thread.app == app || Some(thread.app) == clients;
            works && thread.state != State::Sleeping
        });
        let at_clients = clients.and_then(|client| match &self.apps[client].work {
            Work::Clients(desk) => Some(&desk.queue),
            _ => None,
        });
        let queued = requests.desk.queue.iter().chain(at_clients.into_iter().flatten());
        let tasks = served.map(|thread| &thread.task).chain(queued);
        tasks
            .filter(|task| task.owner == app && self.is_awaited(task))
            .map(|task| task.arrived_ns)
            .min()
    }
}
