//! Invalid configs and the errors that they cause.

use super::*;
use crate::otlp::Senders;
use lull_control::EpochRule;
use lull_measure::Nanos;
use lull_policies::Family;
use lull_policies::admission::Workers;

const GOOD: &str = r#"
[policy]
name = "arq"
period = "500ms"

[[app]]
name = "cache"
class = "latency-critical"
objectives = [{ p95 = "4.2ms" }, { throughput = 1000 }]
ideal = "2.8ms"
start = ["memcached", "-t", "4"]

[[app]]
name = "batch"
class = "best-effort"
solo = "measure"
pid = 1
"#;

fn load(text: &str) -> Result<Config, InputError> {
    Config::from_located(Located::embedded("lull.toml", text))
}

fn refusal(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "the test replaces nothing");
    load(&GOOD.replacen(from, to, 1)).expect_err(to).to_string()
}

#[test]
fn runs_have_seeds_of_their_own_unless_one_is_given() {
    let seed = |text: &str| load(text).unwrap().agent.seed();
    assert_ne!(seed(GOOD), seed(GOOD), "one in 2^32 is equal by chance");
    assert_eq!(seed(&format!("[agent]\nseed = 7\n{GOOD}")), 7);
}

#[test]
fn a_good_config_is_what_it_says() {
    let config = load(GOOD).unwrap();
    assert_eq!(config.policy, "arq");
    assert_eq!(config.policy_keys.len(), 1);
    let specs = config.specs();
    assert_eq!(specs[0].ideal, Some(Nanos(2_800_000)));
    assert_eq!(specs[0].objectives.len(), 2);
    assert_eq!(specs[1].solo_per_s, None);
    assert_eq!(config.apps[1].origin(), Ok(AppOrigin::Pid(1)));
}

#[test]
fn an_objective_may_be_of_run_queue_latency() {
    let config = load(&GOOD.replace("p95 = \"4.2ms\"", "\"run_queue_p99.9\" = \"5ms\"")).unwrap();
    let app = &config.apps[0];
    assert_eq!(app.latency_of(), Some(LatencyOf::RunQueue));
    let (percentile, bound) = app.spec().tail().unwrap();
    assert_eq!((percentile.percent(), bound), (99.9, Nanos::from_millis(5)));
}

#[test]
fn an_objective_may_be_of_memory_pressure_under_every_co_location_policy() {
    let text = GOOD.replace("p95 = \"4.2ms\"", "memory_pressure = \"2.5%\"");
    let text = text.replace("ideal = \"2.8ms\"", "");
    let config = load(&text).unwrap();
    assert_eq!(config.apps[0].latency_of(), Some(LatencyOf::MemoryPressure));
    let (_, bound) = config.apps[0].spec().tail().unwrap();
    assert_eq!(bound, Nanos::from_millis(25), "in each second");
    let colocation = POLICIES.iter().filter(|entry| entry.kind.family == Family::Colocation);
    let names: Vec<&str> = colocation.map(|entry| entry.name).collect();
    assert!(names.contains(&"arq") && names.contains(&"tide"), "{names:?}");
    for name in names {
        config.under(name).check_latency_detail().unwrap();
    }
}

#[test]
fn an_objective_of_memory_pressure_is_alone_and_a_share() {
    let both = "lull.toml:9: app[0].objectives: bounds latency of requests and memory pressure";
    all_refused(&[
        ("{ throughput = 1000 }", "{ memory_pressure = \"2%\" }", both),
        (
            "p95 = \"4.2ms\" }, { throughput = 1000 }]",
            "memory_pressure = \"2%\" }]\nlatency = \"ebpf\"",
            "lull.toml:10: app[0].latency: is not read for an objective of memory pressure",
        ),
        (
            "p95 = \"4.2ms\"",
            "memory_pressure = \"2ms\"",
            "app[0].objectives[0].memory_pressure: `2ms` is not a share of time: write \"2%\"",
        ),
    ]);
}

