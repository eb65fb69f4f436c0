//! `[machine]`: a machine to simulate, as `lull check --machine` writes it down.
//!
//! The agent of a host reads the section and does not use it: it describes the machine on which
//! `lull sim` plays the config. A key that is left out is unknown.

use lull_measure::{Hertz, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most cores of a machine.
const CORES_MAX: u32 = 4096;
/// Most ways of a cache: a mask of ways is a word.
const WAYS_MAX: u32 = 64;

/// `[machine]`: the machine on which `lull sim` plays the config.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineSection {
    /// A name for people.
    #[serde(default)]
    #[schemars(example = &"Xeon E5-2630 v4")]
    pub name: String,
    /// Size of main memory.
    #[schemars(example = 67_108_864_000_u64, extend("x-unit" = "bytes"))]
    pub memory_bytes: Option<u64>,
    /// How long a core computes nothing after its frequency changed.
    #[schemars(example = &"10us")]
    pub transition: Option<Nanos>,
    /// Groups of equal cores, slowest first.
    pub cores: Vec<CoreGroup>,
    /// How threads share cores.
    #[serde(default)]
    pub scheduler: SchedulerSection,
    /// Idle states of a core, shallowest first.
    #[serde(default)]
    pub idle: Vec<IdleSection>,
    /// The last-level cache, if its ways can be divided.
    pub cache: Option<CacheSection>,
    /// Memory bandwidth and how it can be divided.
    pub bandwidth: Option<BandwidthSection>,
    /// Network cards whose interrupts can be moderated.
    #[serde(default)]
    pub nic: Vec<NicSection>,
    /// Power as measured.
    pub power: Option<MeasuredPower>,
}

/// `[[machine.cores]]`: equal cores.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CoreGroup {
    /// Type of the cores.
    #[serde(default = "core")]
    #[schemars(extend("default" = "core"), example = &"big")]
    pub name: String,
    /// Number of cores, those that share a physical core counted each.
    #[schemars(example = 16, extend("x-unit" = "cores"))]
    pub count: u32,
    /// Work per time at the highest frequency, against the slowest type.
    #[serde(default = "one")]
    #[schemars(extend("default" = 1.0), extend("x-unit" = "times"))]
    pub speed: f64,
    /// Cores of the kernel that share a physical core (SMT).
    #[serde(default = "single")]
    #[schemars(extend("default" = 1), extend("x-unit" = "cores"))]
    pub threads_per_core: u32,
    /// Cores that share one frequency; all of the group if absent.
    #[schemars(example = 1, extend("x-unit" = "cores"))]
    pub domain: Option<u32>,
    /// Lowest frequency.
    #[schemars(example = "800MHz")]
    pub lowest: Option<Hertz>,
    /// Highest frequency.
    #[schemars(example = "3GHz")]
    pub highest: Option<Hertz>,
    /// The frequencies that can be set, ascending, where the driver has a table (P-states).
    #[serde(default)]
    #[schemars(example = ["1.2GHz", "2.2GHz"])]
    pub steps: Vec<Hertz>,
}

/// `[machine.scheduler]`: how threads share cores; what is absent is as the simulator has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulerSection {
    /// How long a thread runs before a waiting one of its class gets the core.
    #[schemars(example = &"3ms")]
    pub slice: Option<Nanos>,
    /// The same among real-time threads of one priority.
    #[schemars(example = &"100ms")]
    pub real_time_slice: Option<Nanos>,
    /// Time of a switch to another thread.
    #[schemars(example = &"2us")]
    pub switch_cost: Option<Nanos>,
}

/// `[[machine.idle]]`: an idle state.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdleSection {
    /// Its name.
    #[schemars(example = &"C6")]
    pub name: String,
    /// Time from a wake-up to the first instruction.
    #[schemars(example = &"133us")]
    pub exit: Nanos,
    /// Shortest stay for which the kernel chooses it.
    #[schemars(example = &"600us")]
    pub residency: Option<Nanos>,
    /// Power of a core in it.
    #[schemars(example = 0.3, extend("x-unit" = "W"))]
    pub watts: Option<f64>,
}

