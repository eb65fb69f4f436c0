//! A server behind a network card: how long interrupts may be delayed and how
//! fast cores run, against tail latency and energy.
//!
//! It is a configuration of [`crate::machine`], which [`NetServerModel::machine`] gives: an app
//! of event loops ([`EventLoops`](crate::machine::EventLoops)) on cores that step on their own,
//! behind the card, with the frequencies, idle states and power of every machine.
//!
//! ```
//! use lull_measure::Nanos;
//! use lull_sim::netserver::NetServerModel;
//!
//! let model: NetServerModel = toml::from_str(include_str!("netserver/example.toml"))?;
//! let mut server = model.simulation(1, 0)?;
//! server.run_until(Nanos::from_millis(200));
//! let totals = server.event_loop_totals();
//! assert!(totals.answered > 3_000 && totals.energy.0 > 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is left out
//!
//! Acknowledgements and retransmissions of open-loop traffic; the hand-over of
//! endless polling to a kernel thread (only a core whose polling alone exceeds
//! its time would need it); cache effects of batches; frequency transitions,
//! which take 10 us where a governor acts every 10 ms. Instructions are not
//! modelled, cycles are. Where requests are served in the round that receives them, the round
//! is simulated at its end, so that what a client sends after a reply arrives no earlier: a
//! ping-pong whose network is faster than a round is too slow on such a stack.

mod check;
mod model;

pub use crate::governor::Governor;
pub use crate::machine::{
    EventLoopTotals, InterruptRecord, MachinePlant, MachineSimulation, Merge, PingPong, Stack,
    Traffic,
};
pub use crate::moderation::Moderation;
pub use model::{AppModel, NetServerModel, NicModel, PackagePower};
