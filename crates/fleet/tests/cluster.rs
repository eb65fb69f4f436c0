//! A node of 200 pods at a real API server: the agent of the real chart sees what is there.
//!
//! `cargo xtask kubernetes` builds the API server and helm, which takes a quarter of an hour the
//! first time, and runs this. Without them, without etcd or without root it is skipped. There is no
//! kubelet: the test makes the cgroups and processes of pods, named as the kubelet names them, and
//! writes their status.

mod cluster {
    pub(crate) mod agent;
    mod chart;
    pub(crate) mod node;
    pub(crate) mod runtime;
    pub(crate) mod server;
}

use cluster::agent::{RunningAgent, Usage};
use cluster::node::Node;
use cluster::runtime::Runtime;
use cluster::server::{Programs, Server};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Pods of the node.
const PODS: usize = 200;
/// Pods while they change all the time, and how often one does.
const BUSY_PODS: usize = 250;
const CHANGES_PER_S: usize = 10;
/// The shortest time over which costs are figures of the benchmark.
const MEASURED_S_MIN: usize = 30;
/// The bound of the one pod of class `latency-critical`, with the labels of the pod.
const CRITICAL_BOUND: &str = "lull_tail_bound_seconds{app=\"critical-1\",namespace=\"default\",\
                              pod=\"critical-a\",workload=\"critical-a\"}";

#[test]
fn the_agent_sees_the_pods_of_its_node_whatever_happens_to_the_api_server() {
    let programs = match Programs::find() {
        Ok(programs) => programs,
        Err(why) => return lull_testing::skip(&why),
    };
    let mut server = Server::start(programs);
    server.install_chart();
    let mut node = Node::new();
    let agent = RunningAgent::start(&server);

    many_pods_arrive(&server, &mut node, &agent);
    pods_change_all_the_time(&server, &mut node, &agent);
    agent.a_second_one_is_refused(&server);
    wrong_annotations_leave_pods_alone(&server, &node, &agent);
    objectives_come_from_resources(&server, &mut node, &agent);
    pods_depart(&server, &mut node, &agent);
    the_server_restarts(&mut server, &mut node, &agent);
    the_server_is_away(&mut server, &mut node, &agent);
    a_partition_separates_the_server(&server, &mut node, &agent);
    the_token_expires(&mut server, &mut node, &agent);

    latency_is_that_of_the_pod_that_is_the_app(&server, &mut node, &agent);
    a_silent_pod_puts_the_node_in_the_safe_state(&server, &mut node, &agent);
    a_runtime_reports_containers_before_the_server_does(&server, &mut node, &agent);

    server.accepts_the_job_for_cells();
    server.receiver_has_a_service();
    server.steering_has_exactly_its_capabilities();
    all_pods_depart(&server, &mut node, &agent);
    drop(node);
    agent.stop();
}

fn many_pods_arrive(server: &Server, node: &mut Node, agent: &RunningAgent) {
    let begun = Instant::now();
    for number in 0..PODS {
        node.create(server, &format!("web-{number}"), &json!({}));
    }
    let created = begun.elapsed();
    agent.wait_for_present(PODS);
    let all = begun.elapsed();
    let one = Instant::now();
    node.create(server, "one-more", &json!({}));
    agent.wait_for_present(PODS + 1);
    let what = "from the creation of a pod until it is in the metrics";
    lull_testing::figure(what, one.elapsed().as_secs_f64(), "s");
    eprintln!("{PODS} pods made in {created:.1?}, seen after {all:.1?}; {}", agent.costs());
    node.delete(server, "one-more");
    agent.wait_for_present(PODS);
    agent.assert_printed("pod default/web-7 is pod-");
    server.wait_for_a_new_event("LullManaged", &[]);
}

