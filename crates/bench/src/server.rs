//! Servers that benchmarks start.

use super::process::Running;
use anyhow::{Result, bail};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to start; a database takes longest.
const START_MAX: Duration = Duration::from_secs(60);

/// The words with which `lull run` reports an open session.
const OPEN: &str = "recording to";

/// Starts a server and waits until it can be connected to.
///
/// # Errors
/// If it cannot start, ends, or takes too long.
pub(super) fn served(command: &mut Command, address: SocketAddr) -> Result<Running> {
    answering(command.stdout(Stdio::null()), address)
}

/// As [`served`], and returns the standard output if the command pipes it.
///
/// # Errors
/// As [`served`].
pub(super) fn answering(command: &mut Command, address: SocketAddr) -> Result<Running> {
    let mut process = Running::start(command)?;
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        if process.has_ended() || started.elapsed() > START_MAX {
            bail!("{command:?} does not answer at {address}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(process)
}

/// Starts an agent with its output in `log`, and waits until its session is open.
///
/// # Errors
/// If it cannot start, ends, or takes too long.
pub(super) fn agent(command: &mut Command, log: &Path) -> Result<Running> {
    command.stdout(Stdio::null()).stderr(File::create(log)?);
    let mut agent = Running::start(command)?;
    let started = Instant::now();
    loop {
        let logged = std::fs::read_to_string(log)?;
        if logged.contains(OPEN) {
            return Ok(agent);
        }
        if agent.has_ended() || started.elapsed() > START_MAX {
            bail!("the agent does not come up: {}", logged.trim());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A port on loopback at which no process listens now.
///
/// # Errors
/// The kernel's error.
pub(super) fn free_port() -> Result<u16> {
    Ok(free_address()?.port())
}

/// As [`free_port`], with the address.
///
/// # Errors
/// The kernel's error.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
