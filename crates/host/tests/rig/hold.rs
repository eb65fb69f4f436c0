//! Knobs that no policy steers: held, refused, put back.

use crate::Tests;
use crate::scene::{ledger, policy, read, write};
use lull_host::Roots;
use lull_host::apps::{AppHandle, Target};
use lull_host::drivers::ethtool;
use lull_host::guard::{Ledger, Restoration};
use lull_host::knobs::hold::{Found, Held, HoldRequest, hold, offers};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

pub(crate) const TESTS: Tests = &[
    ("hold::every_knob_of_this_machine_is_found", found),
    ("hold::governors_are_set_everywhere_and_put_back", governor),
    ("hold::idle_states_above_a_latency_are_entered_no_more", idle),
    ("hold::the_wake_up_latency_is_held_as_long_as_its_file", wake),
    ("hold::a_core_has_a_bound_of_its_own", resume),
    ("hold::a_cgroup_has_weight_limit_and_cores", cgroup),
    ("hold::a_controller_that_is_not_delegated_is_named", delegation),
    ("hold::a_threaded_cgroup_is_held_and_is_no_app", threaded),
    ("hold::coalescing_is_set_and_put_back", coalescing),
    ("hold::what_the_network_driver_refuses_is_said_in_its_words", coalescing_refused),
    ("hold::an_interrupt_goes_where_it_is_sent", irq),
    ("hold::a_wish_that_is_refused_undoes_those_before_it", all_or_none),
    ("hold::a_network_interface_that_is_gone_is_no_failure", nic_gone),
];

/// A ledger and what it holds.
pub(crate) struct Holding {
    _dir: TempDir,
    ledger: Ledger,
    held: Option<Held>,
}

impl Holding {
    pub(crate) fn start(requests: &[&str]) -> Self {
        Self::try_start(requests).unwrap_or_else(|error| panic!("{requests:?}: {error}"))
    }

