//! Runs tiers and machines while their waiting requests fit in memory.

use lull_measure::Nanos;
use lull_sim::hosts::{Host, HostedSystem};
use lull_sim::machine::Activity;
use std::collections::BTreeMap;

/// Time between two checks of the waiting requests. It changes no result.
const STEP: Nanos = Nanos::from_millis(100);

/// Runs a replication up to `end`, unless more requests of an app than `most` wait on the
/// machines of its host.
pub(super) fn run_within(
    system: &mut HostedSystem,
    hosts: &BTreeMap<String, Host>,
    end: Nanos,
    most: f64,
) -> Result<(), String> {
    loop {
        let next = system.engine().now().saturating_add(STEP).min(end);
        system.run_until(next).map_err(|stop| stop.to_string())?;
        check_backlog(system, hosts, most)?;
        if next >= end {
            return Ok(());
        }
    }
}

/// Ends a replication whose unanswered requests would fill the memory. `limits.in_flight` bounds
/// those of tiers.
fn check_backlog(
    system: &HostedSystem,
    hosts: &BTreeMap<String, Host>,
    most: f64,
) -> Result<(), String> {
    for (name, host) in hosts {
        for (number, app) in host.model.app.iter().enumerate() {
            if !matches!(app.activity, Activity::Requests { .. }) {
                continue;
            }
            let machines = system.machines_of(name).map(|machine| system.machine(machine));
            let waiting: f64 =
                machines.map(|it| f64::from(it.simulation().outstanding(number))).sum();
            if waiting > most {
                return Err(format!(
                    "{waiting} requests of app `{}` were unanswered at {}, more than the \
                     {most:.0e} that are kept: the machines of host `{name}` do not keep up; send \
                     less, or run shorter",
                    app.name,
                    system.engine().now()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_sim::Replication;
    use lull_sim::model::Model;

    const TIERS: &str = r#"
        [[tier]]
        name = "web"
        host = "box"

        [[app]]
        name = "site"
        source = { open = { rate_per_s = 10.0 } }
        steps = [{ call = { tier = "web", steps = [{ work = { mean = "1ms" } }] } }]
    "#;

    /// A core that can answer a thousand requests a second of `search`.
    const MACHINE: &str = r#"
        name = "box"
        cores = 1
        frequency = "2GHz"

        [[app]]
        name = "web"
        threads = 1
        activity = "called"

        [[app]]
        name = "search"
        threads = 1
        [app.activity.requests]
        work = { mean = "1ms" }
        load = [{ from = "0s", rate-per-s = 11000.0 }]
    "#;

    #[test]
    fn a_machine_that_does_not_keep_up_ends_the_run_before_its_length() {
        let host = Host { model: toml::from_str(MACHINE).unwrap(), apps: Vec::new() };
        let hosts = BTreeMap::from([("box".to_owned(), host)]);
        let model: Model = toml::from_str(TIERS).unwrap();
        let end = Nanos::from_secs(2);
        let run = |most| {
            let streams = Replication { seed: 1, number: 0 };
            let mut system = HostedSystem::new(&model, &hosts, streams).unwrap();
            let ended = run_within(&mut system, &hosts, end, most);
            (ended, system.engine().now())
        };
        // Some 10000 more wait after each second.
        assert_eq!(run(1e5), (Ok(()), end));
        let (ended, at) = run(4e3);
        let why = ended.unwrap_err();
        assert!(why.contains("requests of app `search` were unanswered at "), "{why}");
        assert!(
            why.contains("more than the 4e3 that are kept: the machines of host `box`"),
            "{why}"
        );
        assert!(at < Nanos::from_secs(1), "{at}");
    }
}
