//! The cost of watching a server's queries in the kernel (`latency = "ebpf"`).
//!
//! One thread is client and server: a query is four calls on two sockets, of which the
//! server's two are watched, those of another server's are, or no server's.

use super::pinned::Pinned;
use super::stats::{BoxedContender, Summary, interleave_all, ns_each};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result};
use lull_host::bpf::QueryWatch;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;

pub(super) const BENCH: Bench = Bench {
    name: "queries",
    about: "A query on a TCP connection, watched by the kernel for latency = \"ebpf\", beside \
            another server's that is, and no server's",
    run,
};

const ROUNDS: usize = 100;
const QUERIES: usize = 20_000;
/// Bytes of a query, and of its answer.
const BYTES: usize = 100;

/// Both ends of a connection.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

fn run(_: &Context) -> Result<Report> {
    let _pinned = Pinned::to_last_core()?;
    let cores = xtask::here::cores();
    let pair = RefCell::new(Pair::connect()?);
    let port = pair.borrow().server.local_addr()?.port();
    let watched_ns = |port: Option<u16>| {
        let watch = port.map(|port| watching(cores, port)).transpose()?;
        let cost = pair.borrow_mut().query_ns();
        drop(watch);
        cost
    };
    let mut contenders: Vec<BoxedContender<'_>> = vec![
        Box::new(|| watched_ns(None)),
        Box::new(|| watched_ns(Some(port))),
        Box::new(|| watched_ns(Some(port ^ 1))),
    ];
    let costs = interleave_all(ROUNDS, &mut contenders)?;
    let [none, own, others] = &costs[..] else { anyhow::bail!("three contenders") };
    let more = |over: &[f64]| Summary::new(over.iter().zip(none).map(|(over, none)| over - none));
    let mut report = Report::default();
    report.reported("a query, not watched", Summary::new(none.iter().copied()), "ns");
    report.reported("more where it is watched", more(own), "ns");
    report.reported("more where another server is", more(others), "ns");
    report.reported("reading what was seen, all cores", reading_us(cores, port)?, "us");
    report.note(format!(
        "{ROUNDS} rounds in turn of {QUERIES} queries of {BYTES} bytes and as long answers on one \
         core, by one thread that has both ends: two writes and two reads a query, the client's \
         among them. Differences are of one round."
    ));
    Ok(report)
}

fn watching(cores: usize, port: u16) -> Result<QueryWatch> {
    let mut watch = QueryWatch::begin(cores)?;
    let namespace = std::fs::metadata("/proc/self/ns/net").context("no network namespace")?;
    watch.set_listener(u32::try_from(namespace.ino())?, &BTreeSet::from([port]))?;
    Ok(watch)
}

fn reading_us(cores: usize, port: u16) -> Result<Summary> {
    const READINGS: usize = 20;
    let watch = watching(cores, port)?;
    let read = || (0..READINGS).for_each(|_| drop(std::hint::black_box(watch.read())));
    Ok(Summary::new((0..ROUNDS).map(|_| ns_each(READINGS, read) / 1e3)))
}

impl Pair {
    fn connect() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, _) = listener.accept()?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Self { client, server })
    }

    fn query_ns(&mut self) -> Result<f64> {
        let mut done = Ok(());
        let cost = ns_each(QUERIES, || {
            done = (0..QUERIES).try_for_each(|_| self.query());
        });
        done.map(|()| cost)
    }

    fn query(&mut self) -> Result<()> {
        let mut bytes = [7; BYTES];
        self.client.write_all(&bytes)?;
        self.server.read_exact(&mut bytes)?;
        self.server.write_all(&bytes)?;
        self.client.read_exact(&mut bytes)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_its_answer_and_its_cost() {
        let mut pair = Pair::connect().unwrap();
        pair.query().unwrap();
        let cost_ns = pair.query_ns().unwrap();
        assert!(cost_ns > 0.0 && cost_ns.is_finite(), "{cost_ns}");
    }
}
