//! Objects that `cargo xtask bpf` compiles, loaded by `aya`: their maps, and their programs
//! at tracepoints.
//!
//! Maps, programs and attachments are file descriptors of this process. The kernel opens
//! them close-on-exec, and nothing is pinned: with the last descriptor the kernel detaches
//! and frees a program, however the process ends.

use super::BpfError;
use crate::sys::bpf::MappedWords;
use crate::sys::memory;
use aya::maps::{Array, Map, MapData};
use aya::programs::{BtfTracePoint, Program, ProgramError, RawTracePoint, loaded_programs};
use aya::{Btf, BtfError, Ebpf, EbpfLoader};
use std::io;
use std::path::Path;

/// The map of an object's variables that begin as zeros.
const ZEROED_VARIABLES: &str = ".bss";

/// An object in the kernel: its maps, and the programs attached so far.
#[derive(Debug)]
pub(super) struct Object {
    ebpf: Ebpf,
}

/// Gives the memory of the kernel's types back once they are dropped, which loading programs
/// reads: more than 20 MB that the allocator would keep. Declared before the types, this is
/// dropped after them.
pub(super) struct FreesTypes;

impl Drop for FreesTypes {
    fn drop(&mut self) {
        memory::return_freed();
    }
}

impl Object {
    /// Creates the object's maps; no program is in the kernel yet.
    pub(super) fn load(loader: &mut EbpfLoader<'_>, object: &[u8]) -> Result<Self, BpfError> {
        let loaded = loader.load(object);
        let what = "the kernel creates no maps for programs";
        Ok(Self { ebpf: loaded.map_err(|error| BpfError::from_aya(what, &error))? })
    }

    /// Runs a program at every event of a raw tracepoint, while this lives.
    pub(super) fn attach(&mut self, name: &str, tracepoint: &str) -> Result<(), BpfError> {
        let attached = self.load_raw(name)?.attach(tracepoint).map(drop);
        attached
            .map_err(|error| BpfError::from_aya(format!("cannot attach to {tracepoint}"), &error))
    }

    /// The same at a tracepoint whose arguments have their types in the kernel, so that the
    /// program may follow pointers among them.
    pub(super) fn attach_typed(
        &mut self,
        name: &str,
        tracepoint: &str,
        kernel: &Btf,
    ) -> Result<(), BpfError> {
        let program: &mut BtfTracePoint = self.program(name)?;
        match program.load(tracepoint, kernel) {
            Ok(()) => {}
            Err(ProgramError::Btf(BtfError::UnknownBtfTypeName { .. })) => {
                let hint = "this kernel has none; queries are reported from Linux 6.3 on";
                let error = io::Error::new(io::ErrorKind::Unsupported, hint);
                return Err(BpfError::new(format!("no tracepoint {tracepoint}"), error));
            }
            Err(error) => return Err(rejected(name, &error)),
        }
        let attached = program.attach().map(drop);
        attached
            .map_err(|error| BpfError::from_aya(format!("cannot attach to {tracepoint}"), &error))
    }

    /// The same for several, each with its tracepoint, in this order.
    pub(super) fn attach_each(
        &mut self,
        programs: &[(&str, &str)],
        kernel: &Btf,
    ) -> Result<(), BpfError> {
        let mut each = programs.iter();
        each.try_for_each(|(name, tracepoint)| self.attach_typed(name, tracepoint, kernel))
    }

    /// Passes a program for raw tracepoints to the kernel, which verifies it.
    pub(super) fn load_raw(&mut self, name: &str) -> Result<&mut RawTracePoint, BpfError> {
        let program: &mut RawTracePoint = self.program(name)?;
        program.load().map_err(|error| rejected(name, &error))?;
        Ok(program)
    }

