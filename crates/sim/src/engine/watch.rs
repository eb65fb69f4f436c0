//! The latency gauge of a plant: records each call of an app to a server.
//!
//! Every server counts its calls. Single latencies are recorded only where a plant
//! requests them, because histograms of thousands of servers would not fit in memory.

use super::Engine;
use lull_measure::{Latency, Nanos};
use std::collections::BTreeMap;

/// The watched calls by (server, app).
#[derive(Debug, Clone, Default)]
pub(crate) struct Watches {
    by: BTreeMap<(u32, u16), Watch>,
}

/// Calls of one app to one server since the last observation.
#[derive(Debug, Clone, Default)]
struct Watch {
    latencies: Vec<Nanos>,
    calls: u64,
    errors: u64,
    /// Start times of the open calls, by request and visit.
    open: BTreeMap<(u32, usize), u64>,
}

/// Calls of one app to one server between two observations.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallCounts {
    /// Latencies of the answered ones, from the choice of the server.
    pub(crate) latency: Latency,
    /// Calls that arrived.
    pub(crate) arrived: u64,
    /// Calls that failed: refused here or behind.
    pub(crate) failed: u64,
    /// Calls not answered yet.
    pub(crate) outstanding: u64,
    /// Age of the oldest of them.
    pub(crate) oldest: Option<Nanos>,
}

impl Watches {
    /// Whether anything is watched.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        !self.by.is_empty()
    }

    /// Records the start of a call of an app to a server.
    pub(super) fn call(&mut self, to: (u32, u16), call: (u32, usize), now_ns: u64) {
        if let Some(watch) = self.by.get_mut(&to) {
            watch.calls += 1;
            watch.open.insert(call, now_ns);
        }
    }

    /// Records the end of a call, with an answer or without.
    pub(super) fn end(&mut self, to: (u32, u16), call: (u32, usize), now_ns: u64, answered: bool) {
        let Some(watch) = self.by.get_mut(&to) else { return };
        let called_ns = watch.open.remove(&call).unwrap_or(now_ns);
        if answered {
            watch.latencies.push(Nanos(now_ns - called_ns));
        } else {
            watch.errors += 1;
        }
    }
}

impl Engine {
    /// Records the latency of each call of an app to a server from now on. Must be called
    /// before the first event, so that no call has begun before.
    pub(crate) fn watch(&mut self, server: usize, app: usize) {
        debug_assert!(self.events == 0, "a plant is made before its system runs");
        let tier = self.servers[server].tier as usize;
        self.programs.count_calls(tier, self.tiers[tier].first);
        self.watches.by.entry((server as u32, app as u16)).or_default();
    }

    /// Takes the watched calls since the last observation; `None` if they are not
    /// watched.
    pub(crate) fn look(&mut self, server: usize, app: usize) -> Option<CallCounts> {
        let now_ns = self.now_ns;
        let watch = self.watches.by.get_mut(&(server as u32, app as u16))?;
        let latency = watch.latencies.drain(..).collect();
        Some(CallCounts {
            latency,
            arrived: std::mem::take(&mut watch.calls),
            failed: std::mem::take(&mut watch.errors),
            outstanding: watch.open.len() as u64,
            oldest: watch.open.values().min().map(|since| Nanos(now_ns - since)),
        })
    }
}
