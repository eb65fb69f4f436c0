//! The agent's cost of receiving histograms by OTLP.
//!
//! Ten services export 500 series each every ten seconds, one of them in each second, as OTLP's
//! protobuf with the usual bounds of the SDKs. Every service is the latency of an app, so that all
//! series are counted. The agent is measured before the first export and while they arrive. Another
//! agent receives as many series as one counts at most, and its memory is measured.

mod exports;

use super::process::{Running, agent_cpu_percent, agent_resident_mib};
use super::server::{self, free_address};
use super::stats::Summary;
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail, ensure};
use exports::Exports;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(super) const BENCH: Bench = Bench {
    name: "otlp",
    about: "The agent with 10 apps whose latency is 5,000 series by OTLP every 10 s: share of a \
            core with exports and without",
    run,
};

const ROUNDS: usize = 3;
/// Services, each the latency of an app.
const SERVICES: usize = 10;
/// Series of a service: its routes.
const ROUTES: usize = 500;
/// The same of an agent that counts as many series as it does at most, 100,000.
const ROUTES_MOST: usize = 10_000;
/// How often a service exports; the services do so evenly.
const PERIOD: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(5);
/// Two periods.
const MEASURED: Duration = Duration::from_secs(20);
/// The share of a core that exports may cost, in percent.
const CPU_MOST: f64 = 1.0;

/// The share of a core in percent, without exports and with them.
struct Round {
    without: f64,
    with: f64,
}

fn run(context: &Context) -> Result<Report> {
    let lull = context.build("lull-cli", "lull")?;
    let rounds = (0..ROUNDS).map(|_| measure(&lull)).collect::<Result<Vec<_>>>()?;
    let all = |of: fn(&Round) -> f64| Summary::new(rounds.iter().map(of));
    let mut report = Report::default();
    report.reported("without exports: CPU", all(|round| round.without), "% of a core");
    report.reported("with exports: CPU", all(|round| round.with), "% of a core");
    let more = all(|round| round.with - round.without);
    report.bounded("exports: CPU more", more, "% of a core", f64::NEG_INFINITY..=CPU_MOST);
    let [without, with] = resident_mib(&lull)?;
    report.reported("without exports: resident", Summary::new([without]), "MiB");
    let most = format!("{} series: resident", SERVICES * ROUTES_MOST);
    report.reported(&most, Summary::new([with]), "MiB");
    report.note(format!(
        "{ROUNDS} rounds, each with an agent of its own, epochs of 500 ms and a record; CPU time \
         of agent and front end over {} s. {SERVICES} services export {ROUTES} cumulative \
         histograms of 15 bounds each every {} s, with growing counts, and {ROUTES_MOST} each \
         where memory is measured, once. The policy is `unmanaged`.",
        MEASURED.as_secs(),
        PERIOD.as_secs()
    ));
    Ok(report)
}

/// Starts an agent and measures it, then again while services export.
fn measure(lull: &Path) -> Result<Round> {
    let receiver = Receiver::start(lull)?;
    let without = agent_cpu_percent(receiver.agent.pid(), MEASURED)?;
    let exports = Exports::begin(receiver.address, SERVICES, ROUTES, PERIOD);
    std::thread::sleep(PERIOD + SETTLE);
    let with = agent_cpu_percent(receiver.agent.pid(), MEASURED)?;
    receiver.check(exports)?;
    Ok(Round { without, with })
}

/// The resident memory of an agent before exports, and with as many series as it counts at most.
fn resident_mib(lull: &Path) -> Result<[f64; 2]> {
    let receiver = Receiver::start(lull)?;
    let without = agent_resident_mib(receiver.agent.pid())?;
    let exports = Exports::begin(receiver.address, SERVICES, ROUTES_MOST, PERIOD);
    std::thread::sleep(3 * PERIOD);
    let with = agent_resident_mib(receiver.agent.pid())?;
    receiver.check(exports)?;
    Ok([without, with])
}

/// An agent that receives exports.
struct Receiver {
    agent: Running,
    address: SocketAddr,
    place: tempfile::TempDir,
}

impl Receiver {
    fn start(lull: &Path) -> Result<Self> {
        let place = tempfile::tempdir()?;
        let config = place.path().join("agent.toml");
        let address = free_address()?;
        std::fs::write(&config, config_text(place.path(), address))?;
        let log = place.path().join("agent.log");
        let agent = server::agent(Command::new(lull).arg("run").arg(&config), &log)?;
        std::thread::sleep(SETTLE);
        Ok(Self { agent, address, place })
    }

    /// Ends the exports, and checks that the agent has taken them all.
    fn check(mut self, exports: Exports) -> Result<()> {
        let taken = exports.end().context("an export was not taken")?;
        ensure!(taken > 2 * SERVICES, "only {taken} exports were sent");
        if self.agent.has_ended() {
            let log = std::fs::read_to_string(self.place.path().join("agent.log"))?;
            bail!("the agent ended early: {}", log.trim());
        }
        Ok(())
    }
}

/// The config of the agent that is measured.
fn config_text(place: &Path, address: SocketAddr) -> String {
    let place = place.display();
    let mut text = format!(
        r#"[agent]
silence = "1h"
otlp = "{address}"
record = "{place}/runs"
state = "{place}/state"

[policy]
name = "unmanaged"
"#
    );
    for service in 0..SERVICES {
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            r#"
[[app]]
name = "service-{service}"
class = "latency-critical"
objectives = [{{ p99 = "250ms" }}]
ideal = "1ms"
start = ["sleep", "3600"]
latency = "otlp"
"#
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_is_an_app() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4318));
        let config: toml::Table = config_text(Path::new("/tmp/otlp"), address).parse().unwrap();
        let apps = config["app"].as_array().unwrap();
        assert_eq!(apps.len(), SERVICES);
        assert!(apps.iter().all(|app| app["latency"].as_str() == Some("otlp")));
        assert_eq!(SERVICES * ROUTES, 5_000);
    }
}
