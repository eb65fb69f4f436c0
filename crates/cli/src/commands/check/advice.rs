//! Which abilities the apps of a recorded run need together, and which policies have them here.
//!
//! Theorem 1 of Ah-Q (Liu et al. 2024, section IV-A) names them by what is short: scarce
//! resources need priority, and costly switching between apps needs isolation.

use crate::text::table;
use lull_agent::recorded::PartResult;
use lull_control::{Capability, Machine};
use lull_policies::{Dip, POLICIES};
use lull_sim::machine::LinuxScheduler;
use serde::Serialize;

/// The policy under which a part shows a shortage: any other may hide it.
const UNMANAGED: &str = "unmanaged";

/// The abilities that the apps of one part of a record need.
#[derive(Debug, Serialize)]
pub(super) struct Advice {
    /// The policy of the part, or the name of its phases.
    part: String,
    /// Whether the tail of some app was above its bound; `None` if no app has tail and bound, or if
    /// none was above and an app with a bound has no tail.
    scarce: Option<bool>,
    /// The share of the apps' CPU time that switches take, at the simulator's cost of one;
    /// `None` if the record lacks CPU time or switches.
    switching_share: Option<f64>,
    /// The least class that helps; `None` if one of both is unknown, or the part is under a policy.
    needs: Option<Dip>,
    /// Whether the knobs of this machine have it.
    offered: bool,
    /// The policies of exactly this class that can run here.
    policies: Vec<&'static str>,
}

/// Returns the abilities that each part needs, and which of them this machine has.
pub(super) fn advise(parts: &[PartResult], machine: &Machine) -> Vec<Advice> {
    let offered = Dip::offered_by(&machine.capabilities);
    let runs_here = |needs: &[Capability]| needs.iter().all(|need| machine.capabilities.has(*need));
    let advice = |found: &PartResult| {
        let is_above = found.lc.map(|entropy| entropy > 0.0);
        let scarce = is_above.filter(|is_above| *is_above || found.has_all_tails);
        let switching_share =
            found.space_time.switching_share(LinuxScheduler::default().switch_cost);
        let shown = scarce.zip(switching_share).filter(|_| found.name == UNMANAGED);
        let needs = shown.map(|(scarce, share)| Dip::advised(scarce, share));
        let of_class = POLICIES.iter().filter(|entry| {
            needs.is_some() && entry.kind.dip == needs && runs_here(entry.kind.needs)
        });
        Advice {
            part: found.name.clone(),
            scarce,
            switching_share,
            needs,
            offered: needs.is_some_and(|needs| offered.includes(needs)),
            policies: of_class.map(|entry| entry.name).collect(),
        }
    };
    parts.iter().map(advice).collect()
}

pub(super) fn print(advice: &[Advice]) {
    let word = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let unknown = || "unknown".to_owned();
    let none = || "-".to_owned();
    let rows = advice.iter().map(|one| {
        vec![
            one.part.clone(),
            one.scarce.map_or_else(unknown, word),
            one.switching_share.map_or_else(unknown, |share| format!("{:.1} %", 100.0 * share)),
            one.needs.map_or_else(none, |needs| needs.to_string()),
            one.needs.map_or_else(none, |_| word(one.offered)),
            one.policies.join(", "),
        ]
    });
    let header = ["recorded part", "app above its bound", "switching", "needs", "here", "policies"];
    println!("\n{}", table(&header, rows));
    println!(
        "\nAn app above its bound needs priority (P), and switching above {:.0} % of the CPU time \
         isolation (I), at {} a switch. The thresholds and that cost are Lull's; the rule is \
         theorem 1 of Ah-Q.",
        100.0 * Dip::COSTLY_SWITCHING,
        LinuxScheduler::default().switch_cost
    );
    if advice.iter().any(|one| one.part != UNMANAGED) {
        println!(
            "Only parts under `{UNMANAGED}` show what the apps need, because another policy may \
             hide what is short: record a run under it, or compare it by `lull compare`."
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_agent::recorded::SpaceTime;
    use lull_control::Plant;
    use lull_control::conformance::MemoryPlant;
    use lull_measure::Missing;

    fn found(lc: Option<f64>, switches_per_second: Option<f64>) -> PartResult {
        let used_cores = Some(1.0);
        let space_time = SpaceTime { used_cores, switches_per_second, ..SpaceTime::default() };
        let name = UNMANAGED.to_owned();
        PartResult { name, lc, has_all_tails: true, space_time, ..PartResult::default() }
    }

    #[test]
    fn a_missed_bound_needs_priority_and_many_switches_need_isolation() {
        let mut machine = MemoryPlant::new(2, Vec::new()).machine().clone();
        let lacks = Missing::because("test");
        machine.capabilities = machine.capabilities.without(Capability::Scheduling, lacks);
        let parts = [
            found(Some(0.0), Some(100.0)),
            found(Some(0.2), Some(100.0)),
            found(Some(0.0), Some(10_000.0)),
            found(Some(0.2), Some(10_000.0)),
            found(None, Some(100.0)),
        ];
        let advice = advise(&parts, &machine);
        let needs: Vec<_> = advice.iter().map(|one| one.needs).collect();
        let wanted = [Dip::None, Dip::DP, Dip::DI, Dip::DIP].map(Some);
        assert_eq!(needs[..4], wanted);
        assert_eq!((needs[4], advice[4].policies.len()), (None, 0), "no bound, no advice");
        let offered: Vec<_> = advice.iter().map(|one| one.offered).collect();
        assert_eq!(offered, [true, false, true, false, false], "there is no priority here");
        assert!(advice[2].policies.contains(&"even"), "{:?}", advice[2].policies);
        assert!(advice[1].policies.is_empty(), "no policy of D+P can run here");
    }

    #[test]
    fn what_is_unknown_or_hidden_by_a_policy_gets_no_advice() {
        let machine = MemoryPlant::new(2, Vec::new()).machine().clone();
        let silent = |lc| PartResult { has_all_tails: false, ..found(Some(lc), Some(100.0)) };
        let under = PartResult { name: "lc-first".to_owned(), ..found(Some(0.0), Some(100.0)) };
        let advice = advise(&[silent(0.0), silent(0.2), under], &machine);
        let known: Vec<_> = advice.iter().map(|one| (one.scarce, one.needs)).collect();
        assert_eq!(known[0], (None, None), "an app without a tail may be above its bound");
        assert_eq!(known[1], (Some(true), Some(Dip::DP)), "one above its bound is enough");
        assert_eq!(known[2], (Some(false), None), "the priority may be what keeps the bound");
        assert!(advice[0].policies.is_empty() && advice[2].policies.is_empty());
    }
}
