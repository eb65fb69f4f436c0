//! The page and the report in a real Chromium: what an operator sees and can do.

use crate::report::{proven, report};
use crate::runs::started;
use crate::support::agent::Agent;
use crate::support::browser::Browser;
use crate::support::http::{address_of, get};
use crate::support::scene::Scene;
use crate::support::{free_port, send};
use rustix::process::Signal;
use serde_json::{Value, json};

/// An agent with its page at this port, and orders.
fn agent(scene: &Scene, port: u16) -> Agent {
    let lines = format!("http = \"127.0.0.1:{port}\"\ncontrol = true");
    let mut agent = scene.agent(&scene.config(&lines, &started("arq", free_port())));
    address_of(&mut agent);
    agent
}

fn opened(scene: &Scene) -> (Agent, Browser, u16) {
    let port = free_port();
    let agent = agent(scene, port);
    let browser = Browser::start();
    browser.screen(1280, 900, false);
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.wait_until("document.querySelector('#link.live')");
    browser.wait_until("document.querySelectorAll('.plot canvas').length >= 4");
    (agent, browser, port)
}

#[test]
fn the_page_shows_the_run_goes_on_with_it_and_survives_a_restart() {
    let scene = Scene::new();
    let (agent_one, browser, port) = opened(&scene);
    let text =
        |id: &str| browser.script(&format!("return document.getElementById('{id}').innerText"));
    let apps = text("apps");
    assert!(apps.as_str().unwrap().contains("server"), "{apps}");
    browser.wait_until("document.querySelectorAll('#lines li.decision').length > 0");
    browser.wait_until("document.querySelectorAll('#knobs tbody tr').length > 0");
    // The text of the tiles changes with each epoch.
    let before = text("tiles");
    browser.wait_until(&format!("document.getElementById('tiles').innerText !== {before}"));
    // A figure of a metric that is not measured shows the reason and draws nothing.
    let heat = "[...document.querySelectorAll('figure')]\
                .every((it) => it.querySelector('.why').hidden !== \
                 it.querySelector('.plot, canvas.heat').hidden)";
    browser.wait_until(heat);
    assert_eq!(browser.errors(), Vec::<String>::new());
    let title = browser.script("return document.title");

    agent_one.signal(Signal::KILL);
    agent_one.wait();
    scene.wait_until_quiet();
    browser.wait_until("document.querySelector('#link.lost')");
    let agent_two = agent(&scene, port);
    browser.wait_until("document.querySelector('#link.live')");
    browser.wait_until(&format!("document.title !== {title}"));
    let before = text("tiles");
    browser.wait_until(&format!("document.getElementById('tiles').innerText !== {before}"));
    // While no agent listens the browser itself logs errors; all others are faults of the page.
    let ours = browser.errors().into_iter().filter(|error| !error.contains("net::ERR_"));
    assert_eq!(ours.collect::<Vec<_>>(), Vec::<String>::new());
    agent_two.interrupt().well();
}

/// Loses a stream of a feed of its own while the past is fetched, which then fails or not. Returns
/// what the feed reports in each case.
const LOST: &str = r#"
    const real = window.EventSource;
    const report = async (Feed, past) => {
        const reported = [];
        let stream;
        window.EventSource = class {
            constructor() { stream = this; }
            addEventListener(kind, call) { this[kind] = call; }
            close() {}
        };
        const feed = new Feed([], { link: (is) => reported.push(is) });
        feed.run = "this run";
        feed.lost = () => reported.push("lost");
        feed.catchUp = () => past;
        feed.listen();
        stream.run({ data: "this run" });
        stream.onerror();
        await Promise.allSettled([past]);
        return reported;
    };
    return import("/feed.js").then(async ({ Feed }) => {
        const fails = await report(Feed, Promise.reject(new Error("no answer")));
        const arrives = await report(Feed, Promise.resolve());
        window.EventSource = real;
        return [fails, arrives];
    });
