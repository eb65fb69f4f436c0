//! A network server to sweep or to tune, as a file: the model, the objective of its app, and
//! the settings to try.

use super::{Grid, Run, ServerSetting};
use crate::bounds::Amount;
use lull_control::{AppSpec, Capability, Objective, Plant, WrittenObjective};
use lull_measure::{Hertz, Nanos};
use lull_policies::search::Space;
use lull_sim::netserver::{NetServerModel, Traffic};
use serde::Deserialize;

/// The file (docs/scenario.md, "A network server").
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServerFile {
    /// The server.
    pub server: NetServerModel,
    /// The objective of its app, such as `{ p99 = "500us" }`.
    pub objective: WrittenObjective,
    /// Loads to go through, in requests per second; that of the model if empty.
    #[serde(default)]
    pub rates_per_s: Vec<f64>,
    /// ITR delays to go through; all if empty.
    #[serde(default)]
    pub delays: Vec<Nanos>,
    /// Frequencies to go through; all if empty.
    #[serde(default)]
    pub frequencies: Vec<Hertz>,
    /// The part at the beginning of each setting that is not counted.
    #[serde(default = "warmup")]
    pub warmup: Nanos,
    /// The part of each setting that is counted.
    #[serde(default = "length")]
    pub length: Nanos,
    /// Seed of all random numbers.
    #[serde(default = "seed")]
    pub seed: u64,
}

/// A checked file.
#[derive(Debug, Clone)]
pub struct ServerScenario {
    /// The server.
    pub model: NetServerModel,
    /// Its app.
    pub app: AppSpec,
    /// Loads, in requests per second.
    pub rates_per_s: Vec<f64>,
    /// Settings.
    pub grid: Grid,
    /// How long each is run.
    pub run: Run,
}

/// An error in a file, with the key.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct ServerFileError {
    /// The key.
    pub key: String,
    /// The error and the correction.
    pub message: String,
}

impl ServerFile {
    /// Checks everything that can be checked without running.
    ///
    /// # Errors
    /// The first thing that is wrong, with its key.
    pub fn check(self) -> Result<ServerScenario, ServerFileError> {
        let fail = |key: &str, message: &str| {
            Err(ServerFileError { key: key.to_owned(), message: message.to_owned() })
        };
        if let Err(error) = self.server.check() {
            return fail(&format!("server.{}", error.key), &error.problem.to_string());
        }
        let Objective::Tail { percentile, bound } = self.objective.0 else {
            return fail("objective", "a server is tuned for a tail: write { p99 = \"500us\" }");
        };
        let Traffic::Open { load, .. } = &self.server.traffic else {
            return fail(
                "server.traffic",
                "a ping-pong has no load to sweep: write [traffic.open]",
            );
        };
        if self.length == Nanos::ZERO {
            return fail("length", "nothing is counted: write a time such as 250ms");
        }
        let mut rates = self.rates_per_s.clone();
        if rates.is_empty() {
            rates = load.first().map(|step| step.rate_per_s).into_iter().collect();
        }
        if let Some(at) = rates.iter().position(|rate| !(*rate > 0.0 && *rate <= 1e9)) {
            return fail(&format!("rates-per-s[{at}]"), "write requests per second above 0");
        }
        let app = AppSpec::latency_critical(&self.server.app.name, percentile, bound);
        let (warmup, length, seed) = (self.warmup, self.length, self.seed);
        let run = Run { warmup, length, seed, replication: 0, percentile };
        run.check(&rates)?;
        for (at, rate) in rates.iter().enumerate() {
            let wrong = |message| ServerFileError { key: format!("rates-per-s[{at}]"), message };
            run.check_amount(&self.server, *rate).map_err(wrong)?;
        }
        let space = space(&self.server, &app)?;
        check_delays(&space, &self.delays)?;
        let is_unknown = |hertz: &Hertz| !self.server.frequencies.contains(hertz);
        if let Some(at) = self.frequencies.iter().position(is_unknown) {
            let key = format!("frequencies[{at}]");
            return fail(&key, "the server has no such frequency: write one of server.frequencies");
        }
        let all = |count: usize| (count > 0).then_some(());
        let grid = Grid {
            space,
            delays_us: all(self.delays.len())
                .map(|()| self.delays.iter().map(|it| it.as_micros_f64()).collect()),
            frequencies_ghz: all(self.frequencies.len())
                .map(|()| self.frequencies.iter().map(|it| it.as_ghz()).collect()),
        };
        Ok(ServerScenario { model: self.server, app, rates_per_s: rates, grid, run })
    }
}

impl Run {
    /// Refuses a rate of too many requests, or of too many that would wait.
    ///
    /// # Errors
    /// The bound, and how to stay below it.
    pub fn check_amount(&self, model: &NetServerModel, rate_per_s: f64) -> Result<(), String> {
        let span = self.warmup.saturating_add(self.length);
        Amount::at_server(model, rate_per_s, span).check()
    }

