//! `lull serve`: the built-in latency-critical server.

use super::exec::Dispatching;
use crate::cli::{BuiltinServer, ServeArgs};
use crate::say;
use crate::signals;
use lull_agent::dispatched::{DispatchMarks, WORKERS};
use lull_host::guard::GuardCommand;
use lull_marks::Dispatch;
use lull_workload::apps::options::{Server, ServerConfig, ServerReport};
use std::path::Path;
use std::sync::atomic::AtomicBool;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let BuiltinServer::Options = args.server;
    let defaults = ServerConfig::default();
    let dispatch = args.dispatch.as_deref().map(open).transpose()?;
    let usual = if dispatch.is_some() { WORKERS } else { defaults.workers };
    let workers = args.workers.map_or(usual, usize::from);
    let stop = signals::stop_flag()?;
    let server = Server::bind(ServerConfig { listen: args.listen, workers, ..defaults })?;
    // Scripts wait for the first line; with port 0 it contains the port.
    println!("listening on {}", server.address());
    let report = match dispatch {
        Some(dispatch) => serve_placed(server, dispatch, &stop)?,
        None => server.run(&stop)?,
    };
    if args.json {
        return super::print_json(&report);
    }
    println!("answered {} requests, service {}", report.answered_requests, report.service);
    Ok(())
}

/// Reads a file of docs/dispatch.md and starts placing.
fn open(file: &Path) -> anyhow::Result<Dispatch> {
    let Dispatching { config, floor, dispatcher } = Dispatching::from_file(file)?;
    // This program is also the guard, whatever name it was started under.
    Ok(config.start(floor, dispatcher, GuardCommand::default())?)
}

fn serve_placed(
    server: Server,
    dispatch: Dispatch,
    stop: &AtomicBool,
) -> anyhow::Result<ServerReport> {
    let placed = DispatchMarks(dispatch);
    let report = server.run_around(stop, &placed)?;
    if let Some(tally) = placed.0.take_tally() {
        say::notice(format_args!(
            "placed {} requests, moved {}, gave up on {}; core time by type {:.2?} s",
            tally.latency.count(),
            tally.moves,
            tally.abandoned,
            tally.spent.busy_s
        ));
    }
    let refused = placed.0.refused();
    if refused > 0 {
        say::notice(format_args!(
            "the kernel refused {refused} affinities or frequencies: those ran where they were"
        ));
    }
    placed.0.take_notices().iter().for_each(say::notice);
    if let Some(restored) = placed.0.restore() {
        say::notice(&restored);
    }
    Ok(report)
}
