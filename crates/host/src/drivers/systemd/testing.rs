//! A systemd for tests: it answers the calls of `systemd.rs` at a socket, and keeps runtime
//! properties in drop-ins as systemd 252 does.

use super::state::drop_in;
use super::wire::tests::{called, of_variant, reply, set_properties};
use super::wire::{FIXED_BYTES, Reader, Value, Writer, length_of};
use super::{UnitProperty, UnitValue};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A unit with another name, and the name of its own.
pub(crate) const ALIAS: (&str, &str) = ("mysql.service", "mariadb.service");

const ALL: [UnitProperty; 4] = [
    UnitProperty::CpuWeight,
    UnitProperty::CpuQuota,
    UnitProperty::CpuQuotaPeriod,
    UnitProperty::AllowedCpus,
];

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<(String, UnitProperty), UnitValue>,
    refusal: Option<String>,
    is_deaf: bool,
    /// Whether it sends messages that answer no call.
    is_chatty: bool,
    /// Whether it hangs up in place of an answer after it has set limits.
    is_curt: bool,
    /// Connections that it closes before it reads from them.
    hang_ups: usize,
    /// Connections that are open.
    connections: usize,
}

/// Answers until it is dropped; its thread ends with the test program.
pub(crate) struct FakeSystemd {
    dir: TempDir,
    state: Arc<Mutex<State>>,
}

impl FakeSystemd {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::default();
        serve(dir.path(), &state);
        Self { dir, state }
    }

    pub(crate) fn run(&self) -> &Path {
        self.dir.path()
    }

    /// Changes a limit as its owner's unit file does at a reload: without a drop-in.
    pub(crate) fn put(&self, unit: &str, property: UnitProperty, value: &UnitValue) {
        self.state.lock().unwrap().values.insert((unit.to_owned(), property), value.clone());
    }

    pub(crate) fn value(&self, unit: &str, property: UnitProperty) -> UnitValue {
        self.state.lock().unwrap().value(unit, property)
    }

    /// Sets a limit as `systemctl set-property --runtime` does.
    pub(crate) fn set_property(&self, unit: &str, property: UnitProperty, value: &UnitValue) {
        self.state.lock().unwrap().set(self.run(), unit, property, value.clone());
    }

    /// Refuses to set limits from now on, with these words.
    pub(crate) fn refuse(&self, words: &str) {
        self.state.lock().unwrap().refusal = Some(words.to_owned());
    }

    /// Says yes to limits from now on and does not set them.
    pub(crate) fn ignore_writes(&self) {
        self.state.lock().unwrap().is_deaf = true;
    }

    /// Answers no call from now on, and sends other messages all the time.
    pub(crate) fn chatter(&self) {
        self.state.lock().unwrap().is_chatty = true;
    }

    /// Sets limits from now on and hangs up in place of the answer.
    pub(crate) fn set_without_answer(&self) {
        self.state.lock().unwrap().is_curt = true;
    }

    /// Closes this many connections at once that are made from now on.
    pub(crate) fn hang_up(&self, connections: usize) {
        self.state.lock().unwrap().hang_ups = connections;
    }

    /// The connections that clients have not closed.
    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    pub(crate) fn drop_in(&self, unit: &str, property: UnitProperty) -> PathBuf {
        drop_in(self.run(), unit, property)
    }
}

impl State {
    fn value(&self, unit: &str, property: UnitProperty) -> UnitValue {
        let unset = match property {
            UnitProperty::AllowedCpus => UnitValue::Cores("".parse().unwrap()),
            _ => UnitValue::Number(u64::MAX),
        };
        self.values.get(&(unit.to_owned(), property)).cloned().unwrap_or(unset)
    }

    fn set(&mut self, run: &Path, unit: &str, property: UnitProperty, value: UnitValue) {
        let text = match &value {
            UnitValue::Number(u64::MAX) => String::new(),
            UnitValue::Number(us) if property == UnitProperty::CpuQuota => {
                format!("{}%", us / 10_000)
            }
            UnitValue::Number(us) if property == UnitProperty::CpuQuotaPeriod => {
                format!("{}ms", us / 1000)
            }
            UnitValue::Number(number) => number.to_string(),
            UnitValue::Cores(cores) => cores.to_string().replace(',', " "),
        };
        let path = drop_in(run, unit, property);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let name = property.setting();
        fs::write(path, format!("# written by systemd\n[Service]\n{name}=\n{name}={text}\n"))
            .unwrap();
        self.values.insert((unit.to_owned(), property), value);
    }

