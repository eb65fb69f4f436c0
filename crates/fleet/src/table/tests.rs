//! Pods that come, change and go, and what is reported to the agent of them.

use super::*;
use crate::containers::tests::container;
use crate::pods::tests::{facts, mirror, pod};
use serde_json::{Value, json};

fn begin() -> Begin {
    let offer = |selector: &str, is_critical, of| TemplateOffer {
        selector: selector.to_owned(),
        is_critical,
        of,
        source: (of == Measured::Requests).then_some(LatencyName::Ebpf),
        percent: None,
    };
    Begin {
        templates: vec![
            offer("tier=web", true, Measured::Requests),
            offer("tier=web", true, Measured::RunQueue),
            offer("tier in (web,batch)", false, Measured::Nothing),
        ],
        ..Begin::default()
    }
}

fn table() -> Table {
    table_of(&begin())
}

/// A table that knows that there are no rules.
fn table_of(begin: &Begin) -> Table {
    let mut table = Table::new(begin).unwrap();
    table.end_rules();
    table
}

/// Returns the messages in short form.
fn sent_by(table: &mut Table) -> Vec<String> {
    let message = |message: FromWatcher| match message {
        FromWatcher::Pod(order) => format!("{} in {}", order.uid, order.template),
        FromWatcher::Gone(uid) => format!("{uid} gone"),
        FromWatcher::Synced => "synced".to_owned(),
        other => format!("{other:?}"),
    };
    table.take().messages.into_iter().map(message).collect()
}

fn apply(table: &mut Table, uid: &str, annotations: &Value) {
    table.apply(facts(pod(uid, annotations)));
}

fn labelled(uid: &str, labels: &Value) -> PodFacts {
    let mut pod = pod(uid, &json!({}));
    pod["metadata"]["labels"] = labels.clone();
    facts(pod)
}

#[test]
fn a_pod_takes_the_first_template_that_offers_what_it_requests() {
    let mut table = table();
    let cases = [
        (json!({}), 0),
        (json!({ "lull.dev/objective": "p99=50ms" }), 0),
        (json!({ "lull.dev/objective": "run_queue_p99=1ms" }), 1),
        (json!({ "lull.dev/class": "best-effort" }), 2),
    ];
    for (number, (annotations, template)) in cases.iter().enumerate() {
        let uid = format!("{number}");
        apply(&mut table, &uid, annotations);
        assert_eq!(sent_by(&mut table), [format!("{uid} in {template}")]);
    }
    table.apply(labelled("9", &json!({ "tier": "db" })));
    assert!(sent_by(&mut table).is_empty(), "no template selects it and it requests nothing");
    let mut other_tier = pod("10", &json!({ "lull.dev/class": "best-effort" }));
    other_tier["metadata"]["labels"] = json!({ "tier": "db" });
    table.apply(facts(other_tier));
    assert_eq!(sent_by(&mut table), ["10 in 2"], "what it requests counts more than its labels");
}

#[test]
fn a_pod_says_where_its_latency_comes_from() {
    let offer = |source, percent| TemplateOffer {
        selector: "tier=web".to_owned(),
        is_critical: true,
        of: Measured::Requests,
        source: Some(source),
        percent,
    };
    let templates = vec![
        offer(LatencyName::Ebpf, None),
        offer(LatencyName::Otlp, None),
        offer(LatencyName::Prometheus, Some(99.0)),
    ];
    let mut table = table_of(&Begin { templates, ..Begin::default() });
    let by = |source: &str, bound: &str| {
        let keys = ["lull.dev/latency", "lull.dev/objective"];
        json!({ keys[0]: source, keys[1]: bound })
    };
    apply(&mut table, "1", &by("otlp", "p95=5ms"));
    apply(&mut table, "2", &by("prometheus", "p99=5ms"));
    assert_eq!(sent_by(&mut table), ["1 in 1", "2 in 2"]);
    apply(&mut table, "3", &by("prometheus", "p95=5ms"));
    apply(&mut table, "4", &by("push", "p99=5ms"));
    let texts: Vec<String> = table.take().events.into_iter().map(|event| event.text).collect();
    assert!(texts[0].contains("latency = \"prometheus\" and percentile p95"), "{texts:?}");
    assert!(texts[1].ends_with("of latency of requests, latency = \"push\""), "{texts:?}");
    let own = json!({ "lull.dev/container": "main", "lull.dev/service": "checkout" });
    apply(&mut table, "5", &own);
    let Some(FromWatcher::Pod(order)) = table.take().messages.pop() else { panic!("no order") };
    let identity = order.identity();
    assert_eq!((identity.container.as_str(), identity.path()), ("main", "shop/web-5".to_owned()));
    assert_eq!((identity.uid.as_str(), identity.service.as_deref()), ("5", Some("checkout")));
}

