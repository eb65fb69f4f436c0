//! Writes a host down as `[machine]`, for simulations of configs that run on it.
//!
//! Every value has a comment that says where it comes from. What is not known is left out, with
//! a comment that says why: a simulation then lists what it assumes instead.

use crate::power_file::PowerFile;
use lull_control::{Capability, CoreType, FrequencyDomain, Machine};
use lull_host::gauges::idle::IdleState;
use lull_host::probe::{MachineFacts, ProbeError, Stated};
use lull_host::{Roots, probe};
use lull_measure::{Hertz, Missing};
use std::fmt::{Display, Write};

/// The text under construction.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    /// Writes a value with its source.
    fn value(&mut self, key: &str, value: impl Display, source: impl Display) {
        let _ = writeln!(self.0, "{:<40} # {source}", format!("{key} = {value}"));
    }

    /// A value written as a text.
    fn text(&mut self, key: &str, value: impl Display, source: impl Display) {
        self.value(key, toml::Value::String(value.to_string()), source);
    }

    /// A key that is left out, and why.
    fn unknown(&mut self, key: &str, why: impl Display) {
        let _ = writeln!(self.0, "# {key}: unknown: {why}");
    }

    fn section(&mut self, heading: &str) {
        let _ = writeln!(self.0, "\n{heading}");
    }

    /// A value with the file that states it, or the reason why there is none.
    fn stated<T: Display>(&mut self, key: &str, fact: &Result<Stated<T>, Missing>) {
        match fact {
            Ok(Stated { value, file }) => self.text(key, value, file.display()),
            Err(why) => self.unknown(key, why),
        }
    }
}

/// Describes the machine under these roots; `power` is the measured model of machines of its kind.
///
/// # Errors
/// If the machine cannot be described.
pub fn describe(roots: &Roots, power: Option<&PowerFile>) -> Result<String, ProbeError> {
    let (machine, facts) = (probe::machine(roots)?, MachineFacts::read(roots)?);
    let mut text = Text::default();
    let _ = writeln!(
        text.0,
        "# Written by `lull check --machine` of lull {}: what this machine is, for `lull sim`.\n\
         # What is unknown is left out; docs/scenario.md says what a simulation assumes then.\n\n\
         [machine]",
        crate::VERSION
    );
    text.text("name", &machine.name, "/proc/cpuinfo");
    match &facts.memory_bytes {
        Ok(Stated { value, file }) => text.value("memory_bytes", value, file.display()),
        Err(why) => text.unknown("memory_bytes", why),
    }
    text.stated("transition", &facts.transition);
    for (number, kind) in machine.core_types.iter().enumerate() {
        cores(&mut text, &machine, &facts, number, kind);
    }
    text.section("[machine.scheduler]");
    text.stated("slice", &facts.slice);
    text.stated("real_time_slice", &facts.real_time_slice);
    text.unknown("switch_cost", "not measured");
    idle(&mut text, facts.idle.as_deref());
    cache(&mut text, &machine, &facts);
    bandwidth(&mut text, &machine);
    nics(&mut text, &machine);
    measured_power(&mut text, &machine, power);
    Ok(text.0)
}

/// The cores of one type.
fn cores(text: &mut Text, machine: &Machine, facts: &MachineFacts, number: usize, kind: &CoreType) {
    let of_type = || {
        let online = machine.cores.iter().filter(|core| facts.online.contains(core.id));
        online.filter(move |core| core.core_type == number)
    };
    let Some(first) = of_type().next() else { return };
    text.section("[[machine.cores]]");
    let by = if machine.core_types.len() == 1 {
        "all cores are alike (cpu_capacity, highest_perf)"
    } else {
        "cpu_capacity or highest_perf of each core"
    };
    text.text("name", &kind.name, by);
    text.value("count", of_type().count(), "devices/system/cpu/online");
    text.value("speed", format!("{:?}", kind.speed), by);
    let together = of_type().filter(|core| core.smt_leader == first.smt_leader).count();
    text.value("threads_per_core", together, "topology/thread_siblings_list");
    match machine.domains.iter().find(|domain| domain.cores.contains(first.id)) {
        Some(domain) => frequencies(text, domain),
        None => text.unknown("domain, lowest, highest, steps", "the kernel offers no cpufreq here"),
    }
}

