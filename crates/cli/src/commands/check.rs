//! `lull check`: the gauges and knobs of this machine, and why others are missing.

mod advice;

use super::UsageError;
use crate::cli::CheckArgs;
use crate::say::notice;
use crate::text::table;
use lull_agent::config::Config;
use lull_agent::power_file::PowerFile;
use lull_agent::recorded;
use lull_agent::{Agent, guarded, machine_file};
use lull_control::{Capability, Machine};
use lull_host::guard::{GuardCommand, StateDir};
use lull_host::knobs::hold::{self, Found, Offered};
use lull_host::knobs::proof;
use lull_host::sandbox::{self, Layer};
use lull_host::{Roots, probe};
use lull_measure::{Missing, Nanos};
use lull_policies::POLICIES;
use lull_policies::{Ability, Dip, ResourceDip, TLT, by_resource};
use serde::Serialize;
use std::path::Path;

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    kernel: String,
    machine: Machine,
    /// Knobs that no policy steers, for `lull hold`.
    hold: Vec<Offered>,
    /// Other running programs that set knobs, and the knobs that they set.
    managers: Vec<(String, &'static str)>,
    /// The class of its knobs against interference (Ah-Q, section II).
    dip: Dip,
    /// The same for each resource, with the guarantees that it can and cannot give.
    resources: Vec<ResourceDip>,
    /// The limit that no class can change (theorem 2).
    tlt: &'static str,
    policies: Vec<PolicySupport>,
    /// The abilities that the apps of a recorded run need together (theorem 1), by part of the
    /// record.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<Vec<advice::Advice>>,
    /// The mechanisms that confine the front end, which parses input from outside.
    confinement: Vec<Confined>,
}

/// A layer of the confinement, and what offers it or why it is missing.
#[derive(Debug, Serialize)]
struct Confined {
    layer: Layer,
    offered: bool,
    by: String,
}

/// Whether a policy can run here.
#[derive(Debug, Serialize)]
struct PolicySupport {
    name: &'static str,
    lacks: Vec<Capability>,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let roots = Roots::default();
    if args.machine {
        return write_machine(args, &roots);
    }
    if let Some(path) = &args.config {
        return check_config(path, args.json);
    }
    let read = |file| recorded::PartResult::read(file, Nanos::ZERO);
    let parts = args.record.as_deref().map(read).transpose()?;
    let mut machine = probe::machine(&roots)?;
    let refused = prove(&mut machine, &roots);
    let report = Report {
        version: lull_agent::VERSION,
        kernel: kernel(),
        dip: Dip::offered_by(&machine.capabilities),
        resources: by_resource(&machine.capabilities),
        tlt: TLT,
        policies: policies(&machine),
        advice: parts.map(|parts| advice::advise(&parts, &machine)),
        hold: offered(&roots, &refused),
        managers: hold::managers(&roots),
        confinement: confinement(&roots),
        machine,
    };
    if args.json {
        return super::print_json(&report);
    }
    print(&report);
    Ok(())
}

/// Writes the machine down (`--machine`).
fn write_machine(args: &CheckArgs, roots: &Roots) -> anyhow::Result<()> {
    let power = args.power.as_deref().map(PowerFile::read).transpose();
    let power = power.map_err(|why| UsageError(format!("--power: {why}")))?;
    print!("{}", machine_file::describe(roots, power.as_ref())?);
    Ok(())
}

/// Checks that a config can run on this machine, and starts nothing.
fn check_config(path: &Path, json: bool) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Checked<'a> {
        config: String,
        policy: &'a str,
        epoch: String,
        apps: Vec<&'a str>,
    }
    let config = Config::load(path)?;
    Agent::new(config.clone()).check()?;
    let checked = Checked {
        config: path.display().to_string(),
        policy: &config.policy,
        epoch: config.epoch_rule().to_string(),
        apps: config.apps.iter().map(|app| app.name.as_str()).collect(),
    };
    if json {
        return super::print_json(&checked);
    }
    let Checked { config, policy, epoch, apps } = checked;
    println!("{config}: can run here; policy {policy} every {epoch}; apps: {}", apps.join(", "));
    Ok(())
}

/// Proves the knobs whose drivers may claim more than they can do: a value is written, read back
/// and written back, with the old one in the ledger and a guard beside it. Returns those that
/// cannot be set, and why.
fn prove(machine: &mut Machine, roots: &Roots) -> Vec<(Capability, Missing)> {
    let claimed = proof::provable(&machine.capabilities, roots);
    if claimed.is_empty() {
        return Vec::new();
    }
    let proven = StateDir::locate(None).map_err(anyhow::Error::from).and_then(|place| {
        let say = |text: &str| notice(text);
        let opened = guarded::open_ledger(place, roots, GuardCommand::default(), &say);
        let (mut ledger, guard) = opened?;
        let proven = claimed.iter().map(|knob| proof::prove(*knob, machine, roots, &mut ledger));
        let proven: Vec<_> = proven.collect();
        ledger.close()?;
        guard.finish()?;
        Ok(proven)
    });
    let proven = proven.unwrap_or_else(|error| {
        let untried = |knob: &Capability| {
            let means = machine.capabilities.get(*knob);
            means.map(|means| format!("{means}; not tried: {error}"))
        };
        claimed.iter().map(untried).collect()
    });
    let mut refused = Vec::new();
    for (knob, proven) in claimed.into_iter().zip(proven) {
        let all = std::mem::take(&mut machine.capabilities);
        machine.capabilities = match proven {
            Ok(means) => all.with_capability(knob, means),
            Err(why) => {
                refused.push((knob, why.clone()));
                all.without(knob, why)
            }
        };
    }
    refused
}

