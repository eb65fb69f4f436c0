//! Energy from the RAPL counters of the kernel's `power` PMU
//! (arch/x86/events/rapl.c; Documentation/ABI/testing/sysfs-bus-event_source-devices-events).
//!
//! These are the same counters as powercap's, for a service that may count events
//! (`CAP_PERFMON`) and cannot read `energy_uj`, which only root can. Counted are
//! packages (`energy-pkg`) and, where it is a domain of its own, memory
//! (`energy-ram`), on one core of each package, which `cpumask` names.
//! `energy-cores` and `energy-gpu` lie within a package and `energy-psys` covers
//! packages too; all three are left out so that no energy counts twice.
//!
//! The hardware's 32 bits wrap within minutes; the kernel follows them by a timer
//! and keeps 64, in the unit of the event's `scale`. Tests use recorded trees and
//! their own counters, because no emulated processor has this PMU.

use super::total;
use crate::Roots;
use crate::files::{read_text, read_value};
use crate::gauges::not_allowed;
use lull_control::{CoreId, CoreSet, EnergyObservation, EnergySource};
use lull_measure::{Gauge, Joules, Missing};
use perf_event::Builder;
use perf_event::events::Dynamic;
use std::fmt;
use std::io;
use std::path::Path;

/// The events that together make up the machine.
const EVENTS: [&str; 2] = ["energy-pkg", "energy-ram"];

/// The events of the `power` PMU that together make up the machine.
#[derive(Debug)]
pub struct PowerPmu {
    domains: Vec<Domain>,
    source: EnergySource,
}

/// One event on one package.
#[derive(Debug)]
struct Domain {
    name: String,
    counter: Box<dyn Count>,
    /// Energy of one count.
    unit: Joules,
    last: Option<u64>,
}

/// A counter that only grows, in 64 bits.
trait Count: fmt::Debug + Send {
    fn count(&mut self) -> io::Result<u64>;
}

impl Count for perf_event::Counter {
    fn count(&mut self) -> io::Result<u64> {
        self.read()
    }
}

/// Opens an event of a PMU's directory for all that runs on a core.
type Open<'a> = &'a dyn Fn(&Path, &str, CoreId) -> io::Result<Box<dyn Count>>;

impl PowerPmu {
    /// The meter, after one successful reading of every counter.
    ///
    /// # Errors
    /// If there is no such PMU, or its events cannot be counted.
    pub fn open(roots: &Roots) -> Result<Self, Missing> {
        if !roots.is_own_proc() {
            return Err(Missing::because("a recorded tree has no counters of a power PMU"));
        }
        Self::open_with(roots, &open)
    }

    fn open_with(roots: &Roots, open: Open<'_>) -> Result<Self, Missing> {
        let pmu = roots.sys.join("bus/event_source/devices/power");
        let known: Vec<_> =
            EVENTS.into_iter().filter(|event| pmu.join("events").join(event).exists()).collect();
        if !known.contains(&EVENTS[0]) {
            let events = pmu.join("events").join(EVENTS[0]);
            return Err(Missing::because(format!(
                "no power PMU: {} is not there",
                events.display()
            )));
        }
        let cores = cpumask(&pmu)?;
        let mut domains = Vec::new();
        for event in &known {
            let unit = unit(&pmu, event)?;
            for core in cores.iter() {
                let counter = open(&pmu, event, core);
                let counter = counter.map_err(|error| refused(roots, event, core, &error))?;
                let name = format!("{event} of core {core}");
                domains.push(Domain { name, counter, unit, last: None });
            }
        }
        for domain in &mut domains {
            domain.change()?;
        }
        let packages = if cores.len() == 1 { "package" } else { "packages" };
        let means = format!("perf {} of {} {packages}", known.join(" + "), cores.len());
        Ok(Self { domains, source: EnergySource::Measured(format!("RAPL by {means}")) })
    }

    /// Returns the summed events, and the number of packages.
    pub fn source(&self) -> &EnergySource {
        &self.source
    }

    /// Energy since the last call.
    pub fn read(&mut self) -> Gauge<EnergyObservation> {
        let energy = total(self.domains.iter_mut().map(Domain::change))?;
        Ok(EnergyObservation { energy, source: self.source.clone() })
    }
}

