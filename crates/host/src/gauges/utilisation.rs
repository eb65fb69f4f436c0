//! Utilisation of each core from `/proc/stat` (proc_stat(5)).
//!
//! The kernel counts in ticks of 10 ms, so one epoch of 100 ms is right to
//! about 10 %; the rounding of one epoch is made up for in the next.

use super::{first_reading, unreadable};
use crate::Roots;
use crate::files::{HotFile, number, numbers};
use lull_control::CoreId;
use lull_measure::{Gauge, Missing};
use std::io;

/// Room for one `cpuN` line: ten numbers of up to 20 digits.
const LINE_BYTES: usize = 224;
/// Lines read from `/proc/stat` besides one for each core: the sum, and one to spare.
const FIRST_LINES: usize = 2;

/// Utilisation of cores over epochs.
#[derive(Debug)]
pub struct Utilisation {
    file: HotFile,
    buffer: Vec<u8>,
    last: Vec<Option<Ticks>>,
}

/// Time of one core since boot, in kernel ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    total: u64,
}

impl Utilisation {
    /// A gauge of the cores `0..cores`.
    pub fn new(roots: &Roots, cores: usize) -> Self {
        let buffer = vec![0; (cores + FIRST_LINES) * LINE_BYTES];
        Self { file: HotFile::new(roots.proc.join("stat")), buffer, last: vec![None; cores] }
    }

    /// Returns the means by which utilisation is read.
    ///
    /// # Errors
    /// If `/proc/stat` cannot be read or has no line of a core.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        let mut gauge = Self::new(roots, 1);
        let now = gauge.scan().map_err(|error| unreadable(gauge.file.path(), &error))?;
        let found = now.iter().any(Option::is_some);
        let means = || gauge.file.path().display().to_string();
        found.then(means).ok_or_else(|| Missing::because(format!("{} lists no core", means())))
    }

    /// Share of the time since the last call that each core was not idle, in [0, 1].
    pub fn read(&mut self) -> Vec<Gauge<f64>> {
        let now = match self.scan() {
            Ok(now) => now,
            Err(error) => {
                let why = unreadable(self.file.path(), &error);
                return vec![Err(why); self.last.len()];
            }
        };
        let pairs = now.iter().zip(&self.last).zip(0..);
        let shares = pairs.map(|((now, last), core)| share(CoreId(core), *last, *now)).collect();
        self.last = now;
        shares
    }

    fn scan(&mut self) -> io::Result<Vec<Option<Ticks>>> {
        let mut found = vec![None; self.last.len()];
        let content = self.file.read(&mut self.buffer)?;
        let lines = content.split(|byte| *byte == b'\n');
        for line in lines.skip(1).map_while(|line| line.strip_prefix(b"cpu")) {
            let digits = line.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(line.len());
            let (core, times) = line.split_at(digits);
            let place = number(core).and_then(|core| found.get_mut(core as usize));
            if let (Some(place), Some(ticks)) = (place, ticks(times)) {
                *place = Some(ticks);
            }
        }
        Ok(found)
    }
}

/// Fields: user nice system idle iowait irq softirq steal; guest time is in user and nice.
fn ticks(times: &[u8]) -> Option<Ticks> {
    let mut fields = [0; 8];
    let mut count = 0;
    for (field, value) in fields.iter_mut().zip(numbers(times)) {
        *field = value;
        count += 1;
    }
    (count >= 4).then(|| Ticks { idle: fields[3] + fields[4], total: fields.iter().sum() })
}

fn share(core: CoreId, last: Option<Ticks>, now: Option<Ticks>) -> Gauge<f64> {
    let now = now.ok_or_else(|| Missing::because(format!("core {core} is offline")))?;
    let last = last.ok_or_else(first_reading)?;
    let total = now.total.saturating_sub(last.total);
    if total == 0 {
        return Err(Missing::because("the epoch is shorter than a kernel tick of 10 ms"));
    }
    // Idle time may run ahead of the total, or back where a core sleeps during the read.
    let idle = now.idle.saturating_sub(last.idle).min(total);
    Ok(1.0 - idle as f64 / total as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn stat(tree: &Tree, cores: &str) {
        tree.write("proc/stat", &format!("cpu  9 9 9 9 9 9 9 9 9 9\n{cores}intr 5 0 0\n"));
    }

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting_for_a_disk() {
        let tree = Tree::new();
        stat(&tree, "cpu0 100 0 100 700 100 0 0 0 50 0\ncpu1 0 0 0 1000 0 0 0 0 0 0\n");
        let mut gauge = Utilisation::new(&tree.roots(), 2);
        assert!(gauge.read()[0].as_ref().unwrap_err().reason.contains("first"));
        stat(&tree, "cpu0 110 0 110 740 120 5 5 10 99 0\ncpu1 0 0 0 1100 0 0 0 0 0 0\n");
        assert_eq!(gauge.read(), [Ok(0.4), Ok(0.0)]);
    }

    #[test]
    fn a_core_that_is_offline_is_missing_and_comes_back() {
        let tree = Tree::new();
        let with = "cpu0 0 0 0 10 0 0 0 0 0 0\ncpu2 10 0 0 0 0 0 0 0 0 0\n";
        stat(&tree, with);
        let mut gauge = Utilisation::new(&tree.roots(), 3);
        gauge.read();
        stat(&tree, "cpu0 0 0 0 20 0 0 0 0 0 0\n");
        let seen = gauge.read();
        assert_eq!(seen[0], Ok(0.0));
        for core in [1, 2] {
            let reason = &seen[core].as_ref().unwrap_err().reason;
            assert_eq!(reason.as_str(), format!("core {core} is offline"));
        }
        stat(&tree, "cpu0 0 0 0 20 0 0 0 0 0 0\ncpu2 11 0 0 0 0 0 0 0 0 0\n");
        assert!(gauge.read()[2].as_ref().unwrap_err().reason.contains("first"));
        stat(&tree, "cpu0 0 0 0 20 0 0 0 0 0 0\ncpu2 12 0 0 1 0 0 0 0 0 0\n");
        let seen = gauge.read();
        assert!(seen[0].as_ref().unwrap_err().reason.contains("tick"));
        assert_eq!(seen[2], Ok(0.5));
    }

    #[test]
    fn an_unreadable_file_is_a_reason() {
        let tree = Tree::new();
        let mut gauge = Utilisation::new(&tree.roots(), 1);
        assert!(gauge.read()[0].as_ref().unwrap_err().reason.contains("proc/stat cannot be read"));
        assert!(Utilisation::probe(&tree.roots()).is_err());
        tree.write("proc/stat", "intr 5\n");
        assert!(Utilisation::probe(&tree.roots()).unwrap_err().reason.contains("lists no core"));
    }

    #[test]
    fn a_real_kernel_counts_a_busy_core() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let mut gauge = Utilisation::new(&Roots::default(), cores);
        gauge.read();
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 120 {
            std::hint::black_box(begin);
        }
        let busy = gauge.read().into_iter().map(Result::unwrap).fold(0.0, f64::max);
        assert!(busy > 0.0 && busy <= 1.0, "a core spun for 120 ms: {busy}");
    }
}
