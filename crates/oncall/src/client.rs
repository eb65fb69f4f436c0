//! Who a client is, and the rules in the page that put it into a class.
//!
//! A name of a client (user, database, application) is kept and compared as a 64-bit hash, so
//! that no payload is kept and each rule is a few words. Two names with one hash would be of one
//! class; an account of a server whose name was made for that is no stranger to it.
//!
//! The agent is the only writer of the rules. A reader that finds the version odd, or another one
//! after its search, has torn rules and keeps the class that it knows until its next query.

use crate::classes::CLIENT_CLASSES;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use core::net::IpAddr;

/// The most rules of classes in a page.
pub const CLIENT_RULES: usize = 32;
/// The most rules in a page for clients that bypass the gate.
pub const BYPASS_RULES: usize = 64;
/// The class of clients that bypass the gate. It has no queue, since they never wait.
pub const BYPASS_CLASS: u8 = u8::MAX;
/// The most bytes of a class's name; the rest of a longer one is left out.
pub const CLASS_NAME_BYTES: usize = 32;

/// The longest name that [`NameHash::find_in`] finds: PostgreSQL's have at most 63 bytes.
pub const NAME_SEARCH_BYTES: usize = 64;

/// A hash of a client's name; 0 is a name that is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameHash(pub u64);

impl NameHash {
    /// Where a name that comes in parts begins.
    pub(crate) const OF_NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

    /// Returns the hash of a name (FNV-1a), never 0.
    pub fn from_bytes(name: &[u8]) -> Self {
        Self::from_parts(
            name.iter().fold(Self::OF_NOTHING, |hash, byte| Self::add_byte(hash, *byte)),
        )
    }

    /// Adds a byte to the hash of a part of a name.
    #[inline]
    pub(crate) const fn add_byte(hash: u64, byte: u8) -> u64 {
        (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3)
    }

    /// Returns the hash of a name whose last part was added.
    pub(crate) fn from_parts(hash: u64) -> Self {
        Self(hash.max(1))
    }

    /// Whether the name is known.
    pub const fn is_known(self) -> bool {
        self.0 != 0
    }

    /// Returns the text of this name in the message that gave it, where a zero ends the text.
    /// Other bytes may precede the text without a zero between them. A name of more than
    /// [`NAME_SEARCH_BYTES`] bytes is not found.
    pub fn find_in(self, message: &[u8]) -> Option<&[u8]> {
        if self == Self::from_bytes(b"") {
            return Some(b"");
        }
        let mut ends = message.split(|byte| *byte == 0).flat_map(|piece| {
            let end = &piece[piece.len().saturating_sub(NAME_SEARCH_BYTES)..];
            (0..end.len()).map(move |start| &end[start..])
        });
        ends.find(|text| Self::from_bytes(text) == self)
    }
}

/// The names that a connection's messages have given its client; a name that no message gave
/// is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Names {
    /// The user of the server.
    pub user: NameHash,
    /// The database.
    pub database: NameHash,
    /// The application, as its client names it.
    pub application: NameHash,
}

impl Names {
    /// Whether a message gave any name.
    pub const fn are_any(&self) -> bool {
        self.user.is_known() || self.database.is_known() || self.application.is_known()
    }

    /// Replaces the names that a later message gave.
    pub fn update(&mut self, newer: &Self) {
        let pairs = [
            (&mut self.user, newer.user),
            (&mut self.database, newer.database),
            (&mut self.application, newer.application),
        ];
        for (name, newer) in pairs {
            if newer.is_known() {
                *name = newer;
            }
        }
    }
}

/// The client of a connection, as rules see it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Client {
    /// The names that it gave.
    pub names: Names,
    /// Its address, if it has one.
    pub address: Option<IpAddr>,
    /// The server's port; 0 on a unix socket.
    pub port: u16,
    /// The user that runs it, on a unix socket.
    pub unix_user: Option<u32>,
}

/// The first bits of addresses: an IPv4 address counts as the IPv6 address that maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressPrefix {
    address: u128,
    bits: u8,
}

