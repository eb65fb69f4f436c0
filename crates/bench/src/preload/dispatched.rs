//! Dispatchers on the requests of an unmodified MariaDB, on a core at full speed and one that is
//! made half as fast: latency, moves, modelled energy, and what reading the page costs.
//!
//! Each run has a server of its own under `lull exec`, on the same data. Without a dispatcher the
//! kernel chooses the cores, and the agent only counts queries.

use super::super::process::printed;
use super::super::server::{answering, free_address};
use super::super::stats::{BoxedContender, Summary, interleave_all, ratios};
use super::product::{Product, socket};
use super::{Report, command, succeeded};
use anyhow::{Context as _, Result, bail};
use lull_control::CoreId;
use lull_host::Roots;
use lull_host::emulate::{Emulated, PERIOD};
use lull_host::sys::clock::process_cpu_time;
use serde::Deserialize;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 5;
const SECONDS: u32 = 40;
/// The time in which EETL finds its threshold, by a step every 500 answers.
const WARM_UP_S: u32 = 10;
const CONNECTIONS: u32 = 16;
const RATE_PER_S: u32 = 60;
const TARGET_MS: u32 = 100;
const SLOW: u16 = 1;
const FAST: u16 = 0;
const SLOWDOWN: f64 = 2.0;
/// Power of busy cores, in units of the slow one's (EETL, table 4).
const FAST_WATTS: f64 = 6.8;
/// Most requests are short, and one in a hundred takes seven times the mean.
const SCRIPT: &str =
    "\\set loops 2000 * random_zipfian(1, 100, 1.2)\nSELECT BENCHMARK(:loops, MD5('a'));\n";
/// The largest number of units of work of a request, and the exponent of their distribution.
const UNITS: u32 = 100;
const EXPONENT: f64 = 1.2;
/// Loops of a unit of work.
const LOOPS: u32 = 2000;
/// Units of work in the query that is timed to know how long one takes.
const TIMED_UNITS: u32 = 2000;
/// Requests of which the profile consists.
const PROFILED: u32 = 2000;
const DISPATCHERS: [Option<&str>; 3] = [None, Some("s2f"), Some("eetl")];

/// The observations of a run.
#[derive(Debug)]
struct DispatchRun {
    p50_ms: f64,
    p99_ms: f64,
    /// CPU time of the agent, in percent of a core.
    agent_percent: f64,
    dispatch: Option<Dispatch>,
}

/// The parts of `lull load --json` that are read.
#[derive(Debug, Deserialize)]
struct Loaded {
    due_requests: u64,
    completed_requests: u64,
    latency: Spread,
}

#[derive(Debug, Deserialize)]
struct Spread {
    p50_seconds: f64,
    p99_seconds: f64,
}

/// The parts of `lull exec --json` that are read.
#[derive(Debug, Deserialize)]
struct Executed {
    #[serde(default)]
    dispatch: Option<Dispatch>,
}

#[derive(Debug, Deserialize)]
struct Dispatch {
    requests: u64,
    moves: u64,
    shared: u64,
    refused: u64,
    busy_seconds: Vec<(String, f64)>,
}

impl Dispatch {
    /// Refuses figures of a server that was dispatched in part.
    fn check(&self) -> Result<()> {
        if self.requests == 0 || self.shared + self.refused > 0 {
            bail!("not all requests were dispatched: {self:?}");
        }
        Ok(())
    }

    fn moves_a_request(&self) -> f64 {
        self.moves as f64 / self.requests as f64
    }

    /// Modelled energy of a request in millijoules, at 1 W for the slow core.
    fn energy_mj(&self) -> f64 {
        let watts = |name: &str| if name == "fast" { FAST_WATTS } else { 1.0 };
        let joules: f64 = self.busy_seconds.iter().map(|(name, busy_s)| watts(name) * busy_s).sum();
        1e3 * joules / self.requests as f64
    }
}

/// A database and a load, to be run under one dispatcher or another.
struct Site {
    place: PathBuf,
    data: PathBuf,
}

pub(super) fn measure(lull: &Path, report: &mut Report) -> Result<()> {
    if std::thread::available_parallelism()?.get() < 2 {
        bail!("a slow and a fast core take a machine with two");
    }
    let place = tempfile::tempdir()?;
    let site = Site::new(place.path())?;
    let emulated = Emulated { core: CoreId(SLOW), slowdown: SLOWDOWN, period: PERIOD };
    let (cycler, measured) = emulated.start(&Roots::default())?;
    let mut contenders: Vec<BoxedContender<'_, DispatchRun>> = Vec::new();
    for dispatcher in DISPATCHERS {
        let site = &site;
        contenders.push(Box::new(move || site.run(lull, dispatcher)));
    }
    let seen = interleave_all(ROUNDS, &mut contenders)?;
    drop(cycler);
    for (dispatcher, seen) in DISPATCHERS.iter().zip(&seen) {
        rows(name(*dispatcher), seen, report);
    }
    let p99 = |at: usize| seen[at].iter().map(|run| run.p99_ms).collect::<Vec<_>>();
    report.reported("p99, eetl / kernel", ratios(&p99(2), &p99(0)), "ratio");
    report.reported("p99, eetl / s2f", ratios(&p99(2), &p99(1)), "ratio");
    report.note(format!(
        "MariaDB on core {FAST} at full speed and core {SLOW}, made {measured:.2} times slower by \
         a duty cycler; {RATE_PER_S} queries/s in open loop over {CONNECTIONS} connections, whose \
         work is drawn from a Zipf distribution; a target of {TARGET_MS} ms at p99. {ROUNDS} \
         rounds of {SECONDS} s in turn after one to warm up, the first {WARM_UP_S} s of each left \
         out of the latencies. Energy is modelled from core time: 1 W and {FAST_WATTS} W while \
         busy. The client is on the same two cores."
    ));
    Ok(())
}

