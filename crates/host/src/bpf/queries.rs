//! Latencies of queries on a server's sockets, as the kernel sees them: for
//! servers into which no library can be preloaded.
//!
//! ```text
//!   sock_recv_length ─▶ the query of this socket was read now ─┐ one line a socket
//!   sock_send_length ─▶ it is answered: histogram of this core ┘
//!   tcp_destroy_sock ─▶ nothing of it is left
//! ```
//!
//! What is read asks and what is written answers, as in the preloaded library
//! where no protocol is known: from the last piece that was read to the first
//! that is written. The two tracepoints stand where every way to read and write a
//! socket comes by, `io_uring` and system calls without a C library among them
//! (Linux 6.3; net/socket.c).
//!
//! A server's sockets are those in its network namespace whose local port it
//! listens at, and whose transport is a stream: what the server asks of others goes
//! through other ports. Their fields are read where the kernel says that they
//! stand ([`super::kernel_types`]), which its verifier checks. A socket is known by
//! its cookie, a number that none ever has again. Lines have no chains: of two
//! sockets with a query each in one line the earlier is lost, and counted as such.
//!
//! The kernel lets a program follow its pointers only if that may be had under the
//! GPL: what this file loads may be used under Apache-2.0 as all of Lull, or under MIT
//! or GPL-2.0.

use super::assembler::{
    Assembler, Do, Helper, If, Label, R0, R1, R2, R6, R7, R8, R9, R10, Register,
};
use super::buckets::{self, Histogram};
use super::kernel_types::KernelTypes;
use super::{Attached, BpfError, map};
use crate::sys::bpf::{self, Instruction, Words};
use lull_measure::Nanos;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

/// Words of what is watched: a network namespace and its ports, a bit each.
struct Filter;

impl Filter {
    const NAMESPACE: usize = 0;
    const PORTS: usize = 1;
    const WORDS: usize = Self::PORTS + (1 << 16) / 64;
}

/// Sockets: cookie and instant a line, and behind them the queries that were lost.
struct Lines;

impl Lines {
    const BITS: i32 = 16;
    const LINE_BITS: i32 = 4;
    const COUNT: usize = 1 << Self::BITS;
    const LOST: usize = 2 * Self::COUNT;
    const WORDS: usize = Self::LOST + 1;
    const INSTANT: i16 = 8;
}

/// Words of a core's histogram, a whole number of cache lines.
const RECORD_WORDS: usize = buckets::WORDS;

/// Transports that are streams (include/uapi/linux/in.h).
const TCP: i32 = 6;
const MPTCP: i32 = 262;
/// From which on the lower half of a register is a negative number.
const NEGATIVE: i32 = i32::MIN;

/// The tracepoints, as the kernel calls their types.
const RECEIVED: &str = "btf_trace_sock_recv_length";
const SENT: &str = "btf_trace_sock_send_length";
const DESTROYED: &str = "btf_trace_tcp_destroy_sock";

/// Where fields stand in the kernel's structs.
#[derive(Debug, Clone, Copy)]
struct Fields {
    port: i16,
    transport: i16,
    namespace: i16,
    namespace_number: i16,
}

/// The programs, and where they write.
#[derive(Debug)]
struct Programs<'a> {
    fields: Fields,
    filter: &'a OwnedFd,
    lines: &'a OwnedFd,
    records: &'a OwnedFd,
    cores: usize,
}

/// Queries of one server, counted from here until it is dropped.
#[derive(Debug)]
pub struct QueryWatch {
    _programs: Vec<Attached>,
    filter: Words,
    lines: Words,
    records: Words,
    cores: usize,
    ports: BTreeSet<u16>,
}

/// What was seen of queries since the watch began.
#[derive(Debug, Clone, Default)]
pub struct QueriesSeen {
    /// How long they took.
    pub latencies: Histogram,
    /// Queries that were lost.
    pub lost: u64,
    /// Queries that were read and not answered, and since when the oldest.
    pub pending: (u64, Option<Nanos>),
}

