//! The discrete-event simulator: requests on a system of servers, under the policies
//! that also run on live hosts.
//!
//! # From a model to figures
//!
//! ```
//! use lull_measure::Nanos;
//! use lull_sim::model::Model;
//! use lull_sim::plant::System;
//! use lull_sim::stats::{Experiment, Warmup};
//!
//! let model: Model = toml::from_str(r#"
//!     [[tier]]
//!     name = "web"
//!
//!     [[app]]
//!     name = "site"
//!     source = { open = { rate_per_s = 800.0 } }
//!     steps = [{ call = { tier = "web", steps = [{ work = { mean = "1ms" } }] } }]
//! "#)?;
//! let experiment = Experiment {
//!     warmup: Warmup::Fixed(Nanos::from_secs(1)),
//!     length: Nanos::from_secs(20),
//!     first: 0,
//!     replications: 5,
//! };
//! let runs = experiment.run(|replication| Ok(System::new(&model, 1, replication)?))?;
//! let busy = runs.estimate(|totals| totals.servers[0].utilisation(totals.span)).unwrap();
//! assert!(busy.near(0.8, 2.0), "{busy:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`model`] is plain data, readable from TOML and checked before anything is
//! built. [`Engine`] is one replication of it. [`plant`] shows servers of an
//! engine to policies through the `Plant` trait that hosts implement, and drives many
//! of them on one clock. [`machine`] is one machine of the parts that its model names: run
//! queues, frequencies, idle states, cache, memory, a network card, a gate. [`oversubscribed`] is
//! a configuration of it, a server with more threads than cores; [`dispatch`] another, whose
//! requests are dispatched one by one to cores of several speeds; and [`netserver`] a third, an
//! event loop on each core behind a network card. [`hosts`] has tiers whose
//! servers are machines. [`idle`] has the idle states of cores and their governor. [`stats`]
//! runs replications in parallel and computes means with confidence intervals. [`theory`] has
//! exact results of queueing theory.
//!
//! # How time passes
//!
//! Time is whole nanoseconds. Events are totally ordered by (time, sequence
//! number of their scheduling). The event queue has two parts. A winner tree has
//! one leaf for each clock that is re-timed at nearly every event: the next end of
//! work of each group of cores, and the next arrival of each source. A heap has the
//! rare one-shot timers. The only stale events are those of interrupted frequency
//! transitions; the engine recognises them by their sequence number.
//!
//! Work is drawn when a request arrives, in time on a reference core at its
//! highest frequency, and served against a *virtual clock* per group of cores.
//! A change of frequency or of the number of sharers changes the pace of that
//! clock and touches no request: it costs the same with one request running as
//! with ten thousand. Thinking clients are not events: all of one app share a
//! single clock, which is exact for exponential think times.
//!
//! # Random streams and common random numbers
//!
//! Every use of randomness (arrivals, work, path, routing, phases, policies)
//! of every source in every replication has its own generator, seeded from
//! (seed, replication, purpose, index). Two policies that run the same replication
//! receive the same requests with the same work (common random numbers), so that
//! their difference ([`stats::Runs::difference`]) is far more precise than either
//! figure. The same seed gives the same bytes on any number of threads.
//!
//! # What is modelled, and what is not yet
//!
//! Servers of several groups of cores, each with its speed, frequency domains,
//! P-states and power; order of arrival, processor sharing, and priorities
//! with and without preemption; threads, pools and backlogs with push-back,
//! blocking after service, and loss; routing; closed, open, bursty and
//! modulated sources. Stations have no idle states, network cards or gates; a plant
//! reports each as a missing capability or gauge, with the reason.
//!
//! A station does not model threads on cores; [`machine`] does, and a tier's servers may be
//! machines ([`hosts`]).

pub mod dispatch;
mod engine;
mod governor;
mod heap;
pub mod hosts;
pub mod idle;
pub mod machine;
pub mod model;
mod moderation;
pub mod netserver;
mod order;
pub mod oversubscribed;
pub mod plant;
mod replication;
pub mod stats;
pub mod theory;
mod timers;
mod tree;
mod vector;

pub use engine::{AppTotals, DomainTotals, Engine, ServerTotals, Stop, Totals};
pub use model::{Model, ModelError};
pub use replication::{Replication, RunLength};
