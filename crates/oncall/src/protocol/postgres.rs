//! PostgreSQL's frontend/backend protocol, version 3.
//!
//! A server ends every reply with `ReadyForQuery`: `Z`, its length 5, and one byte: `I`
//! idle, `T` in a transaction, `E` in a failed one (postgresql.org, "Message Formats").

mod messages;
mod names;

use super::wire::{Phase, Request, State, WireProtocol};
use crate::client::Names;
use messages::{Messages, NotMessages};

/// PostgreSQL. `notes` says whether the startup packet was read; both words of framing, and the
/// held name of the application, are of the messages to the client ([`Messages`]).
pub(super) struct Postgres;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;
/// The first version of the protocol's third generation, and that of the next one.
const VERSION_3: u32 = 3 << 16;
const VERSION_4: u32 = 4 << 16;
/// Part of a replica's startup message.
const REPLICATION: &[u8] = b"replication\0";

/// `notes`: the flag below.
const FLAGS: usize = 0;
/// The startup packet was read: what the client sends until its login is complete is none.
const STARTUP_READ: u8 = 1;

/// Length of the message Flush.
const FLUSH_BYTES: usize = 5;

/// How a TLS handshake begins: its record type and the major version. No startup packet is
/// that long.
const TLS_HANDSHAKE: [u8; 2] = [0x16, 3];

impl WireProtocol for Postgres {
    const NAME: &'static str = "postgres";
    const PROGRAMS: &'static [&'static [u8]] = &[b"postgres", b"postmaster"];
    const WORKERS_ARE_PROCESSES: bool = true;

    fn received(state: &mut State, bytes: &[u8], names: &mut Names) -> Request {
        if state.phase != Phase::Ready {
            read_startup(state, bytes, names);
            return Request::None;
        }
        match bytes.first() {
            _ if state.is_pending => Request::None,
            Some(b'X') => Request::OneWay,
            // A Flush alone has nothing to flush and gets no reply.
            Some(b'H') if bytes.len() == FLUSH_BYTES => Request::None,
            // Data of an abandoned copy, and passwords.
            Some(b'd' | b'c' | b'f' | b'p') | None => Request::None,
            Some(_) => Request::Query,
        }
    }

    fn sent(state: &mut State, bytes: &[u8], names: &mut Names) -> bool {
        if state.phase == Phase::EncryptionRequested {
            // The reply is one letter: N refuses encryption, S begins TLS, G begins GSSAPI.
            state.phase = match bytes {
                b"N" => Phase::Login,
                b"S" => Phase::Encrypted,
                _ => Phase::Opaque,
            };
            return false;
        }
        let mut messages = Messages::load(state);
        let read = messages.read(bytes, names);
        messages.store(state);
        match read {
            Ok(Some(status)) => {
                state.phase = Phase::Ready;
                state.in_transaction = status != b'I';
                true
            }
            Ok(None) => false,
            Err(NotMessages) => {
                (state.phase, state.in_transaction) = (Phase::Opaque, false);
                false
            }
        }
    }
}

/// Reads a startup packet: its length, and a number for its kind. Since version 17 TLS may begin
/// without one.
fn read_startup(state: &mut State, bytes: &[u8], names: &mut Names) {
    if state.notes[FLAGS] & STARTUP_READ != 0 {
        return;
    }
    let code = number_at(bytes, 4);
    if matches!(code, Some(SSL_REQUEST | GSS_REQUEST)) && bytes.len() == 8 {
        state.phase = Phase::EncryptionRequested;
        return;
    }
    state.notes[FLAGS] |= STARTUP_READ;
    if bytes.starts_with(&TLS_HANDSHAKE) {
        state.phase = Phase::Encrypted;
        return;
    }
    match code {
        Some(CANCEL_REQUEST) => state.phase = Phase::Exempt,
        Some(VERSION_3..VERSION_4) => {
            let length = number_at(bytes, 0).unwrap_or(0) as usize;
            let whole = bytes.get(8..length);
            if whole.map_or_else(|| may_replicate(bytes), names::requests_replication) {
                state.phase = Phase::Exempt;
            }
            // A packet that is cut off could lack the name that counts: it gives none.
            if let Some(pairs) = whole {
                names::read_startup(pairs, names);
            }
        }
        _ => {}
    }
}

