//! memcached and Redis with statistics only: what watching costs event-driven servers.

use super::super::pinned::Pinned;
use super::super::process::{Running, usage};
use super::super::server::{free_address, served};
use super::super::stats::{Summary, interleave, ratios};
use super::Report;
use anyhow::{Result, bail};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Two bare servers of one kind differ by 1 %, by where their memory lies: many of
/// each are started, and of each pair there is one ratio.
const PAIRS: usize = 15;
/// Many short runs, so that other work of the machine affects both servers of a round alike.
const ROUNDS: usize = 100;
const RUN: Duration = Duration::from_millis(50);
const CONNECTIONS: usize = 64;
/// Watched over bare, at least.
const THROUGHPUT_MIN: f64 = 0.98;
const VALUE: [u8; 100] = [b'v'; 100];

/// A kind of server, with its request and its reply.
struct Kind {
    name: &'static str,
    program: &'static str,
    /// Options before the one that names the port.
    options: &'static [&'static str],
    port: &'static str,
    /// The command that stores the value at `key`: the part before the value, and the answer.
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

/// The results of one of two servers in its runs.
#[derive(Debug, Default)]
struct Done {
    requests_per_s: Vec<f64>,
    requests: usize,
    cpu_us: f64,
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    KINDS.iter().try_for_each(|kind| watched(kind, lull, report))?;
    report.note(format!(
        "One thread on a core of its own, {CONNECTIONS} connections of a client on another core \
         that asks for {} bytes on each and reads all answers. {PAIRS} pairs of servers, bare and \
         watched, each started for {ROUNDS} runs of {} ms in turn; a pair's ratio of requests/s is \
         the median of its rounds', and its CPU time that of all runs. The agent's own CPU time, \
         on the server's core, is in that of the watched.",
        VALUE.len(),
        RUN.as_millis()
    ));
    Ok(())
}

fn watched(kind: &'static Kind, lull: &Path, report: &mut Report) -> Result<()> {
    let pairs: Result<Vec<[Done; 2]>> =
        (0..PAIRS).map(|at| pair(kind, lull, at % 2 == 1)).collect();
    let pairs = pairs?;
    let what = |figure: &str| format!("{}, {CONNECTIONS} connections: {figure}", kind.name);
    let of = |figure: &dyn Fn(&[Done; 2]) -> f64| Summary::new(pairs.iter().map(figure));
    let rate = of(&|[bare, _]| Summary::new(bare.requests_per_s.iter().copied()).median);
    report.reported(&what("requests/s, bare"), rate, "1/s");
    let kept = of(&|[bare, watched]| ratios(&watched.requests_per_s, &bare.requests_per_s).median);
    report.bounded(&what("watched / bare"), kept, "ratio", THROUGHPUT_MIN..=f64::INFINITY);
    let cpu_us = of(&|[bare, _]| bare.cpu_us_each());
    report.reported(&what("CPU a request, bare"), cpu_us, "us");
    let cpu = of(&|[bare, watched]| watched.cpu_us_each() / bare.cpu_us_each());
    report.reported(&what("CPU a request, watched / bare"), cpu, "ratio");
    Ok(())
}

/// A bare server and a watched one in turn; which is started first, and has the
/// first turn, is not always the same.
fn pair(kind: &'static Kind, lull: &Path, is_turned: bool) -> Result<[Done; 2]> {
    let mut execs = [None, Some(&[][..])];
    if is_turned {
        execs.reverse();
    }
    let [first, second] = execs.map(|exec| Cache::start(kind, lull, exec));
    let (mut first, mut second) = (first?, second?);
    let _client = Pinned::to_core(0)?;
    let mut done = [Done::default(), Done::default()];
    let [of_first, of_second] = &mut done;
    let rates =
        interleave(ROUNDS, &mut [&mut || first.run(of_first), &mut || second.run(of_second)])?;
    for (done, rates) in done.iter_mut().zip(rates) {
        done.requests_per_s = rates;
    }
    if is_turned {
        done.reverse();
    }
    Ok(done)
}

impl Done {
    fn cpu_us_each(&self) -> f64 {
        self.cpu_us / self.requests as f64
    }
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

    /// Requests a second of one run.
    fn run(&mut self, done: &mut Done) -> Result<f64> {
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
        // The kernel counts in ticks of 10 ms. The process does next to nothing between its runs,
        // so a part of a tick that one run lacks is counted in another.
        done.cpu_us += (after.cpu_s - before.cpu_s) * 1e6;
        done.requests += requests;
        Ok(requests as f64 / took.as_secs_f64())
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
