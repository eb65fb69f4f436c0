//! A command under test: its start, signals, output and end.

use super::{send, wait_or};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A started command.
pub(crate) struct Agent {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

/// The exit status and output of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Agent {
    pub(super) fn start(mut command: Command, out: &Path, err: &Path) -> Self {
        command.stdin(Stdio::null());
        command.stdout(File::create(out).unwrap()).stderr(File::create(err).unwrap());
        let child = command.spawn().unwrap();
        Self { child, out: out.to_owned(), err: err.to_owned() }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Returns its standard output so far.
    pub(crate) fn out(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    /// Returns the file of its standard output, to read while a test waits for it.
    pub(crate) fn out_file(&self) -> PathBuf {
        self.out.clone()
    }

    /// Returns its standard error so far.
    pub(crate) fn err(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap()
    }

    /// Waits for a condition that must become true while the command runs.
    pub(crate) fn wait_for(&mut self, what: &str, mut has_come: impl FnMut() -> bool) {
        let (child, err) = (&mut self.child, &self.err);
        let printed = || std::fs::read_to_string(err).unwrap();
        wait_or(|| format!("did not come: {what}\n{}", printed()), &mut || {
            // Check for the end first: the condition may have become true just before it.
            let ended = child.try_wait().unwrap();
            let come = has_come();
            assert!(come || ended.is_none(), "ended ({ended:?}) before {what}:\n{}", printed());
            come
        });
    }

    /// Waits for words on its standard error.
    pub(crate) fn wait_until_printed(&mut self, words: &str) {
        let err = self.err.clone();
        self.wait_for(words, || std::fs::read_to_string(&err).unwrap().contains(words));
    }

    /// Waits for it to end.
    pub(crate) fn wait(self) -> Ended {
        self.wait_while(|| {})
    }

    /// Waits for its end and calls `look` repeatedly while it runs.
    pub(crate) fn wait_while(mut self, mut look: impl FnMut()) -> Ended {
        let mut status = None;
        let (child, err) = (&mut self.child, &self.err);
        let printed = || format!("does not end:\n{}", std::fs::read_to_string(err).unwrap());
        wait_or(printed, &mut || {
            look();
            status = child.try_wait().unwrap();
            status.is_some()
        });
        Ended { status: status.unwrap(), out: self.out(), err: self.err() }
    }

    /// Sends SIGINT, as Ctrl-C does, and waits for the end of the agent.
    pub(crate) fn interrupt(self) -> Ended {
        self.signal(Signal::INT);
        self.wait()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The exit status; a death by signal is a failure of the test.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Asserts that it ended well.
    pub(crate) fn well(self) -> Self {
        assert_eq!(self.code(), 0, "{}\n{}", self.err, self.out);
        self
    }

    /// Asserts that it failed with this status and with these words in its error, without a
    /// panic.
    pub(crate) fn refused(self, status: i32, words: &str) -> Self {
        assert_eq!(self.code(), status, "{}", self.err);
        assert!(self.err.contains(words), "wanted: {words}\nsaid: {}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }

    /// Standard output as one JSON value.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}
