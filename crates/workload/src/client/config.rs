//! The configuration of a load: target, rate, connections and timing.

use crate::arrivals::{Process, Rate};
use crate::push::PushConfig;
use crate::target::{Address, TargetConfig};
use lull_measure::Nanos;
use lull_measure::push::MAX_NAME_BYTES;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Configuration of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadConfig {
    /// The server, and which requests are sent to it.
    pub target: TargetConfig,
    /// How many requests are due, over time. Absent, and without `replay`: a closed loop, in which
    /// each connection sends its next request when the last one is answered.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// A recording whose requests are due at its times, in place of a rate.
    #[serde(default)]
    pub replay: Option<PathBuf>,
    /// How the gaps between them vary.
    #[serde(default)]
    pub process: Process,
    /// Threads that send; each has its part of the connections.
    #[serde(default = "default_threads")]
    pub threads: usize,
    /// Connections held open.
    #[serde(default = "default_connections")]
    pub connections: usize,
    /// Most requests in flight on one connection.
    #[serde(default = "default_depth")]
    pub depth: usize,
    /// How long requests fall due, warm-up included; until stopped if absent.
    #[serde(default)]
    pub duration: Option<Nanos>,
    /// Requests due before this are left out of the report.
    #[serde(default)]
    pub warmup: Nanos,
    /// Length of the windows that are pushed.
    #[serde(default = "default_window")]
    pub window: Nanos,
    /// Age at which a request counts as timed out.
    #[serde(default = "default_timeout")]
    pub timeout: Nanos,
    /// How long to wait for replies after the last request was due.
    #[serde(default = "default_drain")]
    pub drain: Nanos,
    /// The last stretch before a due time, through which the client busy-waits.
    #[serde(default)]
    pub spin: Nanos,
    /// Seed of arrivals and requests: the same seed sends the same requests.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Store every key of a memcached, or create the tables of a database's built-in script,
    /// before the run.
    #[serde(default = "default_preload")]
    pub preload: bool,
    /// Where to push windows.
    #[serde(default)]
    pub push: Option<PushConfig>,
}

/// A configuration value that is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct ConfigError {
    key: &'static str,
    value: String,
    problem: &'static str,
}

const fn default_threads() -> usize {
    1
}

const fn default_connections() -> usize {
    16
}

const fn default_depth() -> usize {
    1
}

const fn default_window() -> Nanos {
    Nanos::from_millis(100)
}

const fn default_timeout() -> Nanos {
    Nanos::from_secs(10)
}

const fn default_drain() -> Nanos {
    Nanos::from_secs(1)
}

const fn default_seed() -> u64 {
    1
}

const fn default_preload() -> bool {
    true
}

impl LoadConfig {
    /// A Poisson load on 16 connections until stopped.
    pub fn new(address: Address, rate: Rate) -> Self {
        Self { rate: Some(rate), ..Self::closed(address) }
    }

    /// A closed loop on 16 connections until stopped.
    pub fn closed(address: Address) -> Self {
        Self {
            target: TargetConfig::new(address),
            rate: None,
            replay: None,
            process: Process::default(),
            threads: default_threads(),
            connections: default_connections(),
            depth: default_depth(),
            duration: None,
            warmup: Nanos::ZERO,
            window: default_window(),
            timeout: default_timeout(),
            drain: default_drain(),
            spin: Nanos::ZERO,
            seed: default_seed(),
            preload: default_preload(),
            push: None,
        }
    }

    /// Whether each connection sends its next request when the last one is answered.
    pub const fn is_closed(&self) -> bool {
        self.rate.is_none() && self.replay.is_none()
    }