impl QueryWatch {
    /// Begins to watch, on the cores `0..cores`, a server that listens nowhere yet.
    ///
    /// # Errors
    /// What the kernel refuses, and what is needed.
    pub fn begin(cores: usize) -> Result<Self, BpfError> {
        let unknown = |error| BpfError::new("the kernel's types cannot be read", error);
        let types = KernelTypes::of_running_kernel().map_err(unknown)?;
        let fields = Fields::of(&types).ok_or_else(|| absent("a field of struct sock"))?;
        let memory = |words: usize| map(bpf::memory((8 * words) as u32));
        let mapped = |map: &OwnedFd, words: usize| {
            let what = "the memory of programs cannot be mapped";
            Words::of(map, 8 * words).map_err(|error| BpfError::new(what, error))
        };
        let (filter, lines) = (memory(Filter::WORDS)?, memory(Lines::WORDS)?);
        let records = memory(RECORD_WORDS * cores)?;
        let maps = Programs { fields, filter: &filter, lines: &lines, records: &records, cores };
        let attached = |name: &str, code: &[Instruction], tracepoint: &str| {
            let id = types.typedef(tracepoint).ok_or_else(|| absent(tracepoint))?;
            Attached::typed(name, code, id)
        };
        let programs = vec![
            attached("lull_received", &maps.received(), RECEIVED)?,
            attached("lull_sent", &maps.sent(), SENT)?,
            attached("lull_destroyed", &maps.destroyed(), DESTROYED)?,
        ];
        Ok(Self {
            _programs: programs,
            filter: mapped(&filter, Filter::WORDS)?,
            lines: mapped(&lines, Lines::WORDS)?,
            records: mapped(&records, RECORD_WORDS * cores)?,
            cores,
            ports: BTreeSet::new(),
        })
    }

    /// Where the server listens now: at these ports, in the network namespace of this
    /// number.
    pub fn set_place(&mut self, namespace: u32, ports: &BTreeSet<u16>) {
        self.filter.set(Filter::NAMESPACE, namespace.into());
        for port in self.ports.symmetric_difference(ports) {
            let word = Filter::PORTS + usize::from(port / 64);
            let bit = 1 << (port % 64);
            let others = self.filter.get(word) & !bit;
            self.filter.set(word, if ports.contains(port) { others | bit } else { others });
        }
        self.ports.clone_from(ports);
    }

    /// The ports that are watched.
    pub const fn ports(&self) -> &BTreeSet<u16> {
        &self.ports
    }

    /// All that was seen up to now.
    pub fn read(&self) -> QueriesSeen {
        let mut latencies = Histogram::default();
        for core in 0..self.cores {
            let word = |index: usize| self.records.get(core * RECORD_WORDS + index);
            latencies.merge(&Histogram::read(word));
        }
        let instants = (0..Lines::COUNT).map(|line| self.lines.get(2 * line + 1));
        let since = instants.filter(|since| *since > 0);
        let (count, first) =
            since.fold((0, u64::MAX), |(count, first), since| (count + 1, first.min(since)));
        let oldest = (count > 0).then_some(Nanos(first));
        QueriesSeen { latencies, lost: self.lines.get(Lines::LOST), pending: (count, oldest) }
    }
}

fn absent(what: &str) -> BpfError {
    let hint = "this kernel has none such; queries are seen from Linux 6.3 on";
    BpfError::new(what, io::Error::new(io::ErrorKind::Unsupported, hint))
}

impl Fields {
    fn of(types: &KernelTypes) -> Option<Self> {
        Some(Self {
            port: types.offset("sock", &["__sk_common", "skc_num"])?,
            transport: types.offset("sock", &["sk_protocol"])?,
            namespace: types.offset("sock", &["__sk_common", "skc_net", "net"])?,
            namespace_number: types.offset("net", &["ns", "inum"])?,
        })
    }
}

