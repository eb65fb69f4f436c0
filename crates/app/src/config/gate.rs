//! `gate` of an app: what the on-call runtime does with its workers.

use lull_host::oncall::Rules;
use lull_measure::Nanos;
use lull_oncall::{BATCH_MAX, CAP_MAX, ISR_DELAY_MAX_NS, Mode, Settings};
use schemars::JsonSchema;
use serde::Deserialize;

/// `gate` of an app: a cap on its transactions, as `lull exec` has it. A policy may
/// set `cap`, `batch` and `delay` anew (`knobs` of `bayop`); no regulator acts on them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GateSection {
    /// C: transactions under way at most, 1 to 256.
    #[schemars(example = 16, extend("x-unit" = "transactions"))]
    pub(crate) cap: u32,
    /// N: transactions that a worker may run a turn, 1 to 1024.
    #[serde(default = "GateSection::batch")]
    #[schemars(extend("x-unit" = "transactions"))]
    pub(crate) batch: u32,
    /// D: pause between rounds, at most 100 ms; 0 hands slots on at once.
    #[serde(default)]
    pub(crate) delay: Nanos,
    /// How long one transaction counts against the cap, 1 ms to 1 s.
    #[serde(default = "GateSection::slot_lease")]
    pub(crate) slot_lease: Nanos,
    /// Whether connections over unix sockets may wait, too.
    #[serde(default)]
    pub(crate) unix: bool,
    /// Ports of the app whose connections never wait; at most four.
    #[serde(default)]
    #[schemars(example = [9000])]
    pub(crate) exempt_ports: Vec<u16>,
}

impl GateSection {
    const fn batch() -> u32 {
        1
    }

    const fn slot_lease() -> Nanos {
        Nanos(50_000_000)
    }

    /// What the runtime is told.
    ///
    /// # Errors
    /// The key at fault and why.
    pub(crate) fn settings(&self) -> Result<Settings, (&'static str, String)> {
        let ms = |nanos: Nanos| nanos.0 as f64 / 1e6;
        let rules = [
            ("cap", f64::from(self.cap), 1.0, f64::from(CAP_MAX), ""),
            ("batch", f64::from(self.batch), 1.0, f64::from(BATCH_MAX), ""),
            ("delay", ms(self.delay), 0.0, ms(Nanos(ISR_DELAY_MAX_NS)), "ms"),
            ("slot_lease", ms(self.slot_lease), 1.0, 1000.0, "ms"),
            ("exempt_ports", self.exempt_ports.len() as f64, 0.0, 4.0, " ports"),
        ];
        for (key, value, least, most, unit) in rules {
            if !(least..=most).contains(&value) {
                return Err((key, format!("is {value}{unit}, not in {least} to {most}{unit}")));
            }
        }
        Ok(Settings {
            mode: Mode::Post,
            cap: self.cap,
            batch: self.batch,
            isr_delay_ns: self.delay.0,
            slot_lease_ns: self.slot_lease.0,
            ..Settings::default()
        })
    }

    /// Who never waits.
    pub(crate) fn rules(&self) -> Rules {
        Rules { protocol: None, gates_unix: self.unix, exempt_ports: self.exempt_ports.clone() }
    }
}
