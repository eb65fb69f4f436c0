//! The machine's constants found again: registers grow as a known machine's
//! would, by what the real kernel counts, and the whole bench measures them.
//!
//! In virtual time: on a busy machine the clocks of a guest lose ticks of work
//! and none of idleness, and then no model fits (explained: 0.42).

use crate::Tests;
use crate::background::BackgroundThread;
use crate::power::{ENERGY_UNIT_J, PACKAGE_ENERGY, registers};
use crate::scene::{bare_plant, ledger, read};
use lull_control::{CoreId, Plant};
use lull_host::Roots;
use lull_host::calibrate::Bench;
use lull_host::calibrate::idle::break_even;
use lull_host::calibrate::power::{fit, steps};
use lull_host::drivers::cpufreq::PolicyState;
use lull_host::knobs::hold::HoldRequest;
use lull_measure::{Nanos, Watts};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

pub(crate) const TESTS: Tests = &[
    ("calibrate::a_power_model_is_found_again", power),
    ("calibrate::the_break_even_of_an_idle_state_is_found_again", idle),
];

const SETTLE: Nanos = Nanos::from_millis(300);
const DWELL: Nanos = Nanos::from_millis(2400);

/// Energy in joules since it was started, by what the kernel has counted.
type Total = fn(Duration) -> f64;

/// Sets the package's register to what a machine would have used.
pub(crate) struct Hardware {
    _registers: BackgroundThread<()>,
}

impl Hardware {
    /// By how busy the cores are, and how fast.
    pub(crate) fn of_cores() -> Self {
        registers();
        Self::start(used)
    }

    fn start(total: Total) -> Self {
        let registers = BackgroundThread::start(move |going| {
            let begun = Instant::now();
            let zero = total(Duration::ZERO);
            while going.is_on() {
                let energy_j = total(begun.elapsed()) - zero;
                registers().set_half(PACKAGE_ENERGY, (energy_j / ENERGY_UNIT_J) as u64 as u32);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Self { _registers: registers }
    }
}

/// All cores that are online.
fn cores() -> Vec<CoreId> {
    (0..busy_s().len() as u16).map(CoreId).collect()
}

fn policies() -> Vec<PolicyState> {
    cores().iter().map(|core| crate::scene::policy(core.0)).collect()
}

const BASE_W: f64 = 10.0;
const BUSY_W: f64 = 2.0;
const DYNAMIC_W: f64 = 4.0;

/// Time not idle of each core, in seconds.
fn busy_s() -> Vec<f64> {
    let stat = read("/proc/stat");
    let cores = stat.lines().skip(1).take_while(|line| line.starts_with("cpu"));
    let busy = |line: &str| {
        let ticks: Vec<f64> = line.split(' ').skip(1).map(|it| it.parse().unwrap()).collect();
        (ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6]) / 100.0
    };
    cores.map(busy).collect()
}

/// The frequency of a core by the byte at its port, as a share of the highest.
fn speed(core: usize) -> f64 {
    let mut byte = [0];
    let port = [0x81, 0x82, 0x83, 0x87][core];
    std::fs::File::open("/dev/port").unwrap().read_exact_at(&mut byte, port).unwrap();
    f64::from(byte[0]) / f64::from(0x18)
}

/// Returns the energy that the cores have used so far. Frequencies are held while a step is
/// measured, so the energy of each part follows from the frequency in force.
fn used(elapsed: Duration) -> f64 {
    use std::sync::Mutex;
    static SO_FAR: Mutex<(Vec<f64>, f64)> = Mutex::new((Vec::new(), 0.0));
    let mut so_far = SO_FAR.lock().unwrap();
    let now = busy_s();
    if so_far.0.is_empty() {
        so_far.0.clone_from(&now);
    }
    let stretches = now.iter().zip(so_far.0.clone()).enumerate();
    let of_core = |(core, (now, before)): (usize, (&f64, f64))| {
        (now - before) * (BUSY_W + DYNAMIC_W * speed(core).powi(3))
    };
    so_far.1 += stretches.map(of_core).sum::<f64>();
    so_far.0 = now;
    so_far.1 + BASE_W * elapsed.as_secs_f64()
}

fn bench(dir: &std::path::Path) -> Bench {
    Bench::new(bare_plant(ledger(dir)), Roots::default(), SETTLE, DWELL).unwrap()
}

fn put_back(bench: Bench) {
    let mut plant = bench.into_plant();
    assert_eq!(plant.ledger_mut().restore().failed, []);
    let _ = plant.restore();
}

fn power() {
    let hardware = Hardware::of_cores();
    let before = policies();
    let dir = tempfile::tempdir().unwrap();
    let mut bench = bench(dir.path());
    let plan = steps(&cores(), true, false);
    let samples: Vec<_> = plan.iter().map(|step| bench.step(step).unwrap()).collect();
    put_back(bench);
    drop(hardware);
    assert_eq!(policies(), before);
    let fit = fit(&samples).unwrap();
    println!("{} (off by {:.2} W)", fit.model.source(), fit.left_out.0);
    assert!(fit.explained > 0.97, "{fit:?}");
    let near = |found: Watts, wanted: f64| (found.0 - wanted).abs() < 0.2 * wanted;
    let dynamic = fit.model.by_frequency.unwrap().dynamic;
    assert!(near(fit.model.base, BASE_W), "{fit:?}");
    assert!(near(Watts(fit.model.busy.0 + dynamic.0), BUSY_W + DYNAMIC_W), "{fit:?}");
    assert!(near(dynamic, DYNAMIC_W), "{fit:?}");
}

const AWAKE_W: f64 = 3.0;
/// An entry into C1 costs what 1 ms awake does.
const ENTRY_J: f64 = 3e-3;

/// Cores that take nothing in C1 and pay for entering it.
fn used_with_entries(elapsed: Duration) -> f64 {
    let number = |core: u16, name: &str| -> f64 {
        let dir = format!("/sys/devices/system/cpu/cpu{core}/cpuidle/state1");
        read(format!("{dir}/{name}")).parse().unwrap()
    };
    let cores = cores();
    let sum = |name: &str| cores.iter().map(|core| number(core.0, name)).sum::<f64>();
    AWAKE_W * (cores.len() as f64 * elapsed.as_secs_f64() - sum("time") / 1e6)
        + ENTRY_J * sum("usage")
}

fn idle() {
    registers();
    let file = |state: u8| format!("/sys/devices/system/cpu/cpu0/cpuidle/state{state}/disable");
    let disabled = || [0, 1, 2, 3].map(|state| read(file(state)));
    let before = disabled();
    let hardware = Hardware::start(used_with_entries);
    let dir = tempfile::tempdir().unwrap();
    let mut bench = bench(dir.path());
    bench.hold(HoldRequest::IdleState("C1".to_owned())).unwrap();
    assert_eq!(disabled(), ["1", "0", "1", "1"]);
    let awake = bench.awake(&cores()).unwrap();
    let sleeps = [300, 600, 1000, 2000, 5000, 10_000].map(Nanos::from_micros);
    let points = sleeps.map(|sleep| bench.asleep(&cores(), "C1", sleep, awake).unwrap());
    put_back(bench);
    drop(hardware);
    assert_eq!(disabled(), before);
    let found = break_even(&points, Watts(0.02)).unwrap();
    println!("{found:?}");
    let even = found.fitted.unwrap().break_even.as_micros_f64();
    assert!((700.0..1400.0).contains(&even), "{found:?} of {points:?}");
}
