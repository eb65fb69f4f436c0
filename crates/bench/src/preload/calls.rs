//! The cost of the library to a server's calls, and of waking a worker.
//!
//! The model is a process of its own, run bare and under `lull exec` in turn. It
//! is client and server in one thread over loopback, and looks at the server's
//! part only, by CPU time. Two processes differ by more than the library costs,
//! for the same kernel takes some percent more or less on other sockets. So each
//! makes its calls by the C library, which our library
//! intercepts, and by bare system calls in turn on the same sockets; what the first
//! take longer under `lull exec` than without is ours.

use super::super::process::printed;
use super::super::stats::{Summary, interleave, ns_each};
use super::Report;
use anyhow::{Context as _, Result};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SigSet, Signal};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::thread::futex;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Instant;

const ROUNDS: usize = 9;
/// Bounds of the design, in nanoseconds over the bare call or query.
const CALL_MAX_NS: f64 = 40.0;
const QUERY_MAX_NS: f64 = 150.0;
/// Queries in a batch, of which the median counts.
const BATCH: usize = 1_000;
const BATCHES: usize = 201;
/// Turns that two threads hand each other.
const TURNS: u32 = 20_000;

/// The measurements of one process of the model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Costs {
    /// A `recv` of a byte that is there.
    call: Cost,
    /// Two of them and a `send`.
    query: Cost,
    /// Time from one thread's wake to the other's running, by futex.
    futex_ns: f64,
    /// The same by a signal that the other waits for.
    signal_ns: f64,
}

/// The cost of the same calls by the C library.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Cost {
    ns: f64,
    /// Beyond bare system calls on the same sockets.
    beyond_system_ns: f64,
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    let own = std::env::current_exe()?;
    let bare_waits = RefCell::new(Vec::new());
    let (bare, watched) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    interleave(
        ROUNDS,
        &mut [
            &mut || {
                let costs = costs(lull, None, &own)?;
                bare.borrow_mut().push(costs);
                bare_waits.borrow_mut().push(costs.signal_ns / costs.futex_ns);
                Ok(0.0)
            },
            &mut || {
                watched.borrow_mut().push(costs(lull, Some(&[]), &own)?);
                Ok(0.0)
            },
        ],
    )?;
    // The first round warms up.
    let (bare, watched) = (&bare.into_inner()[1..], &watched.into_inner()[1..]);
    rows(report, bare, watched);
    let ratio = Summary::new(bare_waits.into_inner().into_iter().skip(1));
    report.bounded("park and wake: signal / futex", ratio, "ratio", 1.0..=f64::INFINITY);
    report.note(format!(
        "Calls: {ROUNDS} processes of each kind in turn; medians of {BATCHES} batches of {BATCH} \
         queries, by CPU time of the one thread that is client and server on loopback. In each \
         process calls of the C library and bare system calls take turns on the same sockets, \
         and what the library of ours adds is by how much more they differ. Waking: two \
         threads on one core hand each other {TURNS} turns; the signal is waited for by \
         `sigwait`, which spares it the handler that the paper's needs."
    ));
    Ok(())
}

fn rows(report: &mut Report, bare: &[Costs], watched: &[Costs]) {
    let of = |costs: &[Costs], figure: fn(&Costs) -> f64| Summary::new(costs.iter().map(figure));
    let beyond = |figure: fn(&Costs) -> f64| {
        Summary::new(watched.iter().zip(bare).map(|(watched, bare)| figure(watched) - figure(bare)))
    };
    report.reported("recv, bare", of(bare, |one| one.call.ns), "ns");
    let call = beyond(|one| one.call.beyond_system_ns);
    report.bounded("recv, beyond bare", call, "ns", 0.0..=CALL_MAX_NS);
    report.reported("query (2 recv, 1 send), bare", of(bare, |one| one.query.ns), "ns");
    let query = beyond(|one| one.query.beyond_system_ns);
    report.bounded("query, beyond bare", query, "ns", 0.0..=QUERY_MAX_NS);
    report.reported("park and wake by futex", of(bare, |one| one.futex_ns), "ns");
    report.reported("park and wake by signal", of(bare, |one| one.signal_ns), "ns");
}

fn costs(lull: &Path, exec: Option<&[&str]>, own: &Path) -> Result<Costs> {
    let mut command = super::command(lull, exec, own);
    let text = printed(command.arg(crate::PRELOAD_MODEL))?.text;
    let line = text.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context("the model printed no figures")?)?)
}

/// Measures in this process, and prints.
///
/// # Errors
/// If loopback or the kernel refuse.
pub(crate) fn model() -> Result<()> {
    let (query, call) = (costs_of(Shape::Query)?, costs_of(Shape::Call)?);
    let _one_core = super::super::pinned::Pinned::to_last_core()?;
    let (futex_ns, signal_ns) = (by_futex(), by_signal()?);
    println!("{}", serde_json::to_string(&Costs { call, query, futex_ns, signal_ns })?);
    Ok(())
}

