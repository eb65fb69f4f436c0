//! Which class the client of a connection is in: by the names that its messages give, its
//! address, and the user that runs it.
//!
//! The agent's rules are in the page. A class is found when a name is given, and again at the
//! first query after the rules have changed: a query compares two words.

use crate::connection::{Connection, Ends};
use crate::real::keeping_errno;
use lull_oncall::{CONNECTIONS, Client, Id, NameHash, Names};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What this process remembers of the client of each connection.
static CLIENTS: [KnownClient; CONNECTIONS] = [const { KnownClient::new() }; CONNECTIONS];

struct KnownClient {
    user: AtomicU64,
    database: AtomicU64,
    application: AtomicU64,
    /// The version of the rules by which it was classified.
    version: AtomicU32,
}

impl KnownClient {
    const fn new() -> Self {
        let [user, database, application] = [const { AtomicU64::new(0) }; 3];
        Self { user, database, application, version: AtomicU32::new(0) }
    }

    fn names(&self) -> Names {
        let name = |word: &AtomicU64| NameHash(word.load(Ordering::Relaxed));
        Names {
            user: name(&self.user),
            database: name(&self.database),
            application: name(&self.application),
        }
    }

    fn set_names(&self, names: &Names) {
        self.user.store(names.user.0, Ordering::Relaxed);
        self.database.store(names.database.0, Ordering::Relaxed);
        self.application.store(names.application.0, Ordering::Relaxed);
    }
}

fn known(id: Id) -> Option<&'static KnownClient> {
    CLIENTS.get(id.index())
}

impl Connection {
    /// Forgets the client that had this place before, and classifies the new one by its address.
    pub(crate) fn begin_client(&self, ends: &Ends) {
        let Some(client) = known(self.id) else { return };
        client.set_names(&Names::default());
        client.version.store(0, Ordering::Relaxed);
        if self.page.client_rules().version() != 0 {
            self.classify(client, ends);
        }
    }

    /// Notes names that a message has given its client.
    #[cold]
    pub(crate) fn name_client(&self, newer: &Names) {
        let Some(client) = known(self.id) else { return };
        let mut names = client.names();
        names.update(newer);
        client.set_names(&names);
        if self.page.client_rules().version() != 0 {
            keeping_errno(|| self.classify(client, &Ends::of_socket(self.fd)));
        }
    }

    /// Classifies its client again if the rules have changed and are not being written. `errno`
    /// stays.
    #[inline]
    pub(crate) fn follow_rules(&self) {
        let version = self.page.client_rules().version();
        if version != 0
            && version & 1 == 0
            && let Some(client) = known(self.id)
            && client.version.load(Ordering::Relaxed) != version
        {
            keeping_errno(|| self.classify(client, &Ends::of_socket(self.fd)));
        }
    }

    #[cold]
    fn classify(&self, known: &KnownClient, ends: &Ends) {
        let client = Client {
            names: known.names(),
            address: ends.address,
            port: ends.local_port,
            unix_user: ends.is_unix.then(|| unix_user(self.fd)).flatten(),
        };
        let found = self.page.client_rules().classify(&client);
        if let (Some((class, version)), Some(seat)) = (found, self.page.gate().seat(self.id)) {
            seat.set_client_class(class);
            known.version.store(version, Ordering::Relaxed);
        }
    }
}

/// Returns the user that ran the client of a unix socket when it connected.
fn unix_user(fd: c_int) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the credentials may be written, and `length` is their size.
    let failed =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut peer).cast(), &raw mut length) };
    (failed == 0).then_some(peer.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_user_of_a_unix_socket_is_that_of_its_client() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        // SAFETY: `getuid` has no conditions.
        assert_eq!(unix_user(ours.as_raw_fd()), Some(unsafe { libc::getuid() }));
        assert_eq!(unix_user(-1), None);
    }

    #[test]
    fn names_that_a_message_does_not_give_stay() {
        let client = KnownClient::new();
        let [user, application] = [b"web", b"cli"].map(|name| NameHash::from_bytes(name));
        client.set_names(&Names { user, ..Names::default() });
        let mut names = client.names();
        names.update(&Names { application, ..Names::default() });
        client.set_names(&names);
        assert_eq!(client.names(), Names { user, application, ..Names::default() });
    }
}
