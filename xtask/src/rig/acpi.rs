//! ACPI tables that give a guest P-states, idle states and power domains.
//!
//! Registers are the page registers of QEMU's DMA controller: bytes that keep
//! what is written and mean nothing else, one for each CPU.

use crate::command::done;
use anyhow::Result;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// CPUs of a guest, each with a port of its own.
const PORTS: [u8; 4] = [0x81, 0x82, 0x83, 0x87];
/// MHz and the byte that encodes it, fastest first (ACPI 6.5, section 8.4.5.2).
const STATES: [(u32, u8); 5] =
    [(2400, 0x18), (2000, 0x14), (1600, 0x10), (1200, 0x0c), (800, 0x08)];

/// P-states by system I/O, each CPU a domain, and three idle states.
pub(super) fn states() -> String {
    let mut out = "DefinitionBlock (\"\", \"SSDT\", 2, \"LULL\", \"STATES\", 1)\n{\n".to_owned();
    for cpu in 0..PORTS.len() {
        let _ = writeln!(out, "  External (\\_SB.CPUS.C{cpu:03X}, DeviceObj)");
    }
    for (cpu, port) in PORTS.iter().enumerate() {
        let register = format!("ResourceTemplate () {{ Register (SystemIO, 8, 0, {port:#x}, ) }}");
        let states: Vec<_> = STATES
            .iter()
            .map(|(mhz, byte)| format!("Package () {{ {mhz}, {mhz}0, 10, 10, {byte}, {byte} }}"))
            .collect();
        let _ = writeln!(
            out,
            "  Scope (\\_SB.CPUS.C{cpu:03X}) {{\n\
             Name (_PCT, Package () {{ {register}, {register} }})\n\
             Name (_PSS, Package () {{ {} }})\n\
             Method (_PPC, 0, NotSerialized) {{ Return (Zero) }}\n\
             Name (_PSD, Package () {{ Package () {{ 5, 0, {cpu}, 0xFC, 1 }} }})\n\
             Name (_CST, Package () {{ 3, {} }})\n  }}",
            states.join(", "),
            idle_states()
        );
    }
    out + "}\n"
}

/// C1 by HLT; C2 and C3 by reading a port, which returns immediately in a guest.
fn idle_states() -> String {
    [
        "Package () { ResourceTemplate () { Register (FFixedHW, 1, 2, 0, 1) }, 1, 1, 1000 }",
        "Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x84, ) }, 2, 50, 500 }",
        "Package () { ResourceTemplate () { Register (SystemIO, 8, 0, 0x85, ) }, 3, 200, 250 }",
    ]
    .join(", ")
}

/// Performance levels of each CPU (`_CPC`, ACPI 6.5, section 8.4.6.1), whose registers are those of
/// machine checks: emulation keeps written values, one for each CPU, and the kernel leaves them
/// alone.
pub(super) fn performance() -> String {
    let mut out = "DefinitionBlock (\"\", \"SSDT\", 2, \"LULL\", \"PERFORM\", 1)\n{\n".to_owned();
    for cpu in 0..PORTS.len() {
        let _ = writeln!(out, "  External (\\_SB.CPUS.C{cpu:03X}, DeviceObj)");
    }
    // Grants every capability that the kernel requests.
    out += "  Scope (\\_SB) { Method (_OSC, 4, NotSerialized) {\n\
        CreateDWordField (Arg3, 0, STS0)\nSTS0 = 0\nReturn (Arg3) } }\n";
    let levels = levels();
    for cpu in 0..PORTS.len() {
        let _ = writeln!(
            out,
            "  Scope (\\_SB.CPUS.C{cpu:03X}) {{\n\
             Name (_CPC, Package () {{ 23, 3, {levels} }})\n\
             Name (_PSD, Package () {{ Package () {{ 5, 0, {cpu}, 0xFE, 1 }} }})\n\
             Name (_PPC, 0) }}"
        );
    }
    out + "}\n"
}

/// The package of `_CPC` behind its length and revision.
fn levels() -> String {
    let register = |address: u32, bits: u32| {
        format!("ResourceTemplate () {{ Register (FFixedHW, {bits}, 0, {address:#018X}, ) }}")
    };
    let none = || "ResourceTemplate () { Register (SystemMemory, 0, 0, 0, ) }".to_owned();
    let byte = |address| register(address, 8);
    [
        // Highest, nominal, lowest that is not wasteful, lowest.
        ["196", "140", "80", "40"].map(str::to_owned).to_vec(),
        // Guaranteed; desired, least, most.
        vec![none(), byte(0x402), byte(0x403), byte(0x406)],
        // Tolerance, window, time to wrap; reference and delivered counters; limited.
        vec![none(), none(), none(), register(0x407, 64), register(0x40a, 64), none()],
        // Enabled, chosen by the hardware, its window, its preference.
        vec![register(0x40b, 1), register(0x40e, 1), none(), byte(0x40f)],
        // Reference level; lowest and nominal in MHz.
        ["100", "800", "2800"].map(str::to_owned).to_vec(),
    ]
    .concat()
    .join(", ")
}

/// Power limits (PPCC) of the PCI device in slot 4, in the form of Intel's thermal driver.
pub(super) fn power_domains() -> String {
    "DefinitionBlock (\"\", \"SSDT\", 2, \"LULL\", \"POWER\", 1)\n{\n\
     External (\\_SB.PCI0.S20, DeviceObj)\n\
     Scope (\\_SB.PCI0.S20) {\n\
     Name (PPCC, Package () { 2,\n\
     Package () { 0, 5000, 65000, 28000, 32000, 500 },\n\
     Package () { 1, 5000, 80000, 28000, 32000, 500 } })\n\
     Method (_TMP, 0, NotSerialized) { Return (3131) } } }\n"
        .to_owned()
}

/// A power meter of the whole machine, in units of 10 mW at two more ports
/// (ACPI 6.5, section 10.4).
pub(super) fn power_meter() -> String {
    "DefinitionBlock (\"\", \"SSDT\", 2, \"LULL\", \"METER\", 1)\n{\n\
     Scope (\\_SB) { Device (PMT0) {\n\
     Name (_HID, \"ACPI000D\")\n\
     Name (_UID, 0)\n\
     OperationRegion (PWR, SystemIO, 0x8A, 2)\n\
     Field (PWR, ByteAcc, NoLock, Preserve) { P0, 8, P1, 8 }\n\
     Name (_PMC, Package () { 1, 0, 0, 100000, 100, 100, 10000, 0, 0, 0, 0,\n\
     \"L\", \"1\", \"1\" })\n\
     Method (_PMM, 0, Serialized) { Return (((P1 << 8) | P0) * 10) }\n\
     Name (AVG, 100)\n\
     Method (_GAI, 0, Serialized) { Return (AVG) }\n\
     Method (_PAI, 1, Serialized) { AVG = Arg0  Return (0) }\n\
     Name (_PMD, Package () { \\_SB })\n\
     } } }\n"
        .to_owned()
}

/// Compiles tables; where they are.
pub(super) fn compile(tables: &[fn() -> String], place: &Path) -> Result<Vec<PathBuf>> {
    let mut compiled = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        let source = place.join(format!("table{number}.asl"));
        std::fs::write(&source, table())?;
        let mut iasl = Command::new("iasl");
        iasl.current_dir(place).arg("-va").arg(&source).stdout(Stdio::null());
        done(iasl.stderr(Stdio::null()))?;
        compiled.push(source.with_extension("aml"));
    }
    Ok(compiled)
}
