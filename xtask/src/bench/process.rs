//! What a child and all its children cost: CPU time and memory, from /proc.

use anyhow::{Context, Result, bail};
use procfs::process::{Process, Stat, all_processes};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a tree of processes has used up to now.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// User and system time, of ended children too; the kernel counts in ticks of 10 ms.
    pub(super) cpu_s: f64,
    /// Resident memory of all processes; what they share counts in each.
    pub(super) rss_mib: f64,
}

/// What a command cost from start to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    /// Highest resident memory seen, looking every 10 ms.
    pub(super) rss_peak_mib: f64,
}

/// Sums up a process and its living descendants.
///
/// # Errors
/// If the process is gone.
pub(super) fn usage(pid: u32) -> Result<Usage> {
    let root = Process::new(pid.cast_signed()).and_then(|process| process.stat());
    let root = root.with_context(|| format!("no process {pid} to measure"))?;
    let mut all = Usage::default();
    for stat in [root].into_iter().chain(descendants(pid.cast_signed())?) {
        let ticks = stat.utime + stat.stime + (stat.cutime + stat.cstime).cast_unsigned();
        all.cpu_s += ticks as f64 / procfs::ticks_per_second() as f64;
        all.rss_mib += (stat.rss * procfs::page_size()) as f64 / f64::from(1 << 20);
    }
    Ok(all)
}

/// All that have `pid` above them; one that ends meanwhile is left out.
fn descendants(pid: i32) -> Result<Vec<Stat>> {
    let mut by_parent: BTreeMap<i32, Vec<Stat>> = BTreeMap::new();
    for stat in all_processes()?.flatten().filter_map(|process| process.stat().ok()) {
        by_parent.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = by_parent.remove(&pid).unwrap_or_default();
    let mut at = 0;
    while let Some(stat) = found.get(at) {
        let children = by_parent.remove(&stat.pid).unwrap_or_default();
        found.extend(children);
        at += 1;
    }
    Ok(found)
}

/// Runs a command to its end.
///
/// # Errors
/// If it cannot start or fails.
pub(super) fn cost(command: &mut Command) -> Result<Cost> {
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let mut rss_peak_mib = 0.0_f64;
    loop {
        let now = usage(child.id())?;
        rss_peak_mib = rss_peak_mib.max(now.rss_mib);
        // An ended child keeps its times until it is waited for, so they are whole here.
        if has_ended(child.id())? {
            let (wall_s, cpu_s) = (started.elapsed().as_secs_f64(), usage(child.id())?.cpu_s);
            let status = child.wait()?;
            if !status.success() {
                bail!("{command:?} failed ({status})");
            }
            return Ok(Cost { wall_s, cpu_s, rss_peak_mib });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_ended(pid: u32) -> Result<bool> {
    Ok(Process::new(pid.cast_signed())?.stat()?.state == 'Z')
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

    #[test]
    fn the_time_of_a_child_of_a_child_counts() {
        let alone = cost(Command::new("sh").args(["-c", "true"])).unwrap();
        let nested = format!("sh -c '{BUSY}'; true");
        let busy = cost(Command::new("sh").args(["-c", &nested])).unwrap();
        assert!(busy.cpu_s > alone.cpu_s, "{busy:?} {alone:?}");
        assert!(busy.wall_s > 0.0 && busy.rss_peak_mib > 0.0, "{busy:?}");
    }

    #[test]
    fn a_command_that_fails_or_does_not_exist_is_an_error() {
        assert!(cost(Command::new("sh").args(["-c", "exit 3"])).is_err());
        assert!(cost(&mut Command::new("/no/such/program")).is_err());
        assert!(usage(u32::MAX >> 1).is_err());
    }
}
