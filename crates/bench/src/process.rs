//! Children of a benchmark: their cost (CPU time and memory, from /proc), their output, and their
//! end.

use anyhow::{Context, Result, bail};
use lull_host::sys::clock::process_cpu_time;
use procfs::process::{Process, Stat, Task, all_processes};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The resources that a tree of processes has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// User and system time, of ended children too; the kernel counts in ticks of 10 ms.
    pub(super) cpu_s: f64,
    /// Resident memory of all processes; shared memory counts in each.
    pub(super) rss_mib: f64,
}

/// Time and memory of a command from start to end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) wall_s: f64,
    pub(super) cpu_s: f64,
    /// Highest resident memory seen, looking every 10 ms.
    pub(super) rss_peak_mib: f64,
}

/// Returns the CPU time of all threads of this process.
pub(super) fn own_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Sums up a process and its living descendants.
///
/// # Errors
/// If the process is gone.
pub(super) fn usage(pid: u32) -> Result<Usage> {
    let root = stat_of(pid)?;
    let mut all = Usage::default();
    for stat in [root].into_iter().chain(descendants(pid.cast_signed())?) {
        let ticks = stat.utime + stat.stime + (stat.cutime + stat.cstime).cast_unsigned();
        all.cpu_s += ticks as f64 / procfs::ticks_per_second() as f64;
        all.rss_mib += resident_mib(&stat);
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

/// The threads of all processes below one, or its own if there are none.
///
/// # Errors
/// If the process is gone.
pub(super) fn threads_at_work(pid: u32) -> Result<Vec<Pid>> {
    let own = Process::new(pid.cast_signed()).with_context(|| format!("no process {pid}"))?;
    let mut processes = below(own.pid)?;
    if processes.is_empty() {
        processes.push(own);
    }
    Ok(tasks(&processes).filter_map(|task| Pid::from_raw(task.tid)).collect())
}

/// The processes that have `pid` above them.
fn below(pid: i32) -> Result<Vec<Process>> {
    let stats = descendants(pid)?.into_iter();
    Ok(stats.filter_map(|stat| Process::new(stat.pid).ok()).collect())
}

/// Returns the threads of processes; processes that end meanwhile are left out.
fn tasks(processes: &[Process]) -> impl Iterator<Item = Task> + '_ {
    processes.iter().filter_map(|process| process.tasks().ok()).flatten().flatten()
}

/// Context switches so far, of its own will or not, of each thread of a process
/// and its living descendants, by the thread's number.
///
/// # Errors
/// If the kernel counts none.
pub(super) fn switches(pid: u32) -> Result<BTreeMap<i32, u64>> {
    let pid = pid.cast_signed();
    let mut processes = below(pid)?;
    processes.extend(Process::new(pid));
    let mut all = BTreeMap::new();
    for task in tasks(&processes) {
        let Ok(status) = task.status() else { continue };
        let own = status.voluntary_ctxt_switches;
        let both = own.zip(status.nonvoluntary_ctxt_switches);
        let (own, forced) = both.context("the kernel counts no context switches")?;
        all.insert(task.tid, own + forced);
    }
    Ok(all)
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
    Ok(stat_of(pid)?.state == 'Z')
}

/// The memory of one process, without its children.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Memory {
    /// Resident now.
    pub(super) resident_mb: f64,
    /// Most that was ever resident.
    pub(super) peak_mb: f64,
}

/// The memory of one process.
///
/// # Errors
/// If the process is gone.
pub(super) fn memory(pid: u32) -> Result<Memory> {
    let status = Process::new(pid.cast_signed()).and_then(|process| process.status());
    let status = status.with_context(|| format!("no process {pid} to measure"))?;
    // The kernel writes kB and means 1024 bytes.
    let mb = |kib: Option<u64>| kib.map(|kib| kib as f64 * 1024.0 / 1e6);
    let both = mb(status.vmrss).zip(mb(status.vmhwm));
    let (resident_mb, peak_mb) = both.with_context(|| format!("process {pid} has no memory"))?;
    Ok(Memory { resident_mb, peak_mb })
}

/// The children of a process whose command line contains this word.
pub(super) fn children_with(pid: u32, word: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for process in all_processes()?.flatten() {
        let is_child = process.stat().is_ok_and(|stat| stat.ppid == pid.cast_signed());
        let says_so = process.cmdline().is_ok_and(|words| words.iter().any(|own| own == word));
        if is_child && says_so {
            found.push(process.pid.cast_unsigned());
        }
    }
    Ok(found)
}

/// Returns the share of a core that an agent and its front end use during this time.
///
/// # Errors
/// If the agent has ended.
pub(super) fn agent_cpu_percent(pid: u32, measured: Duration) -> Result<f64> {
    let processes = agent_processes(pid)?;
    let used_s = || {
        let times = processes.iter().map(|pid| process_cpu_time(pid.cast_signed()));
        times.map(|time| Ok(time?.as_secs_f64())).sum::<Result<f64>>()
    };
    let (started, before) = (Instant::now(), used_s()?);
    std::thread::sleep(measured);
    Ok(100.0 * (used_s()? - before) / started.elapsed().as_secs_f64())
}