impl Domain {
    /// Energy since the last call; `None` at the first.
    fn change(&mut self) -> Result<Option<Joules>, Missing> {
        let read = self.counter.count();
        let last = std::mem::replace(&mut self.last, read.as_ref().ok().copied());
        let now = read.map_err(|error| {
            Missing::because(format!("{} cannot be counted: {error}", self.name))
        })?;
        Ok(last.map(|last| Joules(now.wrapping_sub(last) as f64 * self.unit.0)))
    }
}

/// Returns one core of each package, on which its events are counted.
fn cpumask(pmu: &Path) -> Result<CoreSet, Missing> {
    let path = pmu.join("cpumask");
    let wrong = |what: String| Missing::because(format!("{}: {what}", path.display()));
    let text = read_text(&path).map_err(|error| wrong(error.to_string()))?;
    let cores: CoreSet =
        text.parse().map_err(|_| wrong(format!("`{text}` is not a list of cores")))?;
    if cores.is_empty() {
        return Err(wrong("names no core".to_owned()));
    }
    Ok(cores)
}

/// Energy of one count of an event.
fn unit(pmu: &Path, event: &str) -> Result<Joules, Missing> {
    let file = |end: &str| pmu.join("events").join(format!("{event}.{end}"));
    let (scale, unit) = (file("scale"), file("unit"));
    let wrong = |path: &Path, what: String| {
        Missing::because(format!("{}: {what}, so energy is not known", path.display()))
    };
    let name = read_text(&unit).map_err(|error| wrong(&unit, error.to_string()))?;
    if name != "Joules" {
        return Err(wrong(&unit, format!("`{name}` and not Joules")));
    }
    let value: f64 = read_value(&scale).map_err(|error| wrong(&scale, error.to_string()))?;
    if !(value > 0.0 && value.is_finite()) {
        return Err(wrong(&scale, format!("{value} is not a scale")));
    }
    Ok(Joules(value))
}

fn open(pmu: &Path, event: &str, core: CoreId) -> io::Result<Box<dyn Count>> {
    let event = Dynamic::builder(pmu)?.event(event)?.build().map_err(io::Error::other)?;
    let mut builder = Builder::new(event);
    // The PMU counts whatever runs, and refuses events that leave anything out.
    builder.any_pid().one_cpu(core.0.into()).exclude_kernel(false).exclude_hv(false);
    Ok(Box::new(builder.enabled(true).build()?))
}

