//! The programs of the gauges: sleeps of cores, and waits of threads for one.
//!
//! Both fill histograms in one [`Record`] a core, in memory that the agent
//! reads as it is: an epoch costs no system call, an event no copy.
//!
//! **Sleeps.** `cpu_idle` tells when a core enters an idle state and leaves it.
//! A gap is one such stay, since that is what has to pay for the state's entry:
//! a tick or an interrupt that wakes a core ends its gap, even if it sleeps on
//! a microsecond later. Polling states count as idle, as in cpuidle.
//!
//! **Waits.** A thread begins to wait when it is woken (`sched_wakeup`, once it
//! is in a run queue), or made way while it could have run on (`sched_switch`);
//! it ends when `sched_switch` puts it on a core. Between the two its instant is
//! kept under the address of its `task_struct`, which is all that is used of
//! it: no field is read, so no kernel has another layout to find out. The
//! instants are in a table without chains, one line for each hash: two threads
//! that wait at once in one line are one wait lost, and counted as such. That
//! takes some nanoseconds where the kernel's own hash maps, with locks and free
//! lists, take hundreds.
//!
//! Most of what is left is asking for the time. A core where threads begin to
//! wait more often than every 65 us times only one in 2, 4, 8 or 16 of them,
//! and that one counts for as many: the bits of this weight stand in the lowest
//! of the instant. So what is measured costs little where there is much of it,
//! and every wait is seen where there is not.

use super::assembler::{
    Assembler, Do, Helper, If, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10, Register,
};
use super::buckets;
use crate::sys::bpf::Instruction;
use std::os::fd::OwnedFd;

/// Words of a core's record, in the order in which programs leave them sound
/// for a reader that goes from the first to the last: what is begun is crossed
/// out before it is added to what has ended.
pub(super) struct Record;

impl Record {
    /// Histogram of sleeps.
    pub(super) const SLEEPS: usize = 0;
    /// Histogram of waits that ended on the core.
    pub(super) const WAITS: usize = buckets::WORDS;
    /// Time awake between sleeps.
    pub(super) const AWAKE_NS: usize = 2 * buckets::WORDS;
    /// Since when it is awake, or 0.
    pub(super) const AWAKE_SINCE: usize = Self::AWAKE_NS + 1;
    /// Since when it sleeps, or 0.
    pub(super) const ASLEEP_SINCE: usize = Self::AWAKE_NS + 2;
    /// Waits that begin and are still to be passed over, and of how many one is timed, in bits.
    const PASS_OVER: usize = Self::AWAKE_NS + 3;
    const WEIGHT_BITS: usize = Self::AWAKE_NS + 4;
    /// When one was timed last.
    const TIMED: usize = Self::AWAKE_NS + 5;
    /// A whole number of cache lines, so that cores do not write to each other's.
    pub(super) const WORDS: usize = 2 * buckets::WORDS + 8;
}

/// The table of threads that wait: address and instant a line.
pub(super) struct Waiting;

impl Waiting {
    const LINES_BITS: i32 = 14;
    const LINE_BITS: i32 = 4;
    /// Waits lost, behind the lines.
    pub(super) const LOST: usize = 2 << Self::LINES_BITS;
    /// All words.
    pub(super) const WORDS: usize = Self::LOST + 1;
    /// What Fibonacci hashing multiplies by: 2^64 over the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
}

/// Waits are timed this far apart at least, and at most while some are passed over.
const NEAR_NS: i32 = 1 << 16;
const FAR_NS: i32 = 1 << 18;
/// One of 16 is timed at least.
const WEIGHT_BITS_MOST: i32 = 4;
/// The bits of an instant that hold its weight.
const WEIGHT_MASK: i32 = 7;

/// Where the programs write.
pub(super) struct Maps<'a> {
    pub(super) records: &'a OwnedFd,
    pub(super) waiting: &'a OwnedFd,
    /// Records that there are; programs on other cores do nothing.
    pub(super) cores: usize,
}

/// `state == -1` in `cpu_idle`: the core leaves its idle state.
const LEAVES: i32 = -1;

/// The offset of a word from where its record or line begins.
const fn offset(word: usize) -> i16 {
    (word * 8) as i16
}