/// The calls of a server in a batch.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    /// Reads a byte.
    Call,
    /// Reads two bytes and answers with one.
    Query,
}

/// The means by which calls are made.
#[derive(Clone, Copy, PartialEq)]
enum CallPath {
    /// The calls of the C library.
    Library,
    /// The kernel's own.
    System,
}

impl CallPath {
    fn read(self, from: &mut TcpStream, byte: &mut [u8; 1]) -> io::Result<()> {
        let read = match self {
            Self::Library => from.read(byte)?,
            Self::System => recv(from, byte, RecvFlags::empty())?.0,
        };
        if read == 1 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn answer(self, to: &mut TcpStream) -> io::Result<()> {
        let written = match self {
            Self::Library => to.write(b"a")?,
            Self::System => send(to, b"a", SendFlags::NOSIGNAL)?,
        };
        if written == 1 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

fn costs_of(shape: Shape) -> Result<Cost> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut each, mut beyond) = (Vec::new(), Vec::new());
    for _ in 0..BATCHES {
        let [library, system] = [CallPath::Library, CallPath::System]
            .map(|by| batch(&mut client, &mut server, (shape, by)));
        let (library, system) = (library?, system?);
        each.push(library);
        beyond.push(library - system);
    }
    Ok(Cost { ns: Summary::new(each).median, beyond_system_ns: Summary::new(beyond).median })
}

fn batch(
    client: &mut TcpStream,
    server: &mut TcpStream,
    (shape, by): (Shape, CallPath),
) -> Result<f64> {
    let (mut byte, mut outcome) = ([0u8], Ok(()));
    client
        .write_all(&[b'q'; 2 * BATCH][..if shape == Shape::Query { 2 * BATCH } else { BATCH }])?;
    let each = ns_each(BATCH, || {
        outcome = (0..BATCH).try_for_each(|_| -> io::Result<()> {
            by.read(server, &mut byte)?;
            if shape == Shape::Query {
                by.read(server, &mut byte)?;
                by.answer(server)?;
            }
            Ok(())
        });
    });
    outcome?;
    if shape == Shape::Call {
        // Ends the one long query.
        server.write_all(b"a")?;
    }
    client.read_exact(&mut [0; BATCH][..if shape == Shape::Query { BATCH } else { 1 }])?;
    Ok(each)
}

/// Nanoseconds a turn, two threads taking turns by one word.
fn by_futex() -> f64 {
    let turn = AtomicU32::new(0);
    let take = |mine: u32| {
        for _ in 0..TURNS {
            while turn.load(Ordering::Acquire) != mine {
                // The value may have changed meanwhile, or another thread woke this one.
                let _ = futex::wait(&turn, futex::Flags::empty(), 1 - mine, None);
            }
            turn.store(1 - mine, Ordering::Release);
            let _ = futex::wake(&turn, futex::Flags::empty(), 1);
        }
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| take(1));
        take(0);
    });
    begun.elapsed().as_nanos() as f64 / f64::from(2 * TURNS)
}

/// The same by a signal to the thread whose turn it is.
fn by_signal() -> Result<f64> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGUSR1);
    signals.thread_block()?;
    let (ours, main) = (mpsc::channel(), pthread_self());
    let answer = move |other: Pthread| -> nix::Result<()> {
        (0..TURNS).try_for_each(|_| {
            signals.wait()?;
            pthread_kill(other, Signal::SIGUSR1)
        })
    };
    std::thread::scope(|scope| {
        // Its mask is this thread's.
        let other = scope.spawn(move || {
            ours.0.send(pthread_self()).ok();
            answer(main)
        });
        let there = ours.1.recv()?;
        let begun = Instant::now();
        for _ in 0..TURNS {
            pthread_kill(there, Signal::SIGUSR1)?;
            signals.wait()?;
        }
        let took = begun.elapsed();
        match other.join() {
            Ok(done) => done?,
            Err(_) => anyhow::bail!("the other thread ended early"),
        }
        Ok(took.as_nanos() as f64 / f64::from(2 * TURNS))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_of_waking_hand_every_turn_on() {
        assert!(by_futex() > 0.0);
        assert!(by_signal().unwrap() > 0.0);
    }

    #[test]
    fn a_query_is_more_than_a_call() {
        assert!(costs_of(Shape::Query).unwrap().ns > costs_of(Shape::Call).unwrap().ns);
    }

    #[test]
    fn figures_survive_being_printed() {
        let call = Cost { ns: 1.0, beyond_system_ns: -0.5 };
        let query = Cost { ns: 2.5, ..call };
        let costs = Costs { call, query, futex_ns: 3.0, signal_ns: 4.0 };
        let text = serde_json::to_string(&costs).unwrap();
        assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), costs);
    }
}