fn frequencies(text: &mut Text, domain: &FrequencyDomain) {
    let from = format!("cpufreq/policy{}", domain.id.0);
    text.value("domain", domain.cores.iter().count(), format!("{from}/affected_cpus"));
    match (domain.steps.first(), domain.steps.last()) {
        (Some(lowest), Some(highest)) => {
            let by = if domain.continuous { "cpuinfo_*_freq" } else { "the ends of its table" };
            text.text("lowest", lowest, format!("{from}, {by}"));
            text.text("highest", highest, format!("{from}, {by}"));
        }
        _ => text.unknown("lowest, highest", format!("{from} states no frequency")),
    }
    if domain.continuous {
        text.unknown("steps", "any frequency between both can be set");
    } else {
        let quoted = |step: &Hertz| format!("\"{step}\"");
        let steps: Vec<_> = domain.steps.iter().map(quoted).collect();
        let list = format!("[{}]", steps.join(", "));
        text.value("steps", list, format!("{from}/scaling_available_frequencies"));
    }
}

/// States in the kernel's order. A state whose numbers contradict those before it is left out.
fn idle(text: &mut Text, states: Result<&[IdleState], &Missing>) {
    let states = match states {
        Ok(states) => states,
        Err(why) => {
            text.0.push('\n');
            text.unknown("idle states", why);
            return;
        }
    };
    let mut before: Option<&IdleState> = None;
    for (number, state) in states.iter().enumerate() {
        let from = format!("cpu0/cpuidle/state{number}");
        let residency = state.target_residency;
        let is_after = |before: &&IdleState| {
            let shorter =
                residency.zip(before.target_residency).is_some_and(|(now, then)| now < then);
            state.exit_latency < before.exit_latency || shorter
        };
        if before.as_ref().is_some_and(is_after) {
            text.0.push('\n');
            text.unknown(&state.name, format!("{from} is shallower than the state before it"));
            continue;
        }
        before = Some(state);
        text.section("[[machine.idle]]");
        text.text("name", &state.name, format!("{from}/name"));
        text.text("exit", state.exit_latency, format!("{from}/latency"));
        match residency.filter(|residency| *residency >= state.exit_latency) {
            Some(residency) => text.text("residency", residency, format!("{from}/residency")),
            None => text.unknown("residency", format!("{from} states none above its latency")),
        }
        text.unknown("watts", "no meter reads one core");
    }
}

fn cache(text: &mut Text, machine: &Machine, facts: &MachineFacts) {
    let Some(cache) = &machine.cache else {
        text.0.push('\n');
        let why = machine.capabilities.get(Capability::CacheWays).err();
        let why = why.map(|why| why.to_string()).unwrap_or_default();
        match &facts.cache {
            Ok(Stated { value: (size, ways), file }) => {
                let file = file.display();
                text.unknown(
                    "cache",
                    format!("{size} of {ways} ways ({file}) do not divide: {why}"),
                );
            }
            Err(_) => text.unknown("cache", why),
        }
        return;
    };
    text.section("[machine.cache]");
    text.value("ways", cache.ways, "fs/resctrl/info/L3/cbm_mask");
    if cache.size_bytes > 0 {
        let way_bytes = cache.size_bytes / u64::from(cache.ways.max(1));
        text.value("way_bytes", way_bytes, "cpu0/cache/index3/size over the ways");
    } else {
        text.unknown("way_bytes", "cpu0/cache/index3/size states no size");
    }
}

fn bandwidth(text: &mut Text, machine: &Machine) {
    let Some(bandwidth) = &machine.bandwidth else {
        text.0.push('\n');
        let why = machine.capabilities.get(Capability::MemoryBandwidth).err();
        text.unknown("bandwidth", why.map(|why| why.to_string()).unwrap_or_default());
        return;
    };
    text.section("[machine.bandwidth]");
    text.value("min_percent", bandwidth.min_percent, "fs/resctrl/info/MB/min_bandwidth");
    text.value("step_percent", bandwidth.step_percent, "fs/resctrl/info/MB/bandwidth_gran");
    text.unknown("peak_bytes_per_s", "not measured; `lull burn memory` on all cores is near it");
}

fn nics(text: &mut Text, machine: &Machine) {
    if machine.nics.is_empty() {
        text.0.push('\n');
        let why = machine.capabilities.get(Capability::Coalescing).err();
        text.unknown("network cards", why.map(|why| why.to_string()).unwrap_or_default());
    }
    for nic in &machine.nics {
        text.section("[[machine.nic]]");
        text.text("name", &nic.name, "sys/class/net");
        text.text("delay_max", nic.delay_max, "the driver's largest rx-usecs");
        text.text("delay_step", nic.delay_step, "the driver's granularity");
    }
}

