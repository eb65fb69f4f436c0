//! Policies for the frequencies of cores.

pub(crate) mod adaptive_dvfs;
pub(crate) mod conservative;
pub(crate) mod constant;
pub(crate) mod demeter;
pub(crate) mod ondemand;
pub(crate) mod schedutil;
pub(crate) mod step_dvfs;
