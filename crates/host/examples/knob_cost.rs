//! The cost of setting the frequencies of 24 domains, and to read all gauges of 64 cores: CPU time
//! on a tree of files in memory, with a guard's ledger.
//!
//! `cargo run --release -p lull-host --example knob_cost -- ROUNDS` prints one
//! line of JSON. The tree is made up; a real sysfs runs the driver as well.

use lull_control::{DomainId, Plant, Setting};
use lull_host::gauges::energy::PowerModel;
use lull_host::guard::{Ledger, StateDir};
use lull_host::sys::clock::process_cpu_time;
use lull_host::{HostConfig, HostPlant, Roots, Stop};
use lull_measure::{Hertz, Nanos};
use std::error::Error;
use std::io::Write;
use std::path::Path;

const CORES: u16 = 64;
const DOMAINS: u16 = 24;
const STATES: u16 = 4;
const EPOCH: Nanos = Nanos::from_millis(10);

fn main() -> Result<(), Box<dyn Error>> {
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(200), |text| text.parse())?;
    // A directory in memory, so that the cost of a disk is not measured.
    let place = tempfile::tempdir_in("/dev/shm")?;
    make_tree(place.path())?;
    let roots = Roots { sys: place.path().join("sys"), ..Roots::default() };
    let state = StateDir::locate(Some(&place.path().join("state")))?;
    let mut plant = HostPlant::new(HostConfig {
        apps: Vec::new(),
        push: None,
        power: PowerModel::default(),
        ledger: Ledger::open(state, &roots)?.ledger,
        foreign_wins: true,
        stop: Stop::new()?,
        roots,
    })?;
    let plan_us = cost_us(rounds, |round| {
        let applied = plant.apply(&plan(if round % 2 == 0 { 1200 } else { 1600 }));
        assert!(applied.outcomes.iter().all(|outcome| outcome.in_force().is_some()));
    })?;
    let gauges_us = cost_us(rounds, |_| {
        plant.observe(EPOCH).expect("no stop is requested");
    })?;
    let _ = plant.restore();
    writeln!(
        std::io::stdout(),
        "{{\"plan_of_{DOMAINS}_domains_us\":{plan_us:.0},\
         \"gauges_of_{CORES}_cores_us\":{gauges_us:.0},\"rounds\":{rounds}}}"
    )?;
    Ok(())
}

/// Mean CPU time of a round, the first left out: it fills the ledger.
fn cost_us(rounds: u32, mut round: impl FnMut(u32)) -> Result<f64, Box<dyn Error>> {
    let me = std::process::id().cast_signed();
    round(0);
    let before = process_cpu_time(me)?;
    (1..=rounds).for_each(&mut round);
    let used = process_cpu_time(me)?.saturating_sub(before);
    Ok(used.as_micros_f64() / f64::from(rounds))
}

fn plan(mhz: u64) -> Vec<Setting> {
    let at = |domain| Setting::Frequency(DomainId(domain), Hertz::from_khz(mhz * 1000));
    (0..DOMAINS).map(at).collect()
}

fn make_tree(place: &Path) -> std::io::Result<()> {
    let cpus = place.join("sys/devices/system/cpu");
    let write = |path: String, text: &str| {
        let path = cpus.join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(&cpus))?;
        std::fs::write(path, format!("{text}\n"))
    };
    write("online".to_owned(), &format!("0-{}", CORES - 1))?;
    for core in 0..CORES {
        write(format!("cpu{core}/cpufreq/scaling_cur_freq"), "1200000")?;
        for state in 0..STATES {
            write(format!("cpu{core}/cpuidle/state{state}/time"), "1000")?;
        }
    }
    for domain in 0..DOMAINS {
        for (file, text) in [
            ("scaling_driver", "acpi-cpufreq"),
            ("scaling_available_governors", "userspace schedutil"),
            ("scaling_available_frequencies", "2400000 1600000 1200000 800000"),
            ("scaling_governor", "schedutil"),
            ("scaling_min_freq", "800000"),
            ("scaling_max_freq", "2400000"),
            ("scaling_setspeed", "<unsupported>"),
            ("affected_cpus", &domain.to_string()),
        ] {
            write(format!("cpufreq/policy{domain}/{file}"), text)?;
        }
    }
    for package in 0..2 {
        let zone = place.join(format!("sys/class/powercap/intel-rapl:{package}"));
        std::fs::create_dir_all(&zone)?;
        std::fs::write(zone.join("name"), format!("package-{package}"))?;
        std::fs::write(zone.join("energy_uj"), "1000\n")?;
        std::fs::write(zone.join("max_energy_range_uj"), "262143328850\n")?;
    }
    Ok(())
}
