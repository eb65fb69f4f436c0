//! Objectives of run-queue latency, under every policy of co-location.

use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{has_ebpf, is_root, skip};
use lull_policies::{Family, POLICIES};

#[test]
fn every_policy_of_co_location_takes_an_objective_of_run_queue_latency() {
    if !is_root() || !has_ebpf(&Scene::new()) {
        return skip("needs root and eBPF to see run-queue latency");
    }
    let is_colocation = |family: Family| family == Family::Colocation;
    let mut ran = Vec::new();
    for entry in POLICIES.iter().filter(|entry| is_colocation(entry.kind.family)) {
        let (scene, server, batch) = (Scene::new(), Victim::server(), Victim::sleeper());
        let config = format!(
            "[policy]\nname = \"{}\"\n[[app]]\nname = \"server\"\n\
             class = \"latency-critical\"\nobjectives = [{{ run_queue_p99 = \"5ms\" }}]\n\
             ideal = \"10us\"\npid = {}\n[[app]]\nname = \"batch\"\n\
             class = \"best-effort\"\nsolo = 1.0\npid = {}\n",
            entry.name,
            server.pid(),
            batch.pid()
        );
        let ended = scene.run_for(&scene.config("", &config), "2s");
        if ended.code() == 2 {
            assert!(ended.err.contains("needs"), "{}: {}", entry.name, ended.err);
            continue;
        }
        ended.well();
        let epochs = Record::open(&scene.records()[0]).epochs();
        assert!(epochs >= 2, "{}: {epochs} epochs", entry.name);
        ran.push(entry.name);
        scene.wait_until_quiet();
    }
    assert!(ran.contains(&"unmanaged") && ran.contains(&"lc-first"), "{ran:?}");
}