#[test]
fn processes_may_register_as_a_template_of_users() {
    let text = with_template("register = \"{alice,batch-*}\"\nmost = 2");
    let config = load(&text).unwrap();
    let of_template: Vec<_> = config.apps.iter().filter(|app| app.slot.is_some()).collect();
    assert_eq!(of_template.len(), 2);
    let as_worker =
        RegisterAs { template: "worker".to_owned(), users: "{alice,batch-*}".to_owned() };
    assert_eq!(of_template[1].origin(), Ok(AppOrigin::Register(as_worker)));
    assert_eq!(of_template[1].name, "worker-2");
    let wrong = load(&with_template("register = \"[\"")).unwrap_err().to_string();
    assert!(wrong.contains("match[0].register: `[` is not a pattern"), "{wrong}");
    let alone = format!("[agent]\nregister = \"/run/x\"\n{GOOD}");
    let wrong = load(&alone).unwrap_err().to_string();
    assert!(wrong.contains("agent.register: needs a [[match]]"), "{wrong}");
}

/// `GOOD` with a template.
fn with_template(keys: &str) -> String {
    let head = "\n[[match]]\nname = \"worker\"\nclass = \"best-effort\"\n";
    format!("{GOOD}{head}{keys}")
}

#[test]
fn a_template_is_as_many_apps_as_there_may_be_at_a_time() {
    let config =
        load(&with_template("exe = \"ffmpeg\"\nuser = \"batch\"\nmost = 3\nsolo = 2")).unwrap();
    let names: Vec<_> = config.apps.iter().map(|app| app.name.as_str()).collect();
    assert_eq!(names, ["cache", "batch", "worker-1", "worker-2", "worker-3"]);
    let last = &config.apps[4];
    assert_eq!(last.slot, Some(TemplateSlot { template: 0, index: 2 }));
    assert_eq!(last.spec().solo_per_s, Some(2.0));
    let Ok(AppOrigin::Match(pattern)) = last.origin() else { panic!("{:?}", last.origin()) };
    assert_eq!(pattern.to_string(), "exe `ffmpeg` and user `batch`");
    let units = load(&with_template("unit = \"web-*.service\"")).unwrap();
    assert_eq!(units.apps.len(), 10, "eight apps where `most` does not say");
}

#[test]
fn templates_are_refused_by_their_own_keys() {
    let cases = [
        ("", "match[0].name: needs what matches"),
        ("exe = \"a\"\nunit = \"b-*\"", "match[0].name: needs what matches"),
        ("exe = \"a[\"", "lull.toml:22: match[0].exe: `a[` is not a pattern"),
        ("unit = \"db.service\"", "match[0].unit: names one unit"),
        ("cgroup = \"kubepods\"", "match[0].cgroup: names one cgroup"),
        (
            "exe = \"a\"\nobjectives = [{ p95 = \"9ms\" }]",
            "lull.toml:23: match[0].objectives: bounds requests",
        ),
        ("exe = \"a\"\nmost = 257", "lull.toml:23: match[0].most: is 257: write 1 to 256"),
        ("exe = \"a\"\nmost = 0", "match[0].most"),
        ("exe = \"a\"\npid = 3", "match[0].pid: unknown field"),
        ("exe = \"a\"\nideal = \"measure\"", "match[0].ideal"),
    ];
    for (keys, want) in cases {
        let got = load(&with_template(keys)).expect_err(keys).to_string();
        assert!(got.contains(want), "{keys}\n  got:  {got}\n  want: {want}");
    }
    let critical =
        with_template("exe = \"a\"").replace("\"best-effort\"\nexe", "\"latency-critical\"\nexe");
    let got = load(&critical).expect_err("no objective").to_string();
    assert!(got.contains("match[0].objectives: `worker-1` is latency-critical"), "{got}");
    let twice = with_template("exe = \"a\"").replace("name = \"batch\"", "name = \"worker-2\"");
    let got = load(&twice).expect_err("two of one name").to_string();
    assert!(got.contains("match[0].name: two apps are called `worker-2`"), "{got}");
    let odd = with_template("exe = \"a\"").replace("\"worker\"", "\"a worker\"");
    let got = load(&odd).expect_err("a blank").to_string();
    assert!(got.contains("lull.toml:20: match[0].name: must be a word"), "{got}");
}

