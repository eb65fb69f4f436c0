//! `lull advise`: whether a concurrency limit is likely to help a server that runs without one.

use super::{UsageError, print_json};
use crate::cli::AdviseArgs;
use crate::say;
use anyhow::bail;
use lull_agent::advice::{
    Decision, NextStep, Observation, Queries, ServerWatch, Sums, Verdict, decide,
};
use lull_agent::library::obstacle;
use lull_host::Roots;
use lull_host::apps::Target;
use lull_host::oncall::OperatorPage;
use lull_measure::Nanos;
use lull_oncall::protocol::Protocol;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &AdviseArgs) -> anyhow::Result<()> {
    let target = target(&args.server)?;
    let watch = ServerWatch::begin(&target)?;
    let name = &args.server;
    if OperatorPage::of_server(&target, &Roots::default()).is_ok() {
        bail!("{name} has a gate already: `lull gate status {name}` shows it");
    }
    let program = Program::of_process(watch.pid(), args.protocol);
    if !args.json {
        say::notice(format_args!("watching process {} for {} s", watch.pid(), args.seconds));
    }
    let pid = watch.pid();
    let seen = watch.observe(Nanos::from_secs(args.seconds))?;
    let decision = decide(&seen, program.obstacle.as_deref());
    let advice = Advice::new(args, pid, &program, &seen, decision);
    if args.json {
        return print_json(&advice);
    }
    println!("{advice}");
    Ok(())
}

/// A number is a process, any other name is a unit.
fn target(server: &str) -> Result<Target, UsageError> {
    if let Ok(pid) = server.parse() {
        return Ok(Target::Pid(pid));
    }
    if server.is_empty() || server.contains('/') {
        let what = format!("`{server}` is not a server: name a process number or a systemd unit");
        return Err(UsageError(what));
    }
    let unit = if server.contains('.') { server.to_owned() } else { format!("{server}.service") };
    Ok(Target::Unit(unit))
}

/// The program of a server.
struct Program {
    path: PathBuf,
    protocol: Protocol,
    /// Why it cannot have a gate, if it cannot.
    obstacle: Option<String>,
}

impl Program {
    /// Reads what a process executes; unknown where the process belongs to another user.
    fn of_process(pid: i32, protocol: Option<Protocol>) -> Self {
        let link = Path::new("/proc").join(pid.to_string()).join("exe");
        let path = std::fs::read_link(&link).unwrap_or_default();
        let name = path.file_name().unwrap_or_default();
        let protocol = protocol.unwrap_or_else(|| Protocol::from_program(name.as_encoded_bytes()));
        let unread = || {
            let name = name.display();
            format!(
                "the gate does not read the protocol of `{name}` and never acts on it; \
                 --protocol names a protocol that the program does not show"
            )
        };
        // Through the link, so that a program of another mount namespace is read.
        let linked = obstacle(link.as_os_str()).unwrap_or_default();
        let obstacle = linked.or_else(|| (!protocol.is_readable()).then(unread));
        Self { path, protocol, obstacle }
    }
}

/// The advice in its printed form.
#[derive(Debug, Serialize)]
struct Advice {
    server: String,
    pid: i32,
    program: PathBuf,
    protocol: &'static str,
    seconds: f64,
    /// `ebpf`, or `proc` where queries could not be seen: the verdict is less certain then.
    source: &'static str,
    cores: usize,
    busy_cores: f64,
    server_cores: f64,
    /// Threads of the server that were runnable and not on a core, on average.
    queued_threads: f64,
    connections: usize,
    /// Queries that were read and not answered, on average.
    under_way: Option<f64>,
    queries: Option<Sums>,
    #[serde(flatten)]
    decision: Decision,
    /// The command to run next.
    next: String,
}

impl Advice {
    fn new(
        args: &AdviseArgs,
        pid: i32,
        program: &Program,
        seen: &Observation,
        decision: Decision,
    ) -> Self {
        let queries = seen.queries.as_ref().ok();
        Self {
            server: args.server.clone(),
            pid,
            program: program.path.clone(),
            protocol: program.protocol.name(),
            seconds: seen.time.as_secs_f64(),
            source: if queries.is_some() { "ebpf" } else { "proc" },
            cores: seen.cores,
            busy_cores: seen.busy_cores,
            server_cores: seen.server_cores,
            queued_threads: seen.queued_threads,
            connections: seen.connections,
            under_way: queries.map(Queries::under_way),
            queries: queries.map(|queries| queries.sums),
            next: next_command(args, program, &decision),
            decision,
        }
    }
}

/// Returns the command that answers the open question.
fn next_command(args: &AdviseArgs, program: &Program, decision: &Decision) -> String {
    let path = program.path.display();
    let is_unit = args.server.parse::<i32>().is_err();
    match decision.next_step {
        NextStep::None => "none at this load".to_owned(),
        NextStep::WatchAgain => {
            format!("lull advise {} --seconds {}", args.server, args.seconds.max(60) * 5)
        }
        NextStep::Statistics => format!("lull exec -- {path} ..."),
        NextStep::TryAuto if is_unit => {
            "lull attach /run/lull-db --concurrency auto, with the unit's drop-in of \
             docs/on-call.md"
                .to_owned()
        }
        NextStep::TryAuto => format!("lull exec --concurrency auto -- {path} ..."),
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, program, seconds, decision, cores, .. } = self;
        let verdict = match decision.verdict {
            Verdict::LikelyHelps => "a concurrency limit likely helps",
            Verdict::UnlikelyToHelp => "a concurrency limit is unlikely to help",
            Verdict::CannotTell => "cannot tell",
        };
        writeln!(out, "{} (process {pid}), watched for {seconds:.0} s", program.display())?;
        writeln!(out, "  verdict    {verdict}")?;
        writeln!(out, "  because    {}", decision.reason)?;
        if let (Some(sums), Some(under_way)) = (&self.queries, self.under_way) {
            let connections = self.connections;
            writeln!(out, "  under way  {under_way:.1} queries, {connections} TCP connections")?;
            writeln!(out, "  a query    {}", describe(sums))?;
        }
        writeln!(
            out,
            "  cores      {:.2} of {cores} busy, {:.2} by the server, {:.1} of its threads waiting \
             for one",
            self.busy_cores, self.server_cores, self.queued_threads
        )?;
        if self.source == "proc" {
            writeln!(out, "  seen by    /proc alone: less certain than with eBPF")?;
        }
        write!(out, "  next       {}", self.next)
    }
}

/// Describes what a query does in its time.
fn describe(sums: &Sums) -> String {
    if sums.answered == 0 {
        return "none was answered".to_owned();
    }
    let count = sums.answered as f64;
    let us = |seconds: f64| 1e6 * seconds / count;
    format!(
        "{:.0} us: {:.0} waiting for a core, {:.0} for locks or threads, {:.0} for the disk; \
         {:.0} us of CPU time, {:.2} context switches",
        us(sums.lasted_seconds),
        us(sums.queued_seconds),
        us(sums.blocked_seconds),
        us(sums.disk_seconds),
        us(sums.cpu_seconds),
        sums.switches as f64 / count
    )
}
