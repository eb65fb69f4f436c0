//! The ledger of the guard: its lines, and the restoration after an agent died and bytes of the
//! file were damaged.
//!
//! The knobs are four files in memory, and `/proc` is a directory in which this process is the
//! only one, so that no input can change anything of the machine.

use lull_host::Roots;
use lull_host::guard::{Key, Ledger, Original, StateDir, reread_lines, restore_stale};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const KNOBS: usize = 4;
/// A restore looks twice at all processes, 10 ms apart.
const RESTORES_MAX: u32 = 4;
/// Where files take no disk, since a ledger is synchronised with each entry.
const MEMORY: &str = "/dev/shm";

/// The first byte chooses: lines as they are read, or calls of an agent and its deaths.
pub(crate) fn ledger(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    if choice & 1 == 0 {
        read_twice(rest);
    } else if let Err(error) = Machine::new().and_then(|mut machine| machine.run(rest)) {
        panic!("a ledger in memory can be written and read: {error}");
    }
}

/// Gives each line its checksum, so that its JSON is read, writes the result and reads that again.
fn read_twice(bytes: &[u8]) {
    let mut lines = Vec::new();
    for json in bytes.split(|byte| *byte == b'\n') {
        lines.extend(format!("{:08x} ", crc32fast::hash(json)).into_bytes());
        lines.extend(json);
        lines.push(b'\n');
    }
    let once = reread_lines(&lines);
    assert_eq!(reread_lines(&once), once);
    // Without checksums hardly any line is an entry.
    reread_lines(bytes);
}

/// One knob, and the entry that its ledger must have.
#[derive(Debug, Clone, Default)]
struct Knob {
    now: String,
    /// The value before the agent changed it.
    old: Option<String>,
    /// Whether the agent, and no other program, has set it.
    is_agents: bool,
    /// Whether the agent gave it up.
    is_released: bool,
}

/// A machine of four knobs with an agent.
struct Machine {
    place: TempDir,
    roots: Roots,
    knobs: [Knob; KNOBS],
    ledger: Option<Ledger>,
    values: u32,
    restores: u32,
}

impl Machine {
    fn new() -> io::Result<Self> {
        let place = tempfile::Builder::new().tempdir_in(memory())?;
        let roots = Roots::under(place.path());
        let random = roots.proc.join("sys/kernel/random");
        fs::create_dir_all(&random)?;
        fs::write(random.join("boot_id"), "b\n")?;
        let own = roots.proc.join(std::process::id().to_string());
        fs::create_dir(&own)?;
        fs::copy("/proc/self/stat", own.join("stat"))?;
        let knobs = std::array::from_fn(|_| Knob::default());
        let mut machine = Self { place, roots, knobs, ledger: None, values: 0, restores: 0 };
        for index in 0..KNOBS {
            machine.write(index)?;
        }
        machine.begin(false)?;
        Ok(machine)
    }

    fn run(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while let Some((call, next)) = rest.split_first()
            && self.restores < RESTORES_MAX
        {
            rest = self.call(*call, next)?;
        }
        self.die(&[])
    }