#[test]
fn an_app_with_a_page_need_not_be_started() {
    let attached = "pid = 1\nlatency = \"preload\"\npage = \"/run/lull-db\"\nconcurrency = 4";
    let config = load(&GOOD.replace("pid = 1", attached)).unwrap();
    assert_eq!(config.apps[1].page.as_deref(), Some(Path::new("/run/lull-db")));
}

#[test]
fn every_refusal_names_file_line_and_key() {
    let cases = [
        ("period", "[agent]\nperoid", "lull.toml:5: agent.peroid: unknown field"),
        ("ideal = \"2.8ms\"", "idle = \"2.8ms\"", "lull.toml:10: app[0].idle: unknown field"),
        ("pid = 1", "pid = 1\nlatency = \"preload\"", "app[1].latency: `preload` needs `start`"),
        ("pid = 1", "pid = 1\nlatency = \"preload\"", "starts; or `page`, of a server"),
        ("ideal = \"2.8ms\"", "page = \"/x\"", "lull.toml:10: app[0].page: needs latency"),
        (
            "pid = 1",
            "pid = 1\nlatency = \"preload\"\npage = \"/x\"\n[[app]]\nname = \"b\"\n\
             class = \"best-effort\"\nunit = \"x\"\nlatency = \"preload\"\npage = \"/x\"",
            "lull.toml:25: app[2].page: is another app's, too",
        ),
        ("ideal = \"2.8ms\"", "concurrency = 4", "lull.toml:10: app[0].concurrency: needs latency"),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = 0",
            "lull.toml:11: app[0].concurrency: must be 1 to 256 transactions",
        ),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = 4\ngate = { delay = \"1s\" }",
            "lull.toml:12: app[0].gate.delay: is 1000ms, not in 0 to 100ms",
        ),
        ("\"4.2ms\"", "\"4.2\"", "lull.toml:9: app[0].objectives"),
        ("p95 =", "bound =", "unknown objective `bound`"),
        (
            "{ throughput = 1000 }",
            "{ run_queue_p99 = \"1ms\" }",
            "lull.toml:9: app[0].objectives: bounds latency of requests and run-queue latency",
        ),
        (
            "p95 = \"4.2ms\" }, { throughput = 1000 }]",
            "run_queue_p99 = \"1ms\" }]\nlatency = \"ebpf\"",
            "lull.toml:10: app[0].latency: is not read for an objective of run-queue latency",
        ),
        ("p95 =", "run_queue_throughput =", "unknown objective `run_queue_throughput`"),
        (
            "{ p95 = \"4.2ms\" }, ",
            "",
            "lull.toml:9: app[0].objectives: `cache` is latency-critical",
        ),
        ("\"batch\"", "\"cache\"", "lull.toml:14: app[1].name: two apps are called `cache`"),
        (
            "ideal = \"2.8ms\"",
            "ideal = \"5ms\"",
            "lull.toml:10: app[0].ideal: `cache`: 5ms is above",
        ),
        ("pid = 1", "", "app[1].name: say where the app is"),
        ("pid = 1", "pid = 1\nunit = \"x\"", "more than one of"),
        ("name = \"arq\"", "", "lull.toml:2: policy: has no name"),
        ("[\"memcached\", \"-t\", \"4\"]", "[]", "lull.toml:11: app[0].start: is empty"),
        ("best-effort", "batch", "lull.toml:15: app[1].class: unknown variant"),
    ];
    all_refused(&cases);
}

fn all_refused(cases: &[(&str, &str, &str)]) {
    for (from, to, want) in cases {
        let got = refusal(from, to);
        assert!(got.contains(want), "{to}\n  got:  {got}\n  want: {want}");
    }
}

