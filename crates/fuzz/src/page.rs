//! The page that agent and server share: any word of it may change between any two calls of
//! either side.

use lull_host::sys::page::SharedPage;
use lull_oncall::{
    CONNECTIONS, Decision, Gate, GateEntry, Id, Mode, NOTE_BYTES, Peer, Settings, Wake,
};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::from_ref;

/// The gate's clock at the beginning.
const NOW: u64 = 1_000_000_000_000;
const MS: u64 = 1_000_000;
/// The longest wait is bounded by the largest accepted setting (60 s), counted from a time up to
/// as much in the future that a worker's word may name, and ends at the next check (1 s).
const WAIT_MAX_NS: u64 = 122_000 * MS;
/// Connections in use, and one without an entry.
const IDS: [Id; 5] = [Id(0), Id(1), Id(2), Id(63), Id(CONNECTIONS as u32)];

/// Wakes no thread: the calls of the input take the place of sleepers.
struct NoSleeper;

impl Wake for NoSleeper {
    fn wake(&self, _id: Id, _entry: &GateEntry) {}
}

/// The rest of the input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn id(&mut self) -> Id {
        IDS[usize::from(self.byte()) % IDS.len()]
    }

    /// A word: a number that is often misread, or the next eight bytes.
    fn word(&mut self, now_ns: u64) -> u64 {
        match self.byte() {
            0 => 0,
            1 => u64::MAX,
            2 => now_ns,
            3 => 1,
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }
}

/// Both sides of a page, and a program that overwrites it.
struct Sides {
    page: SharedPage,
    file: File,
    now_ns: u64,
}

/// Calls of both sides, and words that are overwritten in between. Afterwards every worker must
/// run in time.
pub(crate) fn page(bytes: &[u8]) {
    if let Err(error) = use_page(bytes) {
        panic!("cannot share memory: {error}");
    }
}

fn use_page(bytes: &[u8]) -> io::Result<()> {
    let mut sides = Sides::new()?;
    let mut input = Input(bytes);
    while !input.0.is_empty() {
        sides.step(&mut input)?;
    }
    IDS.into_iter().for_each(|id| sides.run_one_query(id));
    Ok(())
}

impl Sides {
    fn new() -> io::Result<Self> {
        let page = SharedPage::create()?;
        let file = File::options().write(true).open(page.path())?;
        page.control().set(&Settings { mode: Mode::Post, cap: 1, ..Settings::default() });
        page.control().beat(NOW);
        Ok(Self { page, file, now_ns: NOW })
    }

    fn step(&mut self, input: &mut Input<'_>) -> io::Result<()> {
        match input.byte() % 8 {
            0 | 1 => self.overwrite(input)?,
            2 | 3 => self.call_gate(input),
            4 => {
                self.now_ns += u64::from(input.byte()) * MS;
                self.page.control().beat(self.now_ns);
            }
            5 => self.set(input),
            6 => self.use_record(input),
            _ => self.read(),
        }
        Ok(())
    }

    /// Overwrites a word in the header, the control words, the note or slots, an entry or a record.
    fn overwrite(&self, input: &mut Input<'_>) -> io::Result<()> {
        let header = from_ref(self.page.header()).addr();
        let part = match input.byte() % 5 {
            0 => header,
            1 => from_ref(self.page.control()).addr(),
            2 => from_ref(self.page.note()).addr(),
            3 => self.page.gate().entry(Id(0)).map_or(header, |entry| from_ref(entry).addr()),
            _ => self.page.record(Id(0)).map_or(header, |record| from_ref(record).addr()),
        };
        let at = (part - header) as u64 + 8 * u64::from(input.byte());
        let word = input.word(self.now_ns);
        self.file.write_all_at(&word.to_le_bytes(), at)
    }

