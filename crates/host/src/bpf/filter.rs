//! Which sockets programs watch: the variable `filter` of `crates/host/bpf/watched_sockets.h`.

use super::BpfError;
use super::object::Object;
use std::collections::BTreeSet;

/// The 64-bit words of the variable: the inode number of a network namespace, and a bit for
/// each local port.
struct Filter;

impl Filter {
    const NAMESPACE: usize = 0;
    const PORTS: usize = 1;
    const WORDS: usize = Self::PORTS + (1 << 16) / 64;
}

/// Sets where the server of an object's programs listens: at these ports, in the network
/// namespace with this inode number.
///
/// # Errors
/// The kernel's error; nothing has changed then.
pub(super) fn set_listener(
    object: &mut Object,
    namespace: u32,
    ports: &BTreeSet<u16>,
) -> Result<(), BpfError> {
    let mut filter = [0; Filter::WORDS];
    filter[Filter::NAMESPACE] = namespace.into();
    for port in ports {
        filter[Filter::PORTS + usize::from(port / 64)] |= 1 << (port % 64);
    }
    object.set_variable(&filter)
}
