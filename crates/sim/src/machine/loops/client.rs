//! The traffic of one core: a share of many connections, or one connection that
//! exchanges large messages.

use crate::machine::event_loops::{EventLoops, Merge, PingPong, Stack, Traffic};
use crate::order::NEVER_NS;
use crate::replication::{Replication, Stream, StreamPurpose};
use rand::RngExt;
use rand_distr::{Distribution, Exp1};
use std::collections::VecDeque;

/// The next event on the wire to a core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WireEvent {
    /// A request of one frame.
    Request,
    /// A frame of a message.
    Frame,
    /// An acknowledgement of frames of a reply.
    Acknowledgement,
}

/// Frames without acknowledgement that a client which merges none acknowledges.
const FRAMES_AN_ACKNOWLEDGEMENT: u32 = 2;

/// The meaning of a frame for the socket that it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivered {
    /// A request of its own.
    Request,
    /// No complete request; this many further frames may leave.
    Part(u32),
    /// The last frame of a message.
    Message,
}

/// The traffic of one core.
#[derive(Debug, Clone)]
pub(super) enum CoreTraffic {
    /// Poisson arrivals, or none.
    Open(OpenArrivals),
    /// One connection.
    Paired(Box<PingPongState>),
}

/// Poisson arrivals whose rate has steps.
#[derive(Debug, Clone)]
pub(super) struct OpenArrivals {
    /// The start of each step, and its arrivals per nanosecond.
    steps: Vec<(u64, f64)>,
    at: usize,
    next_ns: u64,
    stream: Stream,
    network_ns: u64,
}

/// A ping-pong and where it is.
#[derive(Debug, Clone, Default)]
pub(super) struct PingPongState {
    config: PingPong,
    frame_ns: u64,
    /// Frames of a message.
    frames: u32,
    /// Times at which frames on their way arrive at the card, in order.
    coming: VecDeque<u64>,
    /// Frames of the message that the sender still has.
    unsent: u32,
    /// Frames of the message that reached the server's socket.
    through: u32,
    /// Frames that its thread has not read.
    unread: u32,
    /// When the last frame was or will be on the wire.
    wire_ns: u64,
    /// Acknowledgements on their way to the server's socket.
    acknowledgements: u32,
    /// Frames that have not reached the card.
    unreceived: u32,
    /// Frames that the client's next acknowledgement is for.
    acknowledged_frames: u32,
    /// Packets that the frames of the present message were merged into.
    packets: u32,
    /// Acknowledgements that the server owes for them.
    owed: u32,
    /// Whether the server sends.
    replies: bool,
    began_ns: u64,
    /// When the present reply began, and how long after the first frame of its message.
    replied_ns: u64,
    took_ns: u64,
}

impl CoreTraffic {
    /// Creates the clients of all cores; a card spreads connections by this many buckets.
    pub(super) fn all_cores(
        app: &EventLoops,
        cores: usize,
        buckets: u32,
        streams: Replication,
    ) -> Vec<Self> {
        match &app.traffic {
            Traffic::PingPong(config) => {
                let pair = Self::Paired(Box::new(PingPongState::new(config, app.frame.0)));
                let silent = |core| {
                    let stream = streams.stream(StreamPurpose::Arrivals, core);
                    Self::Open(OpenArrivals::new(vec![(0, 0.0)], stream, 0))
                };
                std::iter::once(pair).chain((1..cores).map(silent)).collect()
            }
            Traffic::Open { load, connections, network } => {
                let shares = shares(*connections, buckets, cores, streams);
                let open = |(core, share): (usize, f64)| {
                    let steps =
                        load.iter().map(|step| (step.from.0, step.rate_per_s * share / 1e9));
                    let stream = streams.stream(StreamPurpose::Arrivals, core);
                    Self::Open(OpenArrivals::new(steps.collect(), stream, network.0))
                };
                shares.into_iter().enumerate().map(open).collect()
            }
        }
    }

