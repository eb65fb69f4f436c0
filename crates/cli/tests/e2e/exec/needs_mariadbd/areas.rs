//! Areas of cores for classes of clients: which threads run where, and that all get their own
//! cores back.

use super::attach::{attached, free};
use super::classes::{Session, WEB_AND_BATCH};
use super::gate::gate;
use super::*;
use crate::support::http::{address_of, get, order};
use crate::support::skip;
use crate::support::threads::{cores_of, threads};
use crate::support::victim::Victim;

/// The first and the last core of this process; `None` on a machine with one.
pub(in crate::exec) fn two_cores() -> Option<[String; 2]> {
    let all = cores_of(std::process::id().cast_signed());
    let each: Vec<&str> = all.split([',', '-']).collect();
    let [first, .., last] = each.as_slice() else { return None };
    Some([(*first).to_owned(), (*last).to_owned()])
}

/// Options for two classes, the first on core `web` and the second on core `batch`.
pub(in crate::exec) fn on_two_cores([web, batch]: &[String; 2]) -> Vec<String> {
    let area = |class: &str, core: &str| format!("client_class = \"{class}\", cores = \"{core}\"");
    let areas = ["--area".to_owned(), area("web", web), "--area".to_owned(), area("batch", batch)];
    WEB_AND_BATCH.map(str::to_owned).into_iter().chain(areas).collect()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

/// How many threads of a process may run on these cores only.
fn on(pid: i32, cores: &str) -> usize {
    threads(pid).values().filter(|thread| thread.cores == cores).count()
}

/// Waits until all threads of a database have the cores of its first one.
fn wait_for_all_on_own_cores(pid: i32) {
    let all = cores_of(pid);
    wait_for("all threads on their own cores", || {
        threads(pid).values().all(|thread| thread.cores == all)
    });
}

#[test]
fn a_thread_runs_in_the_area_of_its_clients_class_until_that_changes_or_an_operator_ends_it() {
    let scene = Scene::new();
    let Some(cores) = two_cores() else { return skip("a machine with two cores") };
    let database = Database::start(&scene, &words(&on_two_cores(&cores)));
    let (pid, [web, batch]) = (database.pid(), &cores);
    database.add_users();
    let mut session = Session::log_in(database.server.port, "web", "shop");
    session.query("do 1");
    wait_for("its thread on the core of `web`", || on(pid, web) == 1);
    let state = gate(&scene, "status", &pid.to_string());
    let shown = serde_json::json!([{ "client_class": "web", "cores": web, "threads": 1 }]);
    assert_eq!(state["cores_by_class"], shown, "{state}");
    session.change_user("batch", "shop");
    session.query("do 1");
    wait_for("its thread on the core of `batch`", || (on(pid, web), on(pid, batch)) == (0, 1));
    gate(&scene, "off", &pid.to_string());
    wait_for_all_on_own_cores(pid);
    gate(&scene, "on", &pid.to_string());
    wait_for("its thread on its core again", || on(pid, batch) == 1);
    drop(session);
    wait_for_all_on_own_cores(pid);
    let seen = database.server.seen();
    let areas = &seen["areas"];
    assert!(areas["by"] == "fixed" && areas["moves"].as_u64() >= Some(3), "{areas}");
    assert_eq!((&areas["refused"], &areas["pools"]), (&0.into(), &0.into()), "{areas}");
    let classes = areas["classes"].as_array().unwrap();
    let of_web = classes.iter().find(|class| class["client_class"] == "web").unwrap();
    assert_eq!((of_web["cores"].as_str(), &of_web["threads_most"]), (Some(&**web), &1.into()));
}

#[test]
fn qos_wc_divides_the_cores_between_a_class_with_an_objective_and_the_others() {
    let scene = Scene::new();
    let Some(cores) = two_cores() else { return skip("a machine with two cores") };
    let area = "client_class = \"web\", connections = 4, objective = { p95 = \"20ms\" }";
    // Its profile is given, so that nothing is tried out first.
    let profile = format!("profile = {:?}", vec![100.0; crate::support::cores()]);
    let options = [&WEB_AND_BATCH[..], &["--area", area, "--area-key", &profile]].concat();
    let database = Database::start(&scene, &options);
    let pid = database.pid();
    database.add_users();
    let mut sessions = ["web", "batch"].map(|user| {
        let mut session = Session::log_in(database.server.port, user, "shop");
        session.query("do 1");
        session
    });
    // The strictest class has the first cores, and the others the last.
    let [_, last] = &cores;
    wait_for("the thread of `batch` on the last core", || on(pid, last) >= 1);
    let all = cores_of(pid);
    let elsewhere = |cores: &str| cores != all && cores != last.as_str();
    wait_for("the thread of `web` on other cores", || {
        sessions.iter_mut().for_each(|session| session.query("do 1"));
        threads(pid).values().any(|thread| elsewhere(&thread.cores))
    });
    drop(sessions);
    wait_for_all_on_own_cores(pid);
    let seen = database.server.seen();
    assert_eq!(seen["areas"]["by"], "qos-wc", "{}", seen["areas"]);
}

#[test]
fn threads_get_their_cores_back_when_the_agent_is_killed_and_when_the_next_one_attaches() {
    let scene = Scene::new();
    let Some(cores) = two_cores() else { return skip("a machine with two cores") };
    let options = on_two_cores(&cores);
    let database = free(&scene);
    let pid = database.pid();
    database.add_users();
    let mut session = Session::log_in(database.server.port, "web", "shop");
    let agent = attached(&scene, &words(&options));
    session.query("do 1");
    wait_for("its thread in its area", || on(pid, &cores[0]) == 1);
    // The next agent, which has no areas, starts before the library acts.
    agent.signal(Signal::KILL);
    drop(agent);
    let agent = attached(&scene, &[]);
    wait_for_all_on_own_cores(pid);
    agent.interrupt().well();
    let agent = attached(&scene, &words(&options));
    session.query("do 1");
    wait_for("its thread in its area", || on(pid, &cores[0]) == 1);
    agent.signal(Signal::KILL);
    drop(agent);
    // No agent is left: the library moves the threads at a query, once the heartbeat is old.
    wait_for("its thread on its own cores", || {
        session.query("do 1");
        on(pid, &cores[0]) == 0
    });
    wait_for_all_on_own_cores(pid);
}

#[test]
fn a_pool_of_threads_is_left_alone() {
    let scene = Scene::new();
    let Some(cores) = two_cores() else { return skip("a machine with two cores") };
    let options = on_two_cores(&cores);
    let words = words(&options);
    let pool = ["--", "mariadbd", "--thread-handling=pool-of-threads"];
    scene.run(&[&["exec"][..], &words[..], &pool[..]].concat()).refused(2, "of several classes");
    scene
        .run(&[&["exec"][..], &words[..], &["--", "redis-server"][..]].concat())
        .refused(2, "event loop");
    // An options file does not show beforehand whether the server uses a thread pool.
    let file = scene.write("pool.cnf", "[mariadbd]\nthread_handling = pool-of-threads\n");
    let (command, port) = installed(&scene);
    let file = format!("--defaults-file={}", file.display());
    let command: Vec<&str> = command
        .iter()
        .map(|word| if word == "--no-defaults" { file.as_str() } else { word.as_str() })
        .collect();
    let server = Server::start(&scene, &words, &command, port);
    let mut database = Database::from_server(&scene, server);
    database.add_users();
    let pid = database.pid();
    // Many clients at a time, so that different threads serve a connection one after another.
    let clients = (database.crowd("web", 8), database.crowd("batch", 8));
    let agent = database.server.agent.as_mut().unwrap();
    agent.wait_until_printed("threads of the server serve several connections each");
    wait_for("no thread in an area", || on(pid, &cores[0]) + on(pid, &cores[1]) == 0);
    drop(clients);
    let seen = database.server.seen();
    assert_eq!(seen["areas"]["pools"], 1, "{}", seen["areas"]);
}

#[test]
fn areas_that_make_no_sense_are_refused_with_the_reason() {
    let scene = Scene::new();
    let [class, web, ..] = WEB_AND_BATCH;
    let refused = |options: &[&str], why: &str| {
        let arguments = [&["exec"][..], options, &["--", "true"]].concat();
        scene.run(&arguments).refused(2, why);
    };
    let fixed = "client_class = \"web\", cores = \"0\"";
    refused(&["--area", fixed], "--client-class");
    refused(&[class, web, "--area", "client_class = \"web\""], "needs cores");
    refused(&[class, web, "--area", "client_class = \"shop\", cores = \"0\""], "not a class");
    refused(&[class, web, "--area", "client_class = \"web\", core = \"0\""], "unknown field");
    refused(&[class, web, "--area", "client_class = \"web\", cores = \"65000\""], "machine has");
    refused(&[class, web, "--area", fixed, "--area-key", "period=1"], "keys are for");
    refused(&[class, web, "--area", fixed, "--dispatch", "eetl"], "cannot be used with");
    refused(&[class, web, "--area", fixed, "--ebpf"], "cannot be used with");
    let attach = ["attach", "page", "--environment", class, web, "--area", fixed];
    scene.run(&attach).refused(2, "only while");
}

/// The area of the class `web` in a config.
fn area_of_web(core: &str) -> String {
    format!("area = [{{ client_class = \"web\", cores = \"{core}\" }}]\n")
}

/// The class `web` in a config.
const CLASS_WEB: &str = "client_class = [{ name = \"web\", match = [{ user = \"web\" }] }]\n";

/// The config of a run whose policy divides all cores between a database and another program. The
/// database has these areas. Returns its port, too.
fn run_with_areas(scene: &Scene, areas: &str, batch: &Victim) -> (PathBuf, u16) {
    let (command, port) = installed(scene);
    let apps = format!(
        "[policy]\nname = \"even\"\n[[app]]\nname = \"db\"\nclass = \"latency-critical\"\n\
         objectives = [{{ p99 = \"1s\" }}]\nideal = \"1ms\"\nlatency = \"preload\"\n\
         {CLASS_WEB}{areas}ready = \"127.0.0.1:{port}\"\nstart = {command:?}\n\
         [[app]]\nname = \"batch\"\nclass = \"best-effort\"\nsolo = 1.0\npid = {}\n",
        batch.pid()
    );
    let agent = "silence = \"1h\"\ncontrol = true\nhttp = \"127.0.0.1:0\"";
    (scene.config(agent, &apps), port)
}

/// Waits for the database of a run and adds the user `web`; returns its process ID.
fn database_with_user_web(scene: &Scene, agent: &mut Agent, port: u16) -> i32 {
    agent.wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let users = "create database sbtest; create user web; grant all on sbtest.* to web";
    ended(client(port, "mysql", users));
    std::fs::read_to_string(scene.path("pid")).unwrap().trim().parse().unwrap()
}

#[test]
fn a_run_keeps_areas_that_a_reload_changes_and_its_policy_leaves_the_cores_of_the_server() {
    let scene = Scene::new();
    let Some([first, last]) = two_cores() else { return skip("a machine with two cores") };
    let (batch, all) = (Victim::sleeper(), cores_of(std::process::id().cast_signed()));
    let (config, port) = run_with_areas(&scene, &area_of_web(&first), &batch);
    let mut agent = scene.agent(&config);
    let address = address_of(&mut agent);
    let pid = database_with_user_web(&scene, &mut agent, port);
    let mut session = Session::log_in(port, "web", "shop");
    session.query("do 1");
    agent.wait_for("its thread on the first core", || on(pid, &first) == 1);
    agent.wait_for("the policy's division of cores", || batch.is_changed());
    assert_eq!(cores_of(pid), all, "the policy has set the cores of the server");
    let shown = format!("fixed: web on cores {first}");
    agent.wait_for("its area on the page", || {
        let epoch: Value =
            serde_json::from_str(&get(&address, "/api/epoch").body).unwrap_or_default();
        epoch["gates"][0]["areas"] == shown
    });
    let epoch: Value = serde_json::from_str(&get(&address, "/api/epoch").body).unwrap();
    let is_cores = |knob: &&Value| {
        knob["of"] == "db" && knob["setting"].as_str().is_some_and(|it| it.starts_with("cores"))
    };
    let knob = epoch["knobs"].as_array().unwrap().iter().find(is_cores).unwrap();
    assert!(knob["foreign"] == false && knob["reserved"] == true, "{knob}");
    let token = std::fs::read_to_string(scene.path("state/token")).unwrap();
    let bearer = format!("Authorization: Bearer {}", token.trim());
    let order = |what: &str| {
        let lines = [bearer.as_str(), "Content-Type: application/json"];
        order(&address, &lines, &format!("{{\"do\":\"{what}\"}}")).status
    };
    assert_eq!(order("restore"), 200);
    agent.wait_for("all threads on their own cores", || {
        threads(pid).values().all(|thread| thread.cores == all)
    });
    assert_eq!(order("resume"), 200);
    session.query("do 1");
    agent.wait_for("its thread on the first core again", || on(pid, &first) == 1);
    let (text, state) = (std::fs::read_to_string(&config).unwrap(), scene.path("state"));
    let reload = |area: &str, class: &str| {
        let text = text.replace(&area_of_web(&first), area).replace(CLASS_WEB, class);
        std::fs::write(&config, text).unwrap();
        scene.run(&["reload".as_ref(), "--state".as_ref(), state.as_os_str()])
    };
    let beyond = "app[0].area[0]: cores 65000: this machine has";
    reload(&area_of_web("65000"), CLASS_WEB).refused(1, beyond);
    reload("", "").refused(1, "restart it to take it over");
    assert_eq!(on(pid, &first), 1, "a refused config has moved it");
    let printed = reload(&area_of_web(&last), CLASS_WEB).well().out;
    assert!(printed.contains("reloaded: app[0].area"), "{printed}");
    session.query("do 1");
    agent.wait_for("its thread on the last core", || (on(pid, &first), on(pid, &last)) == (0, 1));
    let record = Record::open(&scene.records()[0]);
    agent.wait_for("both areas in the journal", || record.events("areas_changed").len() == 2);
    drop(session);
    agent.interrupt().well();
    let areas: Value = serde_json::from_str(&record.fact("areas").unwrap()).unwrap();
    assert_eq!(areas["db"]["by"], "fixed", "{areas}");
    assert!(areas["db"]["moves"].as_u64() >= Some(1), "{areas}");
    batch.assert_as_before();
    scene.wait_until_quiet();
}

/// An area that `qos-wc` sizes for this objective. The profile is given, so that nothing is tried
/// out first.
fn area_with_objective(p95: &str) -> String {
    let profile = vec![100.0; crate::support::cores()];
    let objective = format!("objective = {{ p95 = \"{p95}\" }}");
    format!(
        "area = [{{ client_class = \"web\", connections = 4, {objective} }}]\n\
         area_keys = {{ profile = {profile:?} }}\n"
    )
}

#[test]
fn a_run_lets_qos_wc_divide_the_cores_between_classes_and_gives_them_back() {
    let scene = Scene::new();
    let Some([_, last]) = two_cores() else { return skip("a machine with two cores") };
    let (batch, all) = (Victim::sleeper(), cores_of(std::process::id().cast_signed()));
    let areas = area_with_objective("20ms");
    let (config, port) = run_with_areas(&scene, &areas, &batch);
    let mut agent = scene.agent(&config);
    let pid = database_with_user_web(&scene, &mut agent, port);
    let mut sessions = ["web", "root"].map(|user| Session::log_in(port, user, "shop"));
    // The strictest class has the first cores, and the others the last.
    let in_areas = |sessions: &mut [Session; 2]| {
        sessions.iter_mut().for_each(|session| session.query("do 1"));
        let is_first = |cores: &str| cores != all && cores != last.as_str();
        on(pid, &last) == 1 && threads(pid).values().any(|thread| is_first(&thread.cores))
    };
    agent.wait_for("a thread in each area", || in_areas(&mut sessions));
    // Another objective: `qos-wc` begins again, and the threads stay in areas.
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace(&areas, &area_with_objective("40ms"))).unwrap();
    let state = scene.path("state");
    let reload = scene.run(&["reload".as_ref(), "--state".as_ref(), state.as_os_str()]);
    let printed = reload.well().out;
    assert!(printed.contains("reloaded: app[0].area"), "{printed}");
    agent.wait_for("a thread in each area again", || in_areas(&mut sessions));
    let record = Record::open(&scene.records()[0]);
    agent.wait_for("both in the journal", || record.events("areas_changed").len() >= 2);
    drop(sessions);
    agent.wait_for("all threads on their own cores", || {
        threads(pid).values().all(|thread| thread.cores == all)
    });
    agent.interrupt().well();
    let areas: Value = serde_json::from_str(&record.fact("areas").unwrap()).unwrap();
    assert_eq!((&areas["db"]["by"], &areas["db"]["refused"]), (&"qos-wc".into(), &0.into()));
    batch.assert_as_before();
    scene.wait_until_quiet();
}