/// Whether a packet that is cut off may be a replica's.
fn may_replicate(bytes: &[u8]) -> bool {
    bytes.windows(REPLICATION.len()).any(|part| part == REPLICATION)
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let number = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use crate::protocol::tests::Turn::{self, Client, Server};
    use crate::protocol::tests::{Played, check_replies_in_pieces, play};
    use crate::protocol::{Protocol, Request};
    use crate::{Class, NameHash};
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    /// A message of the server.
    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    fn ready(status: u8) -> Vec<u8> {
        message(b'Z', &[status])
    }

    fn startup(code: u32, text: &[u8]) -> Turn {
        let length = (text.len() as u32 + 8).to_be_bytes();
        Client([&length[..], &code.to_be_bytes(), text].concat())
    }

    fn play_after_login(turns: &[Turn]) -> Played {
        let login = [
            startup(196_608, b"user\0a\0\0"),
            Server([message(b'R', &[0; 4]), ready(b'I')].concat()),
        ];
        play(Protocol::Postgres, &[&login, turns].concat(), usize::MAX)
    }

    #[test]
    fn ready_for_query_ends_a_reply_and_shows_whether_a_transaction_is_open() {
        let begin = [
            Client(message(b'Q', b"begin\0")),
            Server([message(b'C', b"BEGIN\0"), ready(b'T')].concat()),
        ];
        let played = play_after_login(&begin);
        assert_eq!((played.requests, played.replies), (vec![Request::Query], 1));
        assert!(played.reader.in_transaction() && played.reader.class() == Class::Gated);
        let part = [Client(message(b'Q', b"select\0")), Server(message(b'D', b"row"))];
        let played = play_after_login(&part);
        assert!(played.reader.is_pending() && played.replies == 0);
    }

    #[test]
    fn the_server_reports_the_application_of_a_login_and_its_changes() {
        let application = |turns: &[Turn]| {
            let startup = startup(196_608, b"user\0a\0application_name\0psql\0\0");
            let all = [&[startup], turns].concat();
            play(Protocol::Postgres, &all, usize::MAX).names.application
        };
        let report = |name: &[u8]| message(b'S', &[b"application_name\0", name, b"\0"].concat());
        let login = [message(b'R', &[0; 4]), report(b"of_role"), ready(b'I')];
        let login = [Server(login.concat())];
        assert_eq!(application(&[]), NameHash::from_bytes(b"psql"));
        assert_eq!(application(&login), NameHash::from_bytes(b"of_role"));
        let set = [Client(message(b'Q', b"set\0")), Server([report(b"b"), ready(b'I')].concat())];
        assert_eq!(application(&[&login, &set[..]].concat()), NameHash::from_bytes(b"b"));
    }

    #[test]
    fn a_flush_while_idle_is_no_query() {
        let flush = Client(message(b'H', b""));
        let played = play_after_login(std::slice::from_ref(&flush));
        assert_eq!((played.requests.len(), played.reader.is_pending()), (0, false));
        let played = play_after_login(&[flush, Client(message(b'Q', b"select\0"))]);
        assert_eq!((played.requests, played.reader.is_pending()), (vec![Request::Query], true));
    }

    #[test]
    fn a_reply_that_is_no_messages_makes_a_connection_opaque() {
        let strange = [Client(message(b'Q', b"begin\0")), Server(ready(b'T'))];
        let strange = [&strange[..], &[Server(b"HTTP/1.1 200 OK\r\n".to_vec())]].concat();
        let played = play_after_login(&strange);
        assert_eq!(played.reader.class(), Class::Opaque);
        assert!(!played.reader.in_transaction());
    }

    #[test]
    fn logins_tls_and_replicas_pass() {
        let class = |turns: &[Turn]| play(Protocol::Postgres, turns, usize::MAX).reader.class();
        let tls = startup(80_877_103, b"");
        assert_eq!(class(&[startup(196_608, b"user\0a\0\0")]), Class::New);
        assert_eq!(class(&[tls.clone(), Server(b"S".to_vec())]), Class::Opaque);
        let gss = startup(80_877_104, b"");
        assert_eq!(class(&[gss, Server(b"G".to_vec())]), Class::Opaque);
        assert_eq!(class(&[tls, Server(b"N".to_vec())]), Class::New);
        assert_eq!(class(&[startup(196_608, b"replication\0true\0\0")]), Class::Exempt);
        assert_eq!(class(&[startup(80_877_102, b"12345678")]), Class::Exempt);
        // pg_basebackup and pg_receivewal; a logical replica names a database.
        let basebackup = b"user\0repl\0replication\0true\0application_name\0pg_basebackup\0\0";
        assert_eq!(class(&[startup(196_608, basebackup)]), Class::Exempt);
        let logical = b"user\0repl\0database\0shop\0replication\0database\0\0";
        assert_eq!(class(&[startup(196_608, logical)]), Class::Exempt);
        let ordinary =
            [&b"user\0web\0replication\0off\0\0"[..], b"user\0replication\0other\0a\0\0"];
        for startup_of in ordinary {
            assert_eq!(class(&[startup(196_608, startup_of)]), Class::New, "no replica");
        }
    }

    #[test]
    fn tls_begins_by_request_or_at_once_and_a_refusal_or_gssapi_is_not_tls() {
        let is_encrypted =
            |turns: &[Turn]| play(Protocol::Postgres, turns, usize::MAX).reader.is_encrypted();
        let hello = Client(vec![0x16, 3, 1, 0, 200, 1]);
        let tls = startup(80_877_103, b"");
        assert!(is_encrypted(&[tls.clone(), Server(b"S".to_vec()), hello.clone()]));
        assert!(is_encrypted(&[hello, Server(vec![0x16, 3, 3])]));
        assert!(!is_encrypted(&[tls, Server(b"N".to_vec())]));
        assert!(!is_encrypted(&[startup(80_877_104, b""), Server(b"G".to_vec())]));
        assert!(!is_encrypted(&[startup(196_608, b"user\0a\0\0")]));
    }

    #[test]
    fn only_the_first_whole_startup_packet_gives_names() {
        let user_after = |turns: &[Turn], piece| play(Protocol::Postgres, turns, piece).names.user;
        let user = NameHash::from_bytes(b"a");
        let first = startup(196_608, b"user\0a\0\0");
        let second = startup(196_608, b"user\0b\0\0");
        let twice = [first.clone(), second.clone()];
        assert_eq!(user_after(&twice, usize::MAX), user);
        assert!(!user_after(&twice, 12).is_known(), "in pieces");
        let refusal = [startup(80_877_103, b""), Server(b"N".to_vec()), first, second];
        assert_eq!(user_after(&refusal, usize::MAX), user);
        // A password is not a startup message of a replica.
        let password = Client(message(b'p', b"replication\0"));
        let login = [startup(196_608, b"user\0a\0\0"), password];
        let class = play(Protocol::Postgres, &login, usize::MAX).reader.class();
        assert_eq!(class, Class::New);
    }

    fn command_complete() -> Vec<u8> {
        message(b'C', b"DONE\0")
    }

    /// Asserts how many requests and replies a conversation has, and that it has ended.
    fn assert_ends(turns: &[Turn], requests: usize, replies: usize) {
        let played = play_after_login(turns);
        assert_eq!(played.requests, vec![Request::Query; requests]);
        assert_eq!(played.replies, replies);
        assert!(!played.reader.is_pending() && !played.reader.in_transaction());
        assert_eq!(played.reader.class(), Class::Gated);
    }

    #[test]
    fn the_data_of_a_copy_belong_to_its_query() {
        let copy = [Client(message(b'Q', b"copy\0")), Server(message(b'G', &[0, 0, 1, 0, 0]))];
        let row = Client(message(b'd', b"1\n"));
        let ends = Client(message(b'c', b""));
        let done = Server([command_complete(), ready(b'I')].concat());
        let whole = [&copy[..], &[row.clone(), row.clone(), ends.clone(), done]].concat();
        assert_ends(&whole, 1, 1);
        assert!(play_after_login(&whole[..4]).reader.is_pending());
        // The server refuses the first row, and the client has sent the rest already.
        let error = Server([message(b'E', b"SERROR\0\0"), ready(b'I')].concat());
        assert_ends(&[&copy[..], &[row.clone(), error, row, ends]].concat(), 1, 1);
        let rows = [message(b'H', &[0; 3]), message(b'd', b"1\n"), message(b'c', b"")].concat();
        let out = [rows, command_complete(), ready(b'I')].concat();
        assert_ends(&[Client(message(b'Q', b"copy\0")), Server(out)], 1, 1);
    }

    #[test]
    fn a_notification_between_queries_begins_and_ends_none() {
        let news = message(b'A', b"\0\0\0\x01channel\0Z\0\0\0\x05T\0");
        let query = |text: &[u8]| Client(message(b'Q', text));
        let turns = [
            query(b"listen\0"),
            Server([command_complete(), ready(b'I')].concat()),
            Server(news.clone()),
            query(b"notify\0"),
            Server([command_complete(), news, ready(b'I')].concat()),
        ];
        assert_ends(&turns, 2, 2);
    }

    #[test]
    fn a_portal_that_is_suspended_has_not_ended_its_query() {
        let [bind, execute, flush, sync] = [b'B', b'E', b'H', b'S'].map(|kind| message(kind, b""));
        let [bound, row, suspended] = [b'2', b'D', b's'].map(|kind| message(kind, b""));
        let turns = [
            Client([bind, execute.clone(), flush].concat()),
            Server([bound, row.clone(), suspended].concat()),
            Client([execute, sync].concat()),
            Server([row, command_complete(), ready(b'I')].concat()),
        ];
        assert!(play_after_login(&turns[..3]).reader.is_pending());
        assert_ends(&turns, 1, 1);
    }

    #[test]
    fn a_pipeline_that_is_read_at_once_is_one_query_with_the_state_of_the_last() {
        let part = |kinds: &[u8]| kinds.iter().flat_map(|kind| message(*kind, b"")).collect();
        let reply = |status: u8| -> Vec<u8> {
            let head: Vec<u8> = part(b"12");
            [head, command_complete(), ready(status)].concat()
        };
        let all = Client(part(b"PBESPBES"));
        assert_ends(&[all.clone(), Server(reply(b'T')), Server(reply(b'I'))], 1, 1);
        let open = play_after_login(&[all, Server(reply(b'I')), Server(reply(b'T'))]);
        assert!(open.reader.in_transaction() && open.replies == 1);
        // Several statements in a query have one end.
        let several = [command_complete(), command_complete(), ready(b'I')].concat();
        assert_ends(&[Client(message(b'Q', b"a;b\0")), Server(several)], 1, 1);
    }

    #[test]
    fn a_prepared_transaction_is_no_longer_open() {
        let turn = |status| {
            let reply = [command_complete(), ready(status)].concat();
            [Client(message(b'Q', b"x\0")), Server(reply)]
        };
        let turns = [turn(b'T'), turn(b'T')].concat();
        assert!(play_after_login(&turns).reader.in_transaction());
        let prepared = [turns, turn(b'I').to_vec(), turn(b'I').to_vec()].concat();
        assert_ends(&prepared, 4, 4);
    }

    fn conversation() -> impl Strategy<Value = Vec<Turn>> {
        let turn = prop_oneof![
            Just(vec![Client(message(b'Q', b"begin\0")), Server(ready(b'T'))]),
            Just(vec![Client(message(b'Q', b"end\0")), Server(ready(b'I'))]),
        ];
        let login = vec![startup(196_608, b"user\0a\0\0"), Server(ready(b'I'))];
        prop::collection::vec(turn, 0..6)
            .prop_map(move |turns| [login.clone(), turns.concat()].concat())
    }

    proptest! {
        #[test]
        fn a_server_may_send_its_replies_in_any_pieces(
            turns in conversation(),
            piece in 1usize..40,
        ) {
            check_replies_in_pieces(Protocol::Postgres, &turns, piece)?;
        }
    }
}