    /// Returns the time of the next event on the wire.
    #[inline(always)]
    pub(super) fn next_ns(&self) -> u64 {
        match self {
            Self::Open(open) => open.next_ns,
            Self::Paired(pair) => pair.coming.front().copied().unwrap_or(NEVER_NS),
        }
    }

    /// Takes the next event on the wire.
    #[inline]
    pub(super) fn take_event(&mut self, now_ns: u64) -> WireEvent {
        match self {
            Self::Open(open) => {
                open.schedule(now_ns);
                WireEvent::Request
            }
            Self::Paired(pair) => pair.take_event(),
        }
    }

    /// How the frames of this traffic are merged.
    #[inline]
    pub(super) fn merge_in(&self, stack: &Stack) -> Option<Merge> {
        stack.merge.filter(|_| matches!(self, Self::Paired(_)))
    }

    /// Merges the frames that a round of polling receives. Returns the number of packets, with
    /// acknowledgements, and the number of frames that were merged.
    #[inline]
    pub(super) fn receive(&mut self, frames: u32, merge: Option<Merge>) -> (u32, u32) {
        match (self, merge) {
            (Self::Paired(pair), Some(merge)) => pair.merge(frames, merge.frames),
            _ => (frames, 0),
        }
    }

    /// Takes the acknowledgements that the server owes for the packets it has received.
    #[inline]
    pub(super) fn take_owed(&mut self) -> u32 {
        match self {
            Self::Paired(pair) => std::mem::take(&mut pair.owed),
            _ => 0,
        }
    }

    /// A frame reaches its socket.
    #[inline]
    pub(super) fn deliver(&mut self, now_ns: u64) -> Delivered {
        match self {
            Self::Open(_) => Delivered::Request,
            Self::Paired(pair) => pair.deliver(now_ns),
        }
    }

    /// A reply leaves: this many frames at once.
    #[inline]
    pub(super) fn reply(&mut self, now_ns: u64) -> u32 {
        match self {
            Self::Open(_) => 1,
            Self::Paired(pair) => pair.answer(now_ns),
        }
    }

    /// Returns when the first frame of the message arrived.
    pub(super) fn began_ns(&self) -> u64 {
        match self {
            Self::Paired(pair) => pair.began_ns,
            _ => 0,
        }
    }

    /// Takes the frames that the thread has not read. Returns the cycles of reading them, and,
    /// where the message is complete, of writing the reply.
    #[inline]
    pub(super) fn copy_cycles(&mut self, is_part: bool) -> f64 {
        match self {
            Self::Paired(pair) => pair.copy_cycles(is_part),
            _ => 0.0,
        }
    }

    /// Whether frames of a message wait for the thread.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        matches!(self, Self::Paired(pair) if pair.unread > 0)
    }

    /// Time of a latency that is not the server's.
    #[inline]
    pub(super) fn network_ns(&self) -> u64 {
        match self {
            Self::Open(open) => open.network_ns,
            _ => 0,
        }
    }
}

impl OpenArrivals {
    fn new(steps: Vec<(u64, f64)>, stream: Stream, network_ns: u64) -> Self {
        let mut open = Self { steps, at: 0, next_ns: 0, stream, network_ns };
        open.schedule(0);
        open
    }

    /// Draws the first arrival after this time. Where the rate changes, the rest of the
    /// gap is drawn again, which is exact because exponential gaps are memoryless.
    #[inline]
    fn schedule(&mut self, from_ns: u64) {
        let mut from_ns = from_ns;
        loop {
            let rate = self.steps[self.at].1;
            let change_ns = self.steps.get(self.at + 1).map_or(NEVER_NS, |step| step.0);
            let gap: f64 = Exp1.sample(&mut self.stream);
            let next_ns = from_ns as f64 + gap / rate;
            if rate > 0.0 && next_ns < change_ns as f64 {
                self.next_ns = next_ns as u64;
                return;
            }
            if change_ns == NEVER_NS {
                self.next_ns = NEVER_NS;
                return;
            }
            (from_ns, self.at) = (change_ns, self.at + 1);
        }
    }
}

