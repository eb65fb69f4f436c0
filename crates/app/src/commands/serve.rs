//! `lull serve`: the built-in latency-critical server.

use crate::cli::{BuiltinServer, ServeArgs};
use crate::signals;
use lull_workload::apps::options::{Server, ServerConfig};

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let BuiltinServer::Options = args.server;
    let defaults = ServerConfig::default();
    let workers = args.workers.unwrap_or(defaults.workers);
    let stop = signals::stop_flag()?;
    let server = Server::bind(ServerConfig { listen: args.listen, workers, ..defaults })?;
    // The first line is what a script waits for; with port 0 it says which port.
    println!("listening on {}", server.address());
    let report = server.run(&stop)?;
    if args.json {
        return super::print_json(&report);
    }
    println!("answered {} requests, service {}", report.answered_requests, report.service);
    Ok(())
}
