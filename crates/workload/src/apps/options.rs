//! A latency-critical server: Monte-Carlo prices of Asian options.
//!
//! The finance server of the EETL paper (MICRO-50, section 5.1), whose requests
//! differ widely in length. One line a request, one line a reply, in order:
//!
//! ```text
//! PRICE s0 k r q sigma t m n seed     spot, strike, rate, dividend yield, volatility,
//!                                     years, steps, paths, seed of the random numbers
//! OK price stderr service_us queue_us price and its standard error, time at work and in the queue
//! ERR reason                          the request is malformed, or was refused
//! ```
//!
//! The price is `e^(-rT) mean(max(A - K, 0))` with `A` the arithmetic mean of a
//! geometric Brownian motion over `m` steps.

mod calibrate;
mod connection;
mod demand;
mod price;
mod protocol;
mod queue;
mod server;

pub use calibrate::{Calibration, calibrate};
pub use demand::{Demand, DemandError};

pub(crate) use price::Walk;
pub use price::{Estimate, estimate};
pub use protocol::{AsianCall, RequestError};
pub use server::{RequestHook, Server, ServerConfig, ServerError, ServerReport};

/// The default port of the server.
pub const DEFAULT_PORT: u16 = 7300;
