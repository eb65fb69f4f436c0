//! `[[client]]`: the load of an app in a simulation, which a config of a live agent does not
//! know.

use lull_measure::Nanos;
use lull_sim::machine::{Contention, MemoryUse};
use lull_sim::model::{Distribution, Shape};
use lull_workload::arrivals::{Process, Rate};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// `[[client]]`: what an app has to do when `lull sim` plays the config.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClientSection {
    /// The app whose work it describes.
    #[schemars(example = &"cache")]
    pub app: String,
    /// Requests per second of clients that do not wait for answers, as `--rate` of `lull load`:
    /// `2000/s`, `burst:12000,4000,2s` or `trace:FILE.csv`; that of the app's `[[load]]` if both
    /// this and `clients` are absent.
    #[schemars(with = "Option<String>", example = &"2000/s")]
    pub rate: Option<Rate>,
    /// How the gaps vary: `poisson`, `constant` or `gpareto:SHAPE`; as its `[[load]]` if absent.
    #[schemars(with = "Option<String>", example = &"poisson")]
    pub arrivals: Option<Process>,
    /// Number of clients that each wait for the answer before they send again.
    #[schemars(example = 64, extend("x-unit" = "clients"))]
    pub clients: Option<u32>,
    /// Time from an answer to the client's next request; no time if absent.
    #[schemars(with = "Option<DistributionKeys>")]
    pub think: Option<Distribution>,
    /// CPU time of a request on a core alone, with all of the cache.
    pub work: Option<WorkSection>,
    /// Time of a request besides work and waiting: network, devices. Behind a simulated gate the
    /// request keeps its worker and its slot meanwhile.
    #[schemars(with = "Option<DistributionKeys>")]
    pub delay: Option<Distribution>,
    /// How much the workers behind the app's gate slow each other down; not at all if absent.
    pub contention: Option<ContentionSection>,
    /// How many of the clients, or of the connections that clients at a rate share, are of each
    /// `client_class` of the app; all others are of the class without `match`.
    #[schemars(
        with = "Option<BTreeMap<String, serde_json::Value>>",
        example = BTreeMap::from([("web", 16)])
    )]
    pub classes: BTreeMap<String, u32>,
    /// Threads of the app, and the connections that clients at a rate share behind a simulated
    /// gate; `connections` of the `[[load]]` of such clients or `threads` of the app if absent.
    #[schemars(example = 4, extend("x-unit" = "threads"))]
    pub threads: Option<u32>,
    /// Cache and memory that the app's work needs; none if absent.
    pub memory: Option<MemorySection>,
}

/// `client.work`: from a distribution, or from what a run of Lull measured.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkSection {
    /// Mean.
    #[schemars(example = &"200us")]
    pub mean: Option<Nanos>,
    /// How it varies, as in a scenario ([scenario.md](scenario.md#steps)): `"exponential"`, which
    /// holds if it is absent, `"constant"`, `{ lognormal = { cv2 = 2.0 } }`.
    #[schemars(with = "Option<String>", example = &"constant")]
    pub shape: Option<Shape>,
    /// A record of `lull run`, from which mean, spread and `delay` are fitted instead.
    #[schemars(example = &"runs/memcached.sqlite")]
    pub record: Option<PathBuf>,
}

/// The keys of a distribution of times.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it documents a type of the simulator")]
struct DistributionKeys {
    /// Mean.
    #[schemars(example = &"100us")]
    mean: Nanos,
    /// How it varies, as in `work`.
    #[schemars(extend("default" = "exponential"))]
    shape: Option<String>,
}

/// `client.contention`: `n` transactions in service take `1 + sigma (n - 1) + kappa n (n - 1)`
/// times the work of one alone each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ContentionSection {
    /// Cost of each other transaction in service, 0 to 1000.
    #[schemars(example = 0.02, extend("x-unit" = "none"))]
    pub sigma: f64,
    /// Cost of each pair of transactions in service, 0 to 1000.
    #[schemars(example = 0.001, extend("x-unit" = "none"))]
    pub kappa: f64,
}

impl From<ContentionSection> for Contention {
    fn from(ContentionSection { sigma, kappa }: ContentionSection) -> Self {
        Self { sigma, kappa, ..Self::default() }
    }
}

