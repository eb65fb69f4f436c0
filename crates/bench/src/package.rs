//! The cost of the Python package: beside the command, by call, by table, at import, on disk; how
//! soon Ctrl-C ends a simulation, and sweeps on Ray beside those on processes.

use super::process::printed;
use super::python::Python;
use super::stats::{Summary, ratios};
use super::{Bench, Context, report::Report};
use anyhow::{Context as _, Result, ensure};
use lull_control::Rng;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const BENCH: Bench = Bench {
    name: "python",
    about: "The Python package: a simulation beside `lull sim`, calls of policies, ten million \
            rows into polars, import, size of the wheel, Ctrl-C, sweeps on Ray",
    run,
};

const ROUNDS: usize = 11;
/// The simulation that both run, and its replications, which take seconds.
const SCENARIO: &str = "examples/sim/colocation.toml";
const REPLICATIONS: &str = "10";
const ROWS: &str = "10000000";

/// The bound on the package's cost, above which users would notice it.
const RATIO_MAX: f64 = 1.05;
const CALL_MAX_US: f64 = 10.0;
const POLARS_MAX_S: f64 = 0.2;
const IMPORT_MAX_MS: f64 = 150.0;
const WHEEL_MAX_MB: f64 = 15.0;
const INTERRUPT_MAX_MS: f64 = 100.0;
/// Least throughput of a sweep on Ray, over that of one on as many processes.
const RAY_MIN: f64 = 0.9;

/// The parts, each measured once in each round.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Command,
    Package,
    Calls,
    Rows,
    Import,
    Bare,
    Interrupt,
}

const PARTS: [Part; 7] = [
    Part::Command,
    Part::Package,
    Part::Calls,
    Part::Rows,
    Part::Import,
    Part::Bare,
    Part::Interrupt,
];

/// The figures of all rounds.
#[derive(Debug, Default)]
struct Rounds {
    command_s: Vec<f64>,
    package_s: Vec<f64>,
    idle_us: Vec<f64>,
    looks_us: Vec<f64>,
    rows_s: Vec<f64>,
    import_s: Vec<f64>,
    bare_s: Vec<f64>,
    interrupt_ms: Vec<f64>,
}

/// Cells per second of sweeps, in rounds of their own.
struct Sweeps {
    processes: Vec<f64>,
    ray: Vec<f64>,
}

/// The programs that the parts run.
struct Programs {
    lull: PathBuf,
    python: Python,
    /// The directory that has the installed wheel.
    site: PathBuf,
    root: PathBuf,
}

fn run(context: &Context) -> Result<Report> {
    let python = Python::install("package", &context.root)?;
    let (wheel, site) = install_wheel(context, &python)?;
    let lull = context.build("lull-cli", "lull")?;
    let programs = Programs { lull, python, site, root: context.root.clone() };
    // The sweeps come first, so that a failure of Ray does not discard the rounds.
    let sweeps = programs.sweeps()?;
    let mut rounds = Rounds::default();
    let mut rng = Rng::seed_from_u64(1);
    // The first round warms up.
    for round in 0..=ROUNDS {
        let mut order = PARTS;
        order.shuffle(&mut rng);
        for part in order {
            programs.measure(part, &mut rounds)?;
        }
        if round == 0 {
            rounds = Rounds::default();
        }
    }
    report(&rounds, &sweeps, &wheel, &programs)
}

/// Builds the wheel as a release is built, and installs it into a directory of its own; returns
/// both paths.
fn install_wheel(context: &Context, python: &Python) -> Result<(PathBuf, PathBuf)> {
    let target = context.target().join("wheel");
    let (wheels, site) = (target.join("bench"), target.join("bench-site"));
    for old in [&wheels, &site] {
        if old.exists() {
            std::fs::remove_dir_all(old)?;
        }
    }
    let mut build = python.interpreter();
    build.current_dir(context.root.join("crates/python"));
    build.args(["-m", "maturin", "build", "--quiet", "--release", "--target-dir"]).arg(&target);
    printed(build.arg("--out").arg(&wheels)).context("the wheel does not build")?;
    let mut install = python.interpreter();
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]);
    printed(install.arg(&site).arg("--find-links").arg(&wheels).arg("lull"))?;
    let wheel = std::fs::read_dir(&wheels)?.next().context("no wheel was built")??.path();
    Ok((wheel, site))
}

impl Programs {
    fn measure(&self, part: Part, rounds: &mut Rounds) -> Result<()> {
        match part {
            Part::Command => {
                let mut command = Command::new(&self.lull);
                command.current_dir(&self.root).args(["sim", SCENARIO, "--seed", "1"]);
                command.args(["--seeds", REPLICATIONS]);
                rounds.command_s.push(printed(&mut command)?.cpu_s);
            }
            Part::Package => {
                let mut script = self.script(&["simulate", SCENARIO, REPLICATIONS]);
                rounds.package_s.push(printed(&mut script)?.cpu_s);
            }
            Part::Calls => {
                let text = printed(&mut self.script(&["call"]))?.text;
                rounds.idle_us.push(figure(&text, "idle_us")?);
                rounds.looks_us.push(figure(&text, "looks_us")?);
            }
            Part::Rows => {
                let text = printed(&mut self.script(&["rows", ROWS]))?.text;
                rounds.rows_s.push(figure(&text, "polars_s")?);
            }
            Part::Import => rounds.import_s.push(self.statement("import lull")?),
            Part::Bare => rounds.bare_s.push(self.statement("pass")?),
            Part::Interrupt => {
                let text = printed(&mut self.script(&["interrupt"]))?.text;
                rounds.interrupt_ms.push(figure(&text, "interrupt_ms")?);
            }
        }
        Ok(())
    }

