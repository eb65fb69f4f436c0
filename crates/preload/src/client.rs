//! Which class the client of a connection is in: by the names that its messages give, its
//! address, and the user that runs it.
//!
//! The agent's rules are in the page. A class is found when a name is given, and again at the
//! first query after the rules have changed: a query compares two words.

use crate::connection::{Connection, Ends};
use crate::real::keeping_errno;
use lull_oncall::{
    BYPASS_CLASS, CONNECTIONS, Client, GateEntry, Id, NameHash, NameText, Names, Page,
};
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The client of each connection, as this process knows it.
static CLIENTS: [KnownClient; CONNECTIONS] = [const { KnownClient::new() }; CONNECTIONS];

struct KnownClient {
    user: AtomicU64,
    database: AtomicU64,
    application: AtomicU64,
    /// The version of the rules by which it was classified.
    version: AtomicU32,
    /// The row of its account in the page plus one; 0 until it has waited.
    account: AtomicU32,
    user_text: NameText,
    database_text: NameText,
}

impl KnownClient {
    const fn new() -> Self {
        let [user, database, application] = [const { AtomicU64::new(0) }; 3];
        let [version, account] = [const { AtomicU32::new(0) }; 2];
        let [user_text, database_text] = [const { NameText::new() }; 2];
        Self { user, database, application, version, account, user_text, database_text }
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

    /// Notes the texts of the names that `message` has given.
    fn set_texts(&self, given: &Names, message: &[u8]) {
        let all = [(given.user, &self.user_text), (given.database, &self.database_text)];
        for (name, text) in all.into_iter().filter(|(name, _)| name.is_known()) {
            text.set(name.find_in(message).unwrap_or_default());
            self.account.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the row of its account in the page.
    fn account(&self, page: &Page) -> usize {
        if let Some(row) = self.account.load(Ordering::Relaxed).checked_sub(1) {
            return row as usize;
        }
        let names = self.names();
        let row = page.accounts().open(&names);
        // An empty text is that of a name which its message did not show, unless it is the name.
        if !self.user_text.is_empty() || names.user == NameHash::from_bytes(b"") {
            page.accounts().name(row, &self.user_text, &self.database_text);
        }
        self.account.store(row as u32 + 1, Ordering::Relaxed);
        row
    }
}

fn known(id: Id) -> Option<&'static KnownClient> {
    CLIENTS.get(id.index())
}

impl Connection {
    /// Forgets the client that had this number before, and classifies the new one by its address.
    pub(crate) fn begin_client(&self, ends: &Ends) {
        let Some(client) = known(self.id) else { return };
        client.set_names(&Names::default());
        client.version.store(0, Ordering::Relaxed);
        client.account.store(0, Ordering::Relaxed);
        if self.page.client_rules().version() != 0 {
            self.classify(client, ends);
        }
    }

    /// Notes names that this message has given its client.
    #[cold]
    pub(crate) fn name_client(&self, newer: &Names, message: &[u8]) {
        let Some(client) = known(self.id) else { return };
        let mut names = client.names();
        names.update(newer);
        client.set_names(&names);
        client.set_texts(newer, message);
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

    /// Whether its client bypasses the gate.
    #[inline]
    pub(crate) fn bypasses_gate(&self) -> bool {
        let class = self.page.gate().entry(self.id).map_or(0, GateEntry::client_class);
        class == usize::from(BYPASS_CLASS)
    }

    /// Counts a wait of its worker by the user and the database of its client.
    #[cold]
    pub(crate) fn count_wait(&self, waited_ns: u64) {
        if let Some(client) = known(self.id) {
            self.page.accounts().waited(client.account(self.page), waited_ns);
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
        if let (Some((class, version)), Some(entry)) = (found, self.page.gate().entry(self.id)) {
            entry.set_client_class(class);
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
    fn texts_are_those_of_the_message_that_gave_the_names() {
        let client = KnownClient::new();
        let [user, database] = [b"shop", b"data"].map(|name| NameHash::from_bytes(name));
        let names = Names { user, database, ..Names::default() };
        let text = |text: &NameText| text.get(&mut [0; lull_oncall::NAME_TEXT_BYTES]).to_owned();
        client.set_texts(&names, b"user\0shop\0database\0data\0\0");
        let both = || (text(&client.user_text), text(&client.database_text));
        assert_eq!(both(), ("shop".to_owned(), "data".to_owned()));
        let application = NameHash::from_bytes(b"cli");
        client.set_texts(&Names { application, ..Names::default() }, b"application_name\0cli\0");
        assert_eq!(both().0, "shop", "a later message without a user");
        client.set_texts(&names, b"an OK packet");
        assert_eq!(both(), (String::new(), String::new()), "a user that another message gave");
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