#[test]
fn only_what_differs_is_sent_again() {
    let mut table = table();
    apply(&mut table, "1", &json!({}));
    apply(&mut table, "1", &json!({ "other": "annotation" }));
    assert_eq!(sent_by(&mut table), ["1 in 0"]);
    apply(&mut table, "1", &json!({ "lull.dev/objective": "p99=5ms" }));
    assert_eq!(sent_by(&mut table), ["1 in 0"]);
    apply(&mut table, "1", &json!({ "lull.dev/manage": "false" }));
    assert_eq!(sent_by(&mut table), ["1 gone"]);
    table.remove("1");
    assert!(sent_by(&mut table).is_empty());
}

#[test]
fn a_pod_with_wrong_annotations_is_unmanaged_and_gets_one_event() {
    let mut table = table();
    apply(&mut table, "1", &json!({}));
    table.take();
    for _ in 0..3 {
        apply(&mut table, "1", &json!({ "lull.dev/objective": "p99=fast" }));
    }
    let Outcome { messages, events } = table.take();
    assert!(matches!(&messages[0], FromWatcher::Gone(uid) if uid == "1"));
    assert_eq!((messages.len(), events.len()), (2, 1));
    assert_eq!(events[0].kind, Kind::Unmanaged);
    assert!(events[0].text.contains("p99=fast") && events[0].text.contains("lull.dev/objective"));
    apply(&mut table, "1", &json!({ "lull.dev/objective": "p95=slow" }));
    assert_eq!(table.take().events.len(), 1, "another mistake is another Event");
    apply(&mut table, "1", &json!({}));
    assert_eq!(sent_by(&mut table), ["1 in 0"]);
}

#[test]
fn an_annotation_adds_no_line_to_the_journal_and_steers_no_terminal() {
    let mut table = table();
    let hostile = "x\npod kube-system/dns is not managed\u{1b}[2J\u{202e}";
    apply(&mut table, "1", &json!({ "lull.dev/class": hostile }));
    let Outcome { messages, events } = table.take();
    let [FromWatcher::Notice(notice)] = messages.as_slice() else { panic!("{messages:?}") };
    for text in [notice, &events[0].text] {
        assert!(text.contains("x\\u{a}pod kube-system/dns"), "{text}");
        assert!(!text.contains(['\n', '\u{1b}', '\u{202e}']), "{text}");
    }
}

#[test]
fn a_pod_without_a_template_learns_what_is_missing() {
    let mut table = table();
    apply(&mut table, "1", &json!({ "lull.dev/objective": "memory_pressure=2%" }));
    apply(&mut table, "2", &json!({ "lull.dev/container": "sidecar" }));
    apply(
        &mut table,
        "3",
        &json!({ "lull.dev/objective": "run_queue_p99=1ms", "lull.dev/latency": "ebpf" }),
    );
    let texts: Vec<String> = table.take().events.into_iter().map(|event| event.text).collect();
    assert!(texts[0].contains("memory pressure"), "{texts:?}");
    assert!(texts[1].contains("there are main"), "{texts:?}");
    assert!(texts[2].contains("not read for an objective of run-queue"), "{texts:?}");
}

#[test]
fn a_listing_removes_what_it_does_not_have() {
    let mut table = table();
    table.begin_list();
    ["1", "2", "3"].iter().for_each(|uid| apply(&mut table, uid, &json!({})));
    table.end_list();
    assert_eq!(sent_by(&mut table), ["1 in 0", "2 in 0", "3 in 0", "synced"]);
    table.begin_list();
    ["1", "4"].iter().for_each(|uid| apply(&mut table, uid, &json!({})));
    table.end_list();
    assert_eq!(sent_by(&mut table), ["4 in 0", "2 gone", "3 gone", "synced"]);
}