    /// Whether to close a connection that was just made.
    fn hangs_up(&mut self) -> bool {
        let is_due = self.hang_ups > 0;
        self.hang_ups = self.hang_ups.saturating_sub(1);
        self.connections += usize::from(!is_due);
        is_due
    }

    /// The answer to a call; none if the connection is to be closed.
    fn answer(&mut self, run: &Path, message: &[u8]) -> Vec<u8> {
        let (serial, path, method, body) = called(message);
        let mut reader = Reader::new(&body);
        match method.as_str() {
            "LoadUnit" => {
                let mut object = Writer::default();
                object.text(&format!("/unit/{}", id_of(&reader.text().unwrap())));
                reply(serial, None, object)
            }
            "Get" => {
                let (_, name) = (reader.text().unwrap(), reader.text().unwrap());
                let unit = path.strip_prefix("/unit/").unwrap();
                reply(serial, None, of_variant(&self.property(unit, &name)))
            }
            "SetUnitProperties" => match &self.refusal {
                Some(words) => {
                    let mut body = Writer::default();
                    body.text(words);
                    reply(serial, Some("org.freedesktop.DBus.Error.AccessDenied"), body)
                }
                None => {
                    self.set_all(run, &body);
                    match self.is_curt {
                        true => Vec::new(),
                        false => reply(serial, None, Writer::default()),
                    }
                }
            },
            other => panic!("{other} was called"),
        }
    }

    fn property(&self, unit: &str, name: &str) -> Value {
        let load_state = || match unit {
            "gone.service" => "not-found",
            "masked.service" => "masked",
            _ => "loaded",
        };
        match name {
            "Id" => Value::Text(unit.to_owned()),
            "LoadState" => Value::Text(load_state().to_owned()),
            "ControlGroup" => Value::Text(format!("/system.slice/{unit}")),
            _ => {
                let property = ALL.into_iter().find(|property| property.name() == name).unwrap();
                self.value(unit, property).on_the_bus()
            }
        }
    }

    fn set_all(&mut self, run: &Path, body: &[u8]) {
        let (unit, is_runtime, properties) = set_properties(body);
        assert!(is_runtime, "a limit must not outlive the machine");
        let kept = if self.is_deaf { Vec::new() } else { properties };
        for (name, value) in kept {
            let property = ALL.into_iter().find(|property| property.name() == name).unwrap();
            self.set(run, id_of(&unit), property, property.value(value).unwrap());
        }
    }
}

/// The own name of a unit.
fn id_of(name: &str) -> &str {
    if name == ALIAS.0 { ALIAS.1 } else { name }
}

fn serve(run: &Path, state: &Arc<Mutex<State>>) {
    fs::create_dir_all(run.join("systemd")).unwrap();
    let listener = UnixListener::bind(run.join("systemd/private")).unwrap();
    let (run, state) = (run.to_owned(), Arc::clone(state));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            if state.lock().unwrap().hangs_up() {
                continue;
            }
            let (run, state) = (run.clone(), Arc::clone(&state));
            // A client that goes away in the middle of a message ends its own service only.
            std::thread::spawn(move || {
                let ended = converse(stream, &run, &state);
                state.lock().unwrap().connections -= 1;
                ended
            });
        }
    });
}

fn converse(mut stream: UnixStream, run: &Path, state: &Mutex<State>) -> std::io::Result<()> {
    let mut line = |wanted: &[u8]| -> std::io::Result<()> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        assert!(line.starts_with(wanted), "{line:?}");
        if wanted != b"BEGIN" {
            stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")?;
        }
        Ok(())
    };
    line(b"\0AUTH EXTERNAL ")?;
    line(b"BEGIN")?;
    while state.lock().unwrap().is_chatty {
        stream.write_all(&reply(0, None, Writer::default()))?;
    }
    loop {
        let mut message = vec![0; FIXED_BYTES];
        stream.read_exact(&mut message)?;
        let length = length_of(message[..].first_chunk().unwrap()).unwrap();
        message.resize(length, 0);
        stream.read_exact(&mut message[FIXED_BYTES..])?;
        let answer = state.lock().unwrap().answer(run, &message);
        if answer.is_empty() {
            return Ok(());
        }
        stream.write_all(&answer)?;
    }
}
