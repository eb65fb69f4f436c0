//! Programs for the kernel's BPF machine, written down in Rust
//! (Documentation/bpf/standardization/instruction-set.rst).
//!
//! A compiler for this machine would be a package of the system; a few dozen
//! instructions need none. What is here is what these programs use: eleven
//! registers of 64 bits, loads and stores, arithmetic, jumps forward to labels,
//! calls of helpers, and addresses of maps.
//!
//! A call leaves its answer in [`R0`] and loses [`R1`] to [`R5`]; [`R6`] to
//! [`R9`] stay. [`R10`] is the end of the stack. At the start [`R1`] points to
//! the event's arguments, eight bytes each.

use crate::sys::bpf::Instruction;
use std::os::fd::{AsRawFd, OwnedFd};

/// A register of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Register(u8);

pub(super) const R0: Register = Register(0);
pub(super) const R1: Register = Register(1);
pub(super) const R2: Register = Register(2);
pub(super) const R3: Register = Register(3);
pub(super) const R4: Register = Register(4);
pub(super) const R5: Register = Register(5);
pub(super) const R6: Register = Register(6);
pub(super) const R7: Register = Register(7);
pub(super) const R8: Register = Register(8);
pub(super) const R9: Register = Register(9);
pub(super) const R10: Register = Register(10);

/// A register or a number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operand {
    Register(Register),
    Number(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

/// Arithmetic on all 64 bits (`BPF_ALU64`).
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Do {
    Add = 0x00,
    Subtract = 0x10,
    Multiply = 0x20,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Move = 0xb0,
}

/// When a jump is taken, seen as numbers without sign.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum If {
    Equal = 0x10,
    NotEqual = 0x50,
    AtLeast = 0x30,
    Less = 0xa0,
}

/// Functions of the kernel (`enum bpf_func_id`).
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(super) enum Helper {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    Now = 5,
    /// The core that the program runs on.
    Core = 8,
    /// Process and thread that it runs in; 0 in a core's idle thread.
    Thread = 14,
    /// A number that a socket keeps and no other socket ever has (5.12 here).
    Cookie = 46,
    /// Copies a record into a ring buffer, or answers that there is no room (5.8).
    WriteRecord = 130,
}

/// Kinds of instructions, and of their operands.
const LOAD_WIDE: u8 = 0x18;
const LOAD: u8 = 0x61;
const LOAD_16: u8 = 0x69;
const LOAD_64: u8 = 0x79;
const STORE_64: u8 = 0x7b;
const STORE_NUMBER_64: u8 = 0x7a;
const ADD_AT_ONCE_64: u8 = 0xdb;
const ARITHMETIC: u8 = 0x07;
const JUMP: u8 = 0x05;
const JUMP_32: u8 = 0x06;
const FROM_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// What a wide load's source register says: a map, or a place in its value.
const OF_MAP: u8 = 1;
const OF_VALUE: u8 = 2;