fn refused(roots: &Roots, event: &str, core: CoreId, error: &io::Error) -> Missing {
    Missing::because(match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => format!("power PMU: {}", not_allowed(roots, 0)),
        _ => format!("power PMU: {event} cannot be counted on core {core}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    const PMU: &str = "sys/bus/event_source/devices/power";
    /// 2^-32 J, as the kernel writes it.
    const SCALE: &str = "2.3283064365386962890625e-10\n";
    const JOULE: u64 = 1 << 32;

    /// Counters by event and core, set by the test.
    type Counts = Arc<Mutex<BTreeMap<(String, u16), u64>>>;

    #[derive(Debug)]
    struct Set(Counts, (String, u16));

    impl Count for Set {
        fn count(&mut self) -> io::Result<u64> {
            let counts = self.0.lock().unwrap();
            counts.get(&self.1).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    fn tree(events: &[&str], cpumask: &str) -> Tree {
        let tree = Tree::new();
        tree.write(&format!("{PMU}/type"), "12\n");
        tree.write(&format!("{PMU}/cpumask"), cpumask);
        tree.write(&format!("{PMU}/format/event"), "config:0-7\n");
        for event in events {
            tree.write(&format!("{PMU}/events/{event}"), "event=0x02\n");
            tree.write(&format!("{PMU}/events/{event}.scale"), SCALE);
            tree.write(&format!("{PMU}/events/{event}.unit"), "Joules\n");
        }
        tree
    }

    fn opened(tree: &Tree, counts: &Counts) -> Result<PowerPmu, Missing> {
        PowerPmu::open_with(&tree.roots(), &|_, event, core| {
            Ok(Box::new(Set(Arc::clone(counts), (event.to_owned(), core.0))))
        })
    }

    fn set(counts: &Counts, event: &str, core: u16, count: u64) {
        counts.lock().unwrap().insert((event.to_owned(), core), count);
    }

    const ALL: [&str; 5] =
        ["energy-pkg", "energy-ram", "energy-cores", "energy-gpu", "energy-psys"];

    #[test]
    fn both_packages_and_their_memory_add_up_and_nothing_counts_twice() {
        let (tree, counts) = (tree(&ALL, "0,18\n"), Counts::default());
        for (event, core) in [("energy-pkg", 0), ("energy-pkg", 18), ("energy-ram", 0)] {
            set(&counts, event, core, 5);
        }
        set(&counts, "energy-ram", 18, 5);
        let mut meter = opened(&tree, &counts).unwrap();
        let source = "measured by RAPL by perf energy-pkg + energy-ram of 2 packages";
        assert_eq!(meter.source().to_string(), source);
        set(&counts, "energy-pkg", 0, 5 + 10 * JOULE);
        set(&counts, "energy-pkg", 18, 5 + 20 * JOULE);
        set(&counts, "energy-ram", 18, 5 + JOULE / 2);
        assert_eq!(meter.read().unwrap().energy, Joules(30.5));
        assert_eq!(meter.read().unwrap().energy, Joules(0.0));
    }

    #[test]
    fn a_counter_that_wraps_goes_on() {
        let (tree, counts) = (tree(&["energy-pkg"], "0\n"), Counts::default());
        set(&counts, "energy-pkg", 0, u64::MAX - JOULE + 1);
        let mut meter = opened(&tree, &counts).unwrap();
        set(&counts, "energy-pkg", 0, JOULE);
        assert_eq!(meter.read().unwrap().energy, Joules(2.0));
    }

    #[test]
    fn a_counter_that_fails_is_missing_and_not_zero() {
        let (tree, counts) = (tree(&["energy-pkg"], "0\n"), Counts::default());
        set(&counts, "energy-pkg", 0, 1);
        let mut meter = opened(&tree, &counts).unwrap();
        counts.lock().unwrap().clear();
        let why = meter.read().unwrap_err();
        assert!(why.reason.contains("energy-pkg of core 0 cannot be counted"), "{why}");
        set(&counts, "energy-pkg", 0, JOULE);
        assert!(meter.read().unwrap_err().reason.contains("first"), "what was between is unknown");
    }

    #[test]
    fn units_and_masks_that_are_not_understood_are_refused_by_file() {
        let cases = [
            ("events/energy-pkg.unit", "Watts\n", "`Watts` and not Joules"),
            ("events/energy-pkg.scale", "0\n", "is not a scale"),
            ("events/energy-pkg.scale", "nought\n", "makes no sense"),
            ("cpumask", "first\n", "is not a list of cores"),
            ("cpumask", "\n", "cpumask"),
        ];
        for (file, text, hint) in cases {
            let (tree, counts) = (tree(&["energy-pkg"], "0\n"), Counts::default());
            set(&counts, "energy-pkg", 0, 1);
            tree.write(&format!("{PMU}/{file}"), text);
            let why = opened(&tree, &counts).unwrap_err().reason;
            assert!(why.contains(hint) && why.contains(PMU), "{why}");
        }
    }

    #[test]
    fn what_the_kernel_refuses_says_what_would_allow_it() {
        let tree = tree(&["energy-pkg"], "0\n");
        tree.write("proc/sys/kernel/perf_event_paranoid", "2\n");
        let refuse = |errno| {
            let open: Open<'_> = &|_, _, _| Err(io::Error::from_raw_os_error(errno));
            PowerPmu::open_with(&tree.roots(), open).unwrap_err().reason
        };
        let why = refuse(libc::EACCES);
        assert!(why.contains("is 2") && why.contains("CAP_PERFMON"), "{why}");
        assert!(refuse(libc::ENODEV).contains("energy-pkg cannot be counted on core 0"));
    }

    #[test]
    fn a_machine_without_the_pmu_reports_that_and_a_tree_does_not_query_the_kernel() {
        let none = PowerPmu::open_with(&Tree::new().roots(), &open).unwrap_err();
        assert!(none.reason.contains("no power PMU"), "{none}");
        let recorded = PowerPmu::open(&tree(&["energy-pkg"], "0\n").roots()).unwrap_err();
        assert!(recorded.reason.contains("recorded tree"), "{recorded}");
    }

    #[test]
    fn the_kernels_description_of_an_event_is_understood() {
        let tree = tree(&["energy-pkg"], "0\n");
        let mut event = Dynamic::builder(tree.path(PMU)).unwrap();
        assert!(event.event("energy-pkg").unwrap().build().is_ok());
    }
}
