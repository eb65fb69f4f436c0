//! Requests of an app: their times and their demands.

use super::load::LoadStep;
use super::model::{Activity, ClosedClients, LocalClient, MachineModel};
use super::queue::{NO_TASK, Pass, Task, TaskQueue};
use crate::model::{Distribution, Draw};
use crate::order::NEVER_NS;
use crate::replication::{Replication, Stream, StreamPurpose};
use lull_measure::Nanos;
use lull_workload::arrivals::{Arrivals, Schedule, ScheduleError};
use rand::RngExt;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Requests of an app, and the workers that have none.
pub(super) struct Requests {
    pub(super) source: RequestSource,
    /// The connections over which clients at a rate send, and which of them is next.
    flows: Option<(u32, Stream)>,
    pub(super) work: (Draw, Stream),
    pub(super) delay: Option<(Draw, Stream)>,
    /// The client's app, and what a pass through it costs.
    pub(super) client: Option<(usize, Draw, Stream)>,
    pub(super) task_queue: TaskQueue,
}

/// When each request is due in nanoseconds, in order, and its work.
pub(crate) type GivenRequests = Box<dyn Iterator<Item = (u64, f64)> + Send>;

/// When requests are due.
pub(super) enum RequestSource {
    /// When tiers send them, each with its work.
    Called,
    /// At given instants, each with its work.
    Given { each: GivenRequests, work_ns: f64 },
    /// At a rate, whatever is answered.
    Open(Box<Arrivals<Stream>>),
    /// After an answer and the think time of its client.
    Closed {
        think: (Draw, Stream),
        /// When each client that thinks sends next, with its number.
        due_ns: BinaryHeap<Reverse<(u64, u32)>>,
    },
}

impl RequestSource {
    fn closed(closed: &ClosedClients, mut stream: Stream) -> Self {
        let draw = closed.think.draw();
        let due_ns =
            (0..closed.clients).map(|client| Reverse((draw.sample(&mut stream) as u64, client)));
        Self::Closed { due_ns: due_ns.collect(), think: (draw, stream) }
    }

    /// Returns when the next request is due; an open source advances by it.
    pub(super) fn next_ns(&mut self) -> u64 {
        match self {
            Self::Called => NEVER_NS,
            Self::Given { each, work_ns } => {
                let next = each.next();
                *work_ns = next.map_or(0.0, |(_, work_ns)| work_ns);
                next.map_or(NEVER_NS, |(due_ns, _)| due_ns)
            }
            Self::Open(arrivals) => arrivals.next().map_or(NEVER_NS, |at: Nanos| at.0),
            Self::Closed { due_ns, .. } => due_ns.peek().map_or(NEVER_NS, |Reverse((at, _))| *at),
        }
    }

    /// The request that was due is sent, by a client of this number if clients wait.
    fn sent(&mut self) -> Option<u32> {
        let Self::Closed { due_ns, .. } = self else { return None };
        due_ns.pop().map(|Reverse((_, client))| client)
    }

    /// A client has the answer at this instant; whether it will send again.
    pub(super) fn answered(&mut self, at_ns: u64, client: u32) -> bool {
        let Self::Closed { think: (draw, stream), due_ns } = self else { return false };
        due_ns.push(Reverse((at_ns + draw.sample(stream) as u64, client)));
        true
    }
}

impl Requests {
    /// Creates the requests of a checked model's app with this number; `None` if the app
    /// serves none.
    pub(super) fn new(
        model: &MachineModel,
        number: usize,
        threads: std::ops::Range<usize>,
        streams: Replication,
    ) -> Option<Self> {
        let Activity::Requests { work, load, closed, arrivals, delay, client } =
            &model.app[number].activity
        else {
            let is_called = matches!(model.app[number].activity, Activity::Called);
            let works = streams.stream(StreamPurpose::Work, model.stream_of(number));
            return is_called.then(|| Self::called(threads, works));
        };
        let stream = |purpose| streams.stream(purpose, model.stream_of(number));
        let gaps = stream(StreamPurpose::Arrivals);
        let source = match closed {
            Some(closed) => RequestSource::closed(closed, gaps),
            None => {
                let schedule = schedule(load).expect("the model is checked");
                RequestSource::Open(Box::new(Arrivals::new(*arrivals, schedule, gaps)))
            }
        };
        // Number 0 is the card's own.
        let flows = model.card.as_ref().filter(|_| closed.is_none());
        let flows = flows.map(|card| {
            (card.connections, streams.stream(StreamPurpose::Route, 1 + model.stream_of(number)))
        });
        let client = client.as_ref().map(|LocalClient { app, work }| {
            let app = model.app_named(app).expect("the model is checked");
            (app, work.draw(), stream(StreamPurpose::Client))
        });
        Some(Self {
            source,
            flows,
            work: (work.draw(), stream(StreamPurpose::Work)),
            delay: delay.map(|delay| (delay.draw(), stream(StreamPurpose::Delay))),
            client,
            task_queue: TaskQueue { free: threads.rev().collect(), ..TaskQueue::default() },
        })
    }

    /// The requests of an app that tiers call, which draw all work.
    fn called(threads: std::ops::Range<usize>, works: Stream) -> Self {
        Self {
            source: RequestSource::Called,
            flows: None,
            work: (Distribution::constant(Nanos::ZERO).draw(), works),
            delay: None,
            client: None,
            task_queue: TaskQueue { free: threads.rev().collect(), ..TaskQueue::default() },
        }
    }

    /// The request that was due is sent. All its demands are drawn now, so that every policy
    /// receives the same requests.
    pub(super) fn send(&mut self, (owner, life): (usize, u32), now_ns: u64) -> (usize, Task) {
        let flow = self.flows.as_mut().map_or(0, |(count, stream)| stream.random_range(0..*count));
        let connection = self.source.sent().unwrap_or(flow);
        let served_ns = match self.source {
            RequestSource::Given { work_ns, .. } => work_ns,
            _ => self.work.0.sample(&mut self.work.1),
        };
        let delay_ns = self.delay.as_mut().map_or(0.0, |(draw, stream)| draw.sample(stream));
        let mut task = Task {
            owner,
            life,
            connection,
            arrived_ns: now_ns,
            work_ns: served_ns,
            served_ns,
            delay_ns,
            ..NO_TASK
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

/// The arrival rate over time that load steps mean.
pub(super) fn schedule(load: &[LoadStep]) -> Result<Schedule, ScheduleError> {
    let begins = load.first().is_none_or(|first| first.from == Nanos::ZERO);
    let ascends = load.is_sorted_by(|a, b| a.from < b.from);
    if !begins || !ascends {
        return Err(ScheduleError::Time);
    }
    let points: Vec<_> =
        load.iter().map(|step| (step.from.as_secs_f64(), step.rate_per_s)).collect();
    Schedule::steps(&points)
}
