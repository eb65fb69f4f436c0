//! Work that tiers send to an app, and the machine as one of several on a common clock.

use super::app::Work;
use super::card::Packet;
use super::queue::{NO_TASK, Task};
use super::source::RequestSource;
use super::{Activity, MachineModel, MachineSimulation};
use crate::order::Key;

/// A piece of work that is done: the app, and the request that the caller gave.
pub(crate) type Returned = (usize, u32);

impl MachineModel {
    /// The apps that tiers call, in order.
    pub(crate) fn called(&self) -> impl Iterator<Item = usize> + '_ {
        let apps = self.app.iter().enumerate();
        apps.filter(|(_, app)| matches!(app.activity, Activity::Called)).map(|(number, _)| number)
    }
}

impl MachineSimulation {
    /// A piece of work for an app that tiers call.
    pub(crate) fn call(&mut self, app: usize, request: u32, work_ns: f64) {
        let now_ns = self.now_ns;
        let state = &mut self.apps[app];
        state.due(now_ns);
        let task = Task {
            owner: app,
            life: state.life,
            connection: request,
            arrived_ns: now_ns,
            work_ns,
            served_ns: work_ns,
            ..NO_TASK
        };
        self.receive(Packet::Request(app, task));
    }

    /// Keeps a piece of work that is done for its caller. Returns whether tiers sent it.
    pub(super) fn return_to_tier(&mut self, done: &Task) -> bool {
        let Work::Requests(requests) = &self.apps[done.owner].work else { return false };
        let is_called = matches!(requests.source, RequestSource::Called);
        if is_called {
            self.returned.push((done.owner, done.connection));
        }
        is_called
    }

    /// Takes the work that is done.
    pub(crate) fn take_returned(&mut self) -> Vec<Returned> {
        std::mem::take(&mut self.returned)
    }

    /// When the next event is due.
    pub(crate) fn next_ns(&mut self) -> u64 {
        let (clock, timer) = self.next_keys();
        clock.min(timer).time_ns()
    }

    /// Runs the next event.
    pub(crate) fn step(&mut self) {
        let (clock, timer) = self.next_keys();
        if clock.min(timer) != Key::NEVER {
            self.act(clock, timer);
        }
    }

    /// Moves the clock to an instant before which no event is due.
    pub(crate) fn advance(&mut self, to_ns: u64) {
        let due_ns = self.next_ns();
        debug_assert!(due_ns >= to_ns, "no event is passed over");
        self.now_ns = self.now_ns.max(to_ns);
    }
}
