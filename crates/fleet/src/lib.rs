//! The pods of a Kubernetes node as apps of the agent (`agent.discover = "kubernetes"`).
//!
//! Two processes share the work. The *watcher* (`lull pods`, [`run`]) gives up its rights, watches
//! the API server, and parses what it sends: pods, `LatencyObjective`s and refusals. The *link*,
//! in the agent, receives typed and bounded messages (`message`), makes the paths of cgroups
//! itself (`cgroup`), and hands pods to the session by the seam
//! [`lull_agent::discovery`]. Events on pods go the other way, and are published by the watcher.
//!
//! ```text
//!   API server ── watch ──▶ watcher ── pod orders ──▶ link ── workloads ──▶ session
//!              ◀─ Events ──    ▲    ◀── reports ────       ◀── reports ────
//!   container runtime ── NRI ──╯
//! ```
//!
//! Start reading at `table`, which decides what becomes of each pod. The page for
//! users is `docs/kubernetes.md`.

mod annotations;
mod cgroup;
mod child;
mod containers;
mod events;
mod link;
mod message;
mod node_lock;
mod nri;
mod objective;
mod pods;
mod pool;
mod process;
mod rules;
mod selector;
mod source;
mod table;
mod taken;

#[doc(hidden)]
pub use nri::take_runtime_bytes;
pub use objective::{ClassName, LatencyObjective, LatencyObjectiveSpec, PodPolicy};
pub use process::run;
pub use source::LatencyName;
#[doc(hidden)]
pub use taken::{sample_messages, take_messages};

use anyhow::Context;
use link::{Link, Setup};
use lull_agent::VERSION;
use lull_agent::config::{AppSection, Config, KubernetesSection, PodsAs};
use lull_agent::discovery::Discovery;
use lull_control::Class;
use lull_host::Roots;
use message::{Begin, Measured, TemplateOffer};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Starts what finds the pods of this node for a config that has `agent.discover`; `program` is
/// the `lull` program, built with this crate.
///
/// # Errors
/// If a selector of a `[[match]]` is none, the node has no name, another agent controls its pods,
/// or the program cannot be started.
pub fn discover(config: &Config, program: PathBuf) -> anyhow::Result<Box<dyn Discovery>> {
    let (templates, offers): (Vec<usize>, Vec<TemplateOffer>) = offers(config)?.into_iter().unzip();
    let KubernetesSection { node, kubeconfig, cgroup_root, cpu_manager, nri } =
        config.kubernetes.clone();
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let begin = Begin {
        version: VERSION.to_owned(),
        node: node.map_or_else(node_name, Ok)?,
        kubeconfig: kubeconfig.map(text),
        templates: offers,
        nri: nri.map(text),
        cpu_manager,
        ends_with_thread: false,
    };
    let setup = Setup {
        program,
        begin,
        templates,
        roots: Roots::default(),
        cgroup_root: cgroup_root.unwrap_or_default(),
    };
    Ok(Box::new(Link::start(setup)?))
}

/// The templates for pods, each with its number.
fn offers(config: &Config) -> anyhow::Result<Vec<(usize, TemplateOffer)>> {
    let (mut offers, mut seen) = (Vec::new(), BTreeSet::new());
    for app in &config.apps {
        let Some((pods, slot)) = app.pods.as_ref().zip(app.slot) else { continue };
        if !seen.insert(slot.template) {
            continue;
        }
        selector::parse(&pods.selector)
            .map_err(|why| config.source.error(&format!("match[{}].pods", slot.template), why))?;
        offers.push((slot.template, offer(app, pods)));
    }
    Ok(offers)
}

fn offer(app: &AppSection, pods: &PodsAs) -> TemplateOffer {
    let of = app.latency_of().map_or(Measured::Nothing, Measured::from);
    let source = (of == Measured::Requests).then(|| LatencyName::from(&app.latency));
    let tail = app.spec().tail().filter(|_| source == Some(LatencyName::Prometheus));
    TemplateOffer {
        selector: pods.selector.clone(),
        is_critical: app.class == Class::LatencyCritical,
        of,
        source,
        percent: tail.map(|(percentile, _)| percentile.percent()),
    }
}

/// Returns the name of this node: `NODE_NAME`, else the host's name, as in the kubelet.
fn node_name() -> anyhow::Result<String> {
    if let Some(name) = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty()) {
        return Ok(name);
    }
    let uname = rustix::system::uname();
    let host = uname.nodename().to_str().context("the name of the host is not text")?;
    Ok(host.to_lowercase())
}