    /// Checks the numbers. The rate and the target are checked where they are built.
    ///
    /// # Errors
    /// Names the first key that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let checks = [
            count("connections", self.connections, 65_536),
            count("depth", self.depth, 4_096),
            span("window", self.window, Nanos::from_millis(1), Nanos::from_secs(60)),
            span("timeout", self.timeout, Nanos::from_millis(1), Nanos::from_secs(900)),
            span("spin", self.spin, Nanos::ZERO, Nanos::from_millis(1)),
        ];
        checks.into_iter().collect::<Result<(), _>>()?;
        if !(1..=self.connections).contains(&self.threads) {
            let problem = "each thread needs a connection: write 1 to `connections`";
            return Err(ConfigError { key: "threads", value: self.threads.to_string(), problem });
        }
        if let Some(file) = self.replay.as_ref().filter(|_| self.rate.is_some()) {
            let problem = "a recording has times of its own: leave `rate` out";
            return Err(ConfigError { key: "replay", value: file.display().to_string(), problem });
        }
        if self.depth > 1 && self.target.address.protocol().is_database() {
            let problem = "a transaction needs its connection for itself: write 1";
            return Err(ConfigError { key: "depth", value: self.depth.to_string(), problem });
        }
        if self.duration == Some(Nanos::ZERO) {
            let problem = "write a duration above 0";
            return Err(ConfigError { key: "duration", value: "0s".to_owned(), problem });
        }
        if self.duration.is_some_and(|duration| duration <= self.warmup) {
            let problem = "the warm-up takes the whole duration and leaves nothing to report";
            return Err(ConfigError { key: "warmup", value: self.warmup.to_string(), problem });
        }
        match &self.push {
            Some(push) if push.app.is_empty() || push.app.len() > MAX_NAME_BYTES => {
                let problem = "write the app's name in the agent's configuration, up to 128 bytes";
                Err(ConfigError { key: "push.app", value: push.app.clone(), problem })
            }
            _ => Ok(()),
        }
    }
}

fn count(key: &'static str, value: usize, most: usize) -> Result<(), ConfigError> {
    let problem = match most {
        4_096 => "write a whole number from 1 to 4096",
        _ => "write a whole number from 1 to 65536",
    };
    let legal = (1..=most).contains(&value);
    legal.then_some(()).ok_or(ConfigError { key, value: value.to_string(), problem })
}

fn span(key: &'static str, value: Nanos, least: Nanos, most: Nanos) -> Result<(), ConfigError> {
    let problem = match key {
        "window" => "write a duration from 1ms to 60s",
        "timeout" => "write a duration from 1ms to 900s",
        _ => "write a duration up to 1ms",
    };
    let legal = (least..=most).contains(&value);
    legal.then_some(()).ok_or(ConfigError { key, value: value.to_string(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LoadConfig {
        LoadConfig::new("options://localhost".parse().unwrap(), Rate::constant(100.0))
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        type Change = fn(&mut LoadConfig);
        let cases: [(&str, Change); 11] = [
            ("connections = 0", |c| c.connections = 0),
            ("threads = 0", |c| c.threads = 0),
            ("threads = 17", |c| c.threads = 17),
            ("replay = a.csv", |c| c.replay = Some("a.csv".into())),
            ("depth = 5000", |c| c.depth = 5000),
            ("window = 10us", |c| c.window = Nanos::from_micros(10)),
            ("timeout = 0", |c| c.timeout = Nanos::ZERO),
            ("spin = 2ms", |c| c.spin = Nanos::from_millis(2)),
            ("duration = 0s", |c| c.duration = Some(Nanos::ZERO)),
            ("warmup = 5s", |c| {
                c.warmup = Nanos::from_secs(5);
                c.duration = Some(Nanos::from_secs(5));
            }),
            ("push.app = ", |c| {
                c.push = Some(PushConfig { socket: "/x".into(), app: String::new() });
            }),
        ];
        for (wanted, change) in cases {
            let mut config = config();
            assert_eq!(config.check(), Ok(()));
            change(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{wanted}: {error}");
        }
    }

    #[test]
    fn transactions_are_not_pipelined() {
        let mut config = LoadConfig::new("mysql://u@h/d".parse().unwrap(), Rate::constant(1.0));
        assert_eq!(config.check(), Ok(()));
        config.depth = 2;
        assert!(config.check().unwrap_err().to_string().contains("for itself"));
    }

    #[test]
    fn a_config_file_needs_only_the_target_and_knows_no_other_keys() {
        let text = r#"{"target":{"address":"memcached://db"},"rate":"2000/s","spin":"20us"}"#;
        let config: LoadConfig = serde_json::from_str(text).unwrap();
        assert_eq!((config.connections, config.spin), (16, Nanos::from_micros(20)));
        let closed = text.replace(r#""rate":"2000/s","#, "");
        assert_eq!(serde_json::from_str::<LoadConfig>(&closed).unwrap().rate, None);
        let error = serde_json::from_str::<LoadConfig>(&text.replace("spin", "spinn")).unwrap_err();
        assert!(error.to_string().contains("spinn"), "{error}");
    }
}
