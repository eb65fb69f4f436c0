//! RAPL by memory-mapped registers, for which a graphics card's memory is used.

use crate::Tests;
use crate::hold::Holding;
use crate::scene::{read, wait_for, write};
use lull_host::Roots;
use lull_host::gauges::energy::{Hwmon, Rapl};
use lull_host::sys::device_memory::DeviceMemory;
use lull_measure::{Joules, Nanos};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;

pub(crate) const TESTS: Tests = &[
    ("power::energy_follows_the_registers_and_survives_their_wrap", energy),
    ("power::a_limit_is_set_in_the_register_and_put_back", limit),
    ("power::the_machines_own_meter_is_read_and_integrated", meter),
];

const ZONE: &str = "/sys/class/powercap/intel-rapl-mmio:0";
/// Offsets of the package's and memory's registers (drivers/powercap/intel_rapl_*.c).
const REGISTERS_BYTES: usize = 0x8000;
const UNITS: usize = 0x5938;
pub(crate) const PACKAGE_ENERGY: usize = 0x593c;
const PACKAGE_LIMIT: usize = 0x59a0;
const PACKAGE_INFO: usize = 0x5930;
const MEMORY_ENERGY: usize = 0x58e8;
/// Units of 1/8 W and 2^-14 J, as on most parts.
const UNITS_VALUE: u64 = 0x000a_0e03;
pub(crate) const ENERGY_UNIT_J: f64 = 1.0 / 16384.0;

/// The registers, with the driver bound to them once.
pub(crate) fn registers() -> &'static DeviceMemory {
    static READY: OnceLock<DeviceMemory> = OnceLock::new();
    READY.get_or_init(|| {
        let device = Path::new("/sys/bus/pci/devices/0000:00:04.0");
        write(device.join("enable"), "1");
        let registers = DeviceMemory::open(&device.join("resource0"), REGISTERS_BYTES).unwrap();
        registers.set(UNITS, UNITS_VALUE);
        // 65 W at most, and a limit of 28 W.
        registers.set(PACKAGE_INFO, (65 * 8) | ((5 * 8) << 16) | ((65 * 8) << 32));
        registers.set(PACKAGE_LIMIT, (28 * 8) | (1 << 15));
        registers.set_half(PACKAGE_ENERGY, 1000);
        registers.set_half(MEMORY_ENERGY, 1000);
        let drivers = Path::new("/sys/bus/pci/drivers/proc_thermal");
        write(drivers.join("new_id"), "1234 1111 ffffffff ffffffff 0 0 1");
        wait_for("a power domain", || Path::new(ZONE).exists());
        registers
    })
}

fn energy() {
    let registers = registers();
    let mut meter = Rapl::open(&Roots::default()).unwrap();
    assert_eq!(meter.source().to_string(), "measured by RAPL package-0 + dram (by MMIO)");
    registers.set_half(PACKAGE_ENERGY, 1000 + 16384 * 3);
    registers.set_half(MEMORY_ENERGY, 1000 + 16384);
    let near = |found: Joules, wanted: f64| {
        // The kernel keeps whole microjoules.
        assert!((found.0 - wanted).abs() < 1e-4, "{found:?} for {wanted} J");
    };
    near(meter.read().unwrap().energy, 4.0);
    registers.set_half(PACKAGE_ENERGY, u32::MAX - 16384);
    meter.read().unwrap();
    registers.set_half(PACKAGE_ENERGY, 16384);
    near(meter.read().unwrap().energy, 32769.0 * ENERGY_UNIT_J);
}

fn limit() {
    let registers = registers();
    let file = format!("{ZONE}/constraint_0_power_limit_uw");
    let before = read(&file);
    let holding = Holding::start(&["power-limit=package-0:45"]);
    assert_eq!(read(&file), "45000000");
    assert_eq!(registers.get(PACKAGE_LIMIT) & 0x7fff, 45 * 8);
    let _ = holding.end();
    assert_eq!(read(&file), before);
    let refused = Holding::try_start(&["power-limit=package-0:9999"]).err().unwrap();
    assert!(refused.contains("is not a limit of package-0"), "{refused}");
}

fn meter() {
    // In units of 10 mW, at the ports that the table names.
    let set = |power_10mw: u16| {
        let port = std::fs::OpenOptions::new().write(true).open("/dev/port").unwrap();
        for (at, byte) in (0x8a..).zip(power_10mw.to_le_bytes()) {
            port.write_all_at(&[byte], at).unwrap();
        }
        // The driver asks the firmware once an interval, of 100 ms at first.
        std::thread::sleep(std::time::Duration::from_millis(1500));
    };
    set(10_000);
    let mut meter = Hwmon::open(&Roots::default()).unwrap();
    let _ = meter.read(Nanos::from_secs(1));
    set(20_000);
    assert_eq!(meter.read(Nanos::from_secs(2)).unwrap().energy, Joules(300.0));
}
