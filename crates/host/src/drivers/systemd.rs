//! Limits of units, set as runtime properties of systemd.
//!
//! systemd writes the cgroup files of its units again when it reloads them, so that a limit in
//! a file lasts until the next `systemctl daemon-reload`. A *runtime property* is systemd's own
//! setting: it is applied again after a reload, and kept in a drop-in below `/run` that is named
//! `50-NAME.conf`. The owner's unit and drop-ins are not touched.
//!
//! Source: `org.freedesktop.systemd1(5)`
//! and `src/core/dbus-cgroup.c` of systemd 252.
//!
//! Verified with systemd 252 by `cargo xtask rig systemd`.

mod bus;
mod state;
#[cfg(test)]
pub(crate) mod testing;
mod wire;

pub use state::UnitState;

use bus::Bus;
use lull_control::{CoreId, CoreSet};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::{Method, Reader, Value, Writer};

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
/// How long systemd may take for all calls over one connection. It answers nothing while it
/// reloads its units.
const PATIENCE: Duration = Duration::from_secs(10);
/// A number that is not set.
const UNSET: u64 = u64::MAX;
/// Kinds of units with processes, and the interfaces of their limits.
const KINDS: [(&str, &str); 6] = [
    ("service", "org.freedesktop.systemd1.Service"),
    ("slice", "org.freedesktop.systemd1.Slice"),
    ("scope", "org.freedesktop.systemd1.Scope"),
    ("socket", "org.freedesktop.systemd1.Socket"),
    ("mount", "org.freedesktop.systemd1.Mount"),
    ("swap", "org.freedesktop.systemd1.Swap"),
];

/// A limit of a unit, for one file of its cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitProperty {
    /// `cpu.weight`, a number.
    CpuWeight,
    /// The first number of `cpu.max`: CPU time in us per second, a number.
    CpuQuota,
    /// The second number of `cpu.max`: us, a number.
    CpuQuotaPeriod,
    /// `cpuset.cpus`, cores.
    AllowedCpus,
}

/// The value of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitValue {
    /// A number; `u64::MAX` is none, systemd's default.
    Number(u64),
    /// Cores; no core is no limit.
    Cores(CoreSet),
}

/// The reason why systemd did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// No socket answers.
    #[error("systemd does not answer at {path}: {source}", path = .path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The connection broke, or took too long.
    #[error("systemd did not answer {method}: {source}")]
    NoReply {
        /// The called method.
        method: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// systemd refused.
    #[error("systemd refused {method}: {message} ({name})")]
    Refused {
        /// The called method.
        method: String,
        /// The name of the error.
        name: String,
        /// The words of systemd.
        message: String,
    },
    /// A reply of another form.
    #[error("systemd answered {method} in a form that Lull does not know")]
    Unknown {
        /// The called method.
        method: String,
    },
    /// There is no unit of this name that could have limits.
    #[error("{unit} cannot have limits: {why}")]
    NoUnit {
        /// The unit.
        unit: String,
        /// The reason.
        why: String,
    },
    /// The property reads back with another value than was set.
    #[error("{property} of {unit} was set to {wanted} and reads back as {found}")]
    NotKept {
        /// The unit.
        unit: String,
        /// The property.
        property: UnitProperty,
        /// The value that was set.
        wanted: UnitValue,
        /// The value that systemd has.
        found: UnitValue,
    },
    /// A drop-in of a runtime property could not be restored.
    #[error("cannot restore {path}: {source}", path = .path.display())]
    DropIn {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl UnitProperty {
    /// Returns its name on systemd's bus.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::CpuWeight => "CPUWeight",
            Self::CpuQuota => "CPUQuotaPerSecUSec",
            Self::CpuQuotaPeriod => "CPUQuotaPeriodUSec",
            Self::AllowedCpus => "AllowedCPUs",
        }
    }

    /// Returns its name in unit files.
    const fn setting(self) -> &'static str {
        match self {
            Self::CpuWeight => "CPUWeight",
            Self::CpuQuota => "CPUQuota",
            Self::CpuQuotaPeriod => "CPUQuotaPeriodSec",
            Self::AllowedCpus => "AllowedCPUs",
        }
    }

    fn value(self, value: Value) -> Option<UnitValue> {
        match (self, value) {
            (Self::AllowedCpus, Value::Bytes(bits)) => Some(UnitValue::Cores(from_bits(&bits))),
            (Self::AllowedCpus, _) => None,
            (_, Value::Number(number)) => Some(UnitValue::Number(number)),
            _ => None,
        }
    }
}