impl PingPongState {
    fn new(config: &PingPong, frame_ns: u64) -> Self {
        let frames = config.bytes.div_ceil(u64::from(config.segment)).max(1) as u32;
        let mut pair = Self {
            config: config.clone(),
            frame_ns,
            frames,
            acknowledged_frames: FRAMES_AN_ACKNOWLEDGEMENT,
            ..Self::default()
        };
        pair.message(config.turnaround.0);
        pair
    }

    /// Time of a frame on the wire; the only frame of a small message is short.
    fn on_wire_ns(&self) -> u64 {
        let full = u64::from(self.config.segment);
        self.frame_ns * self.config.bytes.min(full) / full
    }

    /// The client's next message, its first frame at the card at this time.
    fn message(&mut self, first_ns: u64) {
        (self.replies, self.through, self.began_ns) = (false, 0, first_ns);
        self.unsent = self.frames;
        self.wire_ns = first_ns.saturating_sub(self.on_wire_ns());
        for _ in 0..self.frames.min(self.config.window) {
            self.send_towards(first_ns);
        }
    }

    /// The client's next frame reaches the card, at the earliest at this time.
    fn send_towards(&mut self, earliest_ns: u64) {
        if self.unsent > 0 {
            self.unsent -= 1;
            self.wire_ns = earliest_ns.max(self.wire_ns + self.on_wire_ns());
            self.coming.push_back(self.wire_ns);
        }
    }

    fn copy_cycles(&mut self, is_part: bool) -> f64 {
        let bytes = self.config.bytes as f64;
        let read = f64::from(std::mem::take(&mut self.unread)) * bytes / f64::from(self.frames);
        let written = if is_part { 0.0 } else { bytes };
        (read + written) * self.config.cycles_per_byte
    }

    /// The next frame or acknowledgement reaches the card. No frame of a message overtakes an
    /// acknowledgement.
    fn take_event(&mut self) -> WireEvent {
        self.coming.pop_front();
        if self.unreceived > 0 {
            self.unreceived -= 1;
            return WireEvent::Acknowledgement;
        }
        WireEvent::Frame
    }

    /// A round of polling receives frames, of which packets of at most `most` are made.
    /// Acknowledgements come before the frames of a message and are not merged.
    fn merge(&mut self, frames: u32, most: u32) -> (u32, u32) {
        let merged = frames.saturating_sub(self.acknowledgements);
        let packets = merged.div_ceil(most.max(1));
        self.packets += packets;
        self.owed += packets;
        (frames - merged + packets, merged)
    }

    /// The server writes a reply. A client that merges frames acknowledges packets, of as many
    /// frames as the server's had.
    fn answer(&mut self, now_ns: u64) -> u32 {
        (self.replies, self.through, self.unsent) = (true, 0, self.frames);
        self.wire_ns = now_ns;
        (self.replied_ns, self.took_ns) = (now_ns, now_ns.saturating_sub(self.began_ns));
        let merged = self.frames.checked_div(std::mem::take(&mut self.packets)).unwrap_or(0);
        self.acknowledged_frames = merged.min(self.config.window).max(FRAMES_AN_ACKNOWLEDGEMENT);
        self.send_away(self.frames.min(self.config.window), now_ns)
    }

    /// The server's frames leave, and acknowledgements return.
    fn send_away(&mut self, most: u32, now_ns: u64) -> u32 {
        let count = most.min(self.unsent);
        for _ in 0..count {
            self.unsent -= 1;
            self.wire_ns = now_ns.max(self.wire_ns + self.on_wire_ns());
            let sent = self.frames - self.unsent;
            if sent.is_multiple_of(self.acknowledged_frames) && self.unsent > 0 {
                self.acknowledgements += 1;
                self.unreceived += 1;
                self.coming.push_back(self.wire_ns + 2 * self.config.network.0);
            }
        }
        if self.unsent == 0 && count > 0 {
            self.message(self.next_message_ns());
        }
        count
    }

