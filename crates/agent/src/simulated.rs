//! The config of a live agent, played on a simulated machine.
//!
//! A config says which apps there are, what is promised of them, and which policy acts. It does
//! not know the machine, which `[machine]` describes, nor what clients send, which `[[client]]`
//! describes; both may be in the config or in files of their own. What the simulated machine
//! cannot play is refused, or listed with file, line and key.

mod demand;
mod gated;
mod left_out;
mod load;
mod machine;
mod scene;

use crate::config::{AppSection, ClientSection, Config, MachineSection};
use crate::located::{InputError, Located};
use gated::GatedApp;
use lull_lab::scenario::{AnyScenario, Choice, Colocated, RunSection};
use scene::Scene;
use serde::Deserialize;
use std::path::Path;

/// The files beside a config that describe the machine and the load.
#[derive(Debug, Clone, Default)]
pub struct DescriptionFiles {
    /// The machine: a file with `[machine]`.
    pub machine: Option<Located>,
    /// The load: a file with `[[client]]` and `[run]`.
    pub load: Option<Located>,
}

/// A file of `lull check --machine`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    machine: MachineSection,
}

/// A file of clients.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LoadFile {
    run: Option<RunSection>,
    client: Vec<ClientSection>,
}

/// A config with the machine and the load that it is played on.
struct Simulated {
    config: Config,
    machine: MachineSection,
    /// The text that has `[machine]`.
    machine_text: Located,
    clients: Vec<ClientSection>,
    run: RunSection,
    /// The text that has `[[client]]`, and that with `[run]`.
    load_text: Located,
    run_text: Located,
}

/// Whether a text is the config of an agent, and no scenario.
pub fn is_config(table: &toml::Table) -> bool {
    let of_scenario = ["tier", "node", "dispatch", "gated", "server"];
    let acts = table.get("policy").is_some_and(toml::Value::is_table);
    acts && !of_scenario.iter().any(|section| table.contains_key(*section))
}

/// Reads a config and the files beside it; files that clients name are looked for from `base`.
///
/// # Errors
/// The first key that cannot be read or simulated, with its file and line.
pub fn read_simulated(
    source: &Located,
    beside: &DescriptionFiles,
    base: &Path,
    choice: &Choice,
) -> Result<AnyScenario, InputError> {
    let simulated = Simulated::read(source, beside)?;
    let scene = Scene::new(&simulated, base)?;
    let wrong = |wrong: lull_lab::scenario::InvalidKey| scene.locate(&wrong);
    let played = Colocated::new(scene.node_scene(), choice).map_err(wrong)?;
    Ok(AnyScenario::Node(Box::new(played)))
}

impl Simulated {
    fn read(source: &Located, beside: &DescriptionFiles) -> Result<Self, InputError> {
        let mut config = Config::from_located(source.clone())?;
        config.check_latency_detail()?;
        let (machine, machine_text) = machine_of(&mut config, beside.machine.as_ref())?;
        machine.check().map_err(|(key, why)| machine_text.error(&format!("machine.{key}"), why))?;
        let mut load_text = source.clone();
        let mut run_text = source.clone();
        let (mut clients, mut run) = (std::mem::take(&mut config.clients), config.run.take());
        if let Some(file) = &beside.load {
            let LoadFile { run: of_load, client } = file.parse()?;
            if !client.is_empty() && !clients.is_empty() {
                let why = "are given by --load, too: keep one of both";
                return Err(source.error("client", why));
            }
            if !client.is_empty() {
                (clients, load_text) = (client, file.clone());
            }
            if of_load.is_some() {
                (run, run_text) = (of_load, file.clone());
            }
        }
        let run = run.unwrap_or_default();
        let this = Self { config, machine, machine_text, clients, run, load_text, run_text };
        this.check_clients()?;
        Ok(this)
    }

    /// The client of an app, with its number.
    fn client_of(&self, app: &AppSection) -> Option<(usize, &ClientSection)> {
        self.clients.iter().enumerate().find(|(_, client)| client.app == app.name)
    }

    /// How many connections the clients of an app at a rate share, if anything says so.
    fn shared_connections(&self, app: &AppSection, client: &ClientSection) -> Option<u32> {
        let load = self.config.loads.iter().find(|load| load.app == app.name);
        if client.rate.is_none() && load.is_none() {
            return None;
        }
        let of_load = load.map(|load| load.connections.get());
        client.threads.or(of_load).or(app.threads)
    }

    /// Refuses clients of no app, two of one app, and keys that exclude each other.
    fn check_clients(&self) -> Result<(), InputError> {
        for (at, client) in self.clients.iter().enumerate() {
            let error = |key: &str, why: String| {
                Err(self.load_text.error(&format!("client[{at}].{key}"), why))
            };
            if !self.config.apps.iter().any(|app| app.name == client.app) {
                let names: Vec<&str> =
                    self.config.apps.iter().map(|app| app.name.as_str()).collect();
                let why = format!(
                    "there is no app called `{}`; there are: {}",
                    client.app,
                    names.join(", ")
                );
                return error("app", why);
            }
            if self.clients[..at].iter().any(|before| before.app == client.app) {
                return error("app", format!("`{}` has two clients: keep one", client.app));
            }
            client.check().or_else(|(key, why)| error(key, why))?;
            let gates = GatedApp::find_all(self);
            let gated = gates.iter().find(|gated| gated.app.name == client.app);
            let of_gate = [
                ("contention", client.contention.is_some()),
                ("classes", !client.classes.is_empty()),
            ];
            if let Some((key, _)) = of_gate.into_iter().find(|(_, is_given)| *is_given)
                && gated.is_none()
            {
                let why = "applies to a simulated gate, which the app does not have: write \
                           concurrency for the app, and work, and clients or threads, here";
                return error(key, why.to_owned());
            }
            if let Some(gated) = gated {
                gated.check_classes().or_else(|(key, why)| error(&key, why))?;
            }
        }
        Ok(())
    }
}

/// The machine, from the config or from the file beside it.
fn machine_of(
    config: &mut Config,
    file: Option<&Located>,
) -> Result<(MachineSection, Located), InputError> {
    match (config.machine.take(), file) {
        (Some(_), Some(_)) => {
            Err(config.source.error("machine", "is given by --machine, too: keep one of both"))
        }
        (Some(machine), None) => Ok((machine, config.source.clone())),
        (None, Some(file)) => {
            let MachineFile { machine } = file.parse()?;
            Ok((machine, file.clone()))
        }
        (None, None) => {
            let why = "has no [machine] to be simulated on: write the machine of a host down with \
                       `lull check --machine > machine.toml` and give it with --machine";
            Err(config.source.error("", why))
        }
    }
}

#[cfg(test)]
mod tests;
