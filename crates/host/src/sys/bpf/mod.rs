//! The `bpf(2)` system call: maps, programs, and what holds a program to a
//! tracepoint (layouts from linux/bpf.h).
//!
//! All that is made here is a file descriptor, closed on exec by the kernel's
//! own choice. Nothing is pinned: with the last descriptor the kernel takes
//! the program off its tracepoint and frees it, however the process ends.

mod ring;
mod words;

pub use ring::{RECORD_BYTES, Ring};
pub use words::Words;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands (`enum bpf_cmd`).
const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const PROG_TEST_RUN: libc::c_long = 10;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;

/// `BPF_MAP_TYPE_ARRAY`, and the flag that lets its memory be mapped (5.5).
const MAP_ARRAY: u32 = 2;
const MAPPABLE: u32 = 1 << 10;
/// `BPF_MAP_TYPE_RINGBUF` (5.8).
const MAP_RING: u32 = 27;
/// `BPF_PROG_TYPE_RAW_TRACEPOINT`.
const RAW_TRACEPOINT: u32 = 17;
/// `BPF_PROG_TYPE_TRACING`, and of its kinds `BPF_TRACE_RAW_TP` (5.5).
const TRACING: u32 = 26;
const TYPED_TRACEPOINT: u32 = 23;
/// Room for what the verifier says; it says the end last, which is what counts.
const VERIFIER_BYTES: usize = 64 << 10;
/// What programs at raw tracepoints are licensed under; none calls a helper that asks
/// for the GPL.
const LICENSE: &CStr = c"Apache-2.0";
/// The same of those that follow the kernel's pointers, which it lets only programs do
/// that may be had under the GPL, too (docs/decisions.md).
const LICENSE_OF_TYPED: &CStr = c"Dual MIT/GPL";

/// One instruction (`struct bpf_insn`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation and operand kinds.
    pub code: u8,
    /// Destination register in the lower four bits, source in the upper.
    pub registers: u8,
    /// Offset of a memory access or jump.
    pub offset: i16,
    /// Immediate operand.
    pub immediate: i32,
}

/// Why the kernel did not take a program.
#[derive(Debug)]
pub struct Refused {
    /// What it answered.
    pub error: io::Error,
    /// The end of what its verifier said; empty if it was not asked.
    pub verifier: String,
}

#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
struct LoadProgram {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_kind: u32,
    /// Types and line numbers of the program's own, of which there are none.
    described: [u32; 9],
    attach_type_id: u32,
    attach_program: u32,
    relocations: u32,
}

/// What a program is attached to.
#[derive(Debug, Clone, Copy)]
pub enum Point {
    /// A raw tracepoint: its arguments are numbers.
    Raw,
    /// One whose arguments have the types that they have in the kernel, by the
    /// number of its own type there; pointers among them may be followed.
    Typed(u32),
}

#[repr(C)]
struct OpenTracepoint {
    name: u64,
    program: u32,
    padding: u32,
}

#[repr(C)]
struct TestRun {
    program: u32,
    answer: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration_ns: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
}

#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct AskInfo {
    object: u32,
    info_bytes: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
}

/// Does a command; the attributes are those that the command has in linux/bpf.h.
fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    let pointer: *mut T = attributes;
    // SAFETY: the kernel reads and writes at most `size_of::<T>()` bytes there;
    // what addresses in it point to outlives the call, as each caller shows.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as i32) }
}

fn descriptor<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    let number = bpf(command, attributes)?;
    // SAFETY: the command has just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn number(descriptor: &OwnedFd) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// An array map of one value that programs write and this process can map.
///
/// # Errors
/// What the kernel says: `EPERM` without `CAP_BPF`.
pub fn memory(bytes: u32) -> io::Result<OwnedFd> {
    let kind = MAP_ARRAY;
    let mut wanted =
        CreateMap { kind, key_bytes: 4, value_bytes: bytes, entries: 1, flags: MAPPABLE };
    descriptor(MAP_CREATE, &mut wanted)
}

/// A ring buffer of so many bytes, a power of two and a multiple of a page.
///
/// # Errors
/// What the kernel says: `EPERM` without `CAP_BPF`.
pub fn ring(bytes: u32) -> io::Result<OwnedFd> {
    let mut wanted =
        CreateMap { kind: MAP_RING, key_bytes: 0, value_bytes: 0, entries: bytes, flags: 0 };
    descriptor(MAP_CREATE, &mut wanted)
}

