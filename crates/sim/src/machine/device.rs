//! The storage device: channels behind a token bucket.

use super::parts::{Device, Order};
use crate::order::round_ns;
use crate::replication::Stream;
use rand::RngExt;

/// The state of a device.
#[derive(Debug, Clone)]
pub(super) struct Storage {
    model: Device,
    order: Stream,
    free: u32,
    /// Tokens at `updated_ns`; one starts one I/O.
    tokens: f64,
    updated_ns: u64,
    waiting: Vec<u32>,
    /// I/Os started so far.
    started: u64,
}

/// The next step of the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum DeviceStep {
    /// This connection's I/O is in service from now on.
    Start(u32),
    /// The time at which there will be a token; nothing before.
    At(u64),
    /// Nothing before an I/O ends or arrives.
    Rest,
}

impl Storage {
    pub(super) fn new(model: Device, order: Stream) -> Self {
        let (free, tokens) = (model.channels, model.burst);
        Self { model, order, free, tokens, updated_ns: 0, waiting: Vec::new(), started: 0 }
    }

    /// An I/O of this connection arrives.
    pub(super) fn submit(&mut self, connection: u32) {
        self.waiting.push(connection);
    }

    /// An I/O in service has ended.
    pub(super) fn end(&mut self) {
        self.free += 1;
        debug_assert!(self.free <= self.model.channels, "an I/O that ends held a channel");
    }

    /// I/Os started since the beginning.
    pub(super) fn started(&self) -> u64 {
        self.started
    }

    /// Share of its rate used by this many starts in a span, at most 1.
    pub(super) fn share(&self, starts: u64, span_s: f64) -> f64 {
        (starts as f64 / (self.model.rate_per_s * span_s)).min(1.0)
    }

    /// Starts one I/O if it can.
    pub(super) fn next(&mut self, now_ns: u64) -> DeviceStep {
        if self.waiting.is_empty() || self.free == 0 {
            return DeviceStep::Rest;
        }
        let per_ns = self.model.rate_per_s / 1e9;
        self.tokens =
            self.model.burst.min(self.tokens + (now_ns - self.updated_ns) as f64 * per_ns);
        self.updated_ns = now_ns;
        // The time of the next token is rounded to a nanosecond: a token short by the rounding
        // counts as a whole one.
        if self.tokens < 1.0 - per_ns {
            return DeviceStep::At(now_ns + round_ns((1.0 - self.tokens) / per_ns).max(1));
        }
        self.tokens -= 1.0;
        self.free -= 1;
        self.started += 1;
        let place = match self.model.order {
            Order::Fifo => 0,
            Order::Random => self.order.random_range(0..self.waiting.len()),
        };
        DeviceStep::Start(match self.model.order {
            Order::Fifo => self.waiting.remove(place),
            Order::Random => self.waiting.swap_remove(place),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::{Replication, StreamPurpose};

    fn storage(order: Order) -> Storage {
        let model = Device { channels: 2, rate_per_s: 1000.0, burst: 3.0, order };
        Storage::new(model, Replication { seed: 1, number: 0 }.stream(StreamPurpose::Device, 0))
    }

    #[test]
    fn a_burst_starts_at_once_as_far_as_channels_go_then_at_the_rate() {
        let mut device = storage(Order::Fifo);
        (0..6).for_each(|connection| device.submit(connection));
        assert_eq!([device.next(0), device.next(0)], [DeviceStep::Start(0), DeviceStep::Start(1)]);
        assert_eq!(device.next(0), DeviceStep::Rest, "both channels are busy");
        device.end();
        device.end();
        assert_eq!(device.next(0), DeviceStep::Start(2));
        assert_eq!(device.next(0), DeviceStep::At(1_000_000), "the burst is over: 1 ms a token");
        assert_eq!(device.next(1_000_000), DeviceStep::Start(3));
        assert_eq!(device.started(), 4);
        assert_eq!(device.share(4, 0.008), 0.5);
    }

    #[test]
    fn a_random_order_serves_every_connection_once() {
        let mut device = storage(Order::Random);
        (0..50).for_each(|connection| device.submit(connection));
        let mut served = Vec::new();
        for step in 1..=50_u64 {
            match device.next(step * 1_000_000_000) {
                DeviceStep::Start(connection) => served.push(connection),
                other => panic!("{other:?}"),
            }
            device.end();
        }
        assert!(!served.is_sorted());
        served.sort_unstable();
        assert_eq!(served, (0..50).collect::<Vec<_>>());
    }
}
