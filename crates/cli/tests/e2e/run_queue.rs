//! Objectives of run-queue latency, under every policy of co-location.

use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{cores, has_ebpf, is_root, skip};
use lull_policies::{Family, POLICIES};

/// The policies that run wherever root has two cores and eBPF, in the order of the registry.
const EVERYWHERE: [&str; 9] =
    ["unmanaged", "even", "heracles", "parties", "clite", "satori", "arq", "tide", "qos-wc"];
/// The policies that make threads real-time, which a container may forbid to root.
const REAL_TIME: [&str; 2] = ["lc-first", "rr"];

fn config(policy: &str, server: &Victim, batch: &Victim) -> String {
    format!(
        "[policy]\nname = \"{policy}\"\n[[app]]\nname = \"server\"\n\
         class = \"latency-critical\"\nobjectives = [{{ run_queue_p99 = \"5ms\" }}]\n\
         ideal = \"10us\"\npid = {}\n[[app]]\nname = \"batch\"\n\
         class = \"best-effort\"\nsolo = 1.0\npid = {}\n",
        server.pid(),
        batch.pid()
    )
}

/// Returns in how many epochs the server had a tail and the bound of its objective.
fn epochs_with_tail_and_bound(record: &Record) -> i64 {
    record.number(
        "SELECT count(*) FROM app_epochs WHERE app = 'server' AND tail_latency_seconds > 0 \
         AND abs(tail_bound_seconds - 0.005) < 1e-9",
    )
}

#[test]
fn every_policy_of_co_location_takes_an_objective_of_run_queue_latency() {
    if cores() < 2 || !is_root() || !has_ebpf(&Scene::new()) {
        return skip("needs two cores, and root and eBPF to see run-queue latency");
    }
    let is_colocation = |family: Family| family == Family::Colocation;
    let mut ran = Vec::new();
    for entry in POLICIES.iter().filter(|entry| is_colocation(entry.kind.family)) {
        let name = entry.name;
        let (scene, server, batch) = (Scene::new(), Victim::ticker(), Victim::sleeper());
        let ended = scene.run_for(&scene.config("", &config(name, &server, &batch)), "2s");
        if REAL_TIME.contains(&name) && ended.code() == 2 {
            ended.refused(2, &format!("`{name}` needs"));
            continue;
        }
        ended.well();
        let record = Record::open(&scene.records()[0]);
        let (epochs, read) = (record.epochs(), epochs_with_tail_and_bound(&record));
        let is_read = read > 0 && 2 * read >= epochs;
        assert!(is_read, "{name}: a tail and a bound in {read} of {epochs} epochs");
        ran.push(name);
        scene.wait_until_quiet();
    }
    eprintln!("policies that ran: {ran:?}");
    ran.retain(|name| !REAL_TIME.contains(name));
    assert_eq!(ran, EVERYWHERE);
}