impl Maps<'_> {
    /// `cpu_idle(state, core)`.
    pub(super) fn sleep(&self) -> Vec<Instruction> {
        let mut asm = Assembler::new();
        let (leaves, enters, out) = (asm.label(), asm.label(), asm.label());
        let (state, now, record, since) = (R6, R7, R8, R9);
        let (awake, asleep) = (offset(Record::AWAKE_SINCE), offset(Record::ASLEEP_SINCE));
        asm.load(state, R1, 0);
        asm.call(Helper::Now);
        asm.set(now, R0);
        self.record(&mut asm, record, out);
        asm.jump_if_half(state, If::Equal, LEAVES, leaves);

        asm.load(since, record, awake);
        asm.jump_if(since, If::Equal, 0, enters);
        asm.store(record, awake, 0);
        asm.set(R1, now);
        asm.compute(R1, Do::Subtract, since);
        asm.increase((record, offset(Record::AWAKE_NS)), R1, R2);
        asm.at(enters);
        asm.store(record, asleep, now);
        asm.go(out);

        asm.at(leaves);
        asm.load(since, record, asleep);
        asm.store(record, asleep, 0);
        asm.store(record, awake, now);
        asm.jump_if(since, If::Equal, 0, out);
        asm.compute(now, Do::Subtract, since);
        asm.set(R5, 0);
        count(&mut asm, (record, Record::SLEEPS), now, R5);
        asm.at(out);
        asm.end();
        asm.finish()
    }

    /// `sched_wakeup(thread)` and `sched_wakeup_new(thread)`.
    pub(super) fn wake(&self) -> Vec<Instruction> {
        let mut asm = Assembler::new();
        let out = asm.label();
        asm.load(R6, R1, 0);
        self.begin_wait(&mut asm, R6, (R7, R8, R9), out);
        asm.at(out);
        asm.end();
        asm.finish()
    }

    /// `sched_switch(preempted, from, to, state of from)`. Without a fourth
    /// argument (before 5.18) the kernel refuses to attach it.
    pub(super) fn switch(&self) -> Vec<Instruction> {
        let mut asm = Assembler::new();
        let (could_run, next, timed, out) = (asm.label(), asm.label(), asm.label(), asm.label());
        const NEXT: i16 = -8;
        let (from, now, to) = (R6, R7, R8);
        asm.load(from, R1, 8);
        asm.load(to, R1, 16);
        asm.store(R10, NEXT, to);
        asm.load(R2, R1, 0);
        asm.load_half(R3, R1, 24);
        // Asking for the time is most of the cost: only if it is needed.
        asm.set(now, 0);
        asm.jump_if(R2, If::NotEqual, 0, could_run);
        asm.jump_if(R3, If::NotEqual, 0, next);
        asm.at(could_run);
        // A core's idle thread could always run, and waits for nothing.
        asm.call(Helper::Thread);
        asm.jump_if_half(R0, If::Equal, 0, next);
        self.begin_wait(&mut asm, from, (now, R8, R9), next);

        asm.at(next);
        asm.load(to, R10, NEXT);
        self.line(&mut asm, R9, to);
        asm.load(R1, R9, 0);
        asm.jump_if(R1, If::NotEqual, to, out);
        asm.jump_if(now, If::NotEqual, 0, timed);
        asm.call(Helper::Now);
        asm.set(now, R0);
        asm.at(timed);
        asm.store(R9, 0, 0);
        asm.load(R9, R9, 8);
        self.end_wait(&mut asm, (now, R9), out);
        asm.at(out);
        asm.end();
        asm.finish()
    }

    /// Adds a wait to the core's histogram. A core of which no sleep was seen
    /// yet is awake from here on, or a busy one would never be known.
    fn end_wait(&self, asm: &mut Assembler, (now, since): (Register, Register), out: Label) {
        let (record, weight_bits) = (R8, R6);
        let (is_known, is_later) = (asm.label(), asm.label());
        self.record(asm, record, out);
        asm.load(R1, record, offset(Record::AWAKE_SINCE));
        asm.jump_if(R1, If::NotEqual, 0, is_known);
        asm.load(R1, record, offset(Record::ASLEEP_SINCE));
        asm.jump_if(R1, If::NotEqual, 0, is_known);
        asm.store(record, offset(Record::AWAKE_SINCE), now);
        asm.at(is_known);
        asm.set(weight_bits, since);
        asm.compute(weight_bits, Do::And, WEIGHT_MASK);
        asm.compute(since, Do::And, !WEIGHT_MASK);
        // Clocks of two cores may differ by a little.
        asm.jump_if(now, If::AtLeast, since, is_later);
        asm.set(now, since);
        asm.at(is_later);
        asm.compute(now, Do::Subtract, since);
        count(asm, (record, Record::WAITS), now, weight_bits);
    }

    /// Keeps the instant from which a thread waits, if this wait is timed; an
    /// instant of an earlier wait that never ended is forgotten in any case.
    /// Afterwards `now` is the time, or as it was.
    fn begin_wait(
        &self,
        asm: &mut Assembler,
        thread: Register,
        (now, record, line): (Register, Register, Register),
        out: Label,
    ) {
        let (is_timed, free) = (asm.label(), asm.label());
        self.record(asm, record, out);
        self.line(asm, line, thread);
        asm.load(R2, record, offset(Record::PASS_OVER));
        asm.jump_if(R2, If::Equal, 0, is_timed);
        asm.compute(R2, Do::Subtract, 1);
        asm.store(record, offset(Record::PASS_OVER), R2);
        asm.load(R1, line, 0);
        asm.jump_if(R1, If::NotEqual, thread, out);
        asm.store(line, 0, 0);
        asm.go(out);

        asm.at(is_timed);
        asm.call(Helper::Now);
        asm.set(now, R0);
        let weight_bits = weigh(asm, record, now);
        asm.load(R1, line, 0);
        asm.jump_if(R1, If::Equal, 0, free);
        asm.jump_if(R1, If::Equal, thread, free);
        asm.set_value(R2, self.waiting);
        asm.compute(R2, Do::Add, 8 * Waiting::LOST as i32);
        asm.set(R3, 1);
        asm.compute(R3, Do::ShiftLeft, weight_bits);
        asm.increase_shared(R2, 0, R3);
        asm.at(free);
        asm.set(R1, now);
        asm.compute(R1, Do::And, !WEIGHT_MASK);
        asm.compute(R1, Do::Add, weight_bits);
        asm.store(line, 8, R1);
        asm.store(line, 0, thread);
    }

    /// `to =` the line of a thread.
    fn line(&self, asm: &mut Assembler, to: Register, thread: Register) {
        asm.set_wide(R1, Waiting::SPREAD);
        asm.compute(R1, Do::Multiply, thread);
        asm.compute(R1, Do::ShiftRight, 64 - Waiting::LINES_BITS);
        asm.compute(R1, Do::ShiftLeft, Waiting::LINE_BITS);
        asm.set_value(to, self.waiting);
        asm.compute(to, Do::Add, R1);
    }

    /// `to =` the record of this core.
    fn record(&self, asm: &mut Assembler, to: Register, unknown: Label) {
        asm.call(Helper::Core);
        asm.jump_if(R0, If::AtLeast, self.cores as i32, unknown);
        asm.compute(R0, Do::Multiply, 8 * Record::WORDS as i32);
        asm.set_value(to, self.records);
        asm.compute(to, Do::Add, R0);
    }
}

