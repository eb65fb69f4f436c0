//! The cost of watching and steering a host: CPU time and memory of the plant alone, with 100 more
//! processes, three apps of eight threads, and a client a latency-critical app that pushes windows
//! of 100 ms.
//!
//! `cargo run --release -p lull-host --example plant_cost -- EPOCH_MS EPOCHS`
//! prints one line of JSON.

use lull_control::{AppId, AppSpec, CoreSet, Plant, Setting};
use lull_host::apps::{AppHandle, Target};
use lull_host::gauges::energy::PowerModel;
use lull_host::gauges::push::PushGauge;
use lull_host::guard::{Ledger, StateDir};
use lull_host::{HostApp, HostConfig, HostPlant, LatencyFrom, ProgressFrom, Roots, Stop};
use lull_measure::push::{LatencyWindow, Message};
use lull_measure::{Nanos, Percentile};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn Error>>;

const APPS: [&str; 3] = ["first", "second", "burner"];
const THREADS: usize = 8;
const SLEEPERS: usize = 100;
const WINDOW: Duration = Duration::from_millis(100);
/// Requests in one window: 2000 a second.
const REQUESTS: u64 = 200;

/// Children that end with this process.
struct Family(Vec<Child>);

impl Drop for Family {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["app"] => work(),
        ["push", socket, app] => push(socket, app),
        [epoch_ms, epochs] => measure(epoch_ms.parse()?, epochs.parse()?),
        _ => Err("usage: plant_cost EPOCH_MS EPOCHS".into()),
    }
}

/// Threads that wake up 200 times a second.
fn work() -> ! {
    for _ in 1..THREADS {
        std::thread::spawn(|| nap());
    }
    nap()
}

fn nap() -> ! {
    loop {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn push(socket: &str, app: &str) -> Outcome<()> {
    let mut stream = UnixStream::connect(socket)?;
    let length_ns = Nanos::from(WINDOW);
    let mut line = Vec::new();
    loop {
        std::thread::sleep(WINDOW);
        let spread = (0..REQUESTS).map(|request| Nanos(500_000 + request * request * 90));
        let window = LatencyWindow {
            app: app.to_owned(),
            start_ns: nanos(ClockId::Monotonic).saturating_sub(length_ns),
            length_ns,
            due: REQUESTS,
            sent: REQUESTS,
            completed: REQUESTS,
            histogram: spread.collect(),
            ..LatencyWindow::default()
        };
        line.clear();
        Message::Latency(Box::new(window)).encode(&mut line)?;
        stream.write_all(&line)?;
    }
}

fn measure(epoch_ms: u64, epochs: u32) -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("push");
    let sleepers = (0..SLEEPERS).map(|_| Command::new("sleep").arg("3600").spawn());
    let mut family = Family(sleepers.collect::<Result<_, _>>()?);
    let me = std::env::current_exe()?;
    let mut apps = Vec::new();
    for name in APPS {
        let child = Command::new(&me).arg("app").spawn()?;
        let handle = attach(name, &child);
        family.0.push(child);
        apps.push(HostApp {
            spec: spec(name),
            handle: handle?,
            latency: LatencyFrom::Push,
            progress: ProgressFrom::CpuTime,
        });
    }
    let specs: Vec<_> = apps.iter().map(|app| app.spec.clone()).collect();
    let roots = Roots::default();
    let config = HostConfig {
        apps,
        push: Some(PushGauge::listen(&socket, &specs)?),
        power: PowerModel::default(),
        ledger: Ledger::open(StateDir::locate(Some(&dir.path().join("state")))?, &roots)?.ledger,
        foreign_wins: true,
        stop: Stop::new()?,
        roots,
    };
    for app in &APPS[..2] {
        let socket = socket.to_str().ok_or("the temporary directory has an odd name")?;
        family.0.push(Command::new(&me).args(["push", socket, app]).spawn()?);
    }
    let mut plant = HostPlant::new(config)?;
    // The threads need a moment to come up, and buffers to grow.
    for _ in 0..3 {
        plant.observe(Nanos::from_millis(300))?;
    }
    let set = plant.apply(&[Setting::Cores(AppId(2), CoreSet::first(1))]);
    if set.outcomes.iter().any(|outcome| outcome.in_force().is_none()) {
        return Err(format!("not set: {set:?}").into());
    }
    report(&mut plant, Nanos::from_millis(epoch_ms), epochs)
}

fn attach(name: &str, child: &Child) -> Outcome<AppHandle> {
    let target = Target::Pid(child.id().cast_signed());
    Ok(AppHandle::attach(name, &target, &Roots::default())?)
}

fn spec(name: &str) -> AppSpec {
    match name {
        "burner" => AppSpec::best_effort(name),
        _ => AppSpec::latency_critical(name, Percentile::P95, Nanos::from_millis(4)),
    }
}

fn report(plant: &mut HostPlant, epoch: Nanos, epochs: u32) -> Outcome<()> {
    let cpu = || nanos(ClockId::ProcessCPUTime);
    let (wall_begin, cpu_begin) = (nanos(ClockId::Monotonic), cpu());
    let mut requests = 0;
    for _ in 0..epochs {
        requests += plant.observe(epoch)?.completed().unwrap_or(0);
    }
    let wall = nanos(ClockId::Monotonic).saturating_sub(wall_begin);
    let used = cpu().saturating_sub(cpu_begin);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let rss_kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("unknown");
    let result = serde_json::json!({
        "epoch_ms": epoch.as_millis_f64(),
        "epochs": epochs,
        "requests": requests,
        "cpu_percent": 100.0 * used.as_secs_f64() / wall.as_secs_f64(),
        "cpu_us_per_epoch": used.as_micros_f64() / f64::from(epochs),
        "rss": rss_kib.trim(),
        "notices": plant.take_notices(),
    });
    writeln!(std::io::stdout(), "{result}")?;
    Ok(())
}

fn nanos(clock: ClockId) -> Nanos {
    let now = clock_gettime(clock);
    Nanos(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
}
