//! Requests whose cores' frequencies follow them, on acpi-cpufreq.

use crate::Tests;
use crate::frequency::hardware;
use crate::roles::{say, start};
use crate::scene::{policy, wait_for};
use lull_control::dispatcher::{Answer, CoreSpeed, DispatchRequest, Dispatcher, Ladder, Supply};
use lull_control::{CoreId, CoreSet};
use lull_host::Roots;
use lull_host::dispatch::{Dispatch, Floor, Safety, Speeds};
use lull_host::drivers::cpufreq::PolicyState;
use lull_host::guard::{GuardCommand, StateDir};
use lull_measure::{Hertz, Nanos};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

pub(crate) const TESTS: Tests = &[
    ("dispatch::a_requests_core_gets_its_frequency_and_the_hardware_has_it", by_age),
    ("dispatch::a_killed_server_leaves_the_frequencies_of_before", killed),
];

/// Values of the hardware at the slow and at the fast level.
const SHOWN: [u8; 2] = [0x08, 0x18];

/// Slow at first, fast from an age on.
struct At(Nanos);

impl Dispatcher for At {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        match request.on {
            None if request.free[0] > 0 => Answer::on(0, Some(self.0)),
            Some(_) if request.age >= self.0 => Answer::on(1, None),
            _ => Answer::stay(Some(self.0)),
        }
    }
}

/// Cores 1 to 3.
fn floor() -> Floor {
    let types = vec![CoreSpeed::new("slow", 1.0, 1.7), CoreSpeed::new("fast", 3.0, 6.8)];
    let cores: CoreSet = (1..4).map(CoreId).collect();
    let ladder = Ladder::new(types, Supply::Any(3)).unwrap();
    Floor { ladder, cores: vec![cores], abandon: Nanos::from_secs(3600) }
}

fn dispatch(dir: &Path) -> Dispatch {
    let (roots, levels) = (Roots::default(), [800, 2400].map(|mhz| Hertz::from_khz(mhz * 1000)));
    let state = StateDir::locate(Some(&dir.join("state"))).unwrap();
    let guard = GuardCommand { program: "/init".into(), args: vec!["guard".into()] };
    let safety = Safety::open(state, &roots, guard).unwrap();
    let speeds = Speeds::open(&floor(), &levels, &roots, safety).unwrap();
    Dispatch::start_scaling(floor(), Box::new(At(Nanos::from_millis(1))), speeds).unwrap()
}

fn now() -> Vec<PolicyState> {
    (0..4).map(policy).collect()
}

fn shown() -> Vec<u8> {
    (1..4).map(hardware).collect()
}

fn by_age() {
    let (dir, before) = (tempfile::tempdir().unwrap(), now());
    let dispatch = dispatch(dir.path());
    assert_eq!(shown(), [SHOWN[0]; 3], "idle cores are slow");
    let mark = dispatch.begin(Nanos::ZERO);
    let fast = || shown().iter().filter(|byte| **byte == SHOWN[1]).count();
    wait_for("a fast core", || fast() == 1);
    drop(mark);
    assert_eq!(shown(), [SHOWN[0]; 3]);
    assert_eq!(now()[0], before[0], "core 0 is nobody's business");
    let restored = dispatch.restore().unwrap();
    assert_eq!((restored.done, restored.failed.len()), (3, 0));
    assert_eq!(now(), before);
}

/// The role of a server that is killed within a request.
pub(crate) fn be_server(dir: &Path) -> ! {
    let dispatch = dispatch(dir);
    let _mark = dispatch.begin(Nanos::ZERO);
    say("dispatch");
    std::thread::sleep(Duration::from_secs(3000));
    std::process::exit(0)
}

fn killed() {
    let (dir, before) = (tempfile::tempdir().unwrap(), now());
    let mut server = start("server", &[dir.path().to_str().unwrap()]);
    let mut printed = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut printed).unwrap();
    assert_eq!(printed.trim(), "dispatch");
    assert_ne!(now(), before);
    server.kill().unwrap();
    server.wait().unwrap();
    wait_for("the frequencies of before", || now() == before);
}
