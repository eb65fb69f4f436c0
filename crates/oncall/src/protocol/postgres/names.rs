//! The names of a client: in its startup packet, and where the server reports that one changed
//! (postgresql.org, "StartupMessage", "ParameterStatus").

use crate::client::{NameHash, Names};

/// Messages of a reply that are read at most.
const MESSAGES_MAX: usize = 8;
/// Longer replies are not searched: a server reports a change behind the reply to `SET`, which
/// is short, and long replies are those whose search would take time.
const REPLY_MAX: usize = 1024;
/// How replies begin that may report a change and are no result sets: the command is complete,
/// a report (before version 14), a statement is parsed or bound.
const FIRST: &[u8] = b"CS12";
const PARAMETER_STATUS: u8 = b'S';

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

/// Searches a reply for a report that the name of the application has changed.
pub(super) fn read_reply(reply: &[u8], names: &mut Names) {
    let is_short = reply.len() <= REPLY_MAX;
    if !is_short || !reply.first().is_some_and(|first| FIRST.contains(first)) {
        return;
    }
    let mut rest = reply;
    for _ in 0..MESSAGES_MAX {
        let Some((head, after)) = rest.split_first_chunk::<5>() else { return };
        let [kind, length @ ..] = *head;
        let Some(length) = u32::from_be_bytes(length).checked_sub(4) else { return };
        let Some((mut body, next)) = after.split_at_checked(length as usize) else { return };
        if kind == PARAMETER_STATUS && text(&mut body) == Some(b"application_name") {
            names.application = text(&mut body).map_or(names.application, NameHash::from_bytes);
        }
        rest = next;
    }
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

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    fn changed(reply: &[Vec<u8>]) -> Names {
        let mut names = Names::default();
        read_reply(&reply.concat(), &mut names);
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
    fn the_name_of_an_application_changes_when_the_server_reports_it() {
        let report = message(b'S', b"application_name\0report\0");
        let (done, ready) = (message(b'C', b"SET\0"), message(b'Z', b"I"));
        let application = NameHash::from_bytes(b"report");
        let expected = Names { application, ..Names::default() };
        assert_eq!(changed(&[done.clone(), report.clone(), ready.clone()]), expected);
        assert_eq!(changed(&[report.clone(), done.clone(), ready.clone()]), expected, "before 14");
        let parsed = message(b'1', b"");
        assert_eq!(changed(&[parsed, done.clone(), report, ready.clone()]), expected);
        let other = message(b'S', b"TimeZone\0UTC\0");
        assert!(!changed(&[done.clone(), other, ready.clone()]).are_any());
        // What a client has stored in a row is no report.
        let row = message(b'D', b"S\0\0\0\x1capplication_name\0report\0");
        assert!(!changed(&[row, done, ready]).are_any());
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_readers(bytes: Vec<u8>) {
            started(&bytes);
            changed(&[bytes]);
        }
    }
}