    fn call_gate(&self, input: &mut Input<'_>) {
        let (gate, id, now_ns) = (self.page.gate(), input.id(), self.now_ns);
        let flag = input.byte();
        match (flag >> 1) % 13 {
            0 => drop(gate.arrive(id, flag & 1 == 1, now_ns, &NoSleeper)),
            1 => drop(gate.check(id, now_ns, &NoSleeper)),
            2 => gate.answered(id, flag & 1 == 1, now_ns, &NoSleeper),
            3 => gate.idle(id, flag & 1 == 1, now_ns, &NoSleeper),
            4 => drop(gate.rest(id, now_ns)),
            5 => gate.query_arrived(id, now_ns, &NoSleeper),
            6 => drop(gate.leave(id)),
            7 => gate.evict(id, &NoSleeper),
            8 => gate.open_connection(id),
            9 => gate.close_connection(id, now_ns, &NoSleeper),
            10 => gate.release_expired(now_ns, &NoSleeper),
            11 => gate.recount_waiters(),
            _ => gate.pump(now_ns, &NoSleeper),
        }
    }

    /// The agent's decisions.
    fn set(&self, input: &mut Input<'_>) {
        let flags = input.byte();
        let settings = Settings {
            mode: if flags & 1 == 1 { Mode::Epoll } else { Mode::Post },
            joins: flags & 2 == 2,
            ranks: flags & 4 == 4,
            cap: u32::from(input.byte()),
            batch: u32::from(input.byte()),
            isr_delay_ns: u64::from(input.byte()) * MS,
            ..Settings::default()
        };
        self.page.control().set(&settings);
        if let Some(entry) = self.page.gate().entry(input.id()) {
            let limit = |byte: u8| (byte < 200).then_some(u32::from(byte));
            entry.allow(limit(input.byte()), limit(input.byte()));
            entry.set_first(flags & 8 == 8);
        }
        self.page.gate().pump(self.now_ns, &NoSleeper);
    }

    /// Uses the record of a connection as a server does.
    fn use_record(&self, input: &mut Input<'_>) {
        let Some(record) = self.page.record(input.id()) else { return };
        let (flag, now_ns) = (input.byte(), self.now_ns);
        match flag % 6 {
            0 => drop(record.claim(7, 3, Peer::default(), 0)),
            1 => record.query_arrived(70, now_ns),
            2 => drop(record.query_answered(now_ns)),
            3 => record.set_in_transaction(flag > 128),
            4 => {
                if let Some(took_ns) = record.transaction_ended(now_ns) {
                    self.page.transaction_took(IDS[0], took_ns);
                }
            }
            _ => drop(record.release(7)),
        }
    }

    /// Reads the page as an agent does.
    fn read(&self) {
        assert!(self.page.note().read(&mut [0; NOTE_BYTES]).len() <= NOTE_BYTES);
        let offered = self.page.header().offer_record();
        assert!(offered.index() < CONNECTIONS, "{offered:?}");
        for (_, record) in self.page.records().take(64) {
            let _ = (record.class(), record.peer(), record.pending_since_ns());
        }
        let _ = self.page.transactions().fold(0, u32::wrapping_add);
        let _ = (self.page.control().settings(), self.page.gate().active(self.now_ns));
    }

    /// One query of a worker that checks at its deadlines, while the agent beats.
    fn run_one_query(&mut self, id: Id) {
        let begun_ns = self.now_ns;
        let beat = |gate: &Gate<'_>, now_ns| gate.control().beat(now_ns);
        let gate = self.page.gate();
        let mut decision = gate.arrive(id, false, self.now_ns, &NoSleeper);
        while decision == Decision::Park {
            let next_ns = gate.deadline_ns(id, self.now_ns);
            assert!(next_ns > self.now_ns, "a check that is not later");
            assert!(next_ns - begun_ns < WAIT_MAX_NS, "{id:?} waits until {next_ns}");
            self.now_ns = next_ns;
            beat(&gate, next_ns);
            decision = gate.check(id, next_ns, &NoSleeper);
        }
        gate.answered(id, false, self.now_ns, &NoSleeper);
        gate.close_connection(id, self.now_ns, &NoSleeper);
    }
}
