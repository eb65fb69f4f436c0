//! The model: a description of the simulated system, as plain data.
//!
//! A [`Model`] is a set of *tiers* of servers, named *pools* (connections,
//! tokens), and *apps*. An app is a source of requests and the *steps* each of
//! them takes. Steps nest as synchronous calls do: what a `call` takes (a
//! thread of the chosen server) it keeps until its inner steps are over, so a
//! slow tier pushes back on its callers without further modelling.
//!
//! ```toml
//! [[tier]]
//! name = "tomcat"
//! servers = 2
//! discipline = "sharing"
//! threads = 75
//!
//! [[tier]]
//! name = "mysql"
//! servers = 2
//! discipline = "sharing"
//! routing = "round-robin"
//!
//! [[pool]]
//! name = "connections"
//! size = 50
//! per = "tomcat"
//!
//! [[app]]
//! name = "rubbos"
//! source = { closed = { clients = 14000, think = { mean = "7s" } } }
//! steps = [{ call = { tier = "tomcat", steps = [
//!     { work = { mean = "0.48ms" } },
//!     { hold = { pool = "connections", steps = [
//!         { call = { tier = "mysql", steps = [{ work = { mean = "1.06ms" } }] } } ] } },
//!     { work = { mean = "0.48ms" } } ] } }]
//! ```
//!
//! Work is given as time on a core of speed 1 at its highest frequency.
//! [`Model::check`] refuses what cannot be simulated and names the key.

mod check;
mod distribution;
mod error;
mod hardware;
mod load;
mod source;

pub(crate) use check::{check_distribution, check_shape, some, unique, unknown};
pub use distribution::{Distribution, Shape};
pub(crate) use distribution::{Draw, Unit};
pub(crate) use error::{
    Checked, above_0, at_least_0, at_least_one, at_most, conflict, fail, range, refuse_if,
};
pub use error::{ModelError, Problem};
pub use hardware::{Cores, HardwareModel, PState};
pub use source::{Closed, Open, Phase, Schedule, Source, Spans};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A whole system: machines, tiers, pools and apps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Kinds of machine by name; a tier refers to them.
    #[serde(default)]
    pub machine: BTreeMap<String, HardwareModel>,
    /// Groups of equal servers.
    pub tier: Vec<Tier>,
    /// Named pools of connections or tokens.
    #[serde(default)]
    pub pool: Vec<Pool>,
    /// Sources of requests and what the requests do.
    pub app: Vec<App>,
    /// Bounds at which a run stops.
    #[serde(default)]
    pub limits: Limits,
}

/// A group of equal servers behind one name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// Name, unique among tiers.
    pub name: String,
    /// Number of servers.
    #[serde(default = "one")]
    pub servers: u32,
    /// Kind of machine of each server; one core of speed 1 without power model if absent.
    #[serde(default)]
    pub machine: Option<String>,
    /// The name of a machine with cores, of which each server is one ([`crate::hosts`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How a server's cores are shared among its requests.
    #[serde(default)]
    pub discipline: Discipline,
    /// How a caller chooses the server.
    #[serde(default)]
    pub routing: Routing,
    /// Requests that a server admits at a time, in service or waiting for a
    /// core or for a tier behind it; unlimited if absent.
    #[serde(default)]
    pub threads: Option<u32>,
    /// Requests that may wait for a thread; further ones are lost. Unlimited if absent.
    #[serde(default)]
    pub backlog: Option<u32>,
    /// The caller's action while it waits for a thread.
    #[serde(default)]
    pub when_full: WhenFull,
}

/// Order in which a server's cores serve its requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// First come, first served, one request per core.
    #[default]
    Fcfs,
    /// Processor sharing: all requests progress at the same rate.
    Sharing,
    /// Lower [`App::priority`] first; a request in service is never interrupted.
    Priority,
    /// Lower [`App::priority`] first, at once; the interrupted request resumes later.
    Preemptive,
}

/// How the server of a tier is chosen for a request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// Each with the same probability.
    #[default]
    Random,
    /// Servers in turn.
    RoundRobin,
    /// The one with the fewest requests admitted or waiting for it; of equal
    /// ones the one that was chosen longest ago.
    LeastPending,
    /// Servers with these probabilities, one each.
    Probabilities(Vec<f64>),
    /// The one with the same number (modulo the tier's size) as the server of
    /// this tier which the request called last.
    SameAs(String),
}

/// The rule of a tier whose threads are all taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// The caller keeps its threads and pools, but not its core.
    #[default]
    Wait,
    /// A caller whose last step was work keeps its core too (blocking after
    /// service); if that was the last step of a call, it leaves the call only
    /// when it is admitted here.
    Block,
}

/// A number of permits that requests hold during some of their steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Name, unique among pools.
    pub name: String,
    /// Number of permits.
    pub size: u32,
    /// The tier of which each server has such a pool; a single pool if absent.
    #[serde(default)]
    pub per: Option<String>,
    /// Requests that may wait for a permit; further ones are lost. Unlimited if absent.
    #[serde(default)]
    pub backlog: Option<u32>,
}

/// A source of requests and their steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct App {
    /// Name, unique among apps.
    pub name: String,
    /// The arrival process of its requests.
    pub source: Source,
    /// Class at tiers with priorities; 0 goes first.
    #[serde(default)]
    pub priority: u8,
    /// The steps of each request, in order.
    pub steps: Vec<Step>,
}

/// One step of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Computes on the server of the innermost call.
    Work(Distribution),
    /// Calls a tier and waits for the answer.
    Call {
        /// Name of the tier.
        tier: String,
        /// The steps of the called server.
        steps: Vec<Self>,
    },
    /// Takes a permit for the inner steps.
    Hold {
        /// Name of the pool.
        pool: String,
        /// The steps meanwhile.
        steps: Vec<Self>,
    },
    /// Takes one of several branches.
    Choose(Vec<Branch>),
    /// Does the steps, then with this probability again, and so on.
    Repeat {
        /// Probability of one more pass after each pass.
        probability: f64,
        /// The repeated steps.
        steps: Vec<Self>,
    },
}

/// One branch of a [`Step::Choose`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// Probability that it is taken; those of all branches sum to 1.
    pub probability: f64,
    /// The steps on it; may be empty.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// Bounds of a run, so that an overloaded model ends with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most requests in the system at a time.
    pub in_flight: u32,
    /// Most events of a run, at most 2^40.
    pub events: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { in_flight: 4_000_000, events: crate::order::MOST_EVENTS - 1 }
    }
}

impl Tier {
    /// Creates one single-core FCFS server of speed 1 without limits.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), servers: 1, ..Self::default() }
    }
}

impl Step {
    /// A call of `tier` that computes there once and does nothing else.
    pub fn visit(tier: &str, work: Distribution) -> Self {
        Self::Call { tier: tier.to_owned(), steps: vec![Self::Work(work)] }
    }
}

/// The default number of servers.
fn one() -> u32 {
    1
}