/// `[machine.cache]`: a last-level cache divided by ways.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheSection {
    /// Ways that there are.
    #[schemars(example = 20, extend("x-unit" = "ways"))]
    pub ways: u32,
    /// Size of one way.
    #[schemars(example = 1_310_720, extend("x-unit" = "bytes"))]
    pub way_bytes: Option<u64>,
    /// Ways of the machine on which the work of requests was measured; all if absent.
    #[schemars(example = 20, extend("x-unit" = "ways"))]
    pub reference_ways: Option<u32>,
}

/// `[machine.bandwidth]`: memory bandwidth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BandwidthSection {
    /// Most traffic of the whole memory.
    #[schemars(example = 55e9, extend("x-unit" = "bytes/s"))]
    pub peak_bytes_per_s: Option<f64>,
    /// `q` of the factor `1 + q u²/(1 - u)` by which latency rises at utilisation `u`.
    #[serde(default = "queueing")]
    #[schemars(extend("default" = 0.5), extend("x-unit" = "none"))]
    pub queueing: f64,
    /// Least share that an app can be throttled to; bandwidth is not a knob without it.
    #[schemars(example = 10, extend("x-unit" = "%"))]
    pub min_percent: Option<u8>,
    /// Granularity of the throttle; `min_percent` if absent.
    #[schemars(example = 10, extend("x-unit" = "%"))]
    pub step_percent: Option<u8>,
}

/// `[[machine.nic]]`: a network card.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NicSection {
    /// Its name in the kernel.
    #[schemars(example = &"eth0")]
    pub name: String,
    /// Largest interrupt delay.
    #[schemars(example = &"1023us")]
    pub delay_max: Nanos,
    /// Granularity of the delay.
    #[schemars(example = &"1us")]
    pub delay_step: Nanos,
}

/// `[machine.power]`: power as `lull calibrate power` measured it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredPower {
    /// Power of the machine with all cores idle.
    #[schemars(example = 20.0, extend("x-unit" = "W"))]
    pub base_watts: f64,
    /// Further power of a busy core.
    #[schemars(example = 5.5, extend("x-unit" = "W"))]
    pub busy_core_watts: f64,
    /// Further power of an idle core.
    #[serde(default)]
    #[schemars(extend("x-unit" = "W"))]
    pub idle_core_watts: f64,
}

/// A fault of a machine: the key below `machine`, and the correction.
pub(crate) type MachineFault = (String, String);

impl MachineSection {
    /// Number of cores.
    pub fn core_count(&self) -> u32 {
        self.cores.iter().map(|group| group.count).sum()
    }

    /// Checks everything that needs no app.
    ///
    /// # Errors
    /// The key at fault and what to write.
    pub(crate) fn check(&self) -> Result<(), MachineFault> {
        self.check_cores()?;
        check_idle(&self.idle)?;
        if let Some(cache) = &self.cache {
            within("cache.ways", cache.ways, 1, WAYS_MAX)?;
            within("cache.reference_ways", cache.reference_ways.unwrap_or(1), 1, WAYS_MAX)?;
        }
        if let Some(bandwidth) = &self.bandwidth {
            for (key, percent) in
                [("min_percent", bandwidth.min_percent), ("step_percent", bandwidth.step_percent)]
            {
                within(&format!("bandwidth.{key}"), percent.unwrap_or(1).into(), 1, 100)?;
            }
            let peak = bandwidth.peak_bytes_per_s.unwrap_or(1.0);
            if !(peak > 0.0 && peak.is_finite()) {
                return fail("bandwidth.peak_bytes_per_s", format!("is {peak}: write bytes/s"));
            }
        }
        for (at, nic) in self.nic.iter().enumerate() {
            if nic.delay_step == Nanos::ZERO || nic.delay_step > nic.delay_max {
                let message = format!(
                    "is {}: the granularity is above 0 and at most delay_max, {}",
                    nic.delay_step, nic.delay_max
                );
                return fail(format!("nic[{at}].delay_step"), message);
            }
        }
        self.power.as_ref().map_or(Ok(()), check_power)
    }

