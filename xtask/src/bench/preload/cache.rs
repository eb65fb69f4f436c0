//! memcached with statistics only: what watching costs an event-driven server.

use super::super::pinned::Pinned;
use super::super::process::{Running, usage};
use super::super::server::{free_address, served};
use super::super::stats::{Summary, interleave, ratios};
use super::Report;
use anyhow::{Result, bail};
use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Many short ones: what else the machine does meets both of a round alike.
const ROUNDS: usize = 31;
const RUN: Duration = Duration::from_secs(1);
const CONNECTIONS: usize = 64;
/// Watched over bare, at least.
const THROUGHPUT_MIN: f64 = 0.98;
const GET: &[u8] = b"get key\r\n";
const END: &[u8] = b"END\r\n";
const VALUE: [u8; 100] = [b'v'; 100];

/// A memcached and the connections to it.
struct Cache {
    server: Running,
    connections: Vec<TcpStream>,
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let bare = RefCell::new(Cache::start(lull, None)?);
    let watched = RefCell::new(Cache::start(lull, Some(&[]))?);
    let costs = [RefCell::new(Vec::new()), RefCell::new(Vec::new())];
    let _client = Pinned::to_core(0)?;
    let run = |cache: &RefCell<Cache>, costs: &RefCell<Vec<f64>>| {
        let (rate, cpu_us) = cache.borrow_mut().run()?;
        costs.borrow_mut().push(cpu_us);
        Ok(rate)
    };
    let rates =
        interleave(ROUNDS, &mut [&mut || run(&bare, &costs[0]), &mut || run(&watched, &costs[1])])?;
    let what = |figure: &str| format!("memcached, {CONNECTIONS} connections: {figure}");
    let rate = |rates: &[f64]| Summary::of(rates.iter().copied());
    report.reported(&what("requests/s, bare"), rate(&rates[0]), "1/s");
    let (over, no_end) = (ratios(&rates[1], &rates[0]), f64::INFINITY);
    report.bounded(&what("watched / bare"), over, "ratio", THROUGHPUT_MIN..=no_end);
    let [bare_us, watched_us] = costs.map(|costs| costs.into_inner().split_off(1));
    let cpu = ratios(&watched_us, &bare_us);
    report.reported(&what("CPU a request, bare"), rate(&bare_us), "us");
    report.reported(&what("CPU a request, watched / bare"), cpu, "ratio");
    report.note(format!(
        "memcached: one thread on a core of its own, {CONNECTIONS} connections of a client on \
         another core that sends a GET of {} bytes on each and reads all answers, {} s a run, \
         {ROUNDS} rounds in turn; the agent's own CPU time is in that of the watched.",
        VALUE.len(),
        RUN.as_secs()
    ));
    Ok(())
}

impl Cache {
    fn start(lull: &Path, exec: Option<&[&str]>) -> Result<Self> {
        let address = free_address()?;
        let mut command = super::command(lull, exec, &super::found("memcached")?);
        command.args(["-u", "root", "-l", "127.0.0.1", "-t", "1"]);
        command.args(["-p", &address.port().to_string()]);
        let server = {
            let _server = Pinned::to_core(1)?;
            served(command.stderr(Stdio::null()), address)?
        };
        let connections: Result<_> = (0..CONNECTIONS).map(|_| connected(address)).collect();
        let mut cache = Self { server, connections: connections? };
        cache.fill()?;
        Ok(cache)
    }

    fn fill(&mut self) -> Result<()> {
        let connection = &mut self.connections[0];
        connection.write_all(format!("set key 0 0 {}\r\n", VALUE.len()).as_bytes())?;
        connection.write_all(&[&VALUE[..], b"\r\n"].concat())?;
        read_to(connection, b"STORED\r\n")
    }

    /// Requests a second, and the server's CPU time of each in microseconds.
    fn run(&mut self) -> Result<(f64, f64)> {
        let (before, begun, mut requests) = (usage(self.server.pid())?, Instant::now(), 0);
        while begun.elapsed() < RUN {
            for connection in &mut self.connections {
                connection.write_all(GET)?;
            }
            for connection in &mut self.connections {
                read_to(connection, END)?;
            }
            requests += CONNECTIONS;
        }
        let (took, after) = (begun.elapsed(), usage(self.server.pid())?);
        let cpu_us = (after.cpu_s - before.cpu_s) * 1e6;
        Ok((requests as f64 / took.as_secs_f64(), cpu_us / requests as f64))
    }
}

fn connected(address: SocketAddr) -> Result<TcpStream> {
    let connection = TcpStream::connect(address)?;
    connection.set_nodelay(true)?;
    Ok(connection)
}

/// Reads an answer, which ends so.
fn read_to(connection: &mut TcpStream, end: &[u8]) -> Result<()> {
    let (mut buffer, mut filled) = ([0; 512], 0);
    while !buffer[..filled].ends_with(end) {
        match connection.read(&mut buffer[filled..])? {
            0 => bail!("memcached answered something else: {:?}", &buffer[..filled]),
            bytes => filled += bytes,
        }
    }
    Ok(())
}
