//! An app of event loops as plain data, and its checks.

use super::load::LoadStep;
use crate::model::{Checked, Shape, above_0, at_least_0, at_most, range, refuse_if};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// Most requests a second: a nanosecond apart.
const MOST_PER_S: f64 = 1e9;

/// Most frames of a message, each of which is an event.
const MOST_FRAMES: u64 = 1 << 20;

/// An app of event loops behind a network card: one thread pinned to each core, which serves the
/// connections that the card hashes to its core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct EventLoops {
    /// Mean cycles of a request, reply included.
    pub cycles: f64,
    /// How they vary.
    #[serde(default = "constant")]
    pub shape: Shape,
    /// The software between card and app.
    pub stack: Stack,
    /// Time of a full frame on the wire.
    pub frame: Nanos,
    /// The requests that arrive.
    pub traffic: Traffic,
}

/// The cost of software, in cycles and in time that does not depend on the frequency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Stack {
    /// Whether requests are served where packets are received, without
    /// threads (a specialised OS), instead of by a thread that polling wakes
    /// and interrupts pre-empt (Linux).
    pub run_to_completion: bool,
    /// An interrupt and the start of polling.
    pub interrupt_cycles: f64,
    /// Receiving a packet.
    pub rx_cycles: f64,
    /// Cleaning up a sent packet.
    pub tx_clean_cycles: f64,
    /// Waking the thread.
    pub wake_cycles: f64,
    /// Cost of one call that returns which connections are ready (`epoll_wait`).
    pub poll_cycles: f64,
    /// Requests that one such call returns at most.
    pub events: u32,
    /// Going to sleep.
    pub sleep_cycles: f64,
    /// Memory time of a request, whatever the frequency.
    pub memory: Nanos,
    /// Whether a round of fewer packets than the card's budget ends polling (Linux's NAPI), so
    /// that those that have arrived meanwhile interrupt again. By default the core polls until
    /// there are none.
    #[serde(default)]
    pub ends_polling_below_budget: bool,
    /// How frames of one message are merged (Linux: GRO and TSO); each passes alone if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<Merge>,
}

/// How the stack merges frames of one message into packets: those that a round of polling
/// receives, and those of a reply. Only a ping-pong has messages of more than one frame.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Merge {
    /// Frames of a packet, at most.
    pub frames: u32,
    /// Cycles of each received frame, besides those of its packet.
    pub cycles: f64,
}

/// The clients of event loops.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Traffic {
    /// Clients that do not wait for replies: Poisson arrivals on connections
    /// that are hashed to cores.
    Open {
        /// Requests per second of all connections.
        load: Vec<LoadStep>,
        /// Number of connections.
        connections: u32,
        /// Time in the network and in the client, added to every latency.
        network: Nanos,
    },
    /// One client that sends a message, waits for one of the same size, and
    /// begins again (NetPIPE).
    PingPong(PingPong),
}

/// A client that exchanges messages of one size over one connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PingPong {
    /// Bytes of a message.
    pub bytes: u64,
    /// Bytes of payload in a full frame.
    pub segment: u32,
    /// Frames that may be on the way without acknowledgement.
    pub window: u32,
    /// Time in the network, one way.
    pub network: Nanos,
    /// Time of the client between the last frame of a reply and the first of
    /// the next message.
    pub turnaround: Nanos,
    /// Whether the client is such a server, too: its next message begins as long after the
    /// first frame of a reply as the server's reply began after the first frame of the message.
    /// The turn-around is then that of the first message only.
    #[serde(default)]
    pub mirrored: bool,
    /// Cycles of the server for each byte that it reads or writes.
    pub cycles_per_byte: f64,
}

const fn constant() -> Shape {
    Shape::Constant
}

impl Stack {
    /// Checks its numbers; `key` is where it is written, with a dot at its end.
    pub(crate) fn check(&self, key: &str) -> Checked {
        for (cycles, name) in [
            (self.interrupt_cycles, "interrupt-cycles"),
            (self.rx_cycles, "rx-cycles"),
            (self.tx_clean_cycles, "tx-clean-cycles"),
            (self.wake_cycles, "wake-cycles"),
            (self.poll_cycles, "poll-cycles"),
            (self.sleep_cycles, "sleep-cycles"),
        ] {
            at_least_0(cycles, &format!("{key}{name}"))?;
        }
        if let Some(merge) = self.merge {
            above_0(f64::from(merge.frames), &format!("{key}merge.frames"))?;
            at_least_0(merge.cycles, &format!("{key}merge.cycles"))?;
        }
        above_0(f64::from(self.events), &format!("{key}events"))
    }
}

impl Traffic {
    /// Connections of all clients.
    pub(crate) fn connections(&self) -> u32 {
        match self {
            Self::Open { connections, .. } => *connections,
            Self::PingPong(_) => 1,
        }
    }

    /// Checks its numbers; `key` is where it is written, with a dot at its end.
    pub(crate) fn check(&self, key: &str) -> Checked {
        let (load, connections) = match self {
            Self::PingPong(pair) => return pair.check(&format!("{key}ping-pong.")),
            Self::Open { load, connections, .. } => (load, connections),
        };
        above_0(f64::from(*connections), &format!("{key}open.connections"))?;
        let begins = load.first().is_some_and(|step| step.from == Nanos::ZERO);
        let is_wrong = !begins || !load.is_sorted_by(|a, b| a.from < b.from);
        let order = "the first step begins at 0s, and each later than the one before";
        refuse_if(is_wrong, format!("{key}open.load"), order)?;
        for (at, step) in load.iter().enumerate() {
            let rate = step.rate_per_s;
            let is_possible = (0.0..=MOST_PER_S).contains(&rate);
            range(rate, is_possible, "0 to 1e9", &format!("{key}open.load[{at}].rate-per-s"))?;
        }
        Ok(())
    }
}

impl PingPong {
    fn check(&self, key: &str) -> Checked {
        above_0(self.bytes as f64, &format!("{key}bytes"))?;
        above_0(f64::from(self.segment), &format!("{key}segment"))?;
        let frames = self.bytes.div_ceil(u64::from(self.segment));
        at_most(frames, MOST_FRAMES, "frames of a message", &format!("{key}bytes"))?;
        let wanted = "at least 2, or no acknowledgement comes";
        range(f64::from(self.window), self.window >= 2, wanted, &format!("{key}window"))?;
        at_least_0(self.cycles_per_byte, &format!("{key}cycles-per-byte"))
    }
}