impl Programs<'_> {
    /// `sock_recv_length(socket, bytes or error, flags)`.
    fn received(&self) -> Vec<Instruction> {
        let mut asm = Assembler::new();
        let (free, kept, out) = (asm.label(), asm.label(), asm.label());
        let (socket, line, cookie) = (R6, R7, R8);
        carries_data(&mut asm, socket, out);
        self.is_watched(&mut asm, socket, out);
        self.line(&mut asm, (socket, cookie, line));
        asm.load(R1, line, 0);
        asm.jump_if(R1, If::Equal, cookie, kept);
        asm.load(R1, line, Lines::INSTANT);
        asm.jump_if(R1, If::Equal, 0, free);
        asm.set_value(R2, self.lines);
        asm.compute(R2, Do::Add, 8 * Lines::LOST as i32);
        asm.set(R1, 1);
        asm.increase_shared(R2, 0, R1);
        asm.store(line, Lines::INSTANT, 0);
        asm.at(free);
        asm.store(line, 0, cookie);
        asm.at(kept);
        asm.call(Helper::Now);
        asm.store(line, Lines::INSTANT, R0);
        asm.at(out);
        asm.end();
        asm.finish()
    }

    /// `sock_send_length(socket, bytes or error, flags)`.
    fn sent(&self) -> Vec<Instruction> {
        let mut asm = Assembler::new();
        let (is_later, out) = (asm.label(), asm.label());
        let (socket, line, cookie, since) = (R6, R7, R8, R9);
        carries_data(&mut asm, socket, out);
        self.is_watched(&mut asm, socket, out);
        self.line(&mut asm, (socket, cookie, line));
        asm.load(R1, line, 0);
        asm.jump_if(R1, If::NotEqual, cookie, out);
        asm.load(since, line, Lines::INSTANT);
        asm.jump_if(since, If::Equal, 0, out);
        asm.store(line, Lines::INSTANT, 0);
        asm.call(Helper::Now);
        // Clocks of two cores may differ by a little.
        asm.jump_if(R0, If::AtLeast, since, is_later);
        asm.set(R0, since);
        asm.at(is_later);
        asm.compute(R0, Do::Subtract, since);
        self.count(&mut asm, R0, out);
        asm.at(out);
        asm.end();
        asm.finish()
    }

    /// `tcp_destroy_sock(socket)`, which has no port any more.
    fn destroyed(&self) -> Vec<Instruction> {
        let mut asm = Assembler::new();
        let out = asm.label();
        let (socket, line, cookie) = (R6, R7, R8);
        asm.load(socket, R1, 0);
        self.line(&mut asm, (socket, cookie, line));
        asm.load(R1, line, 0);
        asm.jump_if(R1, If::NotEqual, cookie, out);
        asm.store(line, Lines::INSTANT, 0);
        asm.store(line, 0, 0);
        asm.at(out);
        asm.end();
        asm.finish()
    }

    /// Goes on if the socket is one of the server's.
    fn is_watched(&self, asm: &mut Assembler, socket: Register, out: Label) {
        let is_stream = asm.label();
        let (port, place) = (R7, R8);
        asm.load_short(port, socket, self.fields.port);
        asm.set(R1, port);
        asm.compute(R1, Do::ShiftRight, 6);
        asm.compute(R1, Do::And, (1 << 10) - 1);
        asm.compute(R1, Do::ShiftLeft, 3);
        asm.set_value(place, self.filter);
        asm.compute(place, Do::Add, R1);
        asm.load(R2, place, 8 * Filter::PORTS as i16);
        asm.compute(port, Do::And, 63);
        asm.compute(R2, Do::ShiftRight, port);
        asm.compute(R2, Do::And, 1);
        asm.jump_if(R2, If::Equal, 0, out);
        asm.load_short(R1, socket, self.fields.transport);
        asm.jump_if(R1, If::Equal, TCP, is_stream);
        asm.jump_if(R1, If::NotEqual, MPTCP, out);
        asm.at(is_stream);
        asm.load(R1, socket, self.fields.namespace);
        asm.load_half(R2, R1, self.fields.namespace_number);
        asm.set_value(place, self.filter);
        asm.load(R1, place, 8 * Filter::NAMESPACE as i16);
        asm.jump_if(R1, If::NotEqual, R2, out);
    }

    /// `cookie =` that of the socket, `line =` its line: sockets that were made one
    /// after the other have neighbouring ones.
    fn line(&self, asm: &mut Assembler, (socket, cookie, line): (Register, Register, Register)) {
        asm.set(R1, socket);
        asm.call(Helper::Cookie);
        asm.set(cookie, R0);
        asm.compute(R0, Do::And, (1 << Lines::BITS) - 1);
        asm.compute(R0, Do::ShiftLeft, Lines::LINE_BITS);
        asm.set_value(line, self.lines);
        asm.compute(line, Do::Add, R0);
    }

    /// Counts a time in this core's histogram. The program may be put off its core for
    /// another of its kind, so each word is added to in one step.
    fn count(&self, asm: &mut Assembler, time: Register, out: Label) {
        const TIME: i16 = -8;
        let (bucket, record, rest) = (R6, R7, R8);
        asm.store(R10, TIME, time);
        asm.set(bucket, time);
        buckets::assemble(asm, bucket, R1, rest);
        asm.compute(bucket, Do::ShiftLeft, 4);
        asm.call(Helper::Core);
        asm.jump_if(R0, If::AtLeast, self.cores as i32, out);
        asm.compute(R0, Do::Multiply, 8 * RECORD_WORDS as i32);
        asm.set_value(record, self.records);
        asm.compute(record, Do::Add, R0);
        asm.compute(record, Do::Add, bucket);
        asm.set(R1, 1);
        asm.increase_shared(record, 0, R1);
        asm.load(R1, R10, TIME);
        asm.increase_shared(record, 8, R1);
    }
}

