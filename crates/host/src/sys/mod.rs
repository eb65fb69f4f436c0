//! The only place with `unsafe`: system calls that no safe library offers.

pub mod clock;
pub mod netlink;
pub mod sched;