"#;

#[test]
fn a_stream_that_is_lost_while_the_past_is_fetched_is_lost_once() {
    let scene = Scene::new();
    let (agent, browser, _) = opened(&scene);
    assert_eq!(browser.script(LOST), json!([["lost"], ["lost"]]));
    agent.interrupt().well();
}

#[test]
fn a_page_that_is_opened_once_the_agent_is_stuck_is_not_live() {
    let scene = Scene::new();
    let port = free_port();
    let mut agent = agent(&scene, port);
    let address = format!("127.0.0.1:{port}");
    agent.wait_for("an epoch", || get(&address, "/api/epoch").status == 200);
    // The guard would end the agent.
    agent.signal(Signal::STOP);
    send(scene.process_with(&["guard"]).unwrap(), Signal::KILL);
    agent.wait_for("the age of the epoch", || get(&address, "/healthz").status == 503);
    let browser = Browser::start();
    browser.open(&format!("http://{address}/"));
    browser.wait_until("document.getElementById('link').innerText.includes('may be stuck')");
    agent.signal(Signal::KILL);
    agent.wait();
    let state = scene.path("state").display().to_string();
    scene.run(&["restore", "--state", &state]).well();
    scene.wait_until_quiet();
}

#[test]
fn the_page_fits_a_phone_and_follows_the_dark() {
    let scene = Scene::new();
    let (agent, browser, _) = opened(&scene);
    let paper = || browser.script("return getComputedStyle(document.body).backgroundColor");
    browser.prefer("light");
    assert_eq!(paper(), "rgb(255, 255, 255)");
    browser.picture("page-light.png");
    browser.prefer("dark");
    assert_eq!(paper(), "rgb(17, 20, 23)");
    browser.wait_until("document.querySelectorAll('.plot canvas').length >= 4");
    browser.picture("page-dark.png");
    browser.screen(390, 844, true);
    browser.wait_until("innerWidth === 390");
    browser.wait_until(
        "[...document.querySelectorAll('.u-wrap')]\
                        .every((it) => it.getBoundingClientRect().right <= 391)",
    );
    let width = browser.script("return document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 390, "the page is {width} wide");
    let small = "return [...document.querySelectorAll('button, select, input')]\
                 .filter((it) => it.offsetHeight > 0 && it.offsetHeight < 44).length";
    assert_eq!(browser.script(small), 0, "a thumb needs 44 pixels");
    browser.picture("page-phone.png");
    assert_eq!(browser.errors(), Vec::<String>::new());
    agent.interrupt().well();
}

#[test]
fn the_page_can_be_used_with_keys_and_read_aloud() {
    let scene = Scene::new();
    let (agent, browser, _) = opened(&scene);
    browser.script("document.body.focus()");
    let mut reached = Vec::new();
    for _ in 0..20 {
        browser.press("Tab", 9);
        let id = browser.script("return document.activeElement.id || document.activeElement.href");
        reached.push(id.as_str().unwrap_or_default().to_owned());
    }
    for wanted in ["span", "kinds", "lines", "token", "policy"] {
        assert!(reached.iter().any(|id| id == wanted), "{wanted} is not among {reached:?}");
    }
    assert!(reached[0].ends_with("#journal"), "the first stop skips the charts: {reached:?}");
    let tree = browser.tell("Accessibility.getFullAXTree", &json!({}));
    let nodes = tree["nodes"].as_array().unwrap();
    let named = |role: &str| -> Vec<String> {
        let has_role = |node: &&Value| node["role"]["value"] == role && node["ignored"] == false;
        let of_role = nodes.iter().filter(has_role);
        of_role.map(|node| node["name"]["value"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let images = named("image");
    let latency = images.iter().find(|name| name.starts_with("server: p95 latency"));
    assert!(latency.unwrap().contains("last: measured "), "{images:?}");
    for role in ["image", "combobox", "button", "table", "heading", "textbox"] {
        let names = named(role);
        assert!(!names.is_empty(), "no {role}");
        assert!(names.iter().all(|name| !name.is_empty()), "a {role} without a name: {names:?}");
    }
    agent.interrupt().well();
}

#[test]
fn an_operator_with_the_token_pauses_from_the_page() {
    let scene = Scene::new();
    let (agent, browser, _) = opened(&scene);
    let press = "document.querySelector('button[value=pause]').click()";
    let token = |text: &str| {
        browser.script(&format!("document.getElementById('token').value = {}", json!(text)));
    };
    token("wrong");
    browser.script(press);
    browser.wait_until("document.getElementById('answer').innerText.includes('refused')");
    token(std::fs::read_to_string(scene.path("state/token")).unwrap().trim());
    browser.script(press);
    browser.wait_until("document.getElementById('answer').innerText.startsWith('paused')");
    browser.wait_until("document.getElementById('banner').innerText.includes('Paused')");
    browser.wait_until("document.querySelector('#lines li.operator')");
    agent.interrupt().well();
}

/// Returns the visible text with the least contrast to its background, and that contrast as
/// the accessibility guidelines (WCAG 2, 1.4.3) define it.
const FAINTEST: &str = r#"
    const parse = (text) => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const light = ([r, g, b]) => [r, g, b]
        .map((part) => part / 255)
        .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (it) => {
        for (; it; it = it.parentElement) {
            const color = parse(getComputedStyle(it).backgroundColor);
            if (color.length < 4 || color[3] > 0) return color;
        }
        return [255, 255, 255];
    };
    let worst = [Infinity, ''];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const it = texts.currentNode.parentElement;
        const said = texts.currentNode.textContent.trim();
        if (!said || !it.getClientRects().length || it.closest('style, title, desc')) continue;
        const style = getComputedStyle(it);
        const inside = it.closest('svg');
        const ink = light(parse(inside ? style.fill : style.color));
        const paper = light(behind(it));
        const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        if (contrast < worst[0]) worst = [contrast, said];
    }
    return worst;
"#;

#[test]
fn a_report_reads_well_by_day_by_night_and_on_a_phone() {
    let scene = Scene::new();
    let record = proven(&scene);
    report(&scene, &[record.as_os_str()]).well();
    let browser = Browser::start();
    browser.screen(1280, 900, false);
    browser.open(&format!("file://{}", record.with_extension("html").display()));
    browser.wait_until("document.readyState === 'complete'");
    let title = browser.script("return document.querySelector('h1').innerText");
    assert!(!title.as_str().unwrap().is_empty());
    let paper = || browser.script("return getComputedStyle(document.body).backgroundColor");
    for (scheme, color) in [("light", "rgb(255, 255, 255)"), ("dark", "rgb(17, 20, 23)")] {
        browser.prefer(scheme);
        assert_eq!(paper(), color);
        let faintest = browser.script(FAINTEST);
        assert!(faintest[0].as_f64().unwrap() >= 4.5, "{scheme}: {faintest}");
        browser.picture(&format!("report-{scheme}.png"));
    }
    browser.wait_until(
        "[...document.querySelectorAll('figure svg')]\
                        .every((it) => it.getBoundingClientRect().height > 100)",
    );
    let figures = browser.script("return document.querySelectorAll('figure svg').length");
    assert!(figures.as_u64().unwrap() >= 4, "{figures} figures");
    browser.screen(390, 844, true);
    browser.wait_until("innerWidth === 390");
    let width = browser.script("return document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= 390, "the page is {width} wide");
    browser.picture("report-phone.png");
    assert_eq!(browser.errors(), Vec::<String>::new());
    let names_script = "return performance.getEntriesByType('resource').map((it) => it.name)";
    assert_eq!(browser.script(names_script), json!([]), "the page has sent a request");
}