/// Loads a program for a tracepoint; of its name 15 letters are kept.
///
/// # Errors
/// What the kernel says, and its verifier.
pub fn load(name: &str, code: &[Instruction], point: Point) -> Result<OwnedFd, Refused> {
    match descriptor(PROG_LOAD, &mut program(name, code, point)) {
        Ok(loaded) => Ok(loaded),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            Err(Refused { error, verifier: String::new() })
        }
        Err(_) => explained(name, code, point),
    }
}

/// Once more, with the verifier asked why.
fn explained(name: &str, code: &[Instruction], point: Point) -> Result<OwnedFd, Refused> {
    let mut log = vec![0_u8; VERIFIER_BYTES];
    let mut asking = program(name, code, point);
    asking.log_level = 1;
    asking.log_bytes = VERIFIER_BYTES as u32;
    asking.log = log.as_mut_ptr() as u64;
    descriptor(PROG_LOAD, &mut asking).map_err(|error| {
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        Refused { error, verifier: text.map_or_else(|_| String::new(), |text| tail(&text)) }
    })
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("; ")
}

fn program(name: &str, code: &[Instruction], point: Point) -> LoadProgram {
    let mut kept = [0; 16];
    for (to, from) in kept.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    let (kind, attach_kind, attach_type_id, license) = match point {
        Point::Raw => (RAW_TRACEPOINT, 0, 0, LICENSE),
        Point::Typed(id) => (TRACING, TYPED_TRACEPOINT, id, LICENSE_OF_TYPED),
    };
    LoadProgram {
        kind,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: kept,
        interface: 0,
        attach_kind,
        described: [0; 9],
        attach_type_id,
        attach_program: 0,
        relocations: 0,
    }
}

/// Runs a program at every event of a tracepoint while the descriptor lives.
///
/// # Errors
/// What the kernel says: `ENOENT` if it has no such tracepoint, `EINVAL` if
/// the program reads an argument that this kernel's tracepoint does not have.
pub fn attach(program: &OwnedFd, tracepoint: &CStr) -> io::Result<OwnedFd> {
    open_tracepoint(program, tracepoint.as_ptr() as u64)
}

/// The same for the tracepoint that a program was loaded for ([`Point::Typed`]).
///
/// # Errors
/// What the kernel says.
pub fn attach_typed(program: &OwnedFd) -> io::Result<OwnedFd> {
    open_tracepoint(program, 0)
}

fn open_tracepoint(program: &OwnedFd, name: u64) -> io::Result<OwnedFd> {
    let mut wanted = OpenTracepoint { name, program: number(program), padding: 0 };
    descriptor(RAW_TRACEPOINT_OPEN, &mut wanted)
}

/// Runs a program once on the arguments of an event; what it answers.
///
/// # Errors
/// What the kernel says; raw tracepoints can be run since 5.10.
pub fn run(program: &OwnedFd, arguments: &[u64]) -> io::Result<u32> {
    let mut wanted = TestRun {
        program: number(program),
        answer: 0,
        data_in_bytes: 0,
        data_out_bytes: 0,
        data_in: 0,
        data_out: 0,
        repeat: 0,
        duration_ns: 0,
        context_in_bytes: size_of_val(arguments) as u32,
        context_out_bytes: 0,
        context_in: arguments.as_ptr() as u64,
        context_out: 0,
    };
    bpf(PROG_TEST_RUN, &mut wanted)?;
    Ok(wanted.answer)
}

/// The number that the kernel knows a program by.
///
/// # Errors
/// What the kernel says.
pub fn id(program: &OwnedFd) -> io::Result<u32> {
    let mut info = ProgramInfo::default();
    let pointer: *mut ProgramInfo = &raw mut info;
    let info_bytes = size_of::<ProgramInfo>() as u32;
    let mut ask = AskInfo { object: number(program), info_bytes, info: pointer as u64 };
    bpf(OBJ_GET_INFO_BY_FD, &mut ask)?;
    Ok(info.id)
}

/// Whether the kernel still has a program of this number.
///
/// # Errors
/// What the kernel says: `EPERM` without `CAP_SYS_ADMIN`.
pub fn exists(id: u32) -> io::Result<bool> {
    match descriptor(PROG_GET_FD_BY_ID, &mut ById { id, next: 0, flags: 0 }) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}
