//! `lull lab dispatch`: the options server under several dispatchers in turn.
//!
//! Server, open-loop client and dispatch run in one process, and only the dispatcher
//! changes from block to block. Each dispatcher keeps its learned state between its blocks.
//! The order of the dispatchers is drawn for each round, so that drift favours none.

mod plan;
mod result;

use crate::cli::PlaceArgs;
use crate::commands::save::{self, Destination};
use crate::order::draw_order;
use crate::progress;
use crate::signals;
use anyhow::{Context, bail};
use lull_agent::dispatched::{DispatchMarks, WORKERS};
use lull_control::CoreId;
use lull_host::Roots;
use lull_host::dispatch::{ActiveDispatcher, Tally};
use lull_host::emulate::{Cycler, Emulated, PERIOD};
use lull_marks::Dispatch;
use lull_measure::Nanos;
use lull_workload::Generator;
use lull_workload::apps::options::{Server, ServerConfig};
use lull_workload::arrivals::Rate;
use lull_workload::client::{self, LoadConfig};
use lull_workload::target::Address;
use plan::Plan;
use rand::SeedableRng;
use result::{Block, Report};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Connections: more than the requests that can queue before the target is missed by far.
const CONNECTIONS: usize = 64;
/// How often signals are checked.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &PlaceArgs) -> anyhow::Result<()> {
    plan::check(args)?;
    let table_at = args.markdown.as_deref().map(Destination::new).transpose()?;
    let stop = signals::stop_flag()?;
    let emulated = args.emulate.then(|| emulate(args)).transpose()?;
    let slowdown = emulated.as_ref().map_or(args.slowdown, |(_, measured)| *measured);
    let plan = Plan::new(args, slowdown)?;
    let dispatchers =
        args.dispatchers.iter().map(|name| Ok(Some(ActiveDispatcher::new(plan.dispatcher(name)?))));
    let dispatchers = dispatchers.collect::<anyhow::Result<Vec<_>>>()?;
    // The first dispatcher of the first round replaces this one immediately.
    let dispatch = Dispatch::start(plan.floor(), plan.dispatcher(&args.dispatchers[0])?)?;
    let blocks = serve(args, &plan, &DispatchMarks(dispatch), dispatchers, &stop)?;
    drop(emulated);
    let report = Report::from_blocks(args, &plan, &blocks);
    if let Some(to) = &table_at {
        save::all(&[(to, report.markdown().into_bytes())])?;
    }
    if args.json {
        return super::print_json(&report);
    }
    report.print();
    Ok(())
}

fn emulate(args: &PlaceArgs) -> anyhow::Result<(Cycler, f64)> {
    let plan = Emulated { core: CoreId(args.slow), slowdown: args.slowdown, period: PERIOD };
    Ok(plan.start(&Roots::default())?)
}

/// Runs server and client, and the dispatchers in turn meanwhile.
fn serve(
    args: &PlaceArgs,
    plan: &Plan,
    placed: &DispatchMarks,
    dispatchers: Vec<Option<ActiveDispatcher>>,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<Block>> {
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let config = ServerConfig { listen, workers: WORKERS, ..ServerConfig::default() };
    let server = Server::bind(config)?;
    let load = load(args, plan, server.address());
    // The server outlives the client, whose last requests it answers.
    let (client_ends, server_ends) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.run_around(&server_ends, placed));
        let loading = scope.spawn(|| client::run(&load, &client_ends));
        let blocks = turns(args, placed, dispatchers, stop);
        client_ends.store(true, Ordering::Relaxed);
        let loaded = joined(loading);
        server_ends.store(true, Ordering::Relaxed);
        joined(serving)?;
        loaded?;
        blocks
    })
}

fn load(args: &PlaceArgs, plan: &Plan, server: SocketAddr) -> LoadConfig {
    let rate = Rate::constant(plan.rate_per_s);
    let mut load = LoadConfig::new(Address::options(server), rate);
    load.target.demand = plan.demand;
    load.connections = CONNECTIONS;
    load.seed = args.seed;
    load
}

/// All blocks, in the order in which they ran.
fn turns(
    args: &PlaceArgs,
    placed: &DispatchMarks,
    mut dispatchers: Vec<Option<ActiveDispatcher>>,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<Block>> {
    let (mut blocks, mut at) = (Vec::new(), None);
    let bar = progress::seconds(
        (args.block * u64::from(args.rounds) * dispatchers.len() as u64).as_secs_f64() as u64,
    );
    let mut rng = Generator::seed_from_u64(args.seed);
    for round in 0..args.rounds as usize {
        for next in draw_order(dispatchers.len(), &mut rng) {
            if at != Some(next) {
                let dispatcher =
                    dispatchers[next].take().context("the next dispatcher is still at work")?;
                let before = placed.0.exchange(dispatcher).context("a dispatcher failed")?;
                if let Some(at) = at.replace(next) {
                    dispatchers[at] = Some(before);
                }
            }
            bar.set_message(args.dispatchers[next].clone());
            let tally = block(args.block, placed, stop)?;
            bar.inc(args.block.as_secs_f64() as u64);
            blocks.push(Block { dispatcher: next, round, tally });
        }
    }
    bar.finish_and_clear();
    Ok(blocks)
}

/// One block, its first quarter left out.
fn block(length: Nanos, placed: &DispatchMarks, stop: &AtomicBool) -> anyhow::Result<Tally> {
    sleep(length / 4, stop)?;
    placed.0.take_tally().context("the dispatcher failed")?;
    sleep(length.saturating_sub(length / 4), stop)?;
    placed.0.take_tally().context("the dispatcher failed")
}

fn sleep(span: Nanos, stop: &AtomicBool) -> anyhow::Result<()> {
    let (begin, span) = (Instant::now(), Duration::from(span));
    while let Some(left) = span.checked_sub(begin.elapsed()) {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted: no figures");
        }
        thread::sleep(left.min(LOOK));
    }
    Ok(())
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