/// An IPv4 address has these bits of the IPv6 address that maps it before it.
const MAPPED_BITS: u8 = 96;

fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl AddressPrefix {
    /// Returns the prefix of this many bits of an address; `None` if it has fewer.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let (most, before) = if address.is_ipv4() { (32, MAPPED_BITS) } else { (128, 0) };
        (bits <= most).then(|| Self { address: mapped(address), bits: before + bits })
    }

    /// Whether an address begins so.
    pub fn has(&self, address: IpAddr) -> bool {
        let differs = self.address ^ mapped(address);
        differs.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

/// A rule: all that it names must fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientRule {
    /// The number of the class.
    pub class: u8,
    /// Names, of which unknown ones are any.
    pub names: Names,
    /// The client's address.
    pub from: Option<AddressPrefix>,
    /// The server's port.
    pub port: Option<u16>,
    /// The user that runs the client, on a unix socket.
    pub unix_user: Option<u32>,
}

impl ClientRule {
    /// Whether a client fits.
    pub fn fits(&self, client: &Client) -> bool {
        let is = |wanted: NameHash, name: NameHash| !wanted.is_known() || wanted == name;
        is(self.names.user, client.names.user)
            && is(self.names.database, client.names.database)
            && is(self.names.application, client.names.application)
            && self.from.is_none_or(|from| client.address.is_some_and(|at| from.has(at)))
            && self.port.is_none_or(|port| port == client.port)
            && self.unix_user.is_none_or(|user| client.unix_user == Some(user))
    }

    /// Packs it: numbers, address, names. Of an optional number 0 is `None`.
    fn pack(&self) -> [u64; RULE_WORDS] {
        let bits = self.from.map_or(0, |from| u64::from(from.bits) + 1);
        let address = self.from.map_or(0, |from| from.address);
        let user = self.unix_user.map_or(0, |user| u64::from(user.saturating_add(1)));
        let port = u64::from(self.port.unwrap_or(0));
        let numbers = u64::from(self.class) | bits << 8 | port << 16 | user << 32;
        let (high, low) = ((address >> 64) as u64, address as u64);
        let Names { user, database, application } = self.names;
        [numbers, high, low, user.0, database.0, application.0]
    }

    /// Unpacks any words.
    fn unpack([numbers, high, low, user, database, application]: [u64; RULE_WORDS]) -> Self {
        let [class, bits, ..] = numbers.to_le_bytes();
        let address = u128::from(high) << 64 | u128::from(low);
        let bits = bits.checked_sub(1).map(|bits| bits.min(128));
        let [user, database, application] = [user, database, application].map(NameHash);
        Self {
            class,
            names: Names { user, database, application },
            from: bits.map(|bits| AddressPrefix { address, bits }),
            port: Some((numbers >> 16) as u16).filter(|port| *port != 0),
            unix_user: ((numbers >> 32) as u32).checked_sub(1),
        }
    }
}

const RULE_WORDS: usize = 6;
/// The rules of classes and those of clients that bypass the gate.
const RULES_MAX: usize = CLIENT_RULES + BYPASS_RULES;
const NAME_WORDS: usize = CLASS_NAME_BYTES / 8;

/// The rules of a page, in order, and the names of the classes. Any bytes are valid rules.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ClientRules {
    /// Odd while the rules are written; 0 until they first are.
    version: AtomicU32,
    count: AtomicU32,
    rules: [[AtomicU64; RULE_WORDS]; RULES_MAX],
    names: [[AtomicU64; NAME_WORDS]; CLIENT_CLASSES],
}

impl Default for ClientRules {
    fn default() -> Self {
        Self {
            version: AtomicU32::new(0),
            count: AtomicU32::new(0),
            rules: core::array::from_fn(|_| Default::default()),
            names: Default::default(),
        }
    }
}