/// Returns the knobs to hold. A driver that refuses a knob to a policy refuses it to `lull hold`.
fn offered(roots: &Roots, refused: &[(Capability, Missing)]) -> Vec<Offered> {
    let mut all = hold::offers(roots);
    for (knob, why) in refused {
        for one in all.iter_mut().filter(|one| one.knob == knob.name()) {
            one.found = Found::Missing(why.clone());
        }
    }
    all
}

/// Returns what the knobs of each resource can do (Ah-Q, Liu et al. 2024, sections II to IV).
fn print_dip(report: &Report) {
    println!("DIP class of the knobs: {} (distinguish, isolate, prioritise)\n", report.dip);
    let word = |ability: &Ability| if ability.is_there() { "yes" } else { "no" }.to_owned();
    let rows = report.resources.iter().map(|one| {
        let abilities = [&one.distinguish, &one.isolate, &one.prioritise].map(word);
        let class = one.class.to_string();
        let texts = [class, one.can.to_owned(), one.cannot.to_owned()];
        [one.resource.to_owned()].into_iter().chain(abilities).chain(texts).collect()
    });
    let header = ["resource", "D", "I", "P", "class", "can", "cannot"];
    println!("{}\n\n{}\n", table(&header, rows), report.tlt);
}

fn confinement(roots: &Roots) -> Vec<Confined> {
    let confined = |(layer, how): (Layer, Result<String, String>)| {
        let offered = how.is_ok();
        Confined { layer, offered, by: how.unwrap_or_else(|why| why) }
    };
    sandbox::offers(roots).into_iter().map(confined).collect()
}

fn kernel() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

fn policies(machine: &Machine) -> Vec<PolicySupport> {
    let lacks = |needs: &[Capability]| {
        needs.iter().copied().filter(|need| !machine.capabilities.has(*need)).collect()
    };
    POLICIES
        .iter()
        .map(|entry| PolicySupport { name: entry.name, lacks: lacks(entry.kind.needs) })
        .collect()
}

fn print(report: &Report) {
    let machine = &report.machine;
    println!("lull {} on {}, {}", report.version, machine.name, report.kernel);
    let types: Vec<_> = machine.core_types.iter().map(|kind| kind.name.as_str()).collect();
    println!("{} cores ({})\n", machine.cores.len(), types.join(", "));
    for (title, knobs) in [("knobs", true), ("gauges", false)] {
        let wanted = Capability::ALL.into_iter().filter(|what| what.is_knob() == knobs);
        let rows = wanted.map(|what| match machine.capabilities.get(what) {
            Ok(means) => vec![what.to_string(), "yes".to_owned(), means.to_owned()],
            Err(why) => vec![what.to_string(), "no".to_owned(), why.to_string()],
        });
        println!("{}\n", table(&[title, "", "by, or why not"], rows));
    }
    let rows = report.hold.iter().map(|offered| match &offered.found {
        Found::By(means) => vec![offered.knob.to_owned(), "yes".to_owned(), means.clone()],
        Found::Missing(why) => vec![offered.knob.to_owned(), "no".to_owned(), why.to_string()],
    });
    println!("{}\n", table(&["lull hold", "", "by, or why not"], rows));
    let rows = report.confinement.iter().map(|one| {
        let word = if one.offered { "yes" } else { "no" };
        vec![one.layer.to_string(), word.to_owned(), one.by.clone()]
    });
    println!("{}\n", table(&["confinement of the front end", "", "by, or why not"], rows));
    for (name, sets) in &report.managers {
        println!("{name} runs here too and sets {sets}: Lull does not override its changes");
    }
    print_dip(report);
    let rows = report.policies.iter().map(|policy| {
        let lacks: Vec<_> = policy.lacks.iter().map(|what| what.name()).collect();
        let verdict = if lacks.is_empty() {
            "can run".to_owned()
        } else {
            format!("lacks {}", lacks.join(", "))
        };
        vec![policy.name.to_owned(), verdict]
    });
    println!("{}", table(&["policy", "here"], rows));
    if let Some(parts) = &report.advice {
        advice::print(parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knob_that_its_driver_refuses_is_not_offered_to_lull_hold() {
        let tree = tempfile::tempdir().unwrap();
        let why = Missing::because("the driver refuses every other delay");
        let all = offered(&Roots::under(tree.path()), &[(Capability::Coalescing, why.clone())]);
        let one = all.iter().find(|one| one.knob == "coalescing").unwrap();
        assert_eq!(one.found, Found::Missing(why));
    }
}
