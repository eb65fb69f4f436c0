//! The file of a ledger: written whole or not at all, and synchronised.

use super::entry::{Entry, EntryContent, Lines};
use super::ledger::LedgerError;
use super::state_dir::StateDir;
use crate::Roots;
use crate::clock::boot_ticks;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const NAME: &str = "ledger";
const NEW_NAME: &str = "ledger.new";

/// An open file of a ledger.
#[derive(Debug)]
pub(super) struct LedgerFile {
    file: File,
    path: PathBuf,
    /// Where the last whole line ends.
    len: u64,
    /// Whether the file may continue after that.
    has_rest: bool,
}

/// A reader of the lines that its agent appends to a ledger meanwhile.
#[derive(Debug, Default)]
pub(super) struct Tail {
    /// The file that was read last. While it is open, no other file gets its inode.
    file: Option<File>,
    inode: u64,
    offset: u64,
}

impl Tail {
    /// The entries that were added since the last call: all, if the file was replaced.
    pub(super) fn read(&mut self, dir: &StateDir) -> io::Result<Vec<Entry>> {
        let Some(file) = dir.existing_file(NAME)? else { return Ok(Vec::new()) };
        let found = file.metadata()?;
        if found.ino() != self.inode {
            (self.inode, self.offset) = (found.ino(), 0);
        }
        let file = self.file.insert(file);
        let length = found.len().saturating_sub(self.offset);
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, self.offset)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.offset += whole as u64;
        Ok(Lines::read(&bytes[..whole]).entries)
    }
}

/// The clock with which entries are stamped.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    boot: String,
}

impl Clock {
    /// The clock of this boot.
    pub(super) fn read(roots: &Roots) -> Result<Self, LedgerError> {
        let path = roots.proc.join("sys/kernel/random/boot_id");
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Self { boot: text.trim().to_owned() }),
            Err(source) => Err(LedgerError::Read { path, source }),
        }
    }

    /// The kernel's name for this boot.
    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    /// An entry of now.
    pub(super) fn entry(&self, what: EntryContent) -> Entry {
        Entry { boot: self.boot.clone(), at_ticks: boot_ticks(), what }
    }
}

impl LedgerFile {
    /// A new file in place of the one there; a crash leaves the one or the other.
    pub(super) fn create(dir: &StateDir, entries: &[Entry]) -> Result<Self, LedgerError> {
        let path = dir.path().join(NAME);
        let failed = |source| LedgerError::Write { path: path.clone(), source };
        let file = dir.open_file(NEW_NAME, true).map_err(failed)?;
        let mut new = Self { file, path: path.clone(), len: 0, has_rest: true };
        new.append(entries)?;
        dir.replace(NEW_NAME, NAME).map_err(failed)?;
        Ok(new)
    }

    /// The file there, if there is one, and its bytes.
    pub(super) fn existing(dir: &StateDir) -> Result<Option<(Self, Lines)>, LedgerError> {
        let path = dir.path().join(NAME);
        let read = |source| LedgerError::Read { path: path.clone(), source };
        let Some(file) = dir.existing_file(NAME).map_err(read)? else { return Ok(None) };
        let mut existing = Self { file, path: path.clone(), len: 0, has_rest: true };
        let lines = existing.read()?;
        Ok(Some((existing, lines)))
    }

    /// Reads the present content of the file.
    pub(super) fn read(&mut self) -> Result<Lines, LedgerError> {
        let bytes =
            self.bytes().map_err(|source| LedgerError::Read { path: self.path.clone(), source })?;
        // Entries appended next must not become part of a torn line.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.len = whole as u64;
        Ok(Lines::read(&bytes))
    }

