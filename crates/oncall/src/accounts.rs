//! How long turns waited at the gate, by the user and the database of their clients.
//!
//! The table is bounded: accounts that find no free row share the last one. A row is claimed at
//! an account's first wait, and stays for as long as the page. Any bytes are a valid table.

use crate::client::{NameHash, Names};
use crate::histogram::Histogram;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of accounts that have a row of their own.
pub const ACCOUNTS: usize = 24;
/// The most bytes of a name that are kept; the rest of a longer one is left out.
pub const NAME_TEXT_BYTES: usize = 32;

const TEXT_WORDS: usize = NAME_TEXT_BYTES / 8;

/// The beginning of a name, stored in words that threads may share.
#[derive(Debug, Default)]
pub struct NameText([AtomicU64; TEXT_WORDS]);

impl NameText {
    /// Returns an empty one, for a static table.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; TEXT_WORDS])
    }

    /// Replaces the text.
    pub fn set(&self, name: &[u8]) {
        let mut padded = [0; NAME_TEXT_BYTES];
        let length = name.len().min(NAME_TEXT_BYTES);
        padded[..length].copy_from_slice(&name[..length]);
        for (word, bytes) in self.0.iter().zip(padded.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Whether no text is there.
    pub fn is_empty(&self) -> bool {
        self.0[0].load(Ordering::Relaxed).to_le_bytes()[0] == 0
    }

    /// Replaces the text by another one.
    pub fn copy_from(&self, other: &Self) {
        for (word, value) in self.0.iter().zip(&other.0) {
            word.store(value.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Copies the text to `room` and returns it, up to the first byte that is not UTF-8 or the
    /// first zero.
    pub fn get<'a>(&self, room: &'a mut [u8; NAME_TEXT_BYTES]) -> &'a str {
        for (word, bytes) in self.0.iter().zip(room.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let length = room.iter().position(|byte| *byte == 0).unwrap_or(NAME_TEXT_BYTES);
        room[..length].utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }
}

/// A user with a database.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Account {
    /// A hash of both names; 0 while the row is free.
    key: AtomicU64,
    /// 1 once the texts were written.
    is_named: AtomicU32,
    user: NameText,
    database: NameText,
    waits: Histogram,
}

impl Account {
    /// Returns the text of the user; `None` if no connection has shown it.
    pub fn user(&self) -> Option<&NameText> {
        self.is_named().then_some(&self.user)
    }

    /// Returns the text of the database; `None` if no connection has shown it.
    pub fn database(&self) -> Option<&NameText> {
        self.is_named().then_some(&self.database)
    }

    fn is_named(&self) -> bool {
        self.is_named.load(Ordering::Acquire) == 1
    }

    /// Returns how long turns waited that did, since the page was made.
    pub const fn waits(&self) -> &Histogram {
        &self.waits
    }

    /// Whether the row is that of `key`. A free row becomes it.
    fn claim(&self, key: u64) -> bool {
        let claimed = self.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
        claimed.map_or_else(|found| found == key, |_| true)
    }
}

/// The accounts of a page; the last row is that of all that found no free one.
#[derive(Debug, Default)]
pub struct Accounts([Account; ACCOUNTS + 1]);

impl Accounts {
    /// Returns the row of the account with these names, and claims one at the first call.
    pub fn open(&self, names: &Names) -> usize {
        if !names.user.is_known() {
            return ACCOUNTS;
        }
        let key = key_of(names);
        self.0[..ACCOUNTS].iter().position(|account| account.claim(key)).unwrap_or(ACCOUNTS)
    }

    /// Notes the texts of an account's names, unless they are known.
    pub fn name(&self, row: usize, user: &NameText, database: &NameText) {
        let Some(account) = self.0[..ACCOUNTS].get(row).filter(|one| !one.is_named()) else {
            return;
        };
        account.user.copy_from(user);
        account.database.copy_from(database);
        account.is_named.store(1, Ordering::Release);
    }

    /// Counts a turn that waited by the row of its account.
    pub fn waited(&self, row: usize, waited_ns: u64) {
        self.0[row.min(ACCOUNTS)].waits.add(waited_ns);
    }

    /// Iterates over the accounts with a row of their own, in the order in which they claimed
    /// it.
    pub fn known(&self) -> impl Iterator<Item = &Account> {
        self.0[..ACCOUNTS].iter().filter(|account| account.key.load(Ordering::Acquire) != 0)
    }

    /// Returns the row of all accounts that found no free one.
    pub const fn others(&self) -> &Account {
        &self.0[ACCOUNTS]
    }
}

/// Returns the key of a user with a database, never 0.
fn key_of(names: &Names) -> u64 {
    let NameHash(database) = names.database;
    (names.user.0.rotate_left(1) ^ database).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::{String, ToString};

    fn names(user: &str, database: &str) -> Names {
        let [user, database] = [user, database].map(|name| NameHash::from_bytes(name.as_bytes()));
        Names { user, database, ..Names::default() }
    }

    fn text(name: &str) -> NameText {
        let text = NameText::new();
        text.set(name.as_bytes());
        text
    }

    fn read(text: Option<&NameText>) -> Option<String> {
        text.map(|text| text.get(&mut [0; NAME_TEXT_BYTES]).to_string())
    }

    fn count(account: &Account) -> u32 {
        account.waits().counts().sum()
    }

    #[test]
    fn waits_are_counted_by_user_and_database_and_named_once_a_text_is_known() {
        let accounts = Accounts::default();
        let web = accounts.open(&names("web", "shop"));
        accounts.waited(web, 5_000_000);
        accounts.waited(accounts.open(&names("web", "stock")), 5_000_000);
        accounts.waited(accounts.open(&names("web", "shop")), 7_000_000);
        assert_eq!(accounts.known().map(count).collect::<std::vec::Vec<_>>(), [2, 1]);
        assert_eq!(read(accounts.known().next().unwrap().user()), None);
        accounts.name(web, &text("web"), &text("shop"));
        accounts.name(web, &text("other"), &text("name"));
        let first = accounts.known().next().unwrap();
        assert_eq!(read(first.user()).as_deref(), Some("web"));
        assert_eq!(read(first.database()).as_deref(), Some("shop"));
    }

    #[test]
    fn accounts_beyond_the_table_and_without_a_name_share_the_last_row() {
        let accounts = Accounts::default();
        for number in 0..ACCOUNTS + 3 {
            let row = accounts.open(&names(&number.to_string(), ""));
            accounts.waited(row, 1_000_000);
        }
        accounts.waited(accounts.open(&Names::default()), 1_000_000);
        accounts.waited(usize::MAX, 1_000_000);
        accounts.name(ACCOUNTS, &text("no"), &text("name"));
        assert_eq!(accounts.known().count(), ACCOUNTS);
        assert_eq!((count(accounts.others()), read(accounts.others().user())), (5, None));
    }

    #[test]
    fn a_long_text_is_cut_at_a_letter_and_bytes_that_are_none_end_it() {
        let long = "\u{e4}".repeat(20);
        assert_eq!(read(Some(&text(&long))), Some("\u{e4}".repeat(16)));
        let odd = NameText::new();
        odd.set(b"ab\xff\xffcd");
        assert_eq!(read(Some(&odd)).as_deref(), Some("ab"));
    }
}
