//! The machines of the rig: a kernel, QEMU's arguments, and modules.

use super::acpi;
use super::emulator::Emulator;
use std::time::Duration;

/// One guest.
pub(crate) struct Machine {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// The kernel, by its name in `kernel.rs`.
    pub(crate) kernel: &'static str,
    /// Whether it is booted without being named.
    pub(crate) in_ci: bool,
    pub(crate) emulator: Emulator,
    /// `-cpu` and `-smp`.
    pub(crate) cpu: &'static str,
    pub(crate) smp: &'static str,
    /// Further arguments of QEMU, in groups.
    pub(crate) devices: &'static [&'static [&'static str]],
    /// Further words of the kernel's command line.
    pub(crate) append: &'static str,
    /// Modules to load, in order; those they depend on are found.
    pub(crate) modules: &'static [&'static str],
    /// ACPI tables to add, as source.
    pub(crate) tables: &'static [fn() -> String],
    /// The tests that run on it, by the first part of their names.
    pub(crate) suite: &'static str,
    pub(crate) user_space: UserSpace,
    /// How long it may take; emulation on a loaded machine is slow.
    pub(crate) time_max: Duration,
}

/// The user space of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UserSpace {
    /// The tests are process 1 and all there is.
    Tests,
    /// The tests, and the program itself as `/bin/lull`.
    TestsAndLull,
    /// Debian with systemd from a disk; tests are a service. It has Lull's packages, which
    /// tests install.
    Debian,
    /// The same Debian, with containerd, a kubelet and the program itself on a second disk, and an
    /// API server outside.
    Node,
}

/// Three times what the slowest of them takes beside the tests on two idle cores: the same
/// tests have been seen to take twice as long on a busy machine.
const USUAL: Duration = Duration::from_secs(1500);
/// A thousand agents that are started and killed.
const LONG: Duration = Duration::from_secs(3600);

/// Drivers check vendor and family; they refuse the emulation's own.
const INTEL: &str = "max,vendor=GenuineIntel,family=6,model=94,stepping=3";
const AMD: &str = "max,vendor=AuthenticAMD,family=23,model=49";
/// With `level` at the topology leaf, QEMU answers a query for leaf 0x10 (cache allocation) with
/// the topology leaf, which reads as cache allocation with 8 ways.
const INTEL_RESCTRL: &str =
    "max,vendor=GenuineIntel,family=6,model=94,stepping=3,level=0xb,min-level=0xb";
const AMD_RESCTRL: &str = "max,vendor=AuthenticAMD,family=23,model=49,level=0xb,min-level=0xb";
const KNOB_MODULES: &[&str] = &[
    "acpi-cpufreq",
    "cpufreq_userspace",
    "cpufreq_powersave",
    "processor_thermal_device_pci_legacy",
    "e1000e",
    "acpi_power_meter",
];
/// A graphics card's memory replaces the registers of the power domains.
const REGISTERS: &[&str] = &["-device", "secondary-vga,addr=4"];
const CARD: &[&str] = &["-device", "e1000e,addr=5"];

/// There is no udev, so that systemd would wait for the terminal's device; the output of services
/// is beside the kernel's log.
const DEBIAN: &str = "systemd.getty_auto=no systemd.unified_cgroup_hierarchy=1 \
                      systemd.journald.forward_to_console=1 systemd.show_status=no";

/// The same with SELinux in place of AppArmor, and without a policy until a test loads one.
const DEBIAN_WITH_SELINUX: &str = "selinux=1 security=selinux systemd.getty_auto=no \
                                   systemd.unified_cgroup_hierarchy=1 \
                                   systemd.journald.forward_to_console=1 \
                                   systemd.show_status=no";

/// Frequency, idle states, energy, a network card and control groups.
const KNOBS: Machine = Machine {
    name: "knobs",
    about: "Linux 6.1: acpi-cpufreq, acpi_idle, RAPL by MMIO, power meter, e1000e, cgroup v2",
    kernel: "6.1",
    in_ci: true,
    emulator: Emulator::Pc,
    cpu: INTEL,
    smp: "4",
    devices: &[REGISTERS, CARD],
    append: "iomem=relaxed",
    modules: KNOB_MODULES,
    tables: &[acpi::states, acpi::power_domains, acpi::power_meter],
    suite: "knobs",
    user_space: UserSpace::Tests,
    time_max: USUAL,
};