/// Adds the rows of a dispatcher.
fn rows(name: &str, seen: &[DispatchRun], report: &mut Report) {
    let mut row = |what: &str, unit: &'static str, of: &dyn Fn(&DispatchRun) -> Option<f64>| {
        let runs: Vec<f64> = seen.iter().filter_map(of).collect();
        if !runs.is_empty() {
            report.reported(&format!("{name}: {what}"), Summary::new(runs), unit);
        }
    };
    row("p50", "ms", &|run| Some(run.p50_ms));
    row("p99", "ms", &|run| Some(run.p99_ms));
    row("CPU of the agent", "% of a core", &|run| Some(run.agent_percent));
    row("moves a request", "1", &|run| Some(run.dispatch.as_ref()?.moves_a_request()));
    row("modelled energy a request", "mJ", &|run| Some(run.dispatch.as_ref()?.energy_mj()));
}

fn name(dispatcher: Option<&str>) -> &str {
    dispatcher.unwrap_or("kernel")
}

/// The work of requests as the script draws it, in milliseconds of the slow core: quantiles of its
/// distribution in even steps.
fn profile_ms(unit_ms: f64) -> Vec<f64> {
    let weight = |units: u32| f64::from(units).powf(-EXPONENT);
    let total: f64 = (1..=UNITS).map(weight).sum();
    let (mut units, mut below) = (1, weight(1) / total);
    let work_at = |step: u32| {
        while below < (f64::from(step) + 0.5) / f64::from(PROFILED) && units < UNITS {
            units += 1;
            below += weight(units) / total;
        }
        f64::from(units) * unit_ms
    };
    (0..PROFILED).map(work_at).collect()
}

/// Returns the file of docs/dispatch.md for a dispatcher.
fn config(dispatcher: &str, profile_ms: &[f64]) -> String {
    let profile: Vec<String> = profile_ms.iter().map(|work| format!("\"{work:.4}ms\"")).collect();
    let core = |name: &str, speed: f64, watts: f64, core: u16| {
        let speeds = format!("speed = {speed:?}\nwatts = {watts:?}");
        format!("[[core]]\nname = \"{name}\"\n{speeds}\ncores = \"{core}\"\n")
    };
    format!(
        "percentile = \"p99\"\ntarget = \"{TARGET_MS}ms\"\nprofile = [{}]\n\
         [dispatcher]\nname = \"{dispatcher}\"\n{}{}",
        profile.join(", "),
        core("slow", 1.0, 1.0, SLOW),
        core("fast", SLOWDOWN, FAST_WATTS, FAST)
    )
}

impl Site {
    /// Creates the database, the script and the files of the dispatchers.
    fn new(place: &Path) -> Result<Self> {
        let site = Self { place: place.to_owned(), data: place.join("data") };
        Product::MariaDb.initialise(&site.data, place)?;
        std::fs::write(place.join("script.sql"), SCRIPT)?;
        let profile_ms = profile_ms(site.unit_ms()? * SLOWDOWN);
        for dispatcher in DISPATCHERS.into_iter().flatten() {
            std::fs::write(site.config_file(dispatcher), config(dispatcher, &profile_ms))?;
        }
        Ok(site)
    }

    /// Returns how long a unit of work takes on a core at full speed, in milliseconds.
    fn unit_ms(&self) -> Result<f64> {
        let (address, product) = (free_address()?, Product::MariaDb);
        let mut server = command(Path::new(""), None, &product.program()?);
        server.args(product.options(&self.data, address));
        server.stdout(Stdio::null()).stderr(Stdio::null());
        let _server = answering(&mut server, address)?;
        let time = "select unix_timestamp(sysdate(6));";
        let loops = LOOPS * TIMED_UNITS;
        let sql = format!("{time} do benchmark({loops}, md5('a')); {time}");
        let text = printed(self.client().args(["-N", "-e", &sql]))?.text;
        let times: Vec<f64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        match times.as_slice() {
            [begun, ended] if ended > begun => Ok(1e3 * (ended - begun) / f64::from(TIMED_UNITS)),
            _ => bail!("mariadb printed `{text}` instead of two times"),
        }
    }

    /// The client program on this server's socket.
    fn client(&self) -> Command {
        let mut client = Command::new("mariadb");
        client.args(["-uroot", &format!("--socket={}", socket(&self.data).display())]);
        client.arg("--skip-ssl");
        client
    }

