//! memcached and Redis with statistics only: what watching costs event-driven servers.

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
const VALUE: [u8; 100] = [b'v'; 100];

/// A kind of server, and what is said to it and by it.
struct Kind {
    name: &'static str,
    program: &'static str,
    /// Before the option that names the port.
    options: &'static [&'static str],
    port: &'static str,
    /// What stores the value at `key`: before the value, and the answer.
    set: &'static str,
    stored: &'static [u8],
    get: &'static [u8],
    /// How the answer to that ends.
    end: &'static [u8],
}

const KINDS: [Kind; 2] = [
    Kind {
        name: "memcached",
        program: "memcached",
        options: &["-u", "root", "-l", "127.0.0.1", "-t", "1"],
        port: "-p",
        set: "set key 0 0 100\r\n",
        stored: b"STORED\r\n",
        get: b"get key\r\n",
        end: b"\r\nEND\r\n",
    },
    Kind {
        name: "Redis",
        program: "redis-server",
        options: &["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
        port: "--port",
        set: "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$100\r\n",
        stored: b"+OK\r\n",
        get: b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
        end: b"v\r\n",
    },
];

/// A server and the connections to it.
struct Cache {
    kind: &'static Kind,
    server: Running,
    connections: Vec<TcpStream>,
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    KINDS.iter().try_for_each(|kind| watched(kind, lull, report))?;
    report.note(format!(
        "memcached and Redis: one thread on a core of its own, {CONNECTIONS} connections of a \
         client on another core that asks for {} bytes on each and reads all answers, {} s a run, \
         {ROUNDS} rounds in turn; the agent's own CPU time is in that of the watched.",
        VALUE.len(),
        RUN.as_secs()
    ));
    Ok(())
}

fn watched(kind: &'static Kind, lull: &Path, report: &mut Report) -> Result<()> {
    let bare = RefCell::new(Cache::start(kind, lull, None)?);
    let watched = RefCell::new(Cache::start(kind, lull, Some(&[]))?);
    let costs = [RefCell::new(Vec::new()), RefCell::new(Vec::new())];
    let _client = Pinned::to_core(0)?;
    let run = |cache: &RefCell<Cache>, costs: &RefCell<Vec<f64>>| {
        let (rate, cpu_us) = cache.borrow_mut().run()?;
        costs.borrow_mut().push(cpu_us);
        Ok(rate)
    };
    let rates =
        interleave(ROUNDS, &mut [&mut || run(&bare, &costs[0]), &mut || run(&watched, &costs[1])])?;
    let what = |figure: &str| format!("{}, {CONNECTIONS} connections: {figure}", kind.name);
    let rate = |rates: &[f64]| Summary::of(rates.iter().copied());
    report.reported(&what("requests/s, bare"), rate(&rates[0]), "1/s");
    let (over, no_end) = (ratios(&rates[1], &rates[0]), f64::INFINITY);
    report.bounded(&what("watched / bare"), over, "ratio", THROUGHPUT_MIN..=no_end);
    let [bare_us, watched_us] = costs.map(|costs| costs.into_inner().split_off(1));
    let cpu = ratios(&watched_us, &bare_us);
    report.reported(&what("CPU a request, bare"), rate(&bare_us), "us");
    report.reported(&what("CPU a request, watched / bare"), cpu, "ratio");
    Ok(())
}

impl Cache {
    fn start(kind: &'static Kind, lull: &Path, exec: Option<&[&str]>) -> Result<Self> {
        let address = free_address()?;
        let mut command = super::command(lull, exec, &super::found(kind.program)?);
        command.args(kind.options).args([kind.port, &address.port().to_string()]);
        let server = {
            let _server = Pinned::to_core(1)?;
            served(command.stderr(Stdio::null()), address)?
        };
        let connections: Result<_> = (0..CONNECTIONS).map(|_| connected(address)).collect();
        let mut cache = Self { kind, server, connections: connections? };
        cache.fill()?;
        Ok(cache)
    }

    fn fill(&mut self) -> Result<()> {
        let connection = &mut self.connections[0];
        connection.write_all(&[self.kind.set.as_bytes(), &VALUE, b"\r\n"].concat())?;
        read_to(connection, self.kind.stored)
    }

    /// Requests a second, and the server's CPU time of each in microseconds.
    fn run(&mut self) -> Result<(f64, f64)> {
        let (before, begun, mut requests) = (usage(self.server.pid())?, Instant::now(), 0);
        while begun.elapsed() < RUN {
            for connection in &mut self.connections {
                connection.write_all(self.kind.get)?;
            }
            for connection in &mut self.connections {
                read_to(connection, self.kind.end)?;
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
            0 => bail!("the server answered something else: {:?}", &buffer[..filled]),
            bytes => filled += bytes,
        }
    }
    Ok(())
}