/// A place to jump to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program being written.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    /// Where each label stands, by its number.
    places: Vec<Option<usize>>,
    /// Jumps and the labels that they go to.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// An empty program.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// A label that stands nowhere yet.
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Puts a label before the next instruction.
    pub(super) fn at(&mut self, label: Label) {
        self.places[label.0] = Some(self.code.len());
    }

    /// `to = to OPERATION operand`.
    pub(super) fn compute(&mut self, to: Register, operation: Do, operand: impl Into<Operand>) {
        self.with(ARITHMETIC | operation as u8, to, operand.into(), 0);
    }

    /// `to = from`.
    pub(super) fn set(&mut self, to: Register, from: impl Into<Operand>) {
        self.compute(to, Do::Move, from);
    }

    /// `to = number`, of 64 bits.
    pub(super) fn set_wide(&mut self, to: Register, number: u64) {
        self.wide(to, 0, number);
    }

    /// `to =` the map itself, as helpers want it.
    pub(super) fn set_map(&mut self, to: Register, map: &OwnedFd) {
        self.wide(to, OF_MAP, map_number(map).into());
    }

    /// `to =` the address of the only value of a map.
    pub(super) fn set_value(&mut self, to: Register, map: &OwnedFd) {
        self.wide(to, OF_VALUE, map_number(map).into());
    }

    /// `to = *(address + offset)`, eight bytes.
    pub(super) fn load(&mut self, to: Register, address: Register, offset: i16) {
        self.push(LOAD_64, to, address, offset, 0);
    }

    /// The same, four bytes and zeros above them.
    pub(super) fn load_half(&mut self, to: Register, address: Register, offset: i16) {
        self.push(LOAD, to, address, offset, 0);
    }

    /// The same, two bytes.
    pub(super) fn load_short(&mut self, to: Register, address: Register, offset: i16) {
        self.push(LOAD_16, to, address, offset, 0);
    }

    /// `*(address + offset) = from`, eight bytes.
    pub(super) fn store(&mut self, address: Register, offset: i16, from: impl Into<Operand>) {
        match from.into() {
            Operand::Register(from) => self.push(STORE_64, address, from, offset, 0),
            Operand::Number(number) => self.push(STORE_NUMBER_64, address, R0, offset, number),
        }
    }

    /// `*(address + offset) += from` by way of a register, for words that one
    /// core writes at a time.
    pub(super) fn increase(
        &mut self,
        (address, offset): (Register, i16),
        by: impl Into<Operand>,
        via: Register,
    ) {
        self.load(via, address, offset);
        self.compute(via, Do::Add, by);
        self.store(address, offset, via);
    }

    /// `*(address + offset) += by` in one step, for words that all cores write.
    pub(super) fn increase_shared(&mut self, address: Register, offset: i16, by: Register) {
        self.push(ADD_AT_ONCE_64, address, by, offset, 0);
    }

    /// Goes to a label if the condition holds.
    pub(super) fn jump_if(
        &mut self,
        left: Register,
        condition: If,
        right: impl Into<Operand>,
        to: Label,
    ) {
        self.jump(JUMP | condition as u8, left, right.into(), to);
    }

    /// The same for the lower halves.
    pub(super) fn jump_if_half(
        &mut self,
        left: Register,
        condition: If,
        right: impl Into<Operand>,
        to: Label,
    ) {
        self.jump(JUMP_32 | condition as u8, left, right.into(), to);
    }

    /// Goes to a label.
    pub(super) fn go(&mut self, to: Label) {
        self.jump(JUMP, R0, Operand::Number(0), to);
    }

    /// Calls a function of the kernel.
    pub(super) fn call(&mut self, helper: Helper) {
        self.push(CALL, R0, R0, 0, helper as u8 as i32);
    }

    /// Ends the program, with an answer that tracepoints do not look at.
    pub(super) fn end(&mut self) {
        self.set(R0, 0);
        self.end_with_answer();
    }

    /// Ends the program with [`R0`] as its answer.
    pub(super) fn end_with_answer(&mut self) {
        self.push(EXIT, R0, R0, 0, 0);
    }

    /// The finished program.
    ///
    /// # Panics
    /// If a jump goes to a label that stands nowhere, or too far.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (jump, label) in self.jumps {
            let place = self.places[label.0].expect("a label that was put nowhere");
            let distance = place as isize - jump as isize - 1;
            self.code[jump].offset = i16::try_from(distance).expect("a jump too far");
        }
        self.code
    }

    fn jump(&mut self, code: u8, left: Register, right: Operand, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.with(code, left, right, 0);
    }

    fn with(&mut self, code: u8, to: Register, operand: Operand, offset: i16) {
        match operand {
            Operand::Register(from) => self.push(code | FROM_REGISTER, to, from, offset, 0),
            Operand::Number(number) => self.push(code, to, R0, offset, number),
        }
    }

    /// A load of 64 bits takes the room of two instructions. A place in a map's
    /// value is the map in the first and a distance, here zero, in the second.
    fn wide(&mut self, to: Register, kind: u8, number: u64) {
        let (low, high) = (number as u32, (number >> 32) as u32);
        self.push(LOAD_WIDE, to, Register(kind), 0, low.cast_signed());
        self.push(0, R0, R0, 0, high.cast_signed());
    }

    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: registers(to, from), offset, immediate });
    }
}