    fn check_cores(&self) -> Result<(), MachineFault> {
        if self.cores.is_empty() {
            return fail("cores", "is empty: write [[machine.cores]] with a count".to_owned());
        }
        for (at, group) in self.cores.iter().enumerate() {
            let key = |name: &str| format!("cores[{at}].{name}");
            within(&key("count"), group.count, 1, CORES_MAX)?;
            within(&key("threads_per_core"), group.threads_per_core, 1, 16)?;
            within(&key("domain"), group.domain.unwrap_or(1), 1, CORES_MAX)?;
            if !(group.speed > 0.0 && group.speed.is_finite()) {
                let message = format!("is {}: write how many times as fast it is", group.speed);
                return fail(key("speed"), message);
            }
            if let Some(before) = at.checked_sub(1).map(|before| &self.cores[before])
                && before.speed > group.speed
            {
                let message = format!(
                    "is {}, below that of `{}` before it, {}: order the groups from slow to fast",
                    group.speed, before.name, before.speed
                );
                return fail(key("speed"), message);
            }
            check_frequencies(group).or_else(|(name, message)| fail(key(&name), message))?;
        }
        within("cores", self.core_count(), 1, CORES_MAX)
    }
}

fn check_frequencies(group: &CoreGroup) -> Result<(), MachineFault> {
    if let Some(at) = group.steps.windows(2).position(|pair| pair[0] >= pair[1]) {
        let (before, here) = (group.steps[at], group.steps[at + 1]);
        let message = format!("{here} after {before}: write the frequencies ascending, each once");
        return fail(format!("steps[{}]", at + 1), message);
    }
    let first = group.steps.first().copied();
    let all = [("lowest", group.lowest), ("steps[0]", first), ("highest", group.highest)];
    if let Some((key, _)) = all.into_iter().find(|(_, frequency)| *frequency == Some(Hertz(0))) {
        return fail(key, format!("{} is not a frequency", Hertz(0)));
    }
    match (group.lowest, group.highest) {
        (Some(lowest), Some(highest)) if lowest > highest => {
            fail("lowest", format!("is {lowest}, above highest, {highest}"))
        }
        _ => Ok(()),
    }
}

/// Refuses states that are not ordered from shallow to deep, and states that never pay.
fn check_idle(states: &[IdleSection]) -> Result<(), MachineFault> {
    for (at, state) in states.iter().enumerate() {
        let key = |name: &str| format!("idle[{at}].{name}");
        if let Some(watts) = state.watts.filter(|watts| !(*watts >= 0.0 && watts.is_finite())) {
            return fail(key("watts"), format!("{watts} is not a power: write watts, 0 or more"));
        }
        if let Some(residency) = state.residency.filter(|it| *it < state.exit) {
            let message = format!(
                "is {residency}, below the exit latency of {}: a stay of that length never pays",
                state.exit
            );
            return fail(key("residency"), message);
        }
        let Some(before) = at.checked_sub(1).map(|before| &states[before]) else { continue };
        let name = &before.name;
        let order = "order the states from shallow to deep";
        if state.exit < before.exit {
            let message = format!("is {}, below that of `{name}` before it: {order}", state.exit);
            return fail(key("exit"), message);
        }
        if let (Some(here), Some(there)) = (state.residency, before.residency)
            && here < there
        {
            return fail(key("residency"), format!("is {here}, below that of `{name}`: {order}"));
        }
        if let (Some(here), Some(there)) = (state.watts, before.watts)
            && here >= there
        {
            let message = format!(
                "is {here}, not less than the {there} of `{name}` before it: the state never \
                 pays; leave it out"
            );
            return fail(key("watts"), message);
        }
    }
    Ok(())
}