impl ClientRules {
    /// Returns the version of the rules; 0 if none were ever set.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// Replaces rules and names; only one program may do so at a time. Returns `false` if there
    /// are too many rules.
    pub fn set<'a>(&self, rules: &[ClientRule], names: impl Iterator<Item = &'a str>) -> bool {
        let version = self.version.load(Ordering::Relaxed) & !1;
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.count.store(rules.len().min(RULES_MAX) as u32, Ordering::Relaxed);
        for (words, rule) in self.rules.iter().zip(rules) {
            store(words, rule.pack());
        }
        for (words, name) in self.names.iter().zip(names.chain(core::iter::repeat(""))) {
            let mut padded = [0; CLASS_NAME_BYTES];
            let length = name.floor_char_boundary(CLASS_NAME_BYTES);
            padded[..length].copy_from_slice(&name.as_bytes()[..length]);
            for (word, bytes) in words.iter().zip(padded.as_chunks().0) {
                word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
        }
        self.version.store(version.wrapping_add(2).max(2), Ordering::Release);
        rules.len() <= RULES_MAX
    }

    /// Returns the class of a client by the first rule that fits, 0 if none does, and the version
    /// of the rules; `None` while they are written.
    pub fn classify(&self, client: &Client) -> Option<(u32, u32)> {
        let before = self.version.load(Ordering::Acquire);
        let count = (self.count.load(Ordering::Relaxed) as usize).min(RULES_MAX);
        let mut rules = self.rules[..count].iter().map(|words| ClientRule::unpack(load(words)));
        let class = rules.find(|rule| rule.fits(client)).map_or(0, |rule| rule.class);
        fence(Ordering::Acquire);
        let is_whole = before & 1 == 0 && self.version.load(Ordering::Relaxed) == before;
        is_whole.then_some((u32::from(class), before))
    }

    /// Copies the name of a class to `room` and returns it, up to the first byte that is not
    /// UTF-8 or the first zero.
    pub fn name<'a>(&self, class: usize, room: &'a mut [u8; CLASS_NAME_BYTES]) -> &'a str {
        let Some(words) = self.names.get(class) else { return "" };
        for (word, bytes) in words.iter().zip(room.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let length = room.iter().position(|byte| *byte == 0).unwrap_or(CLASS_NAME_BYTES);
        room[..length].utf8_chunks().next().map_or("", |chunk| chunk.valid())
    }
}

fn store(words: &[AtomicU64; RULE_WORDS], values: [u64; RULE_WORDS]) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Relaxed);
    }
}

