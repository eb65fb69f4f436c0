//! A config that changes while the agent runs.

use crate::runs::attached;
use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{cores, skip};
use rustix::process::Signal;

#[test]
fn a_changed_config_is_taken_over_and_a_broken_one_leaves_the_former_in_force() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let config = scene.config("silence = \"1h\"", &attached("even", &server, &batch));
    let text = std::fs::read_to_string(&config).unwrap();
    let state = scene.path("state");
    let reload = || scene.run(&["reload".as_ref(), "--state".as_ref(), state.as_os_str()]);
    reload().refused(1, "no agent runs with the state directory");
    let mut agent = scene.agent(&config);
    agent.wait_for("a change", || server.is_changed() && batch.is_changed());
    assert!(reload().well().out.contains("nothing has changed"));
    let broken = text.replace("p95 = \"20us\"", "p95 = \"20parsecs\"");
    std::fs::write(&config, broken).unwrap();
    let refused = reload().refused(1, "lull.toml:");
    assert!(refused.err.contains("app[0].objectives"), "{}", refused.err);
    assert!(server.is_changed() && batch.is_changed(), "a refused config changed knobs");
    std::fs::write(&config, text.replace("name = \"batch\"", "name = \"other\"")).unwrap();
    reload().refused(1, "restart it to take it over");
    std::fs::write(&config, text.replace("20us", "30us")).unwrap();
    assert!(reload().well().out.contains("reloaded: app[0].objectives"));
    agent.wait_until_said("config reloaded: app[0].objectives");
    assert!(server.is_changed() && batch.is_changed(), "what is unaffected changed");
    std::fs::write(&config, text.replace("\"even\"", "\"unmanaged\"")).unwrap();
    agent.signal(Signal::HUP);
    agent.wait_until_said("config reloaded: app[0].objectives, policy.name");
    agent.wait_for("knobs as before", || !server.is_changed() && !batch.is_changed());
    agent.interrupt().well();
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("operator").len(), 2);
    server.assert_as_before();
    batch.assert_as_before();
    scene.wait_until_quiet();
}