#[test]
fn no_pod_takes_the_uid_of_another_one() {
    let mut table = table();
    let hash = "0f".repeat(16);
    table.apply(facts(mirror("1", &hash)));
    assert_eq!(sent_by(&mut table), [format!("{hash} in 0")]);
    for uid in ["2", "3"] {
        table.apply(facts(mirror(uid, &hash)));
        table.delete(uid);
    }
    let messages = sent_by(&mut table);
    assert_eq!(messages.len(), 1, "the pod stays: {messages:?}");
    assert!(messages[0].contains("web-2 is not managed"), "{messages:?}");
    // The mirror was deleted, and the kubelet has made it again before the deletion is seen.
    let mut again = mirror("4", &hash);
    again["metadata"]["name"] = json!("web-1");
    table.apply(facts(again));
    table.delete("1");
    assert!(sent_by(&mut table).is_empty());
    table.delete("4");
    assert_eq!(sent_by(&mut table), [format!("{hash} gone")]);
}

#[test]
fn a_pod_whose_uid_changes_is_one_pod() {
    let mut table = table();
    let hash = "0f".repeat(16);
    apply(&mut table, "1", &json!({}));
    table.apply(facts(mirror("1", &hash)));
    let managed = format!("{hash} in 0");
    assert_eq!(sent_by(&mut table), ["1 in 0", "1 gone", managed.as_str()]);
    table.delete("1");
    assert_eq!(sent_by(&mut table), [format!("{hash} gone")]);
}

#[test]
fn a_pod_is_managed_while_a_container_runs() {
    let mut table = table();
    let mut waiting = pod("1", &json!({}));
    waiting["status"]["containerStatuses"][0]["state"] = json!({ "waiting": {} });
    table.apply(facts(waiting.clone()));
    assert!(sent_by(&mut table).is_empty());
    apply(&mut table, "1", &json!({}));
    table.apply(facts(waiting));
    assert_eq!(sent_by(&mut table), ["1 in 0", "1 gone"]);
    let named = json!({ "lull.dev/container": "main" });
    let mut of_other_runtime = pod("2", &named);
    of_other_runtime["status"]["containerStatuses"][0]["containerID"] = json!("new://1");
    table.apply(facts(of_other_runtime));
    assert!(table.take().events[0].text.contains("runtime that is not known"));
    apply(&mut table, "3", &named);
    let messages = table.take().messages;
    assert!(matches!(&messages[..], [FromWatcher::Pod(order)] if order.container.is_some()));
}

#[test]
fn a_latency_objective_speaks_for_the_pods_that_it_selects() {
    let mut table = table();
    apply(&mut table, "1", &json!({}));
    apply(&mut table, "2", &json!({ "lull.dev/objective": "p95=7ms" }));
    table.take();
    let spec = |objective: &str| -> LatencyObjectiveSpec {
        serde_json::from_value(json!({
            "selector": { "matchLabels": { "tier": "web" } }, "objectives": [objective],
        }))
        .unwrap()
    };
    table.set_rule("other", "web", Some(&spec("p99=50ms")));
    assert!(sent_by(&mut table).is_empty(), "another namespace");
    table.set_rule("shop", "web", Some(&spec("p99=50ms")));
    let messages = table.take().messages;
    let [FromWatcher::Pod(order)] = &messages[..] else { panic!("{messages:?}") };
    let bound_ns = 50_000_000;
    assert_eq!(order.objectives, [Bound::Tail { percent: 99.0, bound_ns }]);
    table.set_rule("shop", "second", Some(&spec("p99=5ms")));
    let texts: Vec<String> = table.take().events.into_iter().map(|event| event.text).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("`second` and `web` both select it"), "{texts:?}");
    table.retain_rules(&BTreeSet::from([("shop".to_owned(), "web".to_owned())]));
    assert_eq!(sent_by(&mut table), ["1 in 0", "2 in 0"]);
    table.set_rule("shop", "web", None);
    assert_eq!(sent_by(&mut table), ["1 in 0"]);
}

