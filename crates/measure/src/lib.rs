//! Units, measures and the metric catalogue of Lull.
//!
//! Units ([`Nanos`], [`Watts`], [`Joules`], [`Hertz`]), request latency over HDR histograms
//! ([`Latency`]) and by buckets of others ([`Buckets`]), samples of single requests
//! ([`RequestSample`]), the entropy family of Ah-Q ([`entropy`]), what a policy is worth in
//! resources ([`equivalence`]), energy efficiency ([`efficiency`]), how long cores can sleep
//! between batches ([`ideal_batch`]), how users and service-level objectives take latency
//! ([`compliance`]), the tail-latency/throughput bound ([`tlt`]), intervals and tests of noisy
//! measurements ([`statistics`]), the [`catalogue`] that describes every metric once, the [`push`]
//! messages by which apps report latency and progress to the agent, the lines by which processes
//! [`register`] as apps, and how text that others chose is printed ([`escape`]).
//!
//! This crate knows nothing of the rest of Lull: no clock, no I/O, no apps.

mod buckets;
pub mod catalogue;
pub mod compliance;
pub mod efficiency;
pub mod entropy;
pub mod equivalence;
pub mod escape;
mod gauge;
pub mod ideal_batch;
mod latency;
mod percentile;
pub mod push;
pub mod register;
mod request_sample;
mod shared_text;
pub mod statistics;
pub mod tlt;
mod units;

pub use buckets::{Buckets, QuantileRange};
pub use gauge::{Gauge, Missing};
pub use latency::{Latency, LatencyError};
pub use percentile::{Percentile, PercentileError};
pub use request_sample::{RequestSample, SampledRequest, Sampler};
pub use shared_text::SharedText;
pub use units::{Hertz, Joules, Nanos, UnitError, Watts};

/// Implements the conversions by which serde reads and writes a type as its text, for
/// `#[serde(try_from = "String", into = "String")]`.
#[macro_export]
macro_rules! convert_as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = <Self as std::str::FromStr>::Err;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}