#[test]
fn every_refusal_of_a_gate_or_an_admission_controller_names_file_line_and_key() {
    let cases = [
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\ngate = { batch = 4 }",
            "app[0].concurrency: is missing",
        ),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = 4\ngate = { mode = \"epoll\", delay = \"0s\" }",
            "app[0].gate.delay: is 0ms, not in 1 to 100ms",
        ),
        ("ideal = \"2.8ms\"", "concurrency = \"auto\"", "app[0].concurrency: needs latency"),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = \"auto\"\ngate = { batch = 4 }",
            "lull.toml:12: app[0].gate.batch: is for the app's admission controller to decide",
        ),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = \"autoo\"",
            "no admission controller is called `autoo`",
        ),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = { goal = \"tail\" }",
            "lull.toml:11: app[0].concurrency: has no `name` of an admission controller",
        ),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = { name = \"auto\", gaol = 1 }",
            "lull.toml:11: app[0].concurrency.gaol: ",
        ),
        (
            "ideal = \"2.8ms\"\nstart = [\"memcached\", \"-t\", \"4\"]",
            "latency = \"preload\"\nstart = [\"memcached\"]\n[[app.promise]]\nconnections = 1\n\
             objective = { p95 = \"9ms\" }",
            "app[0].promise: needs an admission controller that keeps it",
        ),
        (
            "ideal = \"2.8ms\"\nstart = [\"memcached\", \"-t\", \"4\"]",
            "latency = \"preload\"\nconcurrency = \"pslo\"\nstart = [\"memcached\"]\n\
             [[app.promise]]\nconnections = 0\nobjective = { p95 = \"9ms\" }",
            "app[0].promise[0].connections: is 0, not in 1 to 10000",
        ),
        (
            "ideal = \"2.8ms\"",
            "latency = \"preload\"\nconcurrency = \"pslo\"",
            "none is promised a percentile",
        ),
    ];
    all_refused(&cases);
}

#[test]
fn a_tail_from_prometheus_needs_a_query_and_a_policy_that_goes_by_it() {
    let address = "latency = \"prometheus:http://127.0.0.1:9090\"";
    let with = |lines: &str| format!("ideal = \"2.8ms\"\n{lines}");
    let good = with(&format!("{address}\nquery = \"up\""));
    let config = load(&GOOD.replacen("ideal = \"2.8ms\"", &good, 1)).unwrap();
    assert!(matches!(config.apps[0].latency, LatencySource::Prometheus(_)));
    assert_eq!(config.check_latency_detail(), Ok(()));
    let error = config.under("tide").check_latency_detail().unwrap_err().to_string();
    assert!(error.contains("app[0].latency: `tide` needs every request"), "{error}");
    let cases = [
        (with(address), "app[0].latency: needs `query`"),
        (with("query = \"up\""), "app[0].query: is for latency"),
        (
            with(&format!("{address}\nquery = \"up\"\nprometheus = {{ token = \"/t\" }}")),
            "app[0].prometheus.token: needs an encrypted connection",
        ),
        (
            with(&format!("{address}\nquery = \"up\"\nprometheus = {{ key = \"/k\" }}")),
            "app[0].prometheus.certificate: and `key` belong together",
        ),
        (with("prometheus = { load = \"up\" }"), "app[0].prometheus: is for latency"),
        (with("latency = \"pull\""), "`pull` is not a source of latency"),
        (format!("ideal = \"measure\"\n{address}\nquery = \"up\""), "app[0].ideal: cannot"),
    ];
    for (to, want) in cases {
        let got = refusal("ideal = \"2.8ms\"", &to);
        assert!(got.contains(want), "{to}\n  got:  {got}\n  want: {want}");
    }
    let got = refusal("solo = \"measure\"", &format!("{address}\nquery = \"up\""));
    assert!(got.contains("app[1].latency: applies only to a latency-critical app"), "{got}");
}

