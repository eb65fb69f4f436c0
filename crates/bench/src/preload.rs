//! The on-call runtime: what its calls cost, and what its gate gains on real servers.
//!
//! What needs servers of its own (a bare server, other options) runs them in turn (`contest`).
//! Settings of the gate are compared on one server instead, in random blocks (`admission`).
//! The bounds are those of the design.

mod admission;
mod batching;
mod cache;
mod calls;
mod classes;
mod clients;
mod contest;
mod database;
mod dispatched;
mod pgbench;
mod postgres;
mod product;
mod promises;
mod ran;
mod sysbench;
mod tls;

pub(super) use calls::model;

use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, bail};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::packages::on_path;

pub(super) const BENCH: Bench = Bench {
    name: "preload",
    about: "The on-call runtime beside the bare server: cost of a call, statistics only on \
            MariaDB, and the gate beside MariaDB's own pool of threads",
    run: |context| {
        reported(context, |lull, report| {
            calls::measure(lull, report)?;
            database::measure(lull, report)
        })
    },
};

pub(super) const CACHES: Bench = Bench {
    name: "caches",
    about: "memcached and Redis with statistics only, beside the bare servers",
    run: |context| reported(context, cache::measure),
};

pub(super) const BATCHING: Bench = Bench {
    name: "batching",
    about: "Ideal batching beside the bare server: how long a core sleeps when workers rest, \
            what it adds to latency, and what a query costs",
    run: |context| reported(context, batching::measure),
};

pub(super) const PROMISES: Bench = Bench {
    name: "promises",
    about: "What a few connections of a busy MariaDB are promised, kept by pslo, beside a plain \
            gate and the bare server",
    run: |context| reported(context, promises::measure),
};

pub(super) const CLASSES: Bench = Bench {
    name: "classes",
    about: "Classes of clients: cost of a query, and a class of a few connections of a busy \
            MariaDB with nine tenths of the turns, or with promises that pslo and utslo keep, \
            beside one limit for all",
    run: |context| {
        reported(context, |lull, report| {
            classes::measure_query(lull, &context.root, report)?;
            classes::measure(lull, report)
        })
    },
};

pub(super) const DISPATCHED: Bench = Bench {
    name: "dispatched",
    about: "Requests of an unmodified MariaDB on a core and a slower one, by EETL, by S2F and by \
            the kernel: latency, moves, and what reading the page costs (root)",
    run: |context| reported(context, dispatched::measure),
};

pub(super) const CLIENTS: Bench = Bench {
    name: "clients",
    about: "`lull load` beside pgbench, sysbench and h2load: the latency that each sees of one \
            server at the same rate",
    run: |context| reported(context, clients::measure),
};

pub(super) const TLS: Bench = Bench {
    name: "tls",
    about: "The on-call runtime under TLS and in the clear: cost of a query, and what the gate \
            gains on MariaDB and on PostgreSQL",
    run: |context| {
        reported(context, |lull, report| {
            tls::measure_query(lull, &context.root, report)?;
            database::measure_tls(lull, report)?;
            postgres::measure_tls(lull, report)
        })
    },
};

/// The open gate, `auto`, fixed limits where one can gain, limiters of others and, with `--full`,
/// controllers of papers, on one server: ten minutes, or hours with `--full`.
macro_rules! admission {
    ($name:literal, $about:literal, $comparison:ident) => {
        Bench {
            name: $name,
            about: concat!($about, ": settings of the gate in random blocks"),
            run: |context| {
                reported(context, |lull, report| {
                    admission::measure(context, lull, &admission::$comparison, report)
                })
            },
        }
    };
}

pub(super) const CONTENDED: Bench =
    admission!("contended", "One PostgreSQL whose clients contend for twelve rows", HOT_ROWS);
pub(super) const TPCC: Bench =
    admission!("tpcc", "TPC-C (go-tpc, 4 warehouses) on one MariaDB", TPC_C);
pub(super) const READ_WRITE: Bench =
    admission!("read-write", "Reads and writes of 512 and 256 connections on one MariaDB", MARIADB);
pub(super) const SCRIPTS: Bench =
    admission!("scripts", "Short transactions of 8 to 512 connections on one MariaDB", SCRIPTS);
pub(super) const DISK: Bench =
    admission!("disk", "One MariaDB whose tables do not fit its memory", ON_DISK);
pub(super) const MYSQL: Bench =
    admission!("mysql", "One MySQL that is unpacked where LULL_MYSQL says", MYSQL);

pub(super) const POSTGRES: Bench = Bench {
    name: "postgres",
    about: "One PostgreSQL under TPC-B-like transactions, as contended; with --full also a \
            watched server beside a bare one",
    run: |context| {
        reported(context, |lull, report| {
            admission::measure(context, lull, &admission::TPC_B, report)?;
            if context.is_full { postgres::measure(lull, report) } else { Ok(()) }
        })
    },
};

/// Measures the figures of the program itself, once it is built.
fn reported(
    context: &Context,
    measure: impl FnOnce(&Path, &mut Report) -> Result<()>,
) -> Result<Report> {
    let lull = context.build("lull-cli", "lull")?;
    let mut report = Report::default();
    measure(&lull, &mut report)?;
    Ok(report)
}

/// Lets other users enter a directory, for servers that do not run as root.
///
/// # Errors
/// The kernel's error.
fn make_readable(directory: &Path) -> Result<()> {
    Ok(std::fs::set_permissions(directory, Permissions::from_mode(0o755))?)
}

/// Returns the version that a server reports.
///
/// # Errors
/// If the program is missing.
fn version(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.split_whitespace().nth(2).unwrap_or("of unknown version").to_owned())
}

/// Runs a command to its end.
///
/// # Errors
/// If it cannot start or fails.
fn succeeded(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed ({status})");
    }
    Ok(())
}

/// Builds the command of `program`, under `lull exec` with these options or bare.
fn command(lull: &Path, exec: Option<&[&str]>, program: &Path) -> Command {
    let Some(options) = exec else { return Command::new(program) };
    let mut command = Command::new(lull);
    command.arg("exec").args(options).arg("--").arg(program);
    command
}

/// Where a program is.
///
/// # Errors
/// If it is not installed, with how to get it.
fn found(program: &str) -> Result<PathBuf> {
    on_path(program)
        .with_context(|| format!("no {program} on this machine: `cargo xtask test` installs it"))
}