#[test]
fn pods_are_judged_once_the_latency_objectives_are_known() {
    let mut table = Table::new(&begin()).unwrap();
    table.begin_list();
    apply(&mut table, "1", &json!({}));
    table.end_list();
    let spec: LatencyObjectiveSpec = serde_json::from_value(json!({
        "selector": { "matchLabels": { "tier": "web" } }, "objectives": ["run_queue_p99=1ms"],
    }))
    .unwrap();
    table.set_rule("shop", "web", Some(&spec));
    assert!(sent_by(&mut table).is_empty(), "another rule may follow");
    table.end_rules();
    assert_eq!(sent_by(&mut table), ["1 in 1", "synced"]);
    table.begin_list();
    table.end_list();
    assert_eq!(sent_by(&mut table), ["1 gone", "synced"]);
}

#[test]
fn why_a_latency_objective_is_ignored_is_returned_for_its_owner() {
    let mut table = table();
    let spec: LatencyObjectiveSpec = serde_json::from_value(json!({
        "selector": {}, "objectives": ["p99=5ms", "memory_pressure=2%"],
    }))
    .unwrap();
    let why = table.set_rule("shop", "web", Some(&spec)).unwrap();
    assert!(why.contains("keep one"), "{why}");
    apply(&mut table, "1", &json!({}));
    let mut object = facts(pod("1", &json!({}))).reference();
    assert!(table.knows(&object));
    object.uid = Some("2".to_owned());
    assert!(!table.knows(&object), "a pod that is gone");
    object.kind = Some("LatencyObjective".to_owned());
    assert!(table.knows(&object));
}

#[test]
fn labels_say_what_annotations_say() {
    let mut table = table();
    table.apply(labelled("1", &json!({ "tier": "web" })));
    table.apply(labelled("1", &json!({ "tier": "web", "lull.dev/manage": "false" })));
    assert_eq!(sent_by(&mut table), ["1 in 0", "1 gone"]);
    table.apply(labelled("2", &json!({ "tier": "web", "lull.dev/managed": "false" })));
    let Outcome { messages, events } = table.take();
    assert!(matches!(&messages[..], [FromWatcher::Notice(_)]), "{messages:?}");
    assert!(events[0].text.starts_with("lull.dev/managed is unknown"), "{events:?}");
}

#[test]
fn a_latency_objective_that_was_left_out_counts_once_there_is_room() {
    let mut table = table();
    let spec = |objective: &str| -> LatencyObjectiveSpec {
        serde_json::from_value(json!({ "selector": {}, "objectives": [objective] })).unwrap()
    };
    let other: LatencyObjectiveSpec = serde_json::from_value(json!({
        "selector": { "matchLabels": { "tier": "none" } }, "objectives": ["p99=5ms"],
    }))
    .unwrap();
    for number in 0..64 {
        assert_eq!(table.set_rule("shop", &number.to_string(), Some(&other)), None);
    }
    let why = table.set_rule("shop", "gone", Some(&spec("run_queue_p99=2ms"))).unwrap();
    assert!(why.contains("64 of a namespace"), "{why}");
    table.set_rule("shop", "last", Some(&spec("run_queue_p99=1ms")));
    apply(&mut table, "1", &json!({}));
    let messages = sent_by(&mut table);
    assert_eq!(messages[1..], ["1 in 0"], "reported once, and no rule that counts selects it");
    table.set_rule("shop", "gone", None);
    assert!(sent_by(&mut table).is_empty());
    table.set_rule("shop", "7", None);
    let messages = sent_by(&mut table);
    assert_eq!(messages[0], "1 in 1");
    assert!(messages[1].contains("shop/last has room now"), "{messages:?}");
    table.retain_rules(&BTreeSet::new());
    assert_eq!(sent_by(&mut table), ["1 in 0"], "no rule is left");
}