#[test]
fn what_the_server_itself_saw_is_every_request_and_its_gate_is_known_beforehand() {
    let seen = "latency = \"preload\"\nconcurrency = 4\ngate = { delay = \"1ms\" }\nthreads = 12";
    let config = load(&GOOD.replacen("ideal = \"2.8ms\"", seen, 1)).unwrap();
    assert_eq!(config.under("bayop").check_latency_detail(), Ok(()));
    let gates = config.gates();
    assert_eq!((gates.len(), gates[0].app, gates[0].workers), (1, AppId(0), Some(12)));
    assert!(load(GOOD).unwrap().gates().is_empty());
}

#[test]
fn an_admission_controller_knows_what_its_app_is_promised_and_keeps_policies_off_its_gate() {
    let with = |lines: &str| {
        let seen = format!("latency = \"preload\"\n{lines}");
        load(&GOOD.replacen("ideal = \"2.8ms\"", &seen, 1)).unwrap()
    };
    let setup = |config: &Config| config.apps[0].admission_setup().unwrap().unwrap();
    let auto = with("concurrency = \"auto\"");
    assert_eq!((setup(&auto).name.as_str(), setup(&auto).objectives.len()), ("auto", 2));
    assert_eq!(setup(&auto).workers, Workers::WaitOrRest, "a bound says how long they may rest");
    assert!(auto.gates().is_empty());
    let keys =
        with("concurrency = { name = \"auto\", goal = \"tail\" }\ngate = { mode = \"post\" }");
    assert_eq!(setup(&keys).keys["goal"].as_str(), Some("tail"));
    assert_eq!(setup(&keys).workers, Workers::Wait);
    let rests = with("concurrency = \"reef\"\ngate = { mode = \"epoll\", slot_lease = \"80ms\" }");
    assert_eq!(setup(&rests).workers, Workers::Rest);
    assert_eq!(setup(&rests).closed.slot_lease_ns, 80_000_000);
    assert!(with("").apps[0].admission_setup().unwrap().is_none());
}

#[test]
fn the_example_of_a_database_is_a_good_one_with_promises_and_without() {
    let example = include_str!("../../../../examples/mariadb.toml");
    let config = load(example).unwrap();
    assert_eq!(config.apps[0].admission_setup().unwrap().unwrap().workers, Workers::WaitOrRest);
    let is_written = |line: &str| line.starts_with("# [[") || line.contains(" = ");
    let shown = example.lines().map(|line| match line.strip_prefix("# ") {
        Some(rest) if is_written(line) && !line.contains("write concurrency") => rest,
        _ => line,
    });
    let promised = shown.collect::<Vec<_>>().join("\n").replace("\"auto\"", "\"pslo\"");
    let setup = load(&promised).unwrap().apps[0].admission_setup().unwrap().unwrap();
    assert_eq!((setup.name.as_str(), setup.promises.len()), ("pslo", 1));
}

#[test]
fn a_load_without_an_app_is_refused() {
    let load_section =
        "\n[[load]]\napp = \"cach\"\ntarget = \"http://localhost\"\nrate = \"1/s\"\n";
    let error = load(&format!("{GOOD}{load_section}")).unwrap_err().to_string();
    assert!(error.starts_with("lull.toml:20: load[0].app: there is no app"), "{error}");
}

#[test]
fn an_epoch_may_follow_the_load_and_its_constants_are_checked() {
    let text = |longest: &str| {
        format!("[agent.adaptive_epoch]\nrhythm = {{ longest = \"{longest}\" }}\n{GOOD}")
    };
    let config = load(&text("400ms")).unwrap();
    assert!(matches!(config.epoch_rule(), EpochRule::Adaptive(_)));
    let error = load(&text("1ms")).unwrap_err().to_string();
    assert!(error.starts_with("lull.toml:1: agent.adaptive_epoch:"), "{error}");
}

#[test]
fn no_app_is_refused() {
    let error = load("[policy]\nname = \"arq\"\n").unwrap_err().to_string();
    assert!(error.contains("has no [[app]]"), "{error}");
}