/// `client.memory`: what the app's work needs of cache and memory, measured alone.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySection {
    /// Share of its time that waits for memory.
    #[schemars(example = 0.2, extend("x-unit" = "share"))]
    pub share: f64,
    /// Traffic of one running thread.
    #[schemars(example = 1e9, extend("x-unit" = "bytes/s"))]
    pub bytes_per_s: f64,
    /// Misses that no cache avoids, relative to those without cache.
    #[serde(default = "all_miss")]
    #[schemars(extend("default" = 1.0), extend("x-unit" = "share"))]
    pub floor: f64,
    /// Ways by which the avoidable misses fall to 1/e.
    #[serde(default = "one_way")]
    #[schemars(extend("default" = 1.0), extend("x-unit" = "ways"))]
    pub ways: f64,
}

const fn all_miss() -> f64 {
    1.0
}

const fn one_way() -> f64 {
    1.0
}

impl MemorySection {
    /// The same in the simulator's words.
    pub(crate) fn usage(self) -> MemoryUse {
        let Self { share, bytes_per_s, floor, ways } = self;
        MemoryUse { share, bytes_per_s, floor, ways }
    }
}

impl ClientSection {
    /// The first key that is given and only means something of requests.
    pub(crate) fn key_of_requests(&self) -> Option<&'static str> {
        let keys = [
            ("rate", self.rate.is_some()),
            ("clients", self.clients.is_some()),
            ("think", self.think.is_some()),
            ("arrivals", self.arrivals.is_some()),
            ("delay", self.delay.is_some()),
            ("contention", self.contention.is_some()),
            ("classes", !self.classes.is_empty()),
        ];
        keys.into_iter().find(|(_, is_given)| *is_given).map(|(key, _)| key)
    }

    /// Checks what needs no machine.
    ///
    /// # Errors
    /// The key at fault below the client, and what to write.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        let fail = |key, message: &str| Err((key, message.to_owned()));
        if self.rate.is_some() && self.clients.is_some() {
            return fail("clients", "cannot be combined with `rate`: keep one");
        }
        if self.think.is_some() && self.clients.is_none() {
            return fail("think", "needs `clients`, which think between their requests");
        }
        if self.arrivals.is_some() && self.clients.is_some() {
            return fail("arrivals", "belongs to a rate; `clients` send after each answer instead");
        }
        if let Some(WorkSection { mean, shape, record }) = &self.work {
            match (mean, record) {
                (None, None) => return fail("work", "is empty: write mean or record"),
                (Some(_), Some(_)) => {
                    return fail("work.record", "cannot be combined with `mean`: keep one");
                }
                (None, Some(_)) if shape.is_some() => {
                    return fail("work.shape", "is fitted to the record: leave it out");
                }
                (None, Some(_)) if self.delay.is_some() => {
                    return fail("delay", "is fitted to the record: leave it out");
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(rest: &str) -> String {
        let client: ClientSection = toml::from_str(&format!("app = \"a\"\n{rest}")).unwrap();
        client.check().map_or_else(|(key, why)| format!("{key}: {why}"), |()| String::new())
    }

    #[test]
    fn a_client_is_open_or_closed_and_its_work_given_or_recorded() {
        assert_eq!(fault("rate = \"10/s\"\nwork = { mean = \"1ms\" }"), "");
        assert_eq!(fault("clients = 3\nthink = { mean = \"1s\" }"), "");
        for (rest, key) in [
            ("rate = \"10/s\"\nclients = 3", "clients: "),
            ("rate = \"10/s\"\nthink = { mean = \"1s\" }", "think: "),
            ("clients = 3\narrivals = \"constant\"", "arrivals: "),
            ("work = {}", "work: "),
            ("work = { mean = \"1ms\", record = \"x\" }", "work.record: "),
            ("work = { record = \"x\", shape = \"constant\" }", "work.shape: "),
            ("work = { record = \"x\" }\ndelay = { mean = \"1ms\" }", "delay: "),
        ] {
            assert!(fault(rest).starts_with(key), "{rest}: {}", fault(rest));
        }
    }
}