    pub(crate) fn try_start(requests: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = ledger(dir.path());
        let requests: Vec<HoldRequest> =
            requests.iter().map(|request| request.parse().unwrap()).collect();
        match hold(&requests, &Roots::default(), &mut ledger) {
            Ok(held) => Ok(Self { _dir: dir, ledger, held: Some(held) }),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn end(mut self) -> Restoration {
        self.held = None;
        let restored = self.ledger.restore();
        assert_eq!(restored.failed, []);
        restored
    }
}

fn refusal(request: &str) -> String {
    Holding::try_start(&[request]).err().unwrap_or_else(|| panic!("{request} was granted"))
}

fn found() {
    for offered in offers(&Roots::default()) {
        let is_here = matches!(offered.found, Found::By(_));
        // This driver knows no energy-performance preference, and the machine has no systemd;
        // power has tests of its own.
        let may_lack = ["energy-preference", "power-limit", "unit"].contains(&offered.knob);
        assert!(is_here || may_lack, "{offered:?}");
    }
}

fn governor() {
    let before: Vec<_> = (0..4).map(policy).collect();
    let holding = Holding::start(&["governor=powersave"]);
    assert!((0..4).all(|domain| policy(domain).governor == "powersave"));
    assert_eq!(holding.end().done, 4);
    assert_eq!((0..4).map(policy).collect::<Vec<_>>(), before);
    assert!(refusal("governor=nosuch").contains("there are"));
}

fn idle() {
    let file =
        |state: u8, name: &str| format!("/sys/devices/system/cpu/cpu1/cpuidle/state{state}/{name}");
    let deep = || read(file(2, "disable"));
    write(file(2, "disable"), "0");
    let holding = Holding::start(&["idle-latency=10us"]);
    assert_eq!((deep().as_str(), read(file(1, "disable")).as_str()), ("1", "0"));
    let usage = || read(file(2, "usage"));
    std::thread::sleep(std::time::Duration::from_millis(50));
    let before = usage();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(usage(), before, "the state is still entered");
    let _ = holding.end();
    assert_eq!(deep(), "0");
    write(file(2, "disable"), "1");
}

fn wake() {
    let bound = || {
        let mut bytes = [0; 4];
        let file = std::fs::File::open("/dev/cpu_dma_latency").unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        i32::from_ne_bytes(bytes)
    };
    let before = bound();
    let holding = Holding::start(&["wake-latency=10us"]);
    assert_eq!(bound(), 10);
    let _ = holding.end();
    assert_eq!(bound(), before);
}

fn resume() {
    let file =
        |cpu: u16| format!("/sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us");
    let before = read(file(2));
    let holding = Holding::start(&["resume-latency=2-3:20us"]);
    assert_eq!((read(file(2)).as_str(), read(file(1)).as_str()), ("20", before.as_str()));
    let _ = holding.end();
    let none = Holding::start(&["resume-latency=2:0us"]);
    assert_eq!(read(file(2)), "n/a");
    let _ = none.end();
    assert_eq!(read(file(2)), before);
}

const TOP: &str = "/sys/fs/cgroup";

fn cgroup() {
    write(format!("{TOP}/cgroup.subtree_control"), "+cpu +cpuset");
    let dir = format!("{TOP}/web");
    std::fs::create_dir(&dir).unwrap();
    let file = |name: &str| read(format!("{dir}/{name}"));
    let requests =
        ["cgroup=/web:cpu.weight:7", "cgroup=web:cpu.max:20ms/100ms", "cgroup=web:cpuset.cpus:1-2"];
    let holding = Holding::start(&requests);
    assert_eq!(["cpu.weight", "cpu.max", "cpuset.cpus"].map(file), ["7", "20000 100000", "1-2"]);
    assert_eq!(holding.end().done, 3);
    assert_eq!(["cpu.weight", "cpu.max", "cpuset.cpus"].map(file), ["100", "max 100000", ""]);
    for (request, hint) in [
        ("cgroup=web:cpu.weight:0", "1 to 10000"),
        ("cgroup=web:cpu.max:10us/1ms", "1 ms"),
        ("cgroup=web:cpuset.cpus:99", "cpuset.cpus"),
        ("cgroup=none:cpu.weight:7", "no cgroup"),
    ] {
        assert!(refusal(request).contains(hint), "{request}: {}", refusal(request));
    }
    // With cpu.idle the weight is the kernel's: EINVAL.
    write(format!("{dir}/cpu.idle"), "1");
    assert!(refusal("cgroup=web:cpu.weight:7").contains("cpu.weight"));
    std::fs::remove_dir(&dir).unwrap();
}

fn delegation() {
    std::fs::create_dir_all(format!("{TOP}/above/below")).unwrap();
    let why = refusal("cgroup=above/below:cpu.weight:7");
    assert!(why.contains("+cpu >") && why.contains("above/cgroup.subtree_control"), "{why}");
    std::fs::remove_dir(format!("{TOP}/above/below")).unwrap();
    std::fs::remove_dir(format!("{TOP}/above")).unwrap();
}

fn threaded() {
    let (pool, part) = (format!("{TOP}/pool"), format!("{TOP}/pool/part"));
    write(format!("{TOP}/cgroup.subtree_control"), "+cpu +cpuset");
    std::fs::create_dir_all(&part).unwrap();
    write(format!("{part}/cgroup.type"), "threaded");
    assert_eq!(read(format!("{pool}/cgroup.type")), "domain threaded");
    // A part of a process may have a share of its own.
    write(format!("{pool}/cgroup.subtree_control"), "+cpu +cpuset");
    let holding =
        Holding::start(&["cgroup=pool/part:cpu.weight:7", "cgroup=pool/part:cpuset.cpus:1"]);
    assert_eq!(read(format!("{part}/cpu.weight")), "7");
    assert_eq!(holding.end().done, 2);
    let mut app = crate::roles::start("app", &[]);
    write(format!("{pool}/cgroup.procs"), &app.id().to_string());
    let attach =
        |path: &str| AppHandle::attach("parts", &Target::Cgroup(path.into()), &Roots::default());
    let refused = attach("pool/part").unwrap_err();
    let why = match std::error::Error::source(&refused) {
        Some(source) => source.to_string(),
        None => refused.to_string(),
    };
    assert!(why.contains("domain threaded"), "{refused} {why}");
    assert!(attach("pool").is_ok(), "the cgroup above has the whole process");
    app.kill().unwrap();
    app.wait().unwrap();
    crate::scene::wait_for("an empty cgroup", || std::fs::remove_dir(&part).is_ok());
    crate::scene::wait_for("an empty cgroup", || std::fs::remove_dir(&pool).is_ok());
}

fn coalescing() {
    let before = ethtool::get("eth0").unwrap();
    let holding = Holding::start(&["coalescing=eth0:rx-usecs:200"]);
    assert_eq!(ethtool::get("eth0").unwrap().rx_us, Some(200));
    assert_eq!(holding.end().done, 1);
    assert_eq!(ethtool::get("eth0").unwrap(), before);
}

fn coalescing_refused() {
    for us in ["5", "9", "10001", "70000"] {
        let why = refusal(&format!("coalescing=eth0:rx-usecs:{us}"));
        assert!(why.contains("eth0") && why.contains("Invalid argument"), "{why}");
    }
    for request in ["coalescing=eth0:tx-usecs:100", "coalescing=eth0:adaptive-rx:on"] {
        let why = refusal(request);
        assert!(why.contains("unsupported") || why.contains("not supported"), "{why}");
    }
    assert!(refusal("coalescing=eth7:rx-usecs:1").contains("eth7"));
}

fn irq() {
    // The first serial port's, which the kernel's console has.
    let file = "/proc/irq/4/smp_affinity_list";
    if !Path::new(file).exists() {
        panic!("no interrupt 4 in this guest");
    }
    let before = read(file);
    let holding = Holding::start(&["irq=4:1"]);
    assert_eq!(read(file), "1");
    let _ = holding.end();
    assert_eq!(read(file), before);
    assert!(refusal("irq=4:77").contains("smp_affinity_list"));
    assert!(refusal("irq=9999:0").contains("no interrupt 9999"));
}

fn all_or_none() {
    let before: Vec<_> = (0..4).map(policy).collect();
    for second in ["coalescing=eth0:rx-usecs:5", "irq=4:77"] {
        assert!(Holding::try_start(&["governor=powersave", second]).is_err());
        assert_eq!((0..4).map(policy).collect::<Vec<_>>(), before, "{second}");
    }
}

fn nic_gone() {
    let holding = Holding::start(&["coalescing=eth0:rx-usecs:200"]);
    let device = std::fs::canonicalize("/sys/class/net/eth0/device").unwrap();
    write(device.join("remove"), "1");
    assert_eq!(holding.end().gone, 1);
    write("/sys/bus/pci/rescan", "1");
    crate::scene::wait_for("the interface again", || Path::new("/sys/class/net/eth0").exists());
}