/// Debian with Lull's package.
const SYSTEMD: Machine = Machine {
    name: "systemd",
    about: "Linux 6.1, Debian 12: Lull's package under systemd and cgroup v2",
    in_ci: false,
    smp: "2",
    devices: &[&["-device", "virtio-rng-pci"]],
    append: DEBIAN,
    modules: &["virtio_pci", "virtio_blk", "virtio-rng", "crc32c_generic", "ext4"],
    tables: &[],
    suite: "systemd",
    user_space: UserSpace::Debian,
    time_max: LONG,
    ..KNOBS
};

/// A driver that chooses frequencies itself, which needs another processor.
const PERFORMANCE: Machine = Machine {
    name: "amd-pstate",
    about: "Linux 6.12: amd-pstate with bounds and energy-performance preference",
    kernel: "6.12",
    in_ci: false,
    emulator: Emulator::Pc,
    cpu: AMD,
    smp: "4",
    devices: &[],
    append: "amd_pstate=active",
    modules: &["msr"],
    tables: &[acpi::performance],
    suite: "performance",
    user_space: UserSpace::Tests,
    time_max: USUAL,
};

/// Instructions are the clock, this many to a microsecond, and idle time is skipped: delays are
/// those of the card. QEMU 7.2 can do so with one CPU alone.
const BY_125: &[&str] = &["-icount", "shift=3,sleep=off"];
const BY_500: &[&str] = &["-icount", "shift=1,sleep=off"];
/// CPUs of a second socket, which QEMU takes one by one.
const SECOND_SOCKET: &[&str] = &[
    "-device",
    "max-x86_64-cpu,socket-id=1,core-id=0,thread-id=0",
    "-device",
    "max-x86_64-cpu,socket-id=1,core-id=1,thread-id=0",
];
/// Two cards on one wire.
const WIRE: &[&str] = &[
    "-netdev",
    "hubport,id=h0,hubid=0",
    "-netdev",
    "hubport,id=h1,hubid=0",
    "-device",
    "e1000e,netdev=h0,addr=5,romfile=",
    "-device",
    "e1000e,netdev=h1,addr=6,romfile=",
];
/// Apart, for each has sixteen slots further on places for its virtual functions.
const IGB_WIRE: &[&str] = &[
    "-netdev",
    "hubport,id=h0,hubid=0",
    "-netdev",
    "hubport,id=h1,hubid=0",
    "-device",
    "igb,netdev=h0,addr=5,romfile=",
    "-device",
    "igb,netdev=h1,addr=0xa,romfile=",
];

/// A kubelet and a runtime in memory, and the way to the API server outside, whose certificate is
/// for the first address of its services.
const NODE: &[&str] = &[
    "-m",
    "2G",
    "-netdev",
    "user,id=outside,ipv6=off,net=10.96.0.0/24,host=10.96.0.1",
    "-device",
    "virtio-net-pci,netdev=outside,romfile=",
];

/// Cache ways. The first CPU that reads the leaf decides how many classes there are, so that the
/// others are kept out of the way.
const RESCTRL: Machine = Machine {
    name: "resctrl",
    about: "Linux 7.2: resctrl with four classes of service and eight ways",
    kernel: "7.2",
    in_ci: true,
    emulator: Emulator::Pc,
    cpu: INTEL_RESCTRL,
    smp: "4,sockets=1,cores=64,threads=2,maxcpus=128",
    devices: &[],
    append: "setcpuid=rdt_a,cat_l3,cqm,cqm_llc,cqm_occup_llc,cqm_mbm_total,cqm_mbm_local \
             isolcpus=0-2",
    modules: &[],
    tables: &[],
    suite: "resctrl",
    user_space: UserSpace::Tests,
    time_max: USUAL,
};