    /// When the first frame of the next message reaches the card: after the last frame of the
    /// reply has reached the client, so that outstanding acknowledgements arrive before it.
    fn next_message_ns(&self) -> u64 {
        let (back_ns, turnaround_ns) = (2 * self.config.network.0, self.config.turnaround.0);
        if !self.config.mirrored {
            return self.wire_ns + back_ns + turnaround_ns;
        }
        let both_ways_ns = back_ns + 2 * self.on_wire_ns();
        (self.replied_ns + self.took_ns + both_ways_ns).max(self.wire_ns + back_ns)
    }

    fn deliver(&mut self, now_ns: u64) -> Delivered {
        if self.acknowledgements > 0 {
            self.acknowledgements -= 1;
            if !self.replies {
                return Delivered::Part(0);
            }
            return Delivered::Part(self.send_away(self.acknowledged_frames, now_ns));
        }
        self.through += 1;
        self.unread += 1;
        if self.through == self.frames {
            return Delivered::Message;
        }
        self.send_towards(now_ns + 2 * self.config.network.0);
        Delivered::Part(0)
    }
}

/// Shares of the connections that each core has: connections are hashed to
/// buckets, buckets dealt to cores in turn (receive-side scaling).
fn shares(connections: u32, buckets: u32, cores: usize, streams: Replication) -> Vec<f64> {
    let mut stream = streams.stream(StreamPurpose::Route, 0);
    let mut counts = vec![0u32; cores];
    for _ in 0..connections {
        counts[stream.random_range(0..buckets) as usize % cores] += 1;
    }
    counts.into_iter().map(|count| f64::from(count) / f64::from(connections)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Nanos;

    const STREAMS: Replication = Replication { seed: 1, number: 0 };

    #[test]
    fn hashing_gives_every_connection_to_one_core_and_some_cores_more() {
        let shares = shares(1280, 128, 16, STREAMS);
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        let hottest = shares.iter().copied().fold(0.0, f64::max) * 16.0;
        assert!((1.05..1.5).contains(&hottest), "{hottest}");
    }

    #[test]
    fn arrivals_have_the_rate_of_their_step() {
        let steps = vec![(0, 1e-4), (1_000_000_000, 0.0), (2_000_000_000, 4e-4)];
        let mut open = OpenArrivals::new(steps, STREAMS.stream(StreamPurpose::Arrivals, 0), 0);
        let mut counts = [0u32; 3];
        while open.next_ns < 3_000_000_000 {
            counts[(open.next_ns / 1_000_000_000) as usize] += 1;
            let now_ns = open.next_ns;
            open.schedule(now_ns);
        }
        assert_eq!(counts[1], 0);
        assert!(counts[0].abs_diff(100_000) < 1500, "{counts:?}");
        assert!(counts[2].abs_diff(400_000) < 3000, "{counts:?}");
    }

    fn pair(bytes: u64, window: u32) -> PingPongState {
        let network = Nanos::from_micros(5);
        let turnaround = Nanos::from_micros(10);
        let segment = 1448;
        let (cycles_per_byte, mirrored) = (0.0, false);
        let config =
            PingPong { bytes, segment, window, network, turnaround, mirrored, cycles_per_byte };
        PingPongState::new(&config, 1230)
    }

    /// Plays one message with a server that takes frames `delay_ns` after they arrive.
    fn play(pair: &mut PingPongState, delay_ns: u64) -> (u32, u64) {
        let (mut frames, mut now_ns) = (0, 0);
        while let Some(at_ns) = pair.coming.pop_front() {
            now_ns = now_ns.max(at_ns) + delay_ns;
            frames += 1;
            if pair.deliver(now_ns) == Delivered::Message {
                break;
            }
        }
        (frames, now_ns)
    }

    #[test]
    fn a_message_is_so_many_frames_at_wire_speed() {
        let mut large = pair(64 * 1024, 100);
        let (frames, end_ns) = play(&mut large, 0);
        assert_eq!(frames, 46);
        assert_eq!(end_ns, 10_000 + 45 * 1230);
        let (frames, _) = play(&mut pair(64, 100), 0);
        assert_eq!(frames, 1);
    }

    #[test]
    fn a_window_makes_the_sender_wait_for_the_receiver() {
        let fast = play(&mut pair(512 * 1024, 32), 0).1;
        let slow = play(&mut pair(512 * 1024, 32), 3_000).1;
        let wire = 363 * 1230;
        assert!(fast >= wire && fast < wire + 30_000, "{fast}");
        assert!(slow > 2 * wire, "{slow}");
    }

    #[test]
    fn a_reply_is_followed_by_the_next_message() {
        let mut small = pair(64, 10);
        play(&mut small, 0);
        assert_eq!(small.answer(20_000), 1);
        let on_wire = small.on_wire_ns();
        assert_eq!(small.coming.front(), Some(&(20_000 + on_wire + 10_000 + 10_000)));
        assert!(!small.replies);
        // A large reply waits for acknowledgements.
        let mut large = pair(64 * 1024, 10);
        play(&mut large, 0);
        assert_eq!(large.answer(1_000_000), 10);
        assert_eq!(large.coming.len(), 5);
        assert!(large.replies);
    }

    #[test]
    fn frames_of_a_message_are_merged_and_acknowledgements_are_not() {
        let mut large = pair(64 * 1024, 100);
        assert_eq!(large.merge(46, 20), (3, 46), "20, 20 and 6 frames");
        assert_eq!(large.owed, 3);
        play(&mut large, 0);
        assert_eq!(large.answer(1_000_000), 46, "the window is wider than the reply");
        assert_eq!(large.acknowledged_frames, 15, "as many frames as the server's packets had");
        assert_eq!(large.acknowledgements, 3);
        let kinds: Vec<_> = (0..4).map(|_| large.take_event()).collect();
        let first = [WireEvent::Acknowledgement; 3];
        assert_eq!((&kinds[..3], kinds[3]), (&first[..], WireEvent::Frame));
        assert_eq!(large.merge(4, 20), (4, 1), "three acknowledgements and a frame");
    }

    #[test]
    fn all_frames_of_a_message_are_read_once_and_the_reply_is_written() {
        let mut large = pair(64 * 1024, 100);
        large.config.cycles_per_byte = 0.5;
        (0..20).for_each(|_| assert_eq!(large.deliver(0), Delivered::Part(0)));
        let parts = large.copy_cycles(true);
        assert_eq!(large.copy_cycles(true), 0.0, "they are read");
        for _ in 0..26 {
            large.deliver(0);
        }
        let both = parts + large.copy_cycles(false);
        assert!((both - 2.0 * 0.5 * 65_536.0).abs() < 1e-6, "{both}");
    }

    #[test]
    fn a_merged_reply_never_waits_for_an_acknowledgement_that_does_not_come() {
        let mut large = pair(512 * 1024, 32);
        let _ = large.merge(363, 363);
        play(&mut large, 0);
        let mut sent = large.answer(1_000_000);
        assert_eq!(large.acknowledged_frames, 32, "no more than the window");
        while large.replies && large.acknowledgements > 0 {
            let Delivered::Part(more) = large.deliver(2_000_000) else { panic!("a message") };
            sent += more;
        }
        assert_eq!(sent, 363);
    }

    #[test]
    fn a_mirrored_client_takes_as_long_as_the_server() {
        let mut small = pair(64, 10);
        small.config.mirrored = true;
        play(&mut small, 0);
        let (began_ns, on_wire_ns) = (small.began_ns, small.on_wire_ns());
        small.answer(began_ns + 40_000);
        let replied_ns = began_ns + 40_000 + on_wire_ns + 5_000;
        assert_eq!(small.coming.front(), Some(&(replied_ns + 40_000 + on_wire_ns + 5_000)));
    }
}