fn load(words: &[AtomicU64; RULE_WORDS]) -> [u64; RULE_WORDS] {
    core::array::from_fn(|at| words[at].load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::{String, ToString};

    fn names(user: &str, database: &str, application: &str) -> Names {
        let hash = |name: &str| match name {
            "" => NameHash::default(),
            _ => NameHash::from_bytes(name.as_bytes()),
        };
        Names { user: hash(user), database: hash(database), application: hash(application) }
    }

    fn prefix(address: &str, bits: u8) -> Option<AddressPrefix> {
        AddressPrefix::new(address.parse().unwrap(), bits)
    }

    #[test]
    fn all_that_a_rule_names_must_fit_and_the_first_rule_decides() {
        let rules = ClientRules::default();
        let web = ClientRule { class: 1, names: names("web", "", ""), ..ClientRule::default() };
        let both = ClientRule { names: names("web", "shop", ""), class: 2, ..web };
        let report = ClientRule { names: names("", "", "report"), class: 3, ..web };
        assert!(rules.set(&[both, web, report], ["others", "web"].into_iter()));
        let class = |names| rules.classify(&Client { names, ..Client::default() }).unwrap().0;
        assert_eq!(class(names("web", "shop", "")), 2);
        assert_eq!(class(names("web", "stock", "report")), 1);
        assert_eq!(class(names("batch", "shop", "report")), 3);
        assert_eq!(class(names("batch", "shop", "")), 0);
        assert_eq!(class(Names::default()), 0);
        assert!(rules.set(&[web; RULES_MAX], std::iter::empty()));
        assert!(!rules.set(&[web; RULES_MAX + 1], std::iter::empty()));
    }

    #[test]
    fn prefixes_are_of_both_families_and_an_address_in_the_other_form_is_the_same() {
        let is_in = |prefix: Option<AddressPrefix>, address: &str| {
            prefix.unwrap().has(address.parse().unwrap())
        };
        assert!(is_in(prefix("10.0.0.0", 8), "10.9.9.9"));
        assert!(is_in(prefix("10.0.0.0", 8), "::ffff:10.9.9.9"), "of a server that listens on ::");
        assert!(!is_in(prefix("10.0.0.0", 8), "11.0.0.1"));
        assert!(is_in(prefix("0.0.0.0", 0), "1.2.3.4") && !is_in(prefix("0.0.0.0", 0), "::1"));
        assert!(is_in(prefix("2001:db8::", 32), "2001:db8:7::1"));
        assert!(!is_in(prefix("2001:db8::", 32), "2001:db9::1"));
        assert!(is_in(prefix("::", 0), "2001:db9::1"));
        assert_eq!((prefix("10.0.0.0", 33), prefix("::1", 129)), (None, None));
    }

    #[test]
    fn ports_and_unix_users_are_numbers_of_which_none_is_any() {
        let rules = ClientRules::default();
        let root = ClientRule { class: 1, unix_user: Some(0), ..ClientRule::default() };
        let port = ClientRule { class: 2, port: Some(3307), ..ClientRule::default() };
        assert!(rules.set(&[root, port], std::iter::empty()));
        let class = |port, unix_user| {
            rules.classify(&Client { port, unix_user, ..Client::default() }).unwrap().0
        };
        assert_eq!(class(0, Some(0)), 1);
        assert_eq!(class(3307, None), 2);
        assert_eq!((class(3306, None), class(0, Some(1000))), (0, 0));
    }

    #[test]
    fn the_text_of_a_name_is_found_in_the_message_that_gave_it() {
        let find =
            |name: &[u8], message: &'static [u8]| NameHash::from_bytes(name).find_in(message);
        let startup = b"user\0web\0database\0shop\0\0";
        assert_eq!(find(b"web", startup), Some(&b"web"[..]));
        assert_eq!(find(b"shop", b"\x01\0web\0\x04\xff\x90\x80\xaashop\0"), Some(&b"shop"[..]));
        assert_eq!((find(b"", startup), find(b"batch", startup)), (Some(&b""[..]), None));
        assert_eq!(NameHash::default().find_in(startup), None, "a name that is not known");
    }

    #[test]
    fn rules_that_are_being_written_classify_no_client() {
        let rules = ClientRules::default();
        assert_eq!((rules.version(), rules.classify(&Client::default())), (0, Some((0, 0))));
        rules.version.store(5, Ordering::Relaxed);
        assert_eq!(rules.classify(&Client::default()), None);
        assert!(rules.set(&[], std::iter::empty()), "after a writer that was killed");
        assert_eq!(rules.classify(&Client::default()), Some((0, 6)));
    }

    #[test]
    fn names_of_classes_are_cut_at_a_letter() {
        let rules = ClientRules::default();
        let long = "\u{e4}".repeat(CLASS_NAME_BYTES);
        rules.set(&[], ["others", &long].into_iter());
        let name = |class| rules.name(class, &mut [0; CLASS_NAME_BYTES]).to_string();
        assert_eq!(name(0), "others");
        assert_eq!(name(1), "\u{e4}".repeat(CLASS_NAME_BYTES / 2));
        assert_eq!((name(2), name(CLIENT_CLASSES)), (String::new(), String::new()));
    }

    proptest! {
        #[test]
        fn a_rule_is_read_as_it_was_written_and_any_words_are_a_rule(words: [u64; RULE_WORDS]) {
            let rule = ClientRule::unpack(words);
            prop_assert_eq!(ClientRule::unpack(rule.pack()), rule);
            rule.fits(&Client::default());
        }
    }
}