    /// Refuses a length that has too few requests beyond the percentile at one of these rates.
    ///
    /// # Errors
    /// With the length that it takes.
    pub fn check(&self, rates_per_s: &[f64]) -> Result<(), ServerFileError> {
        let slowest = rates_per_s.iter().copied().fold(f64::INFINITY, f64::min);
        let beyond = 1.0 - self.percentile.fraction();
        let takes_s = BEYOND_MIN / (slowest * beyond);
        if !takes_s.is_finite() || self.length.as_secs_f64() >= takes_s * (1.0 - 1e-9) {
            return Ok(());
        }
        // Whole milliseconds, so that the text can be written into the file; 1 - 0.999 is a
        // little over 0.001.
        let takes = Nanos::from_millis((1e3 * takes_s - 1e-6).ceil() as u64);
        let message = format!(
            "{} at {slowest} requests/s takes {takes} at least ({BEYOND_MIN} requests beyond it): \
             write length = \"{takes}\", or another percentile",
            self.percentile
        );
        Err(ServerFileError { key: "length".to_owned(), message })
    }
}

/// Refuses a delay that would be rounded to another one.
fn check_delays(space: &Space, delays: &[Nanos]) -> Result<(), ServerFileError> {
    for (at, delay) in delays.iter().enumerate() {
        let us = delay.as_micros_f64();
        let near = space.clone().only(Capability::Coalescing, &[us]);
        let nearest = near.points().next();
        let nearest = nearest.and_then(|it| ServerSetting::from_point(&near, &it).delay_us);
        let Some(nearest) = nearest.filter(|nearest| *nearest != us) else { continue };
        let message = format!(
            "{delay} is no delay that a sweep of this card has: the nearest is {nearest}us"
        );
        return Err(ServerFileError { key: format!("delays[{at}]"), message });
    }
    Ok(())
}

fn space(model: &NetServerModel, app: &AppSpec) -> Result<Space, ServerFileError> {
    let wrong = |key: &str, message: String| ServerFileError { key: key.to_owned(), message };
    let plant = model.plant(app, 0, 0);
    let plant = plant.map_err(|error| wrong("server", error.to_string()))?;
    // A knob with one level has nothing to choose.
    let knobs: Vec<_> =
        [(Capability::Coalescing, true), (Capability::Frequency, model.frequencies.len() > 1)]
            .into_iter()
            .filter_map(|(knob, there)| there.then_some(knob))
            .collect();
    Space::from_machine(plant.machine(), plant.apps(), &knobs)
        .map_err(|error| wrong("server", error.to_string()))
}

/// Requests that are to be expected beyond the percentile of an objective (ours).
const BEYOND_MIN: f64 = 5.0;

const fn warmup() -> Nanos {
    Nanos::from_millis(50)
}

const fn length() -> Nanos {
    Nanos::from_millis(250)
}

const fn seed() -> u64 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../examples/tune/netserver.toml");

    fn refused(from: &str, to: &str) -> String {
        let text = EXAMPLE.replacen(from, to, 1);
        assert_ne!(text, EXAMPLE, "the example has {from}");
        let file: ServerFile = toml::from_str(&text).unwrap();
        file.check().unwrap_err().to_string()
    }

    #[test]
    fn a_percentile_that_the_length_is_too_short_for_is_refused_with_the_length() {
        // Of 25,000 requests in the example's 250 ms, two or three are beyond it.
        let text = EXAMPLE.replacen("200000.0, ", "100000.0, ", 1);
        let text = text.replacen("p99 = \"500us\"", "\"p99.99\" = \"500us\"", 1);
        let mut table: toml::Table = text.parse().unwrap();
        let check = |table: &toml::Table| {
            let file: ServerFile = toml::Value::Table(table.clone()).try_into().unwrap();
            file.check().map(|scenario| scenario.run.percentile.to_string())
        };
        let refusal = check(&table).unwrap_err().to_string();
        assert!(refusal.starts_with("length: p99.99"), "{refusal}");
        let length = refusal.split("write length = \"").nth(1).unwrap();
        table.insert("length".to_owned(), length.split('"').next().unwrap().into());
        assert_eq!(check(&table).unwrap(), "p99.99");
    }

    #[test]
    fn the_example_is_a_grid_of_the_papers_size() {
        let file: ServerFile = toml::from_str(EXAMPLE).unwrap();
        let scenario = file.check().unwrap();
        assert_eq!(scenario.grid.settings().len() * scenario.rates_per_s.len(), 1026);
        assert_eq!(scenario.app.tail().unwrap().1, Nanos::from_micros(500));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_key() {
        assert!(refused("p99 = \"500us\"", "throughput = 1.0").starts_with("objective"));
        assert!(refused("200000.0, ", "-1.0, ").starts_with("rates-per-s[0]"));
        assert!(refused("length = \"250ms\"", "length = \"0s\"").starts_with("length"));
        assert!(refused("cores = 16", "cores = 0").starts_with("server.cores"));
        let odd = refused("\"0us\", \"2us\"", "\"0us\", \"3100ns\"");
        assert!(odd.starts_with("delays[1]: 3.1us is no delay") && odd.ends_with("4us"), "{odd}");
        let odd = refused("length = \"250ms\"", "length = \"250ms\"\nfrequencies = [\"1GHz\"]");
        assert!(odd.starts_with("frequencies[0]"), "{odd}");
    }
}