    /// Carries out a call; returns the rest of the input.
    fn call<'a>(&mut self, call: u8, rest: &'a [u8]) -> io::Result<&'a [u8]> {
        let index = usize::from(call >> 3) % KNOBS;
        match call & 7 {
            0 | 1 => self.set(index, call & 0x80 != 0)?,
            // Another program writes a knob.
            2 => {
                self.write(index)?;
                self.knobs[index].is_agents = false;
            }
            3 => self.release(index)?,
            4 => self.restore()?,
            5 => self.end()?,
            _ => {
                let (damage, rest) = rest.split_at(rest.len().min(3 * index));
                self.die(damage)?;
                return Ok(rest);
            }
        }
        Ok(rest)
    }

    fn path(&self, index: usize) -> PathBuf {
        self.place.path().join(format!("knob-{index}"))
    }

    /// Gives a knob a value that it never had.
    fn write(&mut self, index: usize) -> io::Result<()> {
        self.values += 1;
        let value = format!("value {}", self.values);
        fs::write(self.path(index), format!("{value}\n"))?;
        self.knobs[index].now = value;
        Ok(())
    }

    /// The ledger of the agent, which runs between calls.
    fn ledger(&mut self) -> io::Result<&mut Ledger> {
        self.ledger.as_mut().ok_or_else(|| io::Error::other("no agent runs"))
    }

    /// The agent sets a knob that it has not given up.
    fn set(&mut self, index: usize, has_safe: bool) -> io::Result<()> {
        let (path, Knob { now, old, is_released, .. }) =
            (self.path(index), self.knobs[index].clone());
        if is_released {
            return Ok(());
        }
        let safe = has_safe.then(|| "safe".to_owned());
        let ours = vec![now.clone(), format!("value {}", self.values + 1)];
        let original = Original::Text { path, text: now.clone(), safe, ours };
        self.ledger()?.record(&[original]).map_err(io::Error::other)?;
        self.knobs[index].old = Some(old.unwrap_or(now));
        self.knobs[index].is_agents = true;
        self.write(index)
    }

    fn release(&mut self, index: usize) -> io::Result<()> {
        let key = Key::File(self.path(index));
        self.ledger()?.release(&[key]).map_err(io::Error::other)?;
        self.knobs[index].old = None;
        self.knobs[index].is_released = true;
        Ok(())
    }

    fn restore(&mut self) -> io::Result<()> {
        self.restores += 1;
        let restored = self.ledger()?.restore();
        assert!(restored.failed.is_empty(), "{restored}");
        self.check_restored(false)
    }

    /// The agent ends in an orderly way, and the next one begins.
    fn end(&mut self) -> io::Result<()> {
        self.restore()?;
        let ended = self.ledger.take().map_or(Ok(()), Ledger::close);
        ended.map_err(io::Error::other)?;
        self.begin(false)
    }

    /// The agent dies, bytes of its ledger are damaged, and the next one restores.
    fn die(&mut self, damage: &[u8]) -> io::Result<()> {
        self.restores += 1;
        drop(self.ledger.take());
        let is_damaged = self.damage(damage)?;
        // Restored by hand, or at the start of the next agent: the first restores all.
        if damage.len().is_multiple_of(2) {
            let dir = self.dir()?;
            restore_stale(&dir, &self.roots).map_err(io::Error::other)?;
        }
        self.begin(is_damaged)
    }

    /// Overwrites or cuts the file: a place, a value, and what to do. Returns whether anything is
    /// different.
    fn damage(&self, damage: &[u8]) -> io::Result<bool> {
        let file = self.place.path().join("state/ledger");
        let before = fs::read(&file)?;
        let open = File::options().write(true).open(&file)?;
        for three in damage.chunks_exact(3) {
            let at = usize::from(three[0]) * before.len() / 256;
            match three[2] & 3 {
                0 => open.set_len(at as u64)?,
                _ => open.write_all_at(&[three[1]], at as u64)?,
            }
        }
        Ok(fs::read(&file)? != before)
    }

    fn dir(&self) -> io::Result<StateDir> {
        StateDir::locate(Some(&self.place.path().join("state"))).map_err(io::Error::other)
    }

    /// The next agent takes the directory, which restores what the last one left.
    fn begin(&mut self, is_damaged: bool) -> io::Result<()> {
        let opened = Ledger::open(self.dir()?, &self.roots).map_err(io::Error::other)?;
        self.ledger = Some(opened.ledger);
        self.check_restored(is_damaged)?;
        for knob in &mut self.knobs {
            (knob.old, knob.is_released) = (None, false);
        }
        Ok(())
    }

    /// Every knob that the agent was the last to change has its old value. Of a damaged ledger
    /// lines are lost, so that a knob may keep its value, but never gets one that is neither.
    fn check_restored(&mut self, is_damaged: bool) -> io::Result<()> {
        for index in 0..KNOBS {
            let found = fs::read_to_string(self.path(index))?.trim_end().to_owned();
            let knob = &mut self.knobs[index];
            let wanted = knob.old.as_ref().filter(|_| knob.is_agents).unwrap_or(&knob.now);
            let is_kept = is_damaged && found == knob.now;
            // The line that gives a knob up may be the one that is lost.
            let is_reclaimed = is_damaged && knob.is_released;
            assert!(found == *wanted || is_kept || is_reclaimed, "{found} for {knob:?}");
            knob.now = found;
        }
        Ok(())
    }
}

/// Where files take no disk, if there is such a place.
pub(crate) fn memory() -> PathBuf {
    let memory = Path::new(MEMORY);
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