/// Of how many waits from this one on it is the one that is timed, in bits: more
/// than last time if the last is near, fewer if it is far.
fn weigh(asm: &mut Assembler, record: Register, now: Register) -> Register {
    let (bits, apart) = (R4, R1);
    let (is_not_near, is_weighed) = (asm.label(), asm.label());
    asm.load(R2, record, offset(Record::TIMED));
    asm.store(record, offset(Record::TIMED), now);
    asm.load(bits, record, offset(Record::WEIGHT_BITS));
    asm.set(apart, now);
    asm.compute(apart, Do::Subtract, R2);
    asm.jump_if(apart, If::AtLeast, NEAR_NS, is_not_near);
    asm.jump_if(bits, If::AtLeast, WEIGHT_BITS_MOST, is_weighed);
    asm.compute(bits, Do::Add, 1);
    asm.go(is_weighed);
    asm.at(is_not_near);
    asm.jump_if(apart, If::Less, FAR_NS, is_weighed);
    asm.jump_if(bits, If::Equal, 0, is_weighed);
    asm.compute(bits, Do::Subtract, 1);
    asm.at(is_weighed);
    // It is at most 4; the verifier is told.
    asm.compute(bits, Do::And, WEIGHT_MASK);
    asm.store(record, offset(Record::WEIGHT_BITS), bits);
    asm.set(R2, 1);
    asm.compute(R2, Do::ShiftLeft, bits);
    asm.compute(R2, Do::Subtract, 1);
    asm.store(record, offset(Record::PASS_OVER), R2);
    bits
}

/// Counts a time in a histogram of a record, which is moved to its bucket, as
/// often as it has weight.
fn count(
    asm: &mut Assembler,
    (record, histogram): (Register, usize),
    time: Register,
    weight_bits: Register,
) {
    let (bucket, weight) = (R2, R3);
    asm.set(bucket, time);
    buckets::assemble(asm, bucket, R3, R4);
    asm.compute(bucket, Do::ShiftLeft, 4);
    asm.compute(record, Do::Add, bucket);
    asm.set(weight, 1);
    asm.compute(weight, Do::ShiftLeft, weight_bits);
    asm.increase((record, offset(histogram)), weight, R1);
    asm.compute(time, Do::ShiftLeft, weight_bits);
    asm.increase((record, offset(histogram + 1)), time, R1);
}