impl UnitValue {
    fn on_the_bus(&self) -> Value {
        match self {
            Self::Number(number) => Value::Number(*number),
            Self::Cores(cores) => Value::Bytes(to_bits(cores)),
        }
    }
}

/// Takes bytes as a message of systemd, for the fuzz target `systemd`: returns how many values that
/// Lull reads its body begins with, or `None` if it is no message.
#[doc(hidden)]
pub fn read_message(bytes: &[u8]) -> Option<usize> {
    let length = wire::length_of(bytes.first_chunk()?)?;
    let received = wire::receive(bytes.get(..length)?)?;
    // The words of an error.
    let _ = Reader::new(&received.body).text();
    let mut body = Reader::new(&received.body);
    Some(std::iter::from_fn(|| body.variant()).count())
}

/// A bit a core, the lowest bit of a byte first.
fn to_bits(cores: &CoreSet) -> Vec<u8> {
    let mut bits = Vec::new();
    for CoreId(core) in cores.iter() {
        let at = usize::from(core / 8);
        bits.resize(bits.len().max(at + 1), 0);
        bits[at] |= 1 << (core % 8);
    }
    bits
}

fn from_bits(bits: &[u8]) -> CoreSet {
    let cores = (0..bits.len().min(8192) * 8).filter(|core| bits[core / 8] & 1 << (core % 8) != 0);
    cores.map(|core| CoreId(core as u16)).collect()
}

impl fmt::Display for UnitProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.setting())
    }
}

impl fmt::Display for UnitValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(UNSET) => f.write_str("not set"),
            Self::Number(number) => number.fmt(f),
            Self::Cores(cores) if cores.is_empty() => f.write_str("not set"),
            Self::Cores(cores) => cores.fmt(f),
        }
    }
}

/// Whether a name has the form of a unit that can have processes.
pub(crate) fn is_unit_name(name: &str) -> bool {
    kind_of(name).is_some()
}

/// The interface that has the limits of a unit.
fn kind_of(unit: &str) -> Option<&'static str> {
    let (stem, end) = unit.rsplit_once('.')?;
    let kind = KINDS.iter().find(|(kind, _)| *kind == end && !stem.is_empty());
    kind.map(|(_, interface)| *interface)
}

/// Returns the deadline of connections that are made now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// A connection to systemd.
#[derive(Debug)]
pub(crate) struct Systemd {
    bus: Bus,
}

impl Systemd {
    /// Connects to systemd, whose sockets are below `run`.
    pub(crate) fn connect(run: &Path) -> Result<Self, SystemdError> {
        Self::connect_until(run, deadline())
    }

    /// Connects to systemd; calls that it has not answered before `deadline` fail. Several
    /// connections may share a deadline, so that a busy systemd delays all of them only once.
    pub(crate) fn connect_until(run: &Path, deadline: Instant) -> Result<Self, SystemdError> {
        Ok(Self { bus: Bus::connect(run, deadline)? })
    }

    /// The object of a unit, which systemd loads if it is not loaded.
    fn load(&mut self, unit: &str) -> Result<String, SystemdError> {
        let mut body = Writer::default();
        body.text(unit);
        let method = Method {
            destination: SYSTEMD,
            path: "/org/freedesktop/systemd1",
            interface: MANAGER,
            name: "LoadUnit",
        };
        let reply = self.bus.call(method, "s", body)?;
        Reader::new(&reply).text().ok_or_else(|| unknown("LoadUnit"))
    }

