//! `concurrency` and `gate` of an app: how many of its transactions run at once, and
//! how the on-call runtime makes the others wait.

use super::client_class::ClientMatchSection;
use crate::admission::{AdmissionSetup, Promise, longest_wait, workers};
use lull_control::Objective;
use lull_host::oncall::Rules;
use lull_measure::Nanos;
use lull_oncall::{
    BATCH_MAX, BREAK_EVEN_NS, CAP_MAX, ISR_DELAY_MAX_NS, Mode, PARK_MAX_NS, Settings,
};
use lull_policies::admission::Workers;
use schemars::JsonSchema;
use serde::Deserialize;
use std::str::FromStr;

/// `gate` of an app: how its workers wait, as on `lull exec`. A policy may change the
/// concurrency limit, `batch` and `delay` (`knobs` of `bayop`). An admission controller
/// decides on all three, so `batch` and `delay` must be absent then.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GateSection {
    /// `post`: a worker that has a query waits for its turn. `epoll`: one that has
    /// none rests, and is called in rounds. If absent `post`; an admission controller may do
    /// either then, where a tail objective says for how long workers may rest.
    #[schemars(example = &"epoll")]
    pub mode: Option<GateMode>,
    /// N: transactions that a worker may run a turn, 1 to 1024; 1 if absent.
    #[schemars(example = 2, extend("x-unit" = "transactions"))]
    pub batch: Option<u32>,
    /// D: pause between rounds, at most 100 ms. If absent 0, which hands slots on
    /// immediately; in mode `epoll` 1 ms, which is the least there.
    #[schemars(example = &"2ms")]
    pub delay: Option<Nanos>,
    /// How long one transaction counts against the cap, 1 ms to 1 s.
    #[serde(default = "GateSection::slot_lease")]
    pub slot_lease: Nanos,
    /// Whether connections over unix sockets may wait, too.
    #[serde(default)]
    pub unix: bool,
    /// Ports of the app whose connections never wait; at most four.
    #[serde(default)]
    #[schemars(example = [9000])]
    pub exempt_ports: Vec<u16>,
    /// Clients that never wait, besides the default ones: those with all properties of one of
    /// these tables, as in `match` of a `client_class`.
    #[serde(default)]
    pub bypass: Vec<ClientMatchSection>,
    /// Whether monitors, replication, cluster managers and local administrators never wait
    /// ([on-call.md](on-call.md#clients-that-bypass-the-gate)).
    #[serde(default = "GateSection::default_bypass")]
    pub default_bypass: bool,
    /// The longest wait of a transaction, 10 ms to 5 s: then it runs without a slot. If absent
    /// four times the tightest latency bound of the app, and at most 5 s; 5 s with promises.
    #[schemars(example = &"200ms")]
    pub longest_wait: Option<Nanos>,
}

/// The work of a gate: statistics alone, or holding workers back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum GateMode {
    /// A worker that has a query waits for its turn.
    Post,
    /// A worker without a query rests, and all are called in rounds.
    Epoll,
}

/// `concurrency` of an app: how many of its transactions run at once.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "toml::Value")]
pub enum Concurrency {
    /// A fixed limit.
    Limit(u32),
    /// A limit that an admission controller sets while the app runs.
    Controlled(AdmissionSection),
}

/// An admission controller and its keys.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmissionSection {
    /// The admission controller's name.
    pub name: String,
    /// Its own keys.
    pub keys: toml::Table,
}

impl Concurrency {
    fn limit(limit: i64) -> Result<Self, String> {
        let limit = u32::try_from(limit).ok().filter(|limit| (1..=CAP_MAX).contains(limit));
        limit.map(Self::Limit).ok_or_else(|| format!("must be 1 to {CAP_MAX} transactions"))
    }

    fn controlled(name: String, keys: toml::Table) -> Self {
        Self::Controlled(AdmissionSection { name, keys })
    }
}

impl TryFrom<toml::Value> for Concurrency {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        const FORMS: &str = "write 16, \"auto\", or { name = \"auto\", goal = \"tail\" }";
        match value {
            toml::Value::Integer(limit) => Self::limit(limit),
            toml::Value::String(name) => Ok(Self::controlled(name, toml::Table::new())),
            toml::Value::Table(mut keys) => match keys.remove("name") {
                Some(toml::Value::String(name)) => Ok(Self::controlled(name, keys)),
                _ => Err(format!("has no `name` of an admission controller: {FORMS}")),
            },
            _ => Err(format!("is neither a number nor an admission controller: {FORMS}")),
        }
    }
}

/// A number, or the name of an admission controller.
impl FromStr for Concurrency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(limit) => Self::limit(limit),
            Err(_) if text.is_empty() => Err("is empty: write a number or auto".to_owned()),
            Err(_) => Ok(Self::controlled(text.to_owned(), toml::Table::new())),
        }
    }
}