/// Goes on if bytes were read or written, with the socket in its register.
fn carries_data(asm: &mut Assembler, socket: Register, out: Label) {
    asm.load(socket, R1, 0);
    asm.load(R2, R1, 8);
    asm.jump_if_half(R2, If::Equal, 0, out);
    asm.jump_if_half(R2, If::AtLeast, NEGATIVE, out);
}

#[cfg(test)]
mod tests {
    use super::super::tests::allowed;
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    fn namespace() -> u32 {
        std::fs::metadata("/proc/self/ns/net").unwrap().ino() as u32
    }

    /// A watch on a listener; or `None` where this process may not, or this kernel cannot.
    fn watched() -> Option<(QueryWatch, TcpListener)> {
        let begun = QueryWatch::begin(1 << 10);
        if begun.as_ref().is_err_and(|error| error.error.kind() == io::ErrorKind::Unsupported) {
            lull_testing::skip(&begun.unwrap_err().to_string());
            return None;
        }
        let mut watch = allowed(begun)?;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        watch.set_place(namespace(), &BTreeSet::from([port]));
        Some((watch, listener))
    }

    /// The client's end of a connection and the server's.
    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn pass(from: &mut TcpStream, to: &mut TcpStream) {
        from.write_all(&[7; 10]).unwrap();
        to.read_exact(&mut [0; 10]).unwrap();
    }

    /// Passes a query on, and the answer after a while; at least and at most how long
    /// the server had it.
    fn ask(client: &mut TcpStream, server: &mut TcpStream, work: Duration) -> (Nanos, Nanos) {
        let outer = Instant::now();
        pass(client, server);
        let inner = Instant::now();
        std::thread::sleep(work);
        let least = inner.elapsed();
        pass(server, client);
        (Nanos(least.as_nanos() as u64), Nanos(outer.elapsed().as_nanos() as u64))
    }

    #[test]
    fn a_query_lasts_from_its_reading_to_its_answer() {
        let Some((watch, listener)) = watched() else { return };
        let (mut client, mut server) = connect(&listener);
        // Who greets first has answered nothing.
        pass(&mut server, &mut client);
        let (mut least, mut most) = (Nanos::ZERO, Nanos::ZERO);
        for ms in [1, 5, 20] {
            let took = ask(&mut client, &mut server, Duration::from_millis(ms));
            (least, most) = (least + took.0, most + took.1);
        }
        let seen = watch.read();
        assert_eq!((seen.latencies.count(), seen.pending, seen.lost), (3, (0, None), 0));
        let total = seen.latencies.total();
        assert!((least..=most).contains(&total), "{total:?}, not in {least:?} to {most:?}");
    }

    #[test]
    fn a_query_that_waits_is_seen_until_its_connection_is_gone() {
        let Some((watch, listener)) = watched() else { return };
        let (mut client, mut server) = connect(&listener);
        let before = crate::monotonic();
        pass(&mut client, &mut server);
        let (count, since) = watch.read().pending;
        assert_eq!(count, 1);
        assert!(since.unwrap() >= before && since.unwrap() <= crate::monotonic());
        drop((client, server));
        let begun = Instant::now();
        while watch.read().pending.0 > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the kernel keeps the socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(watch.read().latencies.count(), 0);
    }

    #[test]
    fn other_ports_other_namespaces_and_what_the_server_itself_asks_are_not_seen() {
        let Some((mut watch, listener)) = watched() else { return };
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, mut server) = connect(&other);
        ask(&mut client, &mut server, Duration::ZERO);
        let (mut client, mut server) = connect(&listener);
        ask(&mut client, &mut server, Duration::ZERO);
        assert_eq!(watch.read().latencies.count(), 1, "not the clients' own ends");
        let port = listener.local_addr().unwrap().port();
        watch.set_place(namespace() ^ 1, &BTreeSet::from([port]));
        ask(&mut client, &mut server, Duration::ZERO);
        watch.set_place(namespace(), &BTreeSet::new());
        ask(&mut client, &mut server, Duration::ZERO);
        assert_eq!(watch.read().latencies.count(), 1);
    }
}
