//! The names that a client gives at its login, and when it changes its user
//! (dev.mysql.com, "Protocol::HandshakeResponse41", "COM_CHANGE_USER").
//!
//! A packet that was cut off, or that is no such packet, gives the names that were read before.

use crate::client::{NameHash, Names};

const CLIENT_CONNECT_WITH_DB: u32 = 8;
const CLIENT_PROTOCOL_41: u32 = 0x200;
const CLIENT_SECURE_CONNECTION: u32 = 0x8000;
const CLIENT_PLUGIN_AUTH: u32 = 1 << 19;
const CLIENT_CONNECT_ATTRS: u32 = 1 << 20;
const CLIENT_PLUGIN_AUTH_LENENC: u32 = 1 << 21;
/// Capabilities, the size of a packet, a character set and zeros.
const BEFORE_USER: usize = 32;
/// The attribute in which clients say which program they are.
const PROGRAM_NAME: &[u8] = b"program_name";
/// More attributes than clients send; the others are not read.
const ATTRIBUTES_MAX: usize = 64;

/// The rest of a packet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1)?.first().copied()
    }

    /// Text that a zero ends.
    fn text(&mut self) -> Option<&'a [u8]> {
        let length = self.0.iter().position(|byte| *byte == 0)?;
        let text = self.bytes(length)?;
        self.byte()?;
        Some(text)
    }

    /// A number of one to nine bytes ("length-encoded integer").
    fn number(&mut self) -> Option<usize> {
        let length = match self.byte()? {
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            number => return Some(usize::from(number)),
        };
        let mut padded = [0; 8];
        padded[..length].copy_from_slice(self.bytes(length)?);
        usize::try_from(u64::from_le_bytes(padded)).ok()
    }

    fn counted_bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        self.bytes(length)
    }
}

/// Returns the names of a login; one that the client did not give is empty. A login of the
/// protocol before 4.1 has another layout, and gives none.
pub(super) fn names_at_login(capabilities: u32, packet: &[u8]) -> Names {
    let mut names = no_names();
    if capabilities & CLIENT_PROTOCOL_41 == 0 {
        return names;
    }
    let mut rest = Rest(packet);
    let _ = rest.bytes(BEFORE_USER).and_then(|_| read_login(&mut rest, capabilities, &mut names));
    names
}

fn no_names() -> Names {
    let none = NameHash::from_bytes(b"");
    Names { user: none, database: none, application: none }
}

fn read_login(rest: &mut Rest<'_>, capabilities: u32, names: &mut Names) -> Option<()> {
    let has = |capability: u32| capabilities & capability != 0;
    names.user = NameHash::from_bytes(rest.text()?);
    if has(CLIENT_PLUGIN_AUTH_LENENC) {
        rest.counted_bytes()?;
    } else if has(CLIENT_SECURE_CONNECTION) {
        let length = rest.byte()?;
        rest.bytes(length.into())?;
    } else {
        rest.text()?;
    }
    if has(CLIENT_CONNECT_WITH_DB) {
        names.database = NameHash::from_bytes(rest.text()?);
    }
    if has(CLIENT_PLUGIN_AUTH) {
        rest.text()?;
    }
    if has(CLIENT_CONNECT_ATTRS) {
        read_attributes(rest.counted_bytes()?, names)?;
    }
    Some(())
}

/// Returns the names of a change of user: `packet` begins with the command. Its client has the
/// capabilities of this century: a length before the password, and a plugin.
pub(super) fn names_at_change(packet: &[u8]) -> Names {
    let mut names = no_names();
    let _ = read_change(&mut Rest(packet), &mut names);
    names
}

fn read_change(rest: &mut Rest<'_>, names: &mut Names) -> Option<()> {
    rest.byte()?;
    names.user = NameHash::from_bytes(rest.text()?);
    let length = rest.byte()?;
    rest.bytes(length.into())?;
    names.database = NameHash::from_bytes(rest.text()?);
    let _character_set = rest.bytes(2)?;
    let _plugin = rest.text()?;
    read_attributes(rest.counted_bytes()?, names)
}

fn read_attributes(attributes: &[u8], names: &mut Names) -> Option<()> {
    let mut rest = Rest(attributes);
    for _ in 0..ATTRIBUTES_MAX {
        let (key, value) = (rest.counted_bytes()?, rest.counted_bytes()?);
        if key == PROGRAM_NAME {
            names.application = NameHash::from_bytes(value);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn names(user: &str, database: &str, application: &str) -> Names {
        let [user, database, application] =
            [user, database, application].map(|name| NameHash::from_bytes(name.as_bytes()));
        Names { user, database, application }
    }

    fn counted(bytes: &[u8]) -> Vec<u8> {
        [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }

    fn attributes() -> Vec<u8> {
        let pairs = ["_os", "Linux", "program_name", "report", "_pid", "1"];
        counted(&pairs.iter().flat_map(|text| counted(text.as_bytes())).collect::<Vec<_>>())
    }

    fn login(parts: &[&[u8]]) -> Vec<u8> {
        [&[&[0; BEFORE_USER][..]], parts].concat().concat()
    }

    #[test]
    fn a_login_gives_user_database_and_program_in_each_of_its_forms() {
        let with_database = CLIENT_PROTOCOL_41 | CLIENT_CONNECT_WITH_DB;
        let all = with_database | CLIENT_PLUGIN_AUTH | CLIENT_CONNECT_ATTRS;
        let tail: [&[u8]; 3] = [b"shop\0", b"mysql_native_password\0", &attributes()];
        let [database, plugin, attributes] = tail;
        let secret = [0xfc, 3, 0, 1, 2, 0];
        let counted = login(&[b"web\0", &secret, database, plugin, attributes]);
        let expected = names("web", "shop", "report");
        assert_eq!(names_at_login(all | CLIENT_PLUGIN_AUTH_LENENC, &counted), expected);
        let short = login(&[b"web\0", &[2, 0, 9], database, plugin, attributes]);
        assert_eq!(names_at_login(all | CLIENT_SECURE_CONNECTION, &short), expected);
        let old = login(&[b"web\0", b"secret\0", database]);
        assert_eq!(names_at_login(with_database, &old), names("web", "shop", ""));
        let before_41 = names_at_login(CLIENT_CONNECT_WITH_DB, &old);
        assert_eq!(before_41, names("", "", ""), "another layout");
        let none = login(&[b"web\0", b"\0"]);
        assert_eq!(names_at_login(CLIENT_PROTOCOL_41, &none), names("web", "", ""));
    }

    #[test]
    fn a_change_of_user_gives_the_names_again() {
        let parts: [&[u8]; 6] =
            [&[0x11], b"batch\0", &[1, 7], b"stock\0", &[45, 0], b"mysql_native_password\0"];
        let change = [&parts.concat()[..], &attributes()].concat();
        assert_eq!(names_at_change(&change), names("batch", "stock", "report"));
        assert_eq!(names_at_change(&parts.concat()), names("batch", "stock", ""));
        assert_eq!(names_at_change(&[]), names("", "", ""));
    }

    proptest! {
        #[test]
        fn no_packet_breaks_the_reader(capabilities: u32, packet: Vec<u8>) {
            prop_assert!(names_at_login(capabilities, &packet).user.is_known());
            prop_assert!(names_at_change(&packet).user.is_known());
        }
    }
}