/// An invalid key and the reason.
type InvalidKey = (&'static str, String);

impl Default for GateSection {
    /// The gate of an app whose admission controller decides on all else.
    fn default() -> Self {
        Self {
            mode: None,
            batch: None,
            delay: None,
            slot_lease: Self::slot_lease(),
            unix: false,
            exempt_ports: Vec::new(),
            bypass: Vec::new(),
            default_bypass: Self::default_bypass(),
            longest_wait: None,
        }
    }
}

impl GateSection {
    const fn slot_lease() -> Nanos {
        Nanos(50_000_000)
    }

    const fn default_bypass() -> bool {
        true
    }

    /// Returns settings with the longest wait at the gate of a server with these objectives.
    ///
    /// # Errors
    /// The invalid key and the reason.
    pub(super) fn waits(
        &self,
        settings: Settings,
        objectives: &[Objective],
    ) -> Result<Settings, InvalidKey> {
        let longest = self.longest_wait.unwrap_or_else(|| longest_wait(objectives));
        let (least, most) = (Nanos::from_millis(10), Nanos(PARK_MAX_NS));
        if !(least..=most).contains(&longest) {
            let message = format!("is {longest}, not in {least} to {most}");
            return Err(("longest_wait", message));
        }
        Ok(Settings { park_max_ns: longest.0, ..settings })
    }

    /// Returns the settings of a gate with this limit on transactions.
    ///
    /// # Errors
    /// The invalid key and the reason.
    pub fn settings(&self, limit: u32) -> Result<Settings, InvalidKey> {
        let closed = self.closed()?;
        let least = if closed.mode == Mode::Epoll { BREAK_EVEN_NS } else { 0 };
        let (batch, delay) = (self.batch.unwrap_or(1), self.delay.unwrap_or(Nanos(least)));
        let ms = |nanos: Nanos| nanos.0 as f64 / 1e6;
        within(&[
            ("batch", f64::from(batch), 1.0, f64::from(BATCH_MAX), ""),
            ("delay", ms(delay), ms(Nanos(least)), ms(Nanos(ISR_DELAY_MAX_NS)), "ms"),
        ])?;
        Ok(Settings { cap: limit, batch, isr_delay_ns: delay.0, ..closed })
    }

    /// The same but for the numbers that an admission controller decides on.
    ///
    /// # Errors
    /// The invalid key and the reason.
    pub fn closed(&self) -> Result<Settings, InvalidKey> {
        let ms = |nanos: Nanos| nanos.0 as f64 / 1e6;
        within(&[
            ("slot_lease", ms(self.slot_lease), 1.0, 1000.0, "ms"),
            ("exempt_ports", self.exempt_ports.len() as f64, 0.0, 4.0, " ports"),
        ])?;
        let mode = match self.mode {
            Some(GateMode::Epoll) => Mode::Epoll,
            Some(GateMode::Post) | None => Mode::Post,
        };
        Ok(Settings { mode, slot_lease_ns: self.slot_lease.0, ..Settings::default() })
    }

    /// Rejects keys whose values the admission controller sets itself.
    fn leaves_numbers(&self) -> Result<(), InvalidKey> {
        let written = [("batch", self.batch.is_some()), ("delay", self.delay.is_some())];
        match written.into_iter().find(|(_, is_written)| *is_written) {
            Some((key, _)) => Err((
                key,
                "is for the app's admission controller to decide: leave it out".to_owned(),
            )),
            None => Ok(()),
        }
    }

    /// Returns whether workers wait or rest under an admission controller of a server with
    /// these objectives.
    fn workers(&self, objectives: &[Objective]) -> Workers {
        workers(self.mode.map(|mode| mode == GateMode::Epoll), objectives)
    }

    /// Returns which connections are gated and which are exempt, without classes of clients.
    pub fn rules(&self) -> Rules {
        Rules { gates_unix: self.unix, exempt_ports: self.exempt_ports.clone(), ..Rules::default() }
    }
}

impl AdmissionSection {
    /// Combines the controller's keys with its gate and the objectives of the app.
    ///
    /// # Errors
    /// The invalid key of the gate and the reason.
    pub fn setup(
        &self,
        gate: &GateSection,
        objectives: Vec<Objective>,
        promises: &[Promise],
    ) -> Result<AdmissionSetup, InvalidKey> {
        gate.leaves_numbers()?;
        // A promise makes other connections wait on purpose.
        let bounds = if promises.is_empty() { objectives.as_slice() } else { &[] };
        let closed = gate.waits(gate.closed()?, bounds)?;
        Ok(AdmissionSetup {
            name: self.name.clone(),
            keys: self.keys.clone(),
            closed,
            workers: gate.workers(&objectives),
            objectives,
            promises: promises.to_vec(),
            seed: 0,
        })
    }
}

/// Rejects the first number that is out of its bounds.
fn within(rules: &[(&'static str, f64, f64, f64, &str)]) -> Result<(), InvalidKey> {
    for (key, value, least, most, unit) in rules {
        if !(least..=most).contains(&value) {
            return Err((*key, format!("is {value}{unit}, not in {least} to {most}{unit}")));
        }
    }
    Ok(())
}
