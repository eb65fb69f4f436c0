//! The on-call runtime: what its calls cost, and what its gate gains on real servers.
//!
//! Every setting is a server of its own that lives through the whole benchmark;
//! loads take turns on them. The bounds are those that the design asks for.

mod cache;
mod calls;
mod database;
mod sysbench;

pub(super) use calls::model;

use super::process::Running;
use super::{Bench, Context, report::Report};
use anyhow::{Result, bail};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(super) const BENCH: Bench = Bench {
    name: "preload",
    about: "The on-call runtime beside the bare server: cost of a call, statistics only on \
            memcached and MariaDB, and the gate under 64 to 512 connections",
    run,
};

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(60);

fn run(context: &Context) -> Result<Report> {
    let lull = context.build("lull-app", "lull")?;
    let mut report = Report::default();
    calls::measure(&lull, &mut report)?;
    cache::measure(&lull, &mut report)?;
    database::measure(&lull, &mut report)?;
    Ok(report)
}

/// `program`, under `lull exec` with these options or bare.
fn command(lull: &Path, exec: Option<&[&str]>, program: &Path) -> Command {
    let Some(options) = exec else { return Command::new(program) };
    let mut command = Command::new(lull);
    command.arg("exec").args(options).arg("--").arg(program);
    command
}

/// Starts a server and waits until it can be connected to.
fn served(mut command: Command, address: SocketAddr) -> Result<Running> {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Running::start(&mut command)?;
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        if process.has_ended() || started.elapsed() > START_MAX {
            bail!("{command:?} does not answer at {address}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(process)
}

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Where a program is, looking where servers are installed too.
fn on_path(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(system).map(|place| place.join(program));
    match places.find(|place| place.is_file()) {
        Some(place) => Ok(place),
        None => bail!("no {program} on this machine: `cargo xtask test` installs it"),
    }
}