/// Both registers in a byte: a bit field, whose order is that of the machine's bytes.
const fn registers(to: Register, from: Register) -> u8 {
    if cfg!(target_endian = "little") { to.0 | from.0 << 4 } else { from.0 | to.0 << 4 }
}

fn map_number(map: &OwnedFd) -> u32 {
    map.as_raw_fd().cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(write: impl FnOnce(&mut Assembler)) -> Vec<(u8, u8, i16, i32)> {
        let mut asm = Assembler::new();
        write(&mut asm);
        let parts = |it: Instruction| (it.code, it.registers, it.offset, it.immediate);
        asm.finish().into_iter().map(parts).collect()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_are_those_of_the_standard() {
        // As clang 16 encodes them for the target bpfel.
        let r6_from_r1 = words(|asm| asm.set(R6, R1));
        assert_eq!(r6_from_r1, [(0xbf, 0x16, 0, 0)]);
        assert_eq!(words(|asm| asm.set(R0, 0)), [(0xb7, 0x00, 0, 0)]);
        assert_eq!(words(|asm| asm.load(R2, R1, 8)), [(0x79, 0x12, 8, 0)]);
        assert_eq!(words(|asm| asm.load_half(R2, R1, 24)), [(0x61, 0x12, 24, 0)]);
        assert_eq!(words(|asm| asm.load_short(R3, R6, 14)), [(0x69, 0x63, 14, 0)]);
        assert_eq!(words(|asm| asm.store(R10, -8, R7)), [(0x7b, 0x7a, -8, 0)]);
        assert_eq!(words(|asm| asm.store(R3, 16, 0)), [(0x7a, 0x03, 16, 0)]);
        assert_eq!(words(|asm| asm.increase_shared(R3, 16, R1)), [(0xdb, 0x13, 16, 0)]);
        assert_eq!(words(|asm| asm.compute(R4, Do::ShiftRight, 6)), [(0x77, 0x04, 0, 6)]);
        assert_eq!(words(|asm| asm.compute(R4, Do::Subtract, R9)), [(0x1f, 0x94, 0, 0)]);
        assert_eq!(words(|asm| asm.call(Helper::Now)), [(0x85, 0, 0, 5)]);
        assert_eq!(words(Assembler::end), [(0xb7, 0, 0, 0), (0x95, 0, 0, 0)]);
    }

    #[test]
    fn a_number_of_64_bits_takes_two_instructions() {
        let code = words(|asm| asm.set_wide(R1, 0x1234_5678_9abc_def0));
        assert_eq!(code[0].3.cast_unsigned(), 0x9abc_def0);
        assert_eq!(code[1], (0, 0, 0, 0x1234_5678));
    }

    #[test]
    fn jumps_count_from_the_instruction_after_them_and_wide_loads_twice() {
        let code = words(|asm| {
            let (out, near) = (asm.label(), asm.label());
            asm.jump_if(R1, If::Equal, 0, out);
            asm.jump_if_half(R1, If::NotEqual, -1, near);
            asm.set_wide(R2, 1);
            asm.at(near);
            asm.go(out);
            asm.at(out);
            asm.end();
        });
        assert_eq!(code[0], (0x15, 0x01, 4, 0));
        assert_eq!(code[1], (0x56, 0x01, 2, -1));
        assert_eq!(code[4], (0x05, 0, 0, 0));
    }

    #[test]
    #[should_panic(expected = "put nowhere")]
    fn a_jump_to_nowhere_is_a_mistake_of_the_program() {
        words(|asm| {
            let out = asm.label();
            asm.go(out);
        });
    }
}
