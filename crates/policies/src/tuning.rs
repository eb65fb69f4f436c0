//! Policies for interrupt delay, frequency and other numeric knobs.

pub(crate) mod bayop;
pub(crate) mod co_pi;
pub(crate) mod linux_default;
mod profile;
pub(crate) mod static_setting;