    /// Sweeps on both engines, which take turns: Ray's processes run all the time.
    fn sweeps(&self) -> Result<Sweeps> {
        let text = printed(&mut self.named_script("throughput.py", &[SCENARIO]))?.text;
        let of = |engine: &str| figures(&text, &format!("{engine}_cells_per_s"));
        Ok(Sweeps { processes: of("processes")?, ray: of("ray")? })
    }

    fn script(&self, arguments: &[&str]) -> Command {
        self.named_script("measure.py", arguments)
    }

    fn named_script(&self, name: &str, arguments: &[&str]) -> Command {
        let mut script = self.python.script(name);
        script.current_dir(&self.root).env("PYTHONPATH", &self.site).args(arguments);
        script
    }

    /// CPU time of an interpreter that runs one statement, in seconds.
    fn statement(&self, statement: &str) -> Result<f64> {
        let mut interpreter = self.python.interpreter();
        interpreter.env("PYTHONPATH", &self.site).args(["-c", statement]);
        Ok(printed(&mut interpreter)?.cpu_s)
    }
}

/// Reads a figure that a script printed.
fn figure(text: &str, name: &str) -> Result<f64> {
    let values = figures(text, name)?;
    Ok(values[0])
}

/// Reads the values of a figure that a script printed, a line each; there is one at least.
fn figures(text: &str, name: &str) -> Result<Vec<f64>> {
    let values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let numbers = values.map(|value| {
        value.parse::<f64>().with_context(|| format!("{name} is not a number: {value}"))
    });
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    ensure!(!numbers.is_empty(), "the script printed no {name}: {text}");
    Ok(numbers)
}

fn report(rounds: &Rounds, sweeps: &Sweeps, wheel: &Path, programs: &Programs) -> Result<Report> {
    let mut report = Report::default();
    let over = ratios(&rounds.package_s, &rounds.command_s);
    report.bounded("simulation, package / command", over, "ratio", 0.0..=RATIO_MAX);
    report.reported("simulation, command", Summary::new(rounds.command_s.clone()), "s");
    report.reported("simulation, package", Summary::new(rounds.package_s.clone()), "s");
    let idle = Summary::new(rounds.idle_us.clone());
    report.bounded("a call of a policy that keeps all", idle, "us", 0.0..=CALL_MAX_US);
    let looks = Summary::new(rounds.looks_us.clone());
    report.reported("a call of one that reads each app's tail", looks, "us");
    let rows = Summary::new(rounds.rows_s.clone());
    report.bounded("ten million rows of a table into polars", rows, "s", 0.0..=POLARS_MAX_S);
    let import = rounds.import_s.iter().zip(&rounds.bare_s);
    let import = Summary::new(import.map(|(import, bare)| (import - bare) * 1e3));
    report.bounded("import", import, "ms", 0.0..=IMPORT_MAX_MS);
    let size = Summary::new([std::fs::metadata(wheel)?.len() as f64 / 1e6]);
    report.bounded("wheel", size, "MB", 0.0..=WHEEL_MAX_MB);
    let interrupt = Summary::new(rounds.interrupt_ms.clone());
    report.bounded("Ctrl-C to its exception", interrupt, "ms", 0.0..=INTERRUPT_MAX_MS);
    let over = ratios(&sweeps.ray, &sweeps.processes);
    report.bounded("sweep, Ray / processes", over, "ratio", RAY_MIN..=f64::INFINITY);
    let processes = Summary::new(sweeps.processes.clone());
    report.reported("sweep on two processes", processes, "cells/s");
    report.reported("sweep on two workers of Ray", Summary::new(sweeps.ray.clone()), "cells/s");
    report.note(format!(
        "{} CPU time, so that other work on the machine does not count; {ROUNDS} rounds after one \
         to warm up, the parts of a round in random order. The simulation is {SCENARIO} with \
         {REPLICATIONS} replications, as a process from start to end. The table has two columns of \
         texts or whole numbers and two of floats, as results have. The time of a call is the \
         difference of two simulations, of which one has no Python, over the calls. Ctrl-C and the \
         sweeps are of the wall clock: a simulation of hours is interrupted, and the longest of \
         several waits counts; cells take about a second, and the two engines take turns while \
         Ray's own processes run.",
        programs.python.versions(&["polars", "maturin", "ray"])?
    ));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_read_by_its_name_and_a_missing_one_is_refused() {
        let text = "idle_us 1.5\ncalls 180\n";
        assert!((figure(text, "idle_us").unwrap() - 1.5).abs() < 1e-12);
        for (text, name) in [(text, "idle"), ("idle_us x", "idle_us"), ("", "calls")] {
            assert!(figure(text, name).is_err(), "{name}");
        }
    }

    #[test]
    fn all_values_of_a_figure_are_read_and_one_that_is_no_number_is_refused() {
        let text = "ray_cells_per_s 1.5\ncells 20\nray_cells_per_s 2\n";
        assert_eq!(figures(text, "ray_cells_per_s").unwrap(), [1.5, 2.0]);
        assert!(figures("a 1\na b\n", "a").is_err());
    }
}
