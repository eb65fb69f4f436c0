//! Messages of PostgreSQL: in any portions, and hostile.

use super::*;
use proptest::prelude::*;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_message(kind, &[body], &mut out);
    out
}

fn postgres() -> Postgres {
    let login = Login { user: "u".to_owned(), database: "d".to_owned(), ..Login::default() };
    Postgres::new(login, SaltedPasswords::default())
}

#[test]
fn tls_is_requested_first_and_nothing_follows_its_acceptance_in_the_clear() {
    let wire = || {
        let mut wire = postgres();
        wire.login.is_tls = true;
        let mut out = Vec::new();
        wire.open(&mut out);
        assert_eq!(out, [0, 0, 0, 8, 4, 210, 22, 47]);
        wire
    };
    let mut accepted = wire();
    assert!(!accepted.begins_tls(&mut Vec::new()), "not before the reply");
    assert_eq!(accepted.read(b"S", &mut Vec::new()), Ok((1, None)));
    let mut login = Vec::new();
    assert!(accepted.begins_tls(&mut login) && login[4..8] == VERSION.to_be_bytes());
    assert!(!accepted.begins_tls(&mut Vec::new()), "once");
    let error = wire().read(b"N", &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("has no TLS"), "{error}");
    for more in [&b"SR"[..], b"E\0\0\0\x08", b"HTTP/1.1 400"] {
        assert!(wire().read(more, &mut Vec::new()).is_err(), "{more:?}");
    }
}

/// Feeds `bytes` in portions and returns the replies.
fn feed(wire: &mut Postgres, bytes: &[u8], step: usize) -> Result<Vec<Reply>, ProtocolError> {
    let (mut held, mut replies) = (Vec::new(), Vec::new());
    for portion in bytes.chunks(step) {
        held.extend_from_slice(portion);
        loop {
            let (used, reply) = wire.read(&held, &mut Vec::new())?;
            held.drain(..used);
            replies.extend(reply);
            if used == 0 {
                break;
            }
        }
        assert!(held.len() <= 5 + HEAD_BYTES);
    }
    Ok(replies)
}

fn logged_in() -> Postgres {
    let mut wire = postgres();
    let bytes = [
        message(b'R', &[0; 4]),
        message(b'S', b"server_version\x0016\0"),
        message(b'K', &[0; 8]),
        message(b'Z', b"I"),
    ]
    .concat();
    assert_eq!(feed(&mut wire, &bytes, 1000).unwrap(), [Reply::default()]);
    wire
}

fn error(severity: &str, code: &str) -> Vec<u8> {
    message(b'E', format!("S?\0V{severity}\0C{code}\0Mdeadlock detected\0\0").as_bytes())
}

#[test]
fn a_fatal_error_ends_the_connection_with_its_message() {
    let mut wire = logged_in();
    wire.query("select", &mut Vec::new());
    let refusal = feed(&mut wire, &error("FATAL", "57P01"), 100).unwrap_err().to_string();
    assert!(refusal.contains("57P01: deadlock detected"), "{refusal}");
    let refusal = feed(&mut postgres(), &error("FATAL", "28P01"), 3).unwrap_err().to_string();
    assert!(refusal.contains("28P01"), "{refusal}");
}

#[test]
fn copy_and_another_protocol_are_refused() {
    let mut wire = logged_in();
    wire.query("copy t from stdin", &mut Vec::new());
    let refusal = feed(&mut wire, &message(b'G', &[0; 3]), 100).unwrap_err().to_string();
    assert!(refusal.contains("COPY"), "{refusal}");
    assert!(feed(&mut postgres(), b"HTTP/1.1 400 Bad Request\r\n", 100).is_err());
}

#[test]
fn an_execution_binds_its_parameters_as_text() {
    let (mut wire, mut out) = (logged_in(), Vec::new());
    wire.execute(3, &[-12], &mut out);
    let wanted = [
        message(b'B', b"\x003\0\0\0\0\x01\0\0\0\x03-12\0\0"),
        message(b'E', &[0; 5]),
        message(b'S', b""),
    ];
    assert_eq!(out, wanted.concat());
}

proptest! {
    #[test]
    fn portions_of_any_size_give_the_same_replies(step in 1usize..300) {
        let mut wire = logged_in();
        wire.query("select", &mut Vec::new());
        let row = [b'Z'; 9000];
        let bytes = [
            message(b'T', b"columns"),
            message(b'D', &row),
            message(b'N', b"Cx\0\0"),
            message(b'C', b"SELECT 1\0"),
            message(b'Z', b"T"),
        ].concat();
        let wanted = Reply { error: None, in_transaction: true };
        prop_assert_eq!(feed(&mut wire, &bytes, step).unwrap(), vec![wanted]);
        wire.execute(1, &[], &mut Vec::new());
        let bytes = [error("ERROR", "40P01"), message(b'Z', b"E")].concat();
        let replies = feed(&mut wire, &bytes, step).unwrap();
        let found = replies[0].error.clone().unwrap();
        prop_assert_eq!((found.code.kind(), replies[0].in_transaction), ("deadlock", true));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600), step in 1usize..100,
        is_new in any::<bool>(), kinds in "[RSKZETDCI123ntsNAGHWv]{1,20}",
    ) {
        let mut wire = if is_new { postgres() } else { logged_in() };
        if !is_new {
            wire.query("select", &mut Vec::new());
        }
        let _ = feed(&mut wire, &bytes, step);
        // Messages of known types get further into the decoder.
        let mut wire = if is_new { postgres() } else { logged_in() };
        if !is_new {
            wire.execute(0, &[1], &mut Vec::new());
        }
        let parts = bytes.chunks(bytes.len() / kinds.len() + 1);
        let framed = kinds.bytes().zip(parts).flat_map(|(kind, part)| message(kind, part));
        let framed: Vec<u8> = framed.collect();
        let _ = feed(&mut wire, &framed, step);
    }
}
