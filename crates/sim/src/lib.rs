//! The discrete-event simulator: what happens to requests on a system of
//! servers, under the policies that also run on live hosts.
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
//! engine to policies through the seam that hosts have, and drives many of
//! them on one clock. [`placed`] is a node whose requests are placed one by one
//! on cores of several speeds. [`oversubscribed`] is a server with more threads
//! than cores, behind a gate. [`idle`] has the idle states of cores and their
//! governor. [`stats`] runs replications in parallel and turns them into means
//! with intervals. [`theory`] knows exact answers.
//!
//! # How time passes
//!
//! Time is whole nanoseconds. Events are totally ordered by (time, sequence
//! number of their scheduling). What is re-timed at nearly every event, the
//! next end of work of each group of cores and the next arrival of each
//! source, sits in a winner tree with one leaf each; the rare one-shot timers
//! sit in a heap. There is no third place where the future hides, so there are
//! no stale events but interrupted frequency transitions, which are told by
//! their sequence number.
//!
//! Work is drawn when a request arrives, in time on a reference core at its
//! highest frequency, and served against a *virtual clock* per group of cores.
//! A change of frequency or of the number of sharers changes the pace of that
//! clock and touches no request: it costs the same with one request running as
//! with ten thousand. Thinking clients are not events: all of one app share a
//! single clock, which is exact for exponential think times.
//!
//! # How randomness is kept apart
//!
//! Every use of randomness (arrivals, work, path, routing, phases, policies)
//! of every source in every replication has its own generator, seeded from
//! (seed, replication, use, index). Two policies that run the same replication
//! meet the same requests with the same work, so that their difference
//! ([`stats::Runs::difference`]) is far more precise than either figure. The
//! same seed gives the same bytes on any number of threads.
//!
//! # What is modelled, and what is not yet
//!
//! Servers of several groups of cores, each with its speed, frequency domains,
//! P-states and power; order of arrival, processor sharing, and priorities
//! with and without preemption; threads, pools and backlogs with push-back,
//! blocking after service, and loss; routing; closed, open, bursty and
//! modulated sources. In tiers idle states, network cards and gates are not modelled:
//! what a plant lacks it states as a missing capability or gauge, with the
//! reason. They fit in where the lane of cores (pace, power), the operations
//! of a program (gates) and the plant (knobs, gauges) are.
//!
//! A tier's server knows no threads on cores. [`node`] does, for one machine:
//! run queues with slices and affinity, cache ways, memory bandwidth. A server
//! behind a network card, with interrupts, idle states and power, is
//! [`netserver`].

pub mod bench_models;
pub mod dispatch;
mod engine;
mod heap;
pub mod idle;
pub mod model;
pub mod netserver;
pub mod node;
mod order;
pub mod oversubscribed;
pub mod plant;
mod random;
pub mod stats;
pub mod theory;
mod timers;
mod tree;

pub use engine::{AppTotals, DomainTotals, Engine, ServerTotals, Stop, Totals};
pub use model::{Model, ModelError};