    fn read(&mut self, object: &str, interface: &str, name: &str) -> Result<Value, SystemdError> {
        let mut body = Writer::default();
        body.text(interface);
        body.text(name);
        let method = Method {
            destination: SYSTEMD,
            path: object,
            interface: "org.freedesktop.DBus.Properties",
            name: "Get",
        };
        let reply = self.bus.call(method, "ss", body)?;
        Reader::new(&reply).variant().ok_or_else(|| unknown(name))
    }

    fn read_text(
        &mut self,
        object: &str,
        interface: &str,
        name: &str,
    ) -> Result<String, SystemdError> {
        match self.read(object, interface, name)? {
            Value::Text(text) => Ok(text),
            _ => Err(unknown(name)),
        }
    }

    /// The object of a unit that can have limits, and the interface that has them.
    fn limited(&mut self, unit: &str) -> Result<(String, &'static str), SystemdError> {
        let refuse = |why: String| SystemdError::NoUnit { unit: unit.to_owned(), why };
        let no_kind = || {
            let kinds = KINDS.map(|(kind, _)| format!(".{kind}")).join(", ");
            refuse(format!("its name does not end in one of {kinds}"))
        };
        let interface = kind_of(unit).ok_or_else(no_kind)?;
        let object = self.load(unit)?;
        match self.read_text(&object, UNIT, "LoadState")?.as_str() {
            "loaded" => Ok((object, interface)),
            state => Err(refuse(format!("systemd says that it is {state}"))),
        }
    }

    /// The cgroup of a unit, as `/system.slice/web.service`; empty while it does not run.
    pub(crate) fn control_group(&mut self, unit: &str) -> Result<String, SystemdError> {
        let (object, interface) = self.limited(unit)?;
        self.read_text(&object, interface, "ControlGroup")
    }

    /// The unit's own name, after which systemd names its drop-ins: `mariadb.service` for the
    /// alias `mysql.service`.
    pub(crate) fn id(&mut self, unit: &str) -> Result<String, SystemdError> {
        let (object, _) = self.limited(unit)?;
        self.read_text(&object, UNIT, "Id")
    }

    /// The value of a limit now.
    pub(crate) fn get(
        &mut self,
        unit: &str,
        property: UnitProperty,
    ) -> Result<UnitValue, SystemdError> {
        let (object, interface) = self.limited(unit)?;
        let value = self.read(&object, interface, property.name())?;
        property.value(value).ok_or_else(|| unknown(property.name()))
    }

    /// Sets limits for as long as the machine is up, all or none.
    pub(crate) fn set(
        &mut self,
        unit: &str,
        limits: &[(UnitProperty, &UnitValue)],
    ) -> Result<(), SystemdError> {
        let mut body = Writer::default();
        body.text(unit);
        // Set at runtime: in a drop-in below /run, and not below /etc.
        body.boolean(true);
        let named =
            |(property, value): &(UnitProperty, &UnitValue)| (property.name(), value.on_the_bus());
        body.properties(&limits.iter().map(named).collect::<Vec<_>>());
        let method = Method {
            destination: SYSTEMD,
            path: "/org/freedesktop/systemd1",
            interface: MANAGER,
            name: "SetUnitProperties",
        };
        self.bus.call(method, "sba(sv)", body)?;
        for (property, wanted) in limits {
            let found = self.get(unit, *property)?;
            if found != **wanted {
                return Err(SystemdError::NotKept {
                    unit: unit.to_owned(),
                    property: *property,
                    wanted: (*wanted).clone(),
                    found,
                });
            }
        }
        Ok(())
    }
}