/// All machines, those of CI first.
pub(crate) const MACHINES: &[Machine] = &[
    KNOBS,
    RESCTRL,
    Machine {
        name: "traffic",
        about: "Linux 6.1: packets between two e1000e cards, in virtual time",
        kernel: "6.1",
        in_ci: true,
        emulator: Emulator::Pc,
        cpu: INTEL,
        smp: "1",
        devices: &[BY_125, WIRE],
        append: "",
        modules: &["e1000e"],
        tables: &[],
        suite: "traffic",
        user_space: UserSpace::Tests,
        time_max: USUAL,
    },
    Machine {
        name: "calibrate",
        about: "Linux 6.1: a power model and a break-even found again, in virtual time",
        kernel: "6.1",
        in_ci: false,
        smp: "1,maxcpus=4",
        devices: &[&["-icount", "shift=5,sleep=off"], REGISTERS],
        modules: &["acpi-cpufreq", "cpufreq_userspace", "processor_thermal_device_pci_legacy"],
        suite: "calibrate",
        ..KNOBS
    },
    Machine {
        name: "agent",
        about: "Linux 6.1: frequencies and cores steered by `lull run`",
        in_ci: false,
        suite: "agent",
        user_space: UserSpace::TestsAndLull,
        ..KNOBS
    },
    Machine {
        name: "tune",
        about: "Linux 6.1: interrupt delay and frequency searched by `lull tune`, in virtual time",
        in_ci: false,
        smp: "1,maxcpus=4",
        // Quick enough for a server, its clients and an agent that searches.
        devices: &[BY_500, WIRE, REGISTERS],
        modules: &[
            "acpi-cpufreq",
            "cpufreq_userspace",
            "processor_thermal_device_pci_legacy",
            "e1000e",
        ],
        tables: &[acpi::states, acpi::power_domains],
        suite: "tune",
        user_space: UserSpace::TestsAndLull,
        ..KNOBS
    },
    Machine {
        name: "knobs-7.2",
        about: "Linux 7.2: as knobs",
        kernel: "7.2",
        in_ci: false,
        ..KNOBS
    },
    Machine {
        name: "knobs-6.12",
        about: "Linux 6.12: as knobs",
        kernel: "6.12",
        in_ci: false,
        ..KNOBS
    },
    PERFORMANCE,
    Machine {
        name: "amd-pstate-7.2",
        about: "Linux 7.2: as amd-pstate",
        kernel: "7.2",
        append: "amd_pstate=active setcpuid=hw_pstate",
        ..PERFORMANCE
    },
    Machine {
        name: "resctrl-2",
        about: "Linux 7.2: as resctrl, with two last-level caches",
        in_ci: false,
        smp: "4,sockets=2,cores=64,threads=1,maxcpus=128",
        devices: &[SECOND_SOCKET],
        append: "setcpuid=rdt_a,cat_l3,cqm,cqm_llc,cqm_occup_llc,cqm_mbm_total,cqm_mbm_local \
                 isolcpus=0-2,4-5",
        suite: "resctrl-2",
        ..RESCTRL
    },
    Machine {
        name: "resctrl-amd",
        about: "Linux 7.2: AMD's resctrl: ways in any pattern, bandwidth in absolute numbers",
        in_ci: false,
        cpu: AMD_RESCTRL,
        append: "setcpuid=rdt_a,cat_l3,mba,cqm,cqm_llc,cqm_occup_llc,cqm_mbm_total,cqm_mbm_local \
                 isolcpus=0-2",
        suite: "resctrl-amd",
        ..RESCTRL
    },
    Machine {
        name: "igb",
        about: "Linux 6.12: packets between two igb cards, in virtual time",
        kernel: "6.12",
        in_ci: false,
        emulator: Emulator::NewerPc,
        smp: "1",
        devices: &[BY_125, IGB_WIRE],
        append: "",
        modules: &["igb"],
        tables: &[],
        suite: "igb",
        ..KNOBS
    },
    Machine {
        name: "arm64",
        about: "Linux 6.12 on arm64: instructions and cycles by hardware counters",
        kernel: "6.12-arm64",
        in_ci: false,
        emulator: Emulator::Arm,
        cpu: "cortex-a57",
        smp: "1",
        devices: &[&["-icount", "shift=2,sleep=off"]],
        append: "",
        modules: &[],
        tables: &[],
        suite: "counters",
        ..KNOBS
    },
    SYSTEMD,
    Machine {
        name: "selinux",
        about: "Linux 6.1, Debian 12: a server that SELinux confines",
        append: DEBIAN_WITH_SELINUX,
        suite: "selinux",
        ..SYSTEMD
    },
    Machine {
        name: "kubelet",
        about: "Linux 6.1, Debian 12: pods of a kubelet under systemd and cgroup v2",
        in_ci: false,
        smp: "2",
        devices: &[&["-device", "virtio-rng-pci"], NODE],
        append: DEBIAN,
        modules: &[
            "virtio_pci",
            "virtio_blk",
            "virtio-rng",
            "virtio_net",
            "crc32c_generic",
            "ext4",
        ],
        tables: &[],
        suite: "kubelet",
        user_space: UserSpace::Node,
        time_max: LONG,
        ..KNOBS
    },
    Machine {
        name: "kills",
        about: "Linux 6.1: a thousand agents and guards killed at random",
        in_ci: false,
        suite: "kills",
        time_max: LONG,
        ..KNOBS
    },
];
