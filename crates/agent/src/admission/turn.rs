//! One survey at a time on a machine.
//!
//! A controller that compares settings of its gate changes what the gates of other servers
//! measure. The turn is the kernel's lock (`flock(2)`) of the directory for run-time files: it
//! needs no file of its own, excludes the gates of one agent and of several, and ends with its
//! holder. Any user can take it; gates then keep the settings that they have.

use lull_host::Roots;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;

/// The turn of one gate.
#[derive(Debug)]
pub(super) struct SurveyTurn {
    directory: PathBuf,
    /// The kernel holds the lock until this is closed.
    held: Option<File>,
}

impl SurveyTurn {
    /// Returns the turn of a gate on the machine with these roots, which it does not have yet.
    pub(super) fn new(roots: &Roots) -> Self {
        Self { directory: roots.run.clone(), held: None }
    }

    /// Takes the turn if it is wanted and free, and ends it if it is not wanted. Returns whether
    /// the gate may be surveyed.
    ///
    /// On a machine without the directory there is no turn to wait for.
    pub(super) fn update(&mut self, is_wanted: bool) -> bool {
        if !is_wanted {
            self.held = None;
            return false;
        }
        if self.held.is_some() {
            return true;
        }
        let Ok(directory) = File::open(&self.directory) else { return true };
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => self.held = Some(directory),
            Err(Errno::WOULDBLOCK) => return false,
            Err(_) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_gate_at_a_time_has_the_turn_and_the_next_has_it_once_it_ends() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let [mut one, mut other] = [(); 2].map(|()| SurveyTurn::new(&roots));
        assert!(one.update(true) && other.update(true), "there is no directory to lock");
        std::fs::create_dir(&roots.run).unwrap();
        assert!(one.update(true) && one.update(true));
        assert!(!other.update(true));
        assert!(!one.update(false));
        assert!(other.update(true) && !one.update(true));
        drop(other);
        assert!(one.update(true));
    }
}
