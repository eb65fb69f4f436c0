//! One survey at a time on a machine.
//!
//! A controller that compares settings of its gate changes what the gates of other servers
//! measure. The turn is the kernel's lock (`flock(2)`) of the directory for run-time files: it
//! needs no file of its own, excludes the gates of one agent and of several, and ends with its
//! holder. Any user can take it; gates then keep the settings that they have, or stay open if their
//! load has changed, and report that the turn does not come.

use lull_host::Roots;
use lull_measure::Nanos;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;

/// The time without the turn that is reported. Surveys of other gates take minutes.
const LONG: Nanos = Nanos::from_secs(300);

/// The turn of one gate.
#[derive(Debug)]
pub(super) struct SurveyTurn {
    directory: PathBuf,
    /// The directory with its lock, while the gate has the turn.
    held: Option<File>,
    /// The time of the first refusal of the turn, and whether it was reported.
    refused_since: Option<Nanos>,
    is_reported: bool,
}

impl SurveyTurn {
    /// Returns the turn of a gate on the machine with these roots, which it does not have yet.
    pub(super) fn new(roots: &Roots) -> Self {
        let directory = roots.run.clone();
        Self { directory, held: None, refused_since: None, is_reported: false }
    }

    /// Takes the turn if it is wanted and free, and ends it if it is not wanted. Returns whether
    /// the gate may be surveyed.
    ///
    /// On a machine without the directory there is no turn to wait for.
    pub(super) fn update(&mut self, is_wanted: bool) -> bool {
        if !is_wanted {
            self.end();
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

    /// Ends the turn, if the gate has it.
    ///
    /// A child process between its `fork` and `exec` has the open file, too, so that closing it
    /// here would leave the lock.
    fn end(&mut self) {
        if let Some(directory) = self.held.take() {
            let _ = flock(&directory, FlockOperation::Unlock);
        }
    }

    /// Returns a report, once, when the turn has been refused at each call for five minutes. After
    /// a call without a refusal the time counts from the next one.
    pub(super) fn report_refusal(&mut self, is_refused: bool, now: Nanos) -> Option<String> {
        if !is_refused {
            (self.refused_since, self.is_reported) = (None, false);
            return None;
        }
        let since = *self.refused_since.get_or_insert(now);
        if self.is_reported || now.saturating_sub(since) < LONG {
            return None;
        }
        self.is_reported = true;
        let directory = self.directory.display();
        Some(format!(
            "the gate could not be surveyed for {LONG}, because another gate, or another program, \
             has the lock of {directory}: `lslocks` shows which process"
        ))
    }
}

impl Drop for SurveyTurn {
    fn drop(&mut self) {
        self.end();
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

    #[test]
    fn a_turn_ends_although_a_child_process_has_its_open_file() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        std::fs::create_dir(&roots.run).unwrap();
        let [mut one, mut other] = [(); 2].map(|()| SurveyTurn::new(&roots));
        assert!(one.update(true));
        let inherited = one.held.as_ref().unwrap().try_clone().unwrap();
        assert!(!one.update(false) && other.update(true));
        drop(other);
        assert!(one.update(true));
        drop(inherited);
    }

    #[test]
    fn a_turn_that_does_not_come_is_reported_once_until_it_has_come() {
        let roots = Roots::under(std::path::Path::new("/machine"));
        let (mut turn, at) = (SurveyTurn::new(&roots), Nanos::from_secs);
        assert_eq!(turn.report_refusal(true, at(10)), None);
        assert_eq!(turn.report_refusal(true, at(309)), None);
        let report = turn.report_refusal(true, at(310)).unwrap();
        assert!(report.contains("the lock of /machine/run"), "{report}");
        assert_eq!(turn.report_refusal(true, at(700)), None, "it is reported once");
        assert_eq!(turn.report_refusal(false, at(701)), None);
        assert_eq!(turn.report_refusal(true, at(1100)), None, "it was free at 701 s");
        assert!(turn.report_refusal(true, at(1400)).is_some());
    }
}