#[test]
fn latency_by_otlp_needs_an_address_and_has_the_apps_name_as_its_service() {
    let with = |lines: &str| format!("ideal = \"2.8ms\"\n{lines}");
    let of = |lines: &str| GOOD.replacen("ideal = \"2.8ms\"", &with(lines), 1);
    let address = "[agent]\notlp = \"[::1]:0\"\n";
    let received = format!("{address}{}", of("latency = \"otlp\""));
    let config = load(&received).unwrap();
    let source = config.apps[0].otlp_source(3).unwrap();
    assert_eq!((source.app, source.from), (3, Senders::Service(config.apps[0].name.clone())));
    assert_eq!((source.metric.as_str(), source.route), ("http.server.request.duration", None));
    assert_eq!(config.apps[1].otlp_source(4), None);
    let cases = [
        ("latency = \"otlp\"", "app[0].latency: needs an address to receive at"),
        ("otlp = { route = \"/\" }", "app[0].otlp: is for latency"),
    ];
    for (to, want) in cases {
        let got = refusal("ideal = \"2.8ms\"", &with(to));
        assert!(got.contains(want), "{to}\n  got:  {got}\n  want: {want}");
    }
    let got = load(&format!("{address}{GOOD}")).unwrap_err().to_string();
    assert!(got.contains("agent.otlp: needs an app"), "{got}");
}

#[test]
fn pods_need_a_discovery_and_a_discovery_needs_pods() {
    let with = |agent: &str, template: &str| {
        let head = "name = \"web\"\nclass = \"latency-critical\"\n";
        load(&format!(
            "[agent]\n{agent}\n[policy]\nname = \"unmanaged\"\n[[match]]\n{head}{template}"
        ))
    };
    let refused = |agent, template| with(agent, template).unwrap_err().to_string();
    let discover = "discover = \"kubernetes\"";
    let pods = "pods = \"tier=web\"\nlatency = \"ebpf\"\nobjectives = [{ p99 = \"50ms\" }]";
    let config = with(discover, pods).unwrap();
    assert_eq!(config.apps.len(), 8);
    assert!(
        matches!(config.apps[7].origin(), Ok(AppOrigin::Pods(one)) if one.selector == "tier=web")
    );
    assert_eq!(config.apps[0].latency, LatencySource::Ebpf);
    assert!(refused("", pods).contains("match[0].pods: needs agent.discover"));
    let cgroups = "cgroup = \"a/*\"\nobjectives = [{ run_queue_p99 = \"1ms\" }]";
    assert!(refused(discover, cgroups).contains("agent.discover: needs a [[match]] with `pods`"));
    let cgroups = format!("latency = \"ebpf\"\n{cgroups}");
    assert!(refused("", &cgroups).contains("match[0].latency: is for `pods` only"));
    let preloaded = pods.replace("ebpf", "preload");
    assert!(refused(discover, &preloaded).contains("match[0].latency: of pods must be"));
    let of_all = format!("{}\nquery = \"x\"", pods.replace("ebpf", "prometheus:http://p:9090"));
    assert!(refused(discover, &of_all).contains("match[0].query: is the same for all pods"));
    let queried = of_all.replace("\"x\"", "'x{pod=\"$pod\"}'");
    assert!(with(discover, &queried).unwrap().apps[7].prometheus_queries().is_some());
    assert_eq!(with(discover, &pods.replace("ebpf", "push")).unwrap().apps.len(), 8);
    let exported = pods.replace("ebpf", "otlp");
    assert!(refused(discover, &exported).contains("needs an address to receive at"));
    let exported = with(&format!("{discover}\notlp = \"[::1]:0\""), &exported).unwrap();
    let from = exported.apps[1].otlp_source(1).unwrap().from;
    assert_eq!(from, Senders::Pod { pod: None, service: None });
    let without = pods.replace("latency = \"ebpf\"\n", "");
    assert!(refused(discover, &without).contains("bounds requests"));
    assert!(refused("discover = \"consul\"", pods).contains("agent.discover"));
}
