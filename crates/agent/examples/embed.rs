//! Embeds the agent: starts a server, a load and a best-effort app, lets `tide` decide,
//! writes what ten epochs observe, and stops.
//!
//! `cargo build && cargo run -p lull-agent --example embed -- target/debug/lull`

use anyhow::Context;
use lull_agent::Agent;
use lull_agent::config::Config;
use lull_agent::located::Located;
use std::io::Write;

const CONFIG: &str = r#"
[agent]
record = "target/embed"

[policy]
name = "tide"

[[app]]
name = "options"
class = "latency-critical"
objectives = [{ p95 = "50ms" }]
ideal = "5ms"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:7311"]
ready = "127.0.0.1:7311"

[[app]]
name = "burner"
class = "best-effort"
progress = "push"
solo = 1000.0
start = ["lull", "burn", "compute", "--threads", "1"]

[[load]]
app = "options"
target = "options://127.0.0.1:7311"
rate = "50/s"
"#;

fn main() -> anyhow::Result<()> {
    let lull = std::env::args_os().nth(1).context("usage: embed PATH_OF_LULL")?;
    let notify = |text: &str| {
        let _ = writeln!(std::io::stderr(), "{text}");
    };
    let config = Config::from_located(Located::embedded("embed.rs", CONFIG))?;
    let mut session = Agent::new(config).program(lull).notify(&notify).start()?;
    let names: Vec<String> = session.apps().iter().map(|app| app.name.clone()).collect();
    for epoch in session.epochs().take(10) {
        let epoch = epoch?;
        for (name, app) in names.iter().zip(&epoch.assessment.apps) {
            writeln!(std::io::stdout(), "{:.1} s {name}: {app:?}", epoch.seen.time.as_secs_f64())?;
        }
    }
    session.close()?.report_notices(&Ok(()), &notify)
}
