//! Reports to a service manager: readiness and signs of life, as in `sd_notify(3)`.
//!
//! The manager names a unix datagram socket in `NOTIFY_SOCKET`: a path, or an abstract name
//! that begins with `@`. One datagram holds lines of the form `KEY=value`. A report that cannot
//! be delivered is dropped: without a service manager the agent works all the same.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The variables of a service manager, which are not for the programs that Lull starts.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
/// The shortest time between two signs of life.
const PING_MIN: Duration = Duration::from_secs(1);

/// The service manager of this process, if there is one.
#[derive(Debug, Default)]
pub struct Service {
    socket: Option<UnixDatagram>,
    /// Whether the manager expects signs of life.
    has_watchdog: bool,
    pinged: Option<Instant>,
}

impl Service {
    /// Reads the manager's socket from the environment.
    pub fn from_environment() -> Self {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        let own_pid = std::process::id().to_string();
        let is_ours = env::var("WATCHDOG_PID").map_or(true, |pid| pid == own_pid);
        let has_watchdog = is_ours && env::var_os("WATCHDOG_USEC").is_some();
        Self::connect(&name, has_watchdog).unwrap_or_default()
    }

    /// Connects to a manager's socket.
    ///
    /// # Errors
    /// If the name is neither a path nor an abstract name, or no socket has it.
    pub fn connect(name: &OsStr, has_watchdog: bool) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Some(socket), has_watchdog, pinged: None })
    }

    /// Sends lines, such as `READY=1`.
    pub fn report(&self, lines: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(lines.as_bytes());
        }
    }

    /// Sends a sign of life, at most once a second, if the manager expects any.
    pub fn ping(&mut self) {
        let is_due = self.pinged.is_none_or(|last| last.elapsed() >= PING_MIN);
        if self.has_watchdog && is_due {
            self.pinged = Some(Instant::now());
            self.report("WATCHDOG=1");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(manager: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 256];
        let count = manager.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    #[test]
    fn reports_arrive_at_a_path_and_at_an_abstract_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let unique = format!("lull-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&unique).unwrap();
        let managers = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{unique}").into()),
        ];
        for (manager, name) in managers {
            manager.set_nonblocking(true).unwrap();
            let mut service = Service::connect(&name, true).unwrap();
            service.report("READY=1\nSTATUS=even");
            assert_eq!(received(&manager).as_deref(), Some("READY=1\nSTATUS=even"));
            (0..5).for_each(|_| service.ping());
            assert_eq!(received(&manager).as_deref(), Some("WATCHDOG=1"));
            assert_eq!(received(&manager), None, "at most one a second");
        }
    }

    #[test]
    fn without_a_watchdog_there_are_no_signs_of_life_and_without_a_manager_no_error() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        Service::connect(path.as_os_str(), false).unwrap().ping();
        assert_eq!(received(&manager), None);
        let mut none = Service::default();
        none.report("READY=1");
        none.ping();
        assert!(Service::connect("relative".as_ref(), true).is_err());
        assert!(Service::connect(place.path().join("nobody").as_ref(), true).is_err());
    }
}