fn measured_power(text: &mut Text, machine: &Machine, power: Option<&PowerFile>) {
    let Some(file) = power else {
        text.0.push('\n');
        let meter = match machine.capabilities.get(Capability::Energy) {
            Ok(means) => format!("{means} meters this machine"),
            Err(why) => why.to_string(),
        };
        let next = "run `lull calibrate power`, then `lull check --machine --power power.toml`";
        text.unknown("power", format!("{meter}; {next}"));
        return;
    };
    let calibration = &file.calibration;
    text.section("[machine.power]");
    let by = format!("measured by {} on {}", calibration.meter, calibration.machine);
    text.value("base_watts", format!("{:?}", file.base_watts), &by);
    let busy = file.busy_core_watts + file.dynamic_core_watts.unwrap_or(0.0);
    text.value("busy_core_watts", format!("{busy:?}"), format!("{by}, at the highest frequency"));
    match file.shallow_core_watts {
        Some(watts) => text.value("idle_core_watts", format!("{watts:?}"), by),
        None => text.unknown("idle_core_watts", "not measured apart from base_watts"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MachineSection;

    #[derive(Debug, serde::Deserialize)]
    struct File {
        machine: MachineSection,
    }

    /// A tree with two cores, an idle state that contradicts the one before, and cpufreq.
    fn tree() -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = tree.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A \"fast\" CPU\n");
        write("proc/meminfo", "MemTotal: 1024 kB\n");
        write("sys/devices/system/cpu/online", "0-1\n");
        let policy = "sys/devices/system/cpu/cpufreq/policy0";
        write(&format!("{policy}/affected_cpus"), "0 1\n");
        write(&format!("{policy}/scaling_available_frequencies"), "2260000 1197000\n");
        let states =
            [("POLL", "0", "0"), ("C1", "2", "2"), ("C6", "133", "600"), ("odd", "1", "1")];
        for (number, (name, latency, residency)) in states.into_iter().enumerate() {
            let state = format!("sys/devices/system/cpu/cpu0/cpuidle/state{number}");
            write(&format!("{state}/name"), name);
            write(&format!("{state}/latency"), latency);
            write(&format!("{state}/residency"), residency);
        }
        tree
    }

    #[test]
    fn a_machine_that_is_written_down_can_be_read_and_unknowns_are_left_out() {
        let tree = tree();
        let text = describe(&Roots::under(tree.path()), None).unwrap();
        let machine = toml::from_str::<File>(&text).unwrap().machine;
        machine.check().unwrap();
        assert_eq!((machine.name.as_str(), machine.core_count()), ("A \"fast\" CPU", 2));
        assert_eq!(machine.memory_bytes, Some(1 << 20));
        let group = &machine.cores[0];
        assert_eq!((group.domain, group.steps.len()), (Some(2), 2));
        assert_eq!(group.highest, Some(Hertz(2_260_000_000)));
        let names: Vec<_> = machine.idle.iter().map(|state| state.name.as_str()).collect();
        assert_eq!(names, ["POLL", "C1", "C6"]);
        assert_eq!((machine.power, machine.cache, machine.bandwidth), (None, None, None));
        for unknown in ["power", "cache", "bandwidth", "network cards", "switch_cost", "odd"] {
            let line = format!("# {unknown}: unknown: ");
            assert!(text.contains(&line), "{unknown}\n{text}");
        }
        // No value without the place that it comes from.
        let values = text.lines().filter(|line| line.contains(" = "));
        assert!(values.clone().count() > 10 && values.clone().all(|line| line.contains(" # ")));
    }

    #[test]
    fn measured_power_says_by_which_meter() {
        let tree = tree();
        let power = "base_watts = 20.0\nbusy_core_watts = 1.5\ndynamic_core_watts = 4.0\n\
                     full_hertz = 2400000000\n[calibration]\nmachine = \"a Xeon\"\ncores = 8\n\
                     meter = \"RAPL package-0\"\nsteps = 14\noff_watts = 0.31\n\
                     residual_watts = 0.2\nexplained_ratio = 0.99\nnotes = []\nversion = \"0\"\n";
        let power: PowerFile = toml::from_str(power).unwrap();
        let text = describe(&Roots::under(tree.path()), Some(&power)).unwrap();
        let machine = toml::from_str::<File>(&text).unwrap().machine;
        let found = machine.power.unwrap();
        assert_eq!((found.base_watts, found.busy_core_watts), (20.0, 5.5));
        assert!(text.contains("measured by RAPL package-0 on a Xeon"), "{text}");
    }

    #[test]
    fn this_machine_is_written_down_so_that_it_can_be_read() {
        let text = describe(&Roots::default(), None).unwrap();
        let machine = toml::from_str::<File>(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(machine.machine.check(), Ok(()), "{text}");
    }
}
