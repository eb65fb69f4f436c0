//! Servers that benchmarks start.

use super::process::Running;
use anyhow::{Result, bail};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start; a database takes longest.
const START_MAX: Duration = Duration::from_secs(60);

/// Starts a server and waits until it can be connected to.
///
/// # Errors
/// If it cannot start, ends, or takes too long.
pub(super) fn served(command: &mut Command, address: SocketAddr) -> Result<Running> {
    let mut process = Running::start(command.stdout(Stdio::null()))?;
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        if process.has_ended() || started.elapsed() > START_MAX {
            bail!("{command:?} does not answer at {address}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(process)
}

/// A port on loopback that nobody listens at now.
///
/// # Errors
/// What the kernel says.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Where a program is, looking where servers are installed too.
pub(super) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(system).map(|place| place.join(program));
    places.find(|place| place.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_where_shells_look() {
        assert!(on_path("sh").is_some());
        assert!(on_path("no-such-program").is_none());
    }
}
