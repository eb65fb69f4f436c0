//! The seams of Lull and the loop that joins them.
//!
//! ```text
//!            Observation                     Plan
//!   Plant ───────────────▶ Controller(Policy) ───▶ limits ───▶ Plant::apply
//!     ▲                                                           │
//!     └──────────────── journal: what, why, expected, came ◀──────┘ Applied
//! ```
//!
//! A [`Plant`] is anything a policy can watch and steer: the host or a
//! simulated machine. A [`Policy`] is a pure function with state. The
//! [`ControlLoop`] joins one of each and knows neither. A [`dispatcher::Dispatcher`]
//! decides for single requests, beside them; a [`admission::Admission`] how many
//! queries each connection of a server may run. This crate reads no
//! clock, does no I/O and does not know where observations come from.

pub mod admission;
mod app;
mod assess;
mod capability;
#[cfg(feature = "conformance")]
pub mod conformance;
mod control_loop;
mod controller;
mod cores;
pub mod dispatcher;
mod evidence;
pub mod journal;
mod knob;
mod limits;
mod machine;
mod observation;
mod pace;
mod plan;
mod plant;
mod policy;
mod readings;
mod references;
mod rhythm;
mod roster;
mod safe;
mod samples;
mod subset;
mod totals;
mod value;
mod written;

pub use app::{AppId, AppSpec, Class, Objective, in_force, numbered};
pub use assess::{AppAssessment, Assessment, Assessor, Tail};
pub use capability::{Capabilities, Finding};
pub use control_loop::{ControlLoop, Epoch};
pub use controller::{Controller, RebuildPolicy, Rules, Turn};
pub use cores::{CoreId, CoreSet, CoreSetError};
pub use evidence::TrialEvidence;
pub use knob::{
    Capability, DialId, DomainId, Dwell, KNOBS, Knob, KnobRow, KnobScope, NicId, Setting, Standard,
};
pub use limits::{Limits, LimitsError};
pub use machine::{
    BandwidthControl, CacheControl, Core, CoreType, Dial, FrequencyDomain, GateControl, Machine,
    Nic,
};
pub use observation::{
    AppObservation, ClientAccountObservation, ClientClassObservation, CoreObservation,
    EnergyObservation, EnergySource, ForeignChange, LatencyObservation, Observation, Progress,
    ProgressSource, Quantiles, ReportedTail,
};
pub use pace::{AdaptiveEpoch, EpochRule, Pace};
pub use plan::{Direction, Expectation, Plan, Reason, Step};
pub use plant::{Applied, ApplyOutcome, Outcome, Plant, PlantError};
pub use policy::{Discovery, Policy, PolicyError, Rng, require};
pub use readings::{Readings, SpanWeights, readings_of_apps};
pub use references::{Correction, ReferenceCheck};
pub use rhythm::{Rhythm, RhythmError, RhythmRule};
pub use roster::{RosterChange, RosterEvent};
pub use safe::safe_plan;
pub(crate) use samples::sample_value;
pub use samples::samples;
pub use subset::build_without_removed;
pub use totals::{LatencyTotals, NATIVE_SCHEMA, Totals};
pub use value::{Coalescing, EnergyPreference, Scheduling, Value, ValueKind, WayMask};
pub use written::{AppError, HostObjective, LatencyOf, WrittenObjective, stall_time_per_s};
