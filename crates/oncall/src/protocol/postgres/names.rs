//! The names of a client in its startup packet (postgresql.org, "StartupMessage").

use crate::client::{NameHash, Names};

/// Takes one text that a zero ends from `rest`.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = rest.iter().position(|byte| *byte == 0)?;
    let (text, after) = rest.split_at(length);
    *rest = &after[1..];
    Some(text)
}

/// Reads the pairs of a startup packet: of several with one key the last counts, as in the server.
/// A database that is not named is the user's own.
pub(super) fn read_startup(mut pairs: &[u8], names: &mut Names) {
    *names = Names { application: NameHash::from_bytes(b""), ..Names::default() };
    while let Some(key) = text(&mut pairs).filter(|key| !key.is_empty()) {
        let Some(value) = text(&mut pairs) else { break };
        match key {
            b"user" => names.user = NameHash::from_bytes(value),
            b"database" => names.database = NameHash::from_bytes(value),
            b"application_name" => names.application = NameHash::from_bytes(value),
            _ => {}
        }
    }
    if !names.database.is_known() {
        names.database = names.user;
    }
}

/// Whether the pairs request a connection of a replica: `replication` with a value that the server
/// does not read as false. Of several values the last counts.
pub(super) fn requests_replication(mut pairs: &[u8]) -> bool {
    const FALSE: [&[u8]; 4] = [b"false", b"no", b"off", b"0"];
    let mut is_requested = false;
    while let Some(key) = text(&mut pairs).filter(|key| !key.is_empty()) {
        let Some(value) = text(&mut pairs) else { break };
        if key == b"replication" {
            let is_false = |word: &&[u8]| {
                // The server takes the first letters of a word, too; `o` alone is ambiguous.
                let begins = word.get(..value.len());
                begins.is_some_and(|begin| begin.eq_ignore_ascii_case(value)) && value != b"o"
            };
            is_requested = value.is_empty() || !FALSE.iter().any(is_false);
        }
    }
    is_requested
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

    fn started(pairs: &[u8]) -> Names {
        let mut names = Names::default();
        read_startup(pairs, &mut names);
        names
    }

    #[test]
    fn a_startup_packet_gives_user_database_and_application() {
        let all = b"user\0web\0client_encoding\0UTF8\0database\0shop\0application_name\0psql\0\0";
        assert_eq!(started(all), names("web", "shop", "psql"));
        assert_eq!(started(b"user\0web\0\0"), names("web", "web", ""));
        let many = [b"user\0web\0".repeat(99), b"user\0batch\0\0".to_vec()].concat();
        assert_eq!(started(&many), names("batch", "batch", ""), "the last counts");
        assert_eq!(started(b"user\0web\0database\0sh"), names("web", "web", ""), "cut off");
    }

    #[test]
    fn a_replica_is_recognised_by_the_last_value_that_it_gives() {
        let asks = |value: &[u8]| {
            requests_replication(&[b"user\0a\0replication\0", value, b"\0\0"].concat())
        };
        assert!([&b"true"[..], b"on", b"1", b"database", b""].into_iter().all(asks));
        assert!(![&b"false"[..], b"F", b"off", b"of", b"no", b"0"].into_iter().any(asks));
        assert!(!requests_replication(b"replication\0on\0replication\0off\0\0"));
        assert!(!requests_replication(b"user\0replication\0\0"), "a user of that name");
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes: Vec<u8>) {
            started(&bytes);
            requests_replication(&bytes);
        }
    }
}
