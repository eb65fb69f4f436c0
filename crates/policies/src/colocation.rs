//! Policies for apps that share a machine: cores, cache ways, bandwidth and priority.

pub(crate) mod arq;
pub(crate) mod clite;
pub(crate) mod even;
pub(crate) mod heracles;
pub(crate) mod lc_first;
pub(crate) mod parties;
pub(crate) mod qos_wc;
pub(crate) mod rr;
pub(crate) mod satori;
pub(crate) mod tide;
pub(crate) mod unmanaged;