#[test]
fn pods_that_may_have_cores_of_their_own_are_marked() {
    let exclusive = |cpu_manager| {
        let mut table = table_of(&Begin { cpu_manager, ..begin() });
        let mut pod = pod("1", &json!({}));
        pod["status"]["qosClass"] = json!("Guaranteed");
        pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "2" } });
        table.apply(facts(pod));
        let messages = table.take().messages;
        let [FromWatcher::Pod(order)] = &messages[..] else { panic!("{messages:?}") };
        order.may_be_exclusive
    };
    assert!(exclusive(CpuManager::Unknown) && exclusive(CpuManager::Static));
    assert!(!exclusive(CpuManager::None));
}

#[test]
fn more_pods_than_a_node_has_are_left_and_reported_once() {
    let mut table = table();
    for number in 0..PODS_MAX + 2 {
        apply(&mut table, &format!("{number:x}"), &json!({}));
    }
    let messages = table.take().messages;
    let notices = messages.iter().filter(|it| matches!(it, FromWatcher::Notice(_))).count();
    assert_eq!((messages.len(), notices), (PODS_MAX + 1, 1));
}

/// A pod whose kubelet has not reported its container yet.
fn pending(uid: &str) -> PodFacts {
    let mut pod = pod(uid, &json!({}));
    pod["status"] = json!({ "phase": "Pending", "qosClass": "Guaranteed" });
    pod["spec"]["containers"][0]["resources"] = json!({ "limits": { "cpu": "2" } });
    facts(pod)
}

#[test]
fn a_pod_is_managed_once_its_runtime_has_started_it_whatever_its_status_says() {
    let mut table = table();
    table.apply(pending("1"));
    apply(&mut table, "2", &json!({}));
    let messages = table.take().messages;
    let [FromWatcher::Pod(first), FromWatcher::Pod(second)] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert!(first.is_starting && !second.is_starting, "its cgroup tells when it runs");
    table.take_containers(ContainerChange::Runs(container("1", 1, "")));
    assert!(sent_by(&mut table).is_empty(), "before its listing a runtime has not told all");
    table.take_containers(ContainerChange::All(Vec::new()));
    assert_eq!(sent_by(&mut table), ["1 gone", "2 gone"], "their status is late");
    table.take_containers(ContainerChange::Runs(container("1", 1, "")));
    let messages = table.take().messages;
    let [FromWatcher::Pod(order)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!((order.uid.as_str(), order.cpus.as_str()), ("1", ""));
    assert!(!order.may_be_exclusive, "the CPU manager has given it no cores");
    let init = RuntimeContainer { name: "init".to_owned(), ..container("3", 3, "") };
    table.take_containers(ContainerChange::Runs(init));
    table.apply(pending("3"));
    assert!(sent_by(&mut table).is_empty(), "a container that only prepares the pod");
    table.take_containers(ContainerChange::Ended(container("1", 1, "").id));
    assert_eq!(sent_by(&mut table), ["1 gone"]);
    table.lose_containers();
    let again = ["1 in 0", "2 in 0", "3 in 0"];
    assert_eq!(sent_by(&mut table), again, "status and cgroups count again");
    let mut named = pending("4");
    named.annotations.insert("lull.dev/container".to_owned(), "main".to_owned());
    table.apply(named);
    assert!(sent_by(&mut table).is_empty(), "the cgroup of its container is not known yet");
}

#[test]
fn cores_that_the_runtime_sets_are_passed_on_at_once() {
    let mut table = table();
    table.apply(pending("1"));
    table.take();
    table.take_containers(ContainerChange::All(vec![container("1", 1, "0-7")]));
    let cpus = |table: &mut Table| {
        let messages = table.take().messages;
        let [FromWatcher::Pod(order)] = &messages[..] else { panic!("{messages:?}") };
        order.cpus.clone()
    };
    assert_eq!(cpus(&mut table), "0-7");
    table.take_containers(ContainerChange::Changed(container("1", 1, "2-3")));
    assert_eq!(cpus(&mut table), "2-3");
    table.take_containers(ContainerChange::Runs(container("1", 2, "0-3")));
    assert!(table.take().messages.is_empty(), "the fewest cores of its containers");
    table.take_containers(ContainerChange::Changed(container("1", 1, "")));
    assert_eq!(cpus(&mut table), "0-3");
}
