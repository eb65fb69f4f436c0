//! `lull check`: what this machine offers, and why not where it does not.

use crate::cli::CheckArgs;
use crate::text::table;
use lull_control::{Capability, Machine};
use lull_host::knobs::hold::{self, Found, Offered};
use lull_host::{Roots, probe};
use lull_policies::{Dip, registry};
use serde::Serialize;

/// What is found, as data.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    kernel: String,
    machine: Machine,
    /// Knobs that no policy steers, for `lull hold`.
    hold: Vec<Offered>,
    /// Other programs that run here and set knobs, and which.
    managers: Vec<(String, &'static str)>,
    /// What its knobs can do about interference (Ah-Q section II).
    dip: Dip,
    policies: Vec<PolicyHere>,
}

/// Whether a policy can run here.
#[derive(Debug, Serialize)]
struct PolicyHere {
    name: &'static str,
    lacks: Vec<Capability>,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let roots = Roots::default();
    let machine = probe::machine(&roots)?;
    let report = Report {
        version: crate::VERSION,
        kernel: kernel(),
        dip: Dip::of(&machine.capabilities),
        policies: policies(&machine),
        hold: hold::offers(&roots),
        managers: hold::managers(&roots),
        machine,
    };
    if args.json {
        return super::print_json(&report);
    }
    print(&report);
    Ok(())
}

fn kernel() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

fn policies(machine: &Machine) -> Vec<PolicyHere> {
    let lacks = |needs: &[Capability]| {
        needs.iter().copied().filter(|need| !machine.capabilities.has(*need)).collect()
    };
    registry::ALL
        .iter()
        .map(|entry| PolicyHere { name: entry.name, lacks: lacks(entry.needs) })
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
    for (name, sets) in &report.managers {
        println!("{name} runs here too and sets {sets}: what it changes stays as it wants");
    }
    println!("DIP class of the knobs: {}", report.dip);
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
}
