//! A real Chromium without a window, driven by the WebDriver protocol.

use super::http::exchange;
use super::wait_for;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Options without the browser's own network traffic: it must load only pages of this machine.
const ARGUMENTS: [&str; 9] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// The port that chromedriver has chosen, by its words `started successfully on port 41234.`.
fn printed_port(output: &mut ChildStdout) -> u16 {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let port = |line: String| line.strip_suffix('.')?.rsplit_once(" on port ")?.1.parse().ok();
    lines.into_iter().find_map(port).expect("chromedriver prints its port")
}

/// A browser with one window.
pub(crate) struct Browser {
    driver: Child,
    address: String,
    session: String,
    profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut driver = command.stderr(Stdio::null()).spawn().unwrap();
        let address = format!("127.0.0.1:{}", printed_port(driver.stdout.as_mut().unwrap()));
        let mut browser = Self { driver, address, session: String::new(), profile };
        browser.begin();
        browser
    }

    fn begin(&mut self) {
        let place = format!("--user-data-dir={}", self.profile.path().display());
        let arguments: Vec<&str> = ARGUMENTS.into_iter().chain([place.as_str()]).collect();
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": arguments },
        }}});
        let begun = self.ask("POST", "/session", &wanted);
        self.session = format!("/session/{}", begun["sessionId"].as_str().unwrap());
    }

    /// Sends a request to the driver; returns its answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let answer = exchange(&self.address, &request);
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
        answer.json()["value"].take()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}/{path}", self.session), body)
    }

    pub(crate) fn open(&self, address: &str) {
        self.post("url", &json!({ "url": address }));
    }

    /// Returns the result of a script.
    pub(crate) fn script(&self, script: &str) -> Value {
        self.post("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true on the page.
    pub(crate) fn wait_until(&self, expression: &str) {
        wait_for(expression, || self.script(&format!("return Boolean({expression})")) == true);
    }

    /// A command of the browser's own protocol.
    pub(crate) fn tell(&self, command: &str, parameters: &Value) -> Value {
        self.post("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Presses and releases a key.
    pub(crate) fn press(&self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.tell("Input.dispatchKeyEvent", &event);
        }
    }

    /// Sets the size of the screen in CSS pixels.
    pub(crate) fn screen(&self, width: u32, height: u32, is_phone: bool) {
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1,
                             "mobile": is_phone });
        self.tell("Emulation.setDeviceMetricsOverride", &screen);
    }

    /// Sets the colour scheme: `light` or `dark`.
    pub(crate) fn prefer(&self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.tell("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    /// Errors on the console since the last call.
    pub(crate) fn errors(&self) -> Vec<String> {
        let all = self.post("se/log", &json!({ "type": "browser" }));
        let severe = all.as_array().unwrap().iter().filter(|line| line["level"] == "SEVERE");
        severe.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
    }

    /// Writes a picture of the whole page, where `LULL_SCREENSHOTS` names a directory.
    pub(crate) fn picture(&self, name: &str) {
        let Some(place) = std::env::var_os("LULL_SCREENSHOTS") else { return };
        let wanted = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.tell("Page.captureScreenshot", &wanted);
        let text = picture["data"].as_str().unwrap();
        let engine = base64::engine::general_purpose::STANDARD;
        let bytes = base64::Engine::decode(&engine, text).unwrap();
        std::fs::write(Path::new(&place).join(name), bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let request = format!(
            "DELETE {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.session, self.address
        );
        if !self.session.is_empty() && TcpStream::connect(&self.address).is_ok() {
            exchange(&self.address, &request);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