/// Ten changes a second on a node of 250 pods, for `LULL_FLEET_SECONDS`: what they cost is printed.
fn pods_change_all_the_time(server: &Server, node: &mut Node, agent: &RunningAgent) {
    let seconds = std::env::var("LULL_FLEET_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds = seconds.unwrap_or(5_usize);
    let changes = seconds * CHANGES_PER_S;
    for number in PODS..BUSY_PODS {
        node.create(server, &format!("web-{number}"), &json!({}));
    }
    agent.wait_for_present(BUSY_PODS);
    let (begun, before) = (Instant::now(), agent.usage());
    for change in 0..changes {
        let due = begun + Duration::from_secs(1) * change as u32 / CHANGES_PER_S as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        match change % 4 {
            0 => node.create(server, "comes-and-goes", &json!({})),
            2 => node.delete(server, "comes-and-goes"),
            _ => {
                let floor = format!("throughput={}", 1_000 + change);
                let objective = json!({ "lull.dev/objective": floor });
                node.annotate(server, &format!("web-{}", change % PODS), &objective);
            }
        }
    }
    let (took, after) = (begun.elapsed(), agent.usage());
    if changes % 4 == 1 || changes % 4 == 2 {
        node.delete(server, "comes-and-goes");
    }
    let program = server.programs.lull.display();
    let rate = changes as f64 / took.as_secs_f64();
    eprintln!("{BUSY_PODS} pods and {rate:.1} changes a second, with {program}:");
    let costs = report_costs(&before, &after, took);
    // The program beside this test is built without optimisation.
    if seconds >= MEASURED_S_MIN && std::env::var_os("LULL_PROGRAM").is_some() {
        for (what, value, unit) in costs {
            lull_testing::figure(&format!("{BUSY_PODS} pods, {what}"), value, unit);
        }
    }
    for number in PODS..BUSY_PODS {
        node.delete(server, &format!("web-{number}"));
    }
    for number in 0..PODS {
        let none = json!({ "lull.dev/objective": null });
        if (0..changes).any(|change| change % 2 == 1 && change % PODS == number) {
            node.annotate(server, &format!("web-{number}"), &none);
        }
    }
    agent.wait_for_present(PODS);
}

/// Prints what each process of the agent has used in a time, and all of them. Returns what all of
/// them have used: names, values and units.
fn report_costs(
    before: &BTreeMap<String, Usage>,
    after: &BTreeMap<String, Usage>,
    took: Duration,
) -> [(&'static str, f64, &'static str); 3] {
    let (mut share_sum, mut resident_mb, mut proportional_mb) = (0.0, 0.0, 0.0);
    for (name, used) in after {
        let cpu_s = used.cpu_s - before.get(name).map_or(0.0, |before| before.cpu_s);
        let share = 100.0 * cpu_s / took.as_secs_f64();
        share_sum += share;
        resident_mb += used.resident_mb;
        proportional_mb += used.proportional_mb;
        eprintln!(
            "  {name}: {share:.2} % of a core, {:.1} MB resident, of which {:.1} MB are its own; \
             {:.1} MB with its part of shared pages",
            used.resident_mb, used.own_mb, used.proportional_mb
        );
    }
    eprintln!(
        "  together: {share_sum:.2} % of a core, {resident_mb:.1} MB resident, \
         {proportional_mb:.1} MB with shared pages counted once"
    );
    [
        ("share of a core", share_sum, "%"),
        ("resident", resident_mb, "MB"),
        ("resident with shared pages counted once", proportional_mb, "MB"),
    ]
}

fn wrong_annotations_leave_pods_alone(server: &Server, node: &Node, agent: &RunningAgent) {
    for number in 0..10 {
        let wrong = json!({ "lull.dev/objective": "p99=fast" });
        node.annotate(server, &format!("web-{number}"), &wrong);
    }
    agent.wait_for_present(PODS - 10);
    server.wait_for_events("LullUnmanaged", 10);
    agent.assert_printed("pod default/web-3 is not managed: lull.dev/objective has `p99=fast`");
    for number in 0..10 {
        let none = json!({ "lull.dev/objective": null });
        node.annotate(server, &format!("web-{number}"), &none);
    }
    agent.wait_for_present(PODS);
}

fn objectives_come_from_resources(server: &Server, node: &mut Node, agent: &RunningAgent) {
    let refused = server.create_objective("wrong", &json!(["p99 below 50ms"]));
    assert!(refused.unwrap_err().contains("should match"), "the schema checks the form");
    let wrong = [
        (json!(["memory_pressure=2..5%"]), "should match"),
        (json!(["p99=0ms"]), "should match"),
        (json!([]), "a latency-critical class needs objectives"),
        (json!(["p99=50ms", "memory_pressure=2%"]), "more than one kind of latency"),
        (json!(["run_queue_p99=1ms", "disengagement=0.01"]), "more than one kind of latency"),
    ];
    for (objectives, why) in wrong {
        let error = server.create_objective("wrong", &objectives).unwrap_err();
        assert!(error.contains(why), "{objectives}: {error}");
    }
    server.create_objective_for("unusable", "Equals", &json!(["p99=50ms"])).unwrap();
    server.wait_for_events("LullObjectiveIgnored", 1);
    node.create(server, "critical-a", &json!({ "lull.dev/class": "latency-critical" }));
    agent.wait_for_metric(CRITICAL_BOUND, 0.02);
    server.create_objective("web", &json!(["memory_pressure=5%"])).unwrap();
    agent.wait_for_metric(CRITICAL_BOUND, 0.05);
    agent.assert_printed("pod default/critical-a has other objectives");
    node.delete(server, "critical-a");
    agent.wait_for_present(PODS);
    a_resource_has_pods_left_alone(server, node, agent);
}

/// A `LatencyObjective` whose policy is `LeaveAlone` ends the management of the pods that it
/// selects.
fn a_resource_has_pods_left_alone(server: &Server, node: &mut Node, agent: &RunningAgent) {
    node.create(server, "left-a", &json!({}));
    agent.wait_for_present(PODS + 1);
    let selector = json!({ "matchLabels": { "left": "yes" } });
    let spec = json!({ "selector": selector, "policy": "LeaveAlone" });
    server.create_objective_of("leave", &spec).unwrap();
    agent.wait_until_printed("pod default/left-a is no longer managed");
    agent.wait_for_present(PODS);
    node.delete(server, "left-a");
}

fn pods_depart(server: &Server, node: &mut Node, agent: &RunningAgent) {
    for number in 150..PODS {
        node.delete(server, &format!("web-{number}"));
    }
    agent.wait_for_present(150);
    agent.assert_printed("pod default/web-199 is no longer managed");
}

/// Deletes every pod that is left while the agent watches: none stays managed.
fn all_pods_depart(server: &Server, node: &mut Node, agent: &RunningAgent) {
    let names = node.names();
    assert!(names.len() > 100, "{names:?}");
    for name in names {
        node.delete(server, &name);
    }
    agent.wait_for_present(0);
    agent.assert_printed("pod default/late is no longer managed");
    // The page answers, and a page that does not would show no pod, either.
    agent.wait_for_epochs(1);
    assert_eq!(agent.present(), 0);
}

fn the_server_restarts(server: &mut Server, node: &mut Node, agent: &RunningAgent) {
    server.stop();
    server.run();
    node.create(server, "after-restart", &json!({}));
    agent.wait_for_present(151);
}

fn the_server_is_away(server: &mut Server, node: &mut Node, agent: &RunningAgent) {
    server.stop();
    agent.wait_until_printed("the 151 pods that are known stay");
    // Epochs of two seconds in which the agent decides without a server: a minute, if there is
    // time.
    agent.wait_for_epochs(if is_long() { 30 } else { 20 });
    assert_eq!(agent.present(), 151);
    // Pods that end meanwhile are noticed by their processes.
    for number in 0..5 {
        node.end(&format!("web-{number}"));
    }
    agent.wait_for_present(146);
    server.run();
    for number in 0..5 {
        node.delete(server, &format!("web-{number}"));
        node.create(server, &format!("new-{number}"), &json!({}));
    }
    agent.wait_for_present(151);
    agent.wait_until_printed("the API server answers again");
}

/// A server that no longer answers while its connections stay, as behind a partition of the
/// network. It takes up to 40 s until that is noticed.
fn a_partition_separates_the_server(server: &Server, node: &mut Node, agent: &RunningAgent) {
    if !is_long() {
        return;
    }
    server.freeze(true);
    agent.wait_until_printed("the API server cannot be reached: no answer within 10 s");
    assert_eq!(agent.present(), 151);
    node.end("new-0");
    agent.wait_for_present(150);
    server.freeze(false);
    node.delete(server, "new-0");
    node.create(server, "new-0", &json!({}));
    agent.wait_for_present(151);
}

/// Whether losses of the API server may take their time.
fn is_long() -> bool {
    std::env::var_os("LULL_FLEET_PARTITION").is_some()
}

fn the_token_expires(server: &mut Server, node: &mut Node, agent: &RunningAgent) {
    server.revoke_tokens();
    server.write_token("expired");
    // The API server remembers which tokens it has accepted.
    server.stop();
    server.run();
    agent.wait_until_printed("the API server refuses the token");
    assert_eq!(agent.present(), 151);
    server.renew_token();
    node.create(server, "after-expiry", &json!({}));
    agent.wait_for_present(152);
}

fn latency_is_that_of_the_pod_that_is_the_app(
    server: &Server,
    node: &mut Node,
    agent: &RunningAgent,
) {
    let requests = |app: &str, pod: &str| {
        let pod = format!("namespace=\"default\",pod=\"{pod}\",workload=\"{pod}\"");
        format!("lull_requests_total{{app=\"{app}-1\",{pod}}}")
    };
    for pod in ["pushed-a", "pushed-b"] {
        node.create(server, pod, &json!({ "lull.dev/latency": "push" }));
        agent.wait_until_printed(&format!("pod default/{pod} is pushed-1"));
        let push = || agent.push(&format!("default/{pod}"), 10);
        agent.wait_for_growth(&requests("pushed", pod), push);
        node.delete(server, pod);
        agent.wait_until_printed(&format!("pod default/{pod} is no longer managed"));
    }
    node.create(server, "exported-a", &json!({ "lull.dev/latency": "otlp" }));
    agent.wait_until_printed("pod default/exported-a is exported-1");
    let mut count = 1_000;
    agent.wait_for_growth(&requests("exported", "exported-a"), || {
        count += 10;
        agent.export(node.uid("exported-a"), count);
    });
    node.delete(server, "exported-a");
    agent.wait_until_printed("pod default/exported-a is no longer managed");
}

/// A latency that nothing reports puts the node in the safe state, of which the pods have Events.
fn a_silent_pod_puts_the_node_in_the_safe_state(
    server: &Server,
    node: &mut Node,
    agent: &RunningAgent,
) {
    let before = server.events("LullSafeState");
    node.create(server, "silent", &json!({ "lull.dev/latency": "push" }));
    agent.wait_until_printed("pod default/silent is pushed-1");
    server.wait_for_a_new_event("LullSafeState", &before);
    node.delete(server, "silent");
    agent.wait_until_printed("pod default/silent is no longer managed");
}

/// Containers as the runtime of the node reports them by NRI.
fn a_runtime_reports_containers_before_the_server_does(
    server: &Server,
    node: &mut Node,
    agent: &RunningAgent,
) {
    // The page is of the last epoch, and the journal may be ahead of it.
    let before = 152;
    agent.wait_for_present(before);
    agent.assert_printed("the container runtime is not followed: cannot connect to");
    let start = |node: &Node| {
        let running = node.containers();
        let runtime = Runtime::start(&server.programs.runtime, server, &running);
        let count = running.len();
        agent.wait_until_printed(&format!(
            "the container runtime reports its containers: {count} run"
        ));
        runtime
    };
    let mut runtime = start(node);
    node.run_pod(server, "early", &json!({}));
    let (uid, id) = (node.uid("early").to_owned(), node.container("early"));
    let begun = Instant::now();
    runtime.report("start", &uid, &id, "");
    agent.wait_for_present(before + 1);
    let what = "from the start of a container until its pod is in the metrics";
    lull_testing::figure(what, begun.elapsed().as_secs_f64(), "s");
    // As the kubelet's CPU manager does to pods of its shared pool, and takes back from one.
    let (other_uid, other_id) = (node.uid("web-10").to_owned(), node.container("web-10"));
    runtime.report("update", &uid, &id, "0");
    runtime.report("update", &other_uid, &other_id, "0");
    agent.wait_until_printed("pods may use the cores 0 only");
    runtime.report("update", &other_uid, &other_id, "");
    agent.wait_until_printed("pod default/early is left alone: its cpuset has the cores 0 of");
    agent.wait_for_present(before);
    runtime.report("update", &uid, &id, "");
    agent.wait_for_present(before + 1);
    runtime.report("stop", &uid, &id, "");
    agent.wait_for_present(before);
    runtime.report("remove", &uid, &id, "");
    runtime.report("start", &uid, &id, "");
    agent.wait_for_present(before + 1);
    drop(runtime);
    agent.wait_until_printed("the container runtime is not followed: it has closed the connection");
    agent.wait_for_present(before);
    node.delete(server, "early");
    node.create(server, "late", &json!({}));
    let _runtime = start(node);
    agent.wait_for_present(before + 1);
}

/// Waits until something holds; more time than any step takes on a loaded machine.
pub(crate) fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    wait_or(|| what.to_owned(), holds);
}

/// The same, described when it does not come true.
pub(crate) fn wait_or(what: impl Fn() -> String, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "still not so: {}", what());
        std::thread::sleep(Duration::from_millis(20));
    }
}