    /// Maps the values of an array map, `values` of `words` 64-bit words each.
    pub(super) fn mapped(
        &self,
        name: &str,
        words: usize,
        values: usize,
    ) -> Result<MappedWords, BpfError> {
        let Some(Map::Array(map)) = self.ebpf.map(name) else { return Err(absent(name)) };
        let info = map.info().map_err(|error| BpfError::from_aya(name, &error))?;
        // Reader and program would interpret the memory differently.
        if (info.value_size() as usize, info.max_entries() as usize) != (8 * words, values) {
            let what = format!("the map {name} is not {values} times {words} words");
            return Err(BpfError::new(what, io::ErrorKind::InvalidData.into()));
        }
        let mapped = MappedWords::new(map.fd(), words * values);
        mapped.map_err(|error| BpfError::new(format!("cannot map the memory of {name}"), error))
    }

    /// Sets the object's only variable that begins as zeros.
    pub(super) fn set_variable<const WORDS: usize>(
        &mut self,
        value: &[u64; WORDS],
    ) -> Result<(), BpfError> {
        let map = self.ebpf.map_mut(ZEROED_VARIABLES).ok_or_else(|| absent(ZEROED_VARIABLES))?;
        let set = Array::<&mut MapData, [u64; WORDS]>::try_from(map)
            .and_then(|mut variables| variables.set(0, value, 0));
        set.map_err(|error| BpfError::from_aya("cannot set a variable of programs", &error))
    }

    /// Takes a map out of the object; its programs keep it, too.
    pub(super) fn take_map(&mut self, name: &str) -> Result<Map, BpfError> {
        self.ebpf.take_map(name).ok_or_else(|| absent(name))
    }

    /// The kernel's identifiers of the programs.
    pub(super) fn program_ids(&self) -> io::Result<Vec<u32>> {
        let id = |program: &Program| program.info().map(|info| info.id());
        let ids: Result<_, _> = self.ebpf.programs().map(|(_, program)| id(program)).collect();
        ids.map_err(io::Error::other)
    }

    fn program<'a, P>(&'a mut self, name: &str) -> Result<&'a mut P, BpfError>
    where
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        let program = self.ebpf.program_mut(name).ok_or_else(|| absent(name))?;
        program.try_into().map_err(|error: ProgramError| BpfError::from_aya(name, &error))
    }

    /// Runs a raw tracepoint's program once with these arguments and returns its result.
    #[cfg(test)]
    pub(super) fn run(&self, name: &str, arguments: &[u64]) -> u32 {
        use aya::{RawTracePointRunOptions, TestRun};
        let program: &RawTracePoint = self.ebpf.program(name).unwrap().try_into().unwrap();
        let mut options = RawTracePointRunOptions::new();
        options.args[..arguments.len()].copy_from_slice(arguments);
        program.test_run(options).unwrap().return_value
    }
}

/// The running kernel's types, as it describes them in `/sys/kernel/btf/vmlinux`.
pub(super) fn kernel_types() -> Result<Btf, BpfError> {
    let types = Btf::from_sys_fs();
    types.map_err(|error| {
        let built = Path::new("/sys/kernel/btf/vmlinux").exists();
        let hint = if built { "" } else { ": this kernel was built without CONFIG_DEBUG_INFO_BTF" };
        BpfError::new("cannot read the kernel's types", io::Error::other(format!("{error}{hint}")))
    })
}

/// Returns whether the kernel still has the program with this identifier.
///
/// # Errors
/// If the kernel does not list its programs: `EPERM` without `CAP_SYS_ADMIN`.
pub fn is_loaded(id: u32) -> io::Result<bool> {
    for program in loaded_programs() {
        match program {
            Ok(program) if program.id() == id => return Ok(true),
            Ok(_) => {}
            Err(error) => {
                let error = BpfError::from_aya("cannot list programs", &error);
                // A program may end between its listing and the look at it.
                if error.raw_os_error() != Some(libc::ENOENT) {
                    return Err(io::Error::other(error));
                }
            }
        }
    }
    Ok(false)
}

fn rejected(name: &str, error: &ProgramError) -> BpfError {
    BpfError::from_aya(format!("the kernel rejects the program {name}"), error)
}

/// A map or program that the compiled object lacks.
fn absent(name: &str) -> BpfError {
    BpfError::new(format!("the compiled object has no {name}"), io::ErrorKind::NotFound.into())
}