/// Resident memory of an agent and its front end.
///
/// # Errors
/// If a process is gone.
pub(super) fn agent_resident_mib(pid: u32) -> Result<f64> {
    agent_processes(pid)?.into_iter().map(|pid| Ok(resident_mib(&stat_of(pid)?))).sum()
}

/// An agent and its front end.
fn agent_processes(pid: u32) -> Result<Vec<u32>> {
    Ok([vec![pid], children_with(pid, "frontend")?].concat())
}

fn stat_of(pid: u32) -> Result<Stat> {
    let stat = Process::new(pid.cast_signed()).and_then(|process| process.stat());
    stat.with_context(|| format!("no process {pid} to measure"))
}

fn resident_mib(stat: &Stat) -> f64 {
    (stat.rss * procfs::page_size()) as f64 / f64::from(1 << 20)
}

/// How many processes there are, the kernel's threads included.
pub(super) fn count() -> Result<usize> {
    Ok(all_processes()?.flatten().count())
}

/// How many processes have this as the first word of their command line.
pub(super) fn processes_named(name: &str) -> Result<usize> {
    let is_named = |process: &Process| {
        process.cmdline().is_ok_and(|words| words.first().is_some_and(|first| first == name))
    };
    Ok(all_processes()?.flatten().filter(is_named).count())
}

/// The standard output of a command, and its cost.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Printed {
    pub(super) text: String,
    /// CPU time of the process itself, to the nanosecond.
    pub(super) cpu_s: f64,
}

/// Runs a command to its end without looking at it meanwhile: looking costs CPU
/// time, which a load client on a small machine would feel.
///
/// # Errors
/// If it cannot start or fails; its reason is then on standard error.
pub(super) fn printed(command: &mut Command) -> Result<Printed> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("cannot start {command:?}"))?;
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut text)?;
    }
    // Ended and not yet waited for, it still has its clock.
    let pid = Pid::from_child(&child);
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
    let cpu_s = process_cpu_time(pid.as_raw_nonzero().get())?.as_secs_f64();
    let status = child.wait()?;
    if !status.success() {
        bail!("{command:?} failed ({status})");
    }
    Ok(Printed { text, cpu_s })
}

/// A child that gets SIGTERM when this value is dropped.
pub(super) struct Running(Child);

/// How long a child may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

impl Running {
    /// Starts a command.
    ///
    /// # Errors
    /// If it cannot start.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).spawn();
        Ok(Self(child.with_context(|| format!("cannot start {command:?}"))?))
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn ask(&self) {
        if let Some(pid) = Pid::from_raw(self.pid().cast_signed()) {
            // The process may have ended by itself.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        self.ask();
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() > GRACE {
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
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
    fn a_child_is_measured_found_and_ended() {
        let family = Command::new("sh").args(["-c", "sleep 99 & wait"]).spawn().unwrap();
        let mut family = Running(family);
        let own = memory(family.pid()).unwrap();
        assert!(own.resident_mb > 0.0 && own.peak_mb >= own.resident_mb, "{own:?}");
        while children_with(family.pid(), "99").unwrap().is_empty() {
            assert!(!family.has_ended());
        }
        let child = children_with(family.pid(), "99").unwrap()[0];
        assert!(children_with(family.pid(), "98").unwrap().is_empty());
        assert!(count().unwrap() > 2);
        let (pid, _end) = (family.pid(), Running::start(Command::new("sleep").arg("0")).unwrap());
        drop(family);
        assert!(memory(pid).is_err());
        kill_process(Pid::from_raw(child.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_thread_that_sleeps_switches() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let before = switches(std::process::id()).unwrap()[&own];
        (0..3).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        assert!(switches(std::process::id()).unwrap()[&own] >= before + 3);
    }

    #[test]
    fn what_a_command_prints_is_returned_with_its_cost() {
        let text = |command: &mut Command| printed(command).unwrap().text;
        assert_eq!(text(Command::new("echo").arg("text")), "text\n");
        let busy = printed(Command::new("sh").args(["-c", BUSY])).unwrap();
        assert!(busy.cpu_s > printed(&mut Command::new("true")).unwrap().cpu_s, "{busy:?}");
        let error = printed(Command::new("sh").args(["-c", "echo text; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("failed"), "{error}");
    }

    #[test]
    fn a_command_that_fails_or_does_not_exist_is_an_error() {
        assert!(cost(Command::new("sh").args(["-c", "exit 3"])).is_err());
        assert!(cost(&mut Command::new("/no/such/program")).is_err());
        assert!(usage(u32::MAX >> 1).is_err());
    }
}