fn check_power(power: &MeasuredPower) -> Result<(), MachineFault> {
    let all = [
        ("base_watts", power.base_watts),
        ("busy_core_watts", power.busy_core_watts),
        ("idle_core_watts", power.idle_core_watts),
    ];
    if let Some((key, watts)) = all.into_iter().find(|(_, it)| !(*it >= 0.0 && it.is_finite())) {
        return fail(format!("power.{key}"), format!("{watts} is not a power: write watts"));
    }
    if power.idle_core_watts > power.busy_core_watts {
        let message = format!(
            "is {}, above busy_core_watts, {}: an idle core takes no more than a busy one",
            power.idle_core_watts, power.busy_core_watts
        );
        return fail("power.idle_core_watts", message);
    }
    Ok(())
}

fn within(key: &str, value: u32, least: u32, most: u32) -> Result<(), MachineFault> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    fail(key, format!("is {value}, must be from {least} to {most}"))
}

fn fail(key: impl Into<String>, message: String) -> Result<(), MachineFault> {
    Err((key.into(), message))
}

fn core() -> String {
    "core".to_owned()
}

const fn one() -> f64 {
    1.0
}

const fn single() -> u32 {
    1
}

/// The factor of the simulator's examples.
const fn queueing() -> f64 {
    0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        let machine: MachineSection = toml::from_str(text).unwrap();
        machine.check().map_or_else(|(key, why)| format!("{key}: {why}"), |()| String::new())
    }

    #[test]
    fn speeds_frequencies_and_powers_out_of_order_are_refused_by_key() {
        let two = |rest: &str| {
            fault(&format!("cores = [{{ count = 2, speed = 1.0 }}, {{ count = 2, {rest} }}]\n"))
        };
        assert_eq!(two("speed = 1.5, steps = [\"1GHz\", \"2GHz\"]"), "");
        for (rest, wanted) in [
            ("speed = 0.5", "cores[1].speed: is 0.5, below that of `core` before it"),
            ("speed = nan", "cores[1].speed: is NaN"),
            ("steps = [\"2GHz\", \"1GHz\"]", "cores[1].steps[1]: 1GHz after 2GHz"),
            ("lowest = \"2GHz\", highest = \"1GHz\"", "cores[1].lowest: is 2GHz, above highest"),
            ("threads_per_core = 0", "cores[1].threads_per_core: is 0"),
        ] {
            let text = two(rest);
            assert!(text.starts_with(wanted), "{rest}: {text}");
        }
        let power = "[[cores]]\ncount = 1\n[power]\nbase_watts = 1\nbusy_core_watts = 1.0\n";
        let text = fault(&format!("{power}idle_core_watts = 2.0\n"));
        assert!(text.starts_with("power.idle_core_watts: is 2, above busy_core_watts"), "{text}");
        assert!(fault("cores = []").starts_with("cores: is empty"));
        assert!(fault("[[cores]]\ncount = 5000\n").starts_with("cores[0].count: is 5000"));
    }

    #[test]
    fn idle_states_that_never_pay_or_are_out_of_order_are_refused_by_key() {
        let states = |deep: &str| {
            let shallow = "{ name = \"C1\", exit = \"2us\", residency = \"2us\", watts = 1.0 }";
            let deep = format!("{{ name = \"C6\", {deep} }}");
            fault(&format!("idle = [{shallow}, {deep}]\n[[cores]]\ncount = 1\n"))
        };
        assert_eq!(states("exit = \"133us\", residency = \"600us\", watts = 0.3"), "");
        assert_eq!(states("exit = \"133us\""), "", "an unknown residency is not a fault");
        for (deep, wanted) in [
            ("exit = \"1us\"", "idle[1].exit: is 1us, below that of `C1`"),
            ("exit = \"133us\", residency = \"100us\"", "idle[1].residency: is 100us, below the"),
            ("exit = \"133us\", watts = 1.0", "idle[1].watts: is 1, not less than the 1 of `C1`"),
            ("exit = \"133us\", watts = -1.0", "idle[1].watts: -1 is not a power"),
        ] {
            let text = states(deep);
            assert!(text.starts_with(wanted), "{deep}: {text}");
        }
    }
}