fn unknown(method: &str) -> SystemdError {
    SystemdError::Unknown { method: method.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::testing::FakeSystemd;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn limits_are_read_and_set_by_their_names_on_the_bus() {
        let fake = FakeSystemd::start();
        fake.put("web.service", UnitProperty::CpuWeight, &UnitValue::Number(200));
        let mut systemd = Systemd::connect(fake.run()).unwrap();
        let weight = systemd.get("web.service", UnitProperty::CpuWeight).unwrap();
        assert_eq!(weight, UnitValue::Number(200));
        let cores = UnitValue::Cores("0,9".parse().unwrap());
        systemd.set("web.service", &[(UnitProperty::AllowedCpus, &cores)]).unwrap();
        assert_eq!(fake.value("web.service", UnitProperty::AllowedCpus), cores);
        assert_eq!(systemd.control_group("web.service").unwrap(), "/system.slice/web.service");
    }

    #[test]
    fn a_unit_that_is_missing_or_masked_or_has_no_processes_is_refused_by_name() {
        let fake = FakeSystemd::start();
        let mut systemd = Systemd::connect(fake.run()).unwrap();
        let mut why =
            |unit: &str| systemd.get(unit, UnitProperty::CpuWeight).unwrap_err().to_string();
        assert!(why("gone.service").contains("gone.service cannot have limits"));
        assert!(why("masked.service").contains("masked"));
        assert!(why("web.timer").contains(".service"));
        assert!(why(".service").contains("does not end"));
    }

    #[test]
    fn words_of_systemd_are_in_the_error() {
        let fake = FakeSystemd::start();
        fake.refuse("Access denied");
        let mut systemd = Systemd::connect(fake.run()).unwrap();
        let limit = (UnitProperty::CpuWeight, &UnitValue::Number(3));
        let error = systemd.set("web.service", &[limit]).unwrap_err().to_string();
        assert!(error.contains("SetUnitProperties: Access denied"), "{error}");
    }

    #[test]
    fn a_value_that_systemd_changes_is_reported() {
        let fake = FakeSystemd::start();
        fake.ignore_writes();
        let mut systemd = Systemd::connect(fake.run()).unwrap();
        let limit = (UnitProperty::CpuWeight, &UnitValue::Number(3));
        let error = systemd.set("web.service", &[limit]).unwrap_err().to_string();
        assert_eq!(error, "CPUWeight of web.service was set to 3 and reads back as not set");
    }

    #[test]
    fn a_systemd_that_sends_other_messages_only_is_given_up_at_the_deadline() {
        let fake = FakeSystemd::start();
        fake.chatter();
        let soon = Instant::now() + Duration::from_secs(1);
        let mut systemd = Systemd::connect_until(fake.run(), soon).unwrap();
        let error = systemd.get("web.service", UnitProperty::CpuWeight).unwrap_err();
        assert!(matches!(&error, SystemdError::NoReply { source, .. }
            if source.kind() == io::ErrorKind::TimedOut));
        assert!(error.to_string().contains("LoadUnit: timed out"), "{error}");
    }

    #[test]
    fn a_busy_systemd_is_not_called_at_its_other_socket_too() {
        let place = tempfile::tempdir().unwrap();
        let listen = |name: &str| {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::net::UnixListener::bind(path).unwrap()
        };
        let _sockets = ["systemd/private", "dbus/system_bus_socket"].map(listen);
        let soon = Instant::now() + Duration::from_millis(50);
        let error = Systemd::connect_until(place.path(), soon).unwrap_err().to_string();
        assert!(error.contains("systemd/private: timed out"), "{error}");
    }

    #[test]
    fn a_systemd_that_accepts_no_connection_is_given_up_at_the_deadline() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("systemd/private");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // One connection fits the queue. Nothing accepts it, so the later ones find it full.
        rustix::net::listen(&listener, 0).unwrap();
        for _ in 0..3 {
            let soon = Instant::now() + Duration::from_millis(20);
            let error = Systemd::connect_until(place.path(), soon).unwrap_err().to_string();
            assert!(error.contains("systemd/private: timed out"), "{error}");
        }
    }

    #[test]
    fn where_systemd_does_not_run_the_socket_is_named() {
        let place = tempfile::tempdir().unwrap();
        let error = Systemd::connect(place.path()).unwrap_err().to_string();
        assert!(error.contains("systemd/private"), "{error}");
    }

    proptest! {
        #[test]
        fn cores_are_the_same_after_the_way_over_the_bus(
            cores in prop::collection::btree_set(0_u16..1024, 0..20),
        ) {
            let cores: CoreSet = cores.into_iter().map(CoreId).collect();
            prop_assert_eq!(from_bits(&to_bits(&cores)), cores);
        }
    }
}