    fn config_file(&self, dispatcher: &str) -> PathBuf {
        self.place.join(format!("{dispatcher}.toml"))
    }

    /// Starts a server, loads it, and ends it.
    fn run(&self, lull: &Path, dispatcher: Option<&str>) -> Result<DispatchRun> {
        let (address, results) = (free_address()?, self.place.join("results.json"));
        let file = dispatcher.map(|name| self.config_file(name).display().to_string());
        let options: Vec<&str> =
            file.iter().flat_map(|file| ["--dispatch", file]).chain(["--json"]).collect();
        let product = Product::MariaDb;
        let mut server = command(lull, Some(options.as_slice()), &product.program()?);
        server.args(product.options(&self.data, address));
        server.stdout(File::create(&results)?).stderr(Stdio::null());
        let server = answering(&mut server, address)?;
        succeeded(self.client().args(["-e", "create database if not exists sbtest"]))?;
        let agent = server.pid().cast_signed();
        let (begun, before) = (Instant::now(), process_cpu_time(agent)?);
        let loaded = self.load(lull, address)?;
        let used_s = process_cpu_time(agent)?.as_secs_f64() - before.as_secs_f64();
        let agent_percent = 100.0 * used_s / begun.elapsed().as_secs_f64();
        drop(server);
        let text = std::fs::read_to_string(&results)?;
        let Executed { dispatch } = serde_json::from_str(&text).context("lull exec: no results")?;
        if let Some(dispatch) = &dispatch {
            dispatch.check()?;
        }
        let Spread { p50_seconds, p99_seconds } = loaded.latency;
        Ok(DispatchRun {
            p50_ms: p50_seconds * 1e3,
            p99_ms: p99_seconds * 1e3,
            agent_percent,
            dispatch,
        })
    }

    fn load(&self, lull: &Path, address: SocketAddr) -> Result<Loaded> {
        let mut load = Command::new(lull);
        load.args(["load", &format!("mysql://root@{address}/sbtest"), "--json", "--no-preload"]);
        load.arg("--script").arg(self.place.join("script.sql")).arg("--simple");
        load.args(["--rate", &format!("{RATE_PER_S}/s")]);
        load.args(["--connections", &CONNECTIONS.to_string()]);
        load.args(["--for", &format!("{SECONDS}s"), "--warmup", &format!("{WARM_UP_S}s")]);
        let text = printed(&mut load)?.text;
        let loaded: Loaded = serde_json::from_str(&text).context("lull load: other output")?;
        if loaded.completed_requests < loaded.due_requests {
            bail!(
                "of {} requests {} were answered",
                loaded.due_requests,
                loaded.completed_requests
            );
        }
        Ok(loaded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_dispatched_server_are_read_and_those_of_a_part_refused() {
        let text = r#"{"queries": 9, "dispatch": {"requests": 4, "brief": 1, "moves": 2,
            "abandoned": 0, "shared": 0, "refused": 0,
            "busy_seconds": [["slow", 0.004], ["fast", 0.01]]}}"#;
        let read = |text: &str| serde_json::from_str::<Executed>(text).unwrap().dispatch;
        let dispatch = read(text).unwrap();
        assert!(dispatch.check().is_ok() && read(r#"{"queries": 9}"#).is_none());
        assert!((dispatch.energy_mj() - 18.0).abs() < 1e-9, "{dispatch:?}");
        assert_eq!(dispatch.moves_a_request(), 0.5);
        for (old, new) in [("\"requests\": 4", "\"requests\": 0"), ("shared\": 0", "shared\": 1")] {
            assert!(read(&text.replace(old, new)).unwrap().check().is_err(), "{new}");
        }
    }

    #[test]
    fn the_profile_has_the_work_that_the_script_draws() {
        let profile_ms = profile_ms(0.5);
        let share = |of: &dyn Fn(f64) -> bool| {
            profile_ms.iter().filter(|work| of(**work)).count() as f64 / f64::from(PROFILED)
        };
        // P(1) and P(100) of a Zipf distribution over 1 to 100 with exponent 1.2.
        let total: f64 = (1..=100).map(|k| f64::from(k).powf(-1.2)).sum();
        assert!((share(&|work| work == 0.5) - 1.0 / total).abs() < 1e-3);
        assert!((share(&|work| work > 49.5) - 100_f64.powf(-1.2) / total).abs() < 1e-3);
        assert!(profile_ms.is_sorted());
        assert!(SCRIPT.contains(&format!("{LOOPS} * random_zipfian(1, {UNITS}, {EXPONENT})")));
    }

    #[test]
    fn the_file_of_a_dispatcher_lists_the_slow_core_first() {
        let text = config("eetl", &[1.0]);
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(table["core"][0]["name"].as_str(), Some("slow"));
        assert_eq!(table["core"][1]["speed"].as_float(), Some(SLOWDOWN));
        assert_eq!(table["dispatcher"]["name"].as_str(), Some("eetl"));
    }
}
