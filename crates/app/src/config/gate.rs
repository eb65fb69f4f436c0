//! `gate` of an app: what the on-call runtime does with its workers.

use lull_host::oncall::Rules;
use lull_measure::Nanos;
use lull_oncall::{CAP_MAX, Mode, Settings};
use schemars::JsonSchema;
use serde::Deserialize;

/// What the gate of an app does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GateMode {
    /// Workers with a query wait until they are admitted.
    #[default]
    Post,
    /// Workers without a query rest, and are called in rounds.
    Epoll,
}

/// The shortest pause of mode epoll: cores that sleep for less than the break-even
/// of their deep state lose by it (REEF, section 3.2: 1 ms).
const BREAK_EVEN: Nanos = Nanos::from_millis(1);

impl From<GateMode> for Mode {
    fn from(mode: GateMode) -> Self {
        match mode {
            GateMode::Post => Self::Post,
            GateMode::Epoll => Self::Epoll,
        }
    }
}

/// The pause D of a gate that was given this one, or none.
///
/// # Errors
/// What is wrong with it and what to write.
pub(crate) fn pause(mode: Mode, given: Option<Nanos>) -> Result<Nanos, String> {
    let least = if mode == Mode::Epoll { BREAK_EVEN } else { Nanos::ZERO };
    let pause = given.unwrap_or(least);
    if (least..=Nanos::from_millis(100)).contains(&pause) {
        return Ok(pause);
    }
    let why = match mode {
        Mode::Epoll => "; a core that sleeps for less than 1ms spends more than it saves",
        _ => "",
    };
    Err(format!("is {pause}, not in {least} to 100ms{why}"))
}

/// How long a slot may count.
///
/// # Errors
/// What is wrong with it and what to write.
pub(crate) fn slot_lease(given: Nanos) -> Result<Nanos, String> {
    if (Nanos::from_millis(1)..=Nanos::from_secs(1)).contains(&given) {
        return Ok(given);
    }
    Err(format!("is {given}, not in 1ms to 1s"))
}

/// `gate` of an app: a cap on its transactions, as `lull exec` has it.
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
    /// `post`: workers with a query wait until they are admitted. `epoll`: workers
    /// without one rest and are called in rounds.
    #[serde(default)]
    pub(crate) mode: GateMode,
    /// D: pause between rounds, at most 100 ms; 0 hands slots on at once. Left out:
    /// 0, and 1 ms in mode epoll, the least there.
    #[serde(default)]
    pub(crate) delay: Option<Nanos>,
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
        let rules = [
            ("cap", f64::from(self.cap), 1.0, f64::from(CAP_MAX), ""),
            ("batch", f64::from(self.batch), 1.0, 1024.0, ""),
            ("exempt_ports", self.exempt_ports.len() as f64, 0.0, 4.0, " ports"),
        ];
        for (key, value, least, most, unit) in rules {
            if !(least..=most).contains(&value) {
                return Err((key, format!("is {value}{unit}, not in {least} to {most}{unit}")));
            }
        }
        let mode = Mode::from(self.mode);
        let pause = pause(mode, self.delay).map_err(|why| ("delay", why))?;
        let lease = slot_lease(self.slot_lease).map_err(|why| ("slot_lease", why))?;
        Ok(Settings {
            mode,
            cap: self.cap,
            batch: self.batch,
            isr_delay_ns: pause.0,
            slot_lease_ns: lease.0,
            ..Settings::default()
        })
    }

    /// Who never waits.
    pub(crate) fn rules(&self) -> Rules {
        Rules { protocol: None, gates_unix: self.unix, exempt_ports: self.exempt_ports.clone() }
    }
}