    fn bytes(&self) -> io::Result<Vec<u8>> {
        let length = self.file.metadata()?.len();
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Appends entries and waits until they are on disk.
    pub(super) fn append(&mut self, entries: &[Entry]) -> Result<(), LedgerError> {
        let mut bytes = Vec::new();
        for entry in entries {
            entry.encode(&mut bytes);
        }
        let end = self.len + bytes.len() as u64;
        let cut = || if self.has_rest { self.file.set_len(end) } else { Ok(()) };
        let written = self.file.write_all_at(&bytes, self.len).and_then(|()| cut());
        let written = written.and_then(|()| self.file.sync_data());
        self.has_rest = written.is_err();
        if let Err(source) = written {
            // A partly written entry must not count; if this fails too, the next append overwrites
            // it.
            let _ = self.file.set_len(self.len);
            let source = match source.raw_os_error() {
                // `StateDir::existing_file` opens it without write access there.
                Some(libc::EBADF) => Errno::ROFS.into(),
                _ => source,
            };
            return Err(LedgerError::Write { path: self.path.clone(), source });
        }
        self.len = end;
        Ok(())
    }

    /// Appends the last entry, after a restore with this outcome. Where the disk is full the file
    /// is emptied, which says the same: there is nothing to restore.
    pub(super) fn close(&mut self, closed: &Entry, outcome: &str) -> Result<(), LedgerError> {
        match self.append(std::slice::from_ref(closed)) {
            Err(LedgerError::Write { path, source }) => {
                let outcome = outcome.to_owned();
                self.empty().map_err(|_| LedgerError::Unclosed { outcome, path, source })
            }
            appended => appended,
        }
    }

    /// Empties the file, which is then closed and holds no outcome.
    pub(super) fn empty(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.len = 0;
        self.file.sync_data()
    }

    /// Length in bytes.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Clock {
        Clock::read(&Roots::default()).unwrap()
    }

    /// `/dev/full` fails every write with the error of a full disk.
    #[test]
    fn a_full_disk_is_an_error_that_says_nothing_was_changed() {
        let file = File::options().read(true).write(true).open("/dev/full").unwrap();
        let mut ledger =
            LedgerFile { file, path: PathBuf::from("/dev/full"), len: 0, has_rest: true };
        let refused = ledger.append(&[clock().entry(EntryContent::Closed)]).unwrap_err();
        assert_eq!(ledger.len(), 0);
        let text = refused.to_string();
        assert!(text.contains("No space left") && text.contains("no knob was changed"), "{text}");
    }

    #[test]
    fn what_follows_a_torn_line_is_whole() {
        let place = tempfile::tempdir().unwrap();
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        LedgerFile::create(&dir, &[clock().entry(EntryContent::Closed)]).unwrap();
        let path = dir.path().join(NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(b"12345678 {\"boot\":\"half a li");
        std::fs::write(&path, bytes).unwrap();
        let (mut file, lines) = LedgerFile::existing(&dir).unwrap().unwrap();
        assert!(lines.torn);
        file.append(&[clock().entry(EntryContent::Closed)]).unwrap();
        let (_, lines) = LedgerFile::existing(&dir).unwrap().unwrap();
        assert!(!lines.torn && lines.damaged.is_empty());
        assert_eq!(lines.entries.len(), 2);
    }

    /// Several file systems give a new file the inode of one that was removed a moment ago.
    #[test]
    fn a_ledger_that_replaced_another_is_read_from_its_start() {
        let place = tempfile::tempdir().unwrap();
        let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
        let mut tail = Tail::default();
        let closed = |count| vec![clock().entry(EntryContent::Closed); count];
        for count in 1..20 {
            LedgerFile::create(&dir, &closed(1)).unwrap();
            LedgerFile::create(&dir, &closed(count)).unwrap();
            assert_eq!(tail.read(&dir).unwrap().len(), count);
            assert_eq!(tail.read(&dir).unwrap().len(), 0);
        }
    }

    #[test]
    fn entries_are_stamped_with_boot_and_a_time_after_this_process_began() {
        let me = crate::apps::ProcessId::own(&Roots::default()).unwrap();
        let entry = clock().entry(EntryContent::Closed);
        assert_eq!(entry.boot.len(), 36);
        assert!(entry.at_ticks >= me.start_ticks);
    }
}
