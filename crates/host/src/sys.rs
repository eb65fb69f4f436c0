//! The only place with `unsafe`: system calls that no safe library offers.

pub mod bpf;
pub mod clock;
#[cfg(feature = "rig")]
pub mod device_memory;
pub mod memory;
pub mod netlink;
pub mod page;
pub mod peer;
pub mod sched;
