//! Pressure on CPUs and on storage, from `/proc/pressure` (PSI).

use super::{first_reading, unreadable};
use crate::Roots;
use crate::files::{HotFile, number};
use lull_measure::{Gauge, Missing, Nanos};

/// Share of time in which some task waited for a CPU, or for storage.
#[derive(Debug)]
pub struct Pressure {
    file: HotFile,
    last_us: Option<u64>,
}

impl Pressure {
    /// The gauge of waits for a CPU on the whole machine.
    pub fn new(roots: &Roots) -> Self {
        Self { file: HotFile::new(roots.proc.join("pressure/cpu")), last_us: None }
    }

    /// The gauge of waits for storage on the whole machine.
    pub fn of_storage(roots: &Roots) -> Self {
        Self { file: HotFile::new(roots.proc.join("pressure/io")), last_us: None }
    }

    /// Returns the means by which pressure is read.
    ///
    /// # Errors
    /// If the kernel has no PSI, or it is switched off.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let mut gauge = Self::new(roots);
        gauge.total_us().map(|_| gauge.file.path().display().to_string())
    }

    /// Share of `span`, the time since the last call, in which some task waited.
    pub fn read(&mut self, span: Nanos) -> Gauge<f64> {
        let now = self.total_us();
        let last = std::mem::replace(&mut self.last_us, now.as_ref().ok().copied());
        let waited_us = now?.saturating_sub(last.ok_or_else(first_reading)?);
        if span == Nanos::ZERO {
            return Err(Missing::because("the epoch is empty"));
        }
        Ok((waited_us as f64 / span.as_micros_f64()).min(1.0))
    }

    fn total_us(&mut self) -> Result<u64, Missing> {
        let mut buffer = [0; 256];
        match self.file.read(&mut buffer) {
            Ok(content) => some_total(content).ok_or_else(|| {
                Missing::because(format!("{} has no `some` total", self.file.path().display()))
            }),
            Err(error) => {
                let why = unreadable(self.file.path(), &error).reason;
                Err(Missing::because(format!(
                    "{why}; PSI needs CONFIG_PSI and the boot option psi=1"
                )))
            }
        }
    }
}

/// The number of `some avg10=0.00 avg60=0.00 avg300=0.00 total=154846035`.
fn some_total(content: &[u8]) -> Option<u64> {
    let line = content.split(|byte| *byte == b'\n').find(|line| line.starts_with(b"some "))?;
    let total = line.split(|byte| *byte == b' ').find_map(|word| word.strip_prefix(b"total="))?;
    number(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn set(tree: &Tree, total_us: u64) {
        let text = format!(
            "some avg10=2.20 avg60=1.85 avg300=2.57 total={total_us}\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        );
        tree.write("proc/pressure/cpu", &text);
    }

    #[test]
    fn pressure_is_the_change_of_the_total() {
        let tree = Tree::new();
        set(&tree, 1_000_000);
        let mut gauge = Pressure::new(&tree.roots());
        assert!(gauge.read(Nanos::from_millis(100)).is_err());
        set(&tree, 1_025_000);
        assert_eq!(gauge.read(Nanos::from_millis(100)), Ok(0.25));
        assert_eq!(gauge.read(Nanos::from_millis(100)), Ok(0.0));
    }

    #[test]
    fn a_kernel_without_psi_says_what_it_needs() {
        let why = Pressure::probe(&Tree::new().roots()).unwrap_err();
        assert!(why.reason.contains("CONFIG_PSI"), "{why}");
        let tree = Tree::new();
        tree.write("proc/pressure/cpu", "none\n");
        assert!(Pressure::probe(&tree.roots()).unwrap_err().reason.contains("no `some` total"));
    }
}
