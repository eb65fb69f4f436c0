//! Frames of MySQL: in any portions, hostile, and from a login.

use super::*;
use proptest::prelude::*;
use sha1::Sha1;
use sha2::Digest;

fn login(password: &str, is_unix: bool) -> Login {
    let (user, database) = ("root".to_owned(), "test".to_owned());
    Login { user, database, password: password.to_owned(), is_unix, is_tls: false }
}

fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_packet(sequence, &[payload], &mut out);
    out
}

/// A greeting of version 10 with this plugin.
fn greeting(plugin: &str) -> Vec<u8> {
    let mut body = b"\x0a5.5.5-10.11\0\x07\0\0\0saltsalt\0".to_vec();
    body.extend([0xff, 0xf7, 45, 2, 0, 0xff, 0x81, 21]);
    body.extend([0; 10]);
    body.extend(b"saltsaltsalt\0");
    body.extend(plugin.as_bytes());
    body.push(0);
    packet(0, &body)
}

#[test]
fn a_login_under_tls_follows_its_request_and_is_not_sent_in_the_clear() {
    let mut wire = Mysql::new(Login { is_tls: true, ..login("secret", false) });
    let without = greeting("mysql_native_password");
    // CLIENT_SSL is bit 11 of the server's flags.
    let flags = without.windows(2).position(|it| it == [0xff, 0xf7]).unwrap();
    let mut hello = without.clone();
    hello[flags + 1] |= 8;
    // The packet that an attacker between the ends appends: a server that requires the password
    // itself.
    let appended = [&hello[..], &packet(1, &[1, 4])].concat();
    for step in [5, 1000] {
        let mut wire = Mysql::new(Login { is_tls: true, ..login("secret", false) });
        assert!(feed(&mut wire, &appended, step).is_err());
    }
    let (_, clear) = feed(&mut wire, &hello, 5).unwrap();
    assert_eq!(clear.len(), 4 + 32, "a login without user and password");
    assert_eq!((clear[0], clear[3]), (32, 1), "its length, and the sequence behind the greeting");
    assert_ne!(clear[5] & 8, 0, "CLIENT_SSL");
    let mut encrypted = Vec::new();
    assert!(wire.begins_tls(&mut encrypted) && !wire.begins_tls(&mut Vec::new()));
    assert_eq!(encrypted[3], 2);
    assert_eq!(encrypted[4..36], clear[4..36], "the same flags");
    assert!(encrypted.windows(4).any(|it| it == b"root"));
    let mut wire = Mysql::new(Login { is_tls: true, ..login("", false) });
    let error = feed(&mut wire, &without, 5).unwrap_err().to_string();
    assert!(error.contains("has no TLS"), "{error}");
}

const OK_PACKET: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

/// Feeds `bytes` in portions. Returns the replies, and the bytes that the client sent.
fn feed(
    wire: &mut Mysql,
    bytes: &[u8],
    step: usize,
) -> Result<(Vec<Reply>, Vec<u8>), ProtocolError> {
    let (mut held, mut replies, mut out) = (Vec::new(), Vec::new(), Vec::new());
    for portion in bytes.chunks(step) {
        held.extend_from_slice(portion);
        loop {
            let (used, reply) = wire.read(&held, &mut out)?;
            held.drain(..used);
            replies.extend(reply);
            if used == 0 {
                break;
            }
        }
        assert!(held.len() <= 4 + HEAD_BYTES);
    }
    Ok((replies, out))
}

fn logged_in() -> Mysql {
    let mut wire = Mysql::new(login("", false));
    let bytes = [greeting("mysql_native_password"), packet(2, OK_PACKET)].concat();
    assert_eq!(feed(&mut wire, &bytes, 1000).unwrap().0, [Reply::default()]);
    wire
}

/// A result set of two columns and one row, with these status flags.
fn result_set(status: u8) -> Vec<u8> {
    let eof = [0xfe, 0, 0, status, 0];
    [
        packet(1, &[2]),
        packet(2, b"\x03def..."),
        packet(3, b"\x03def..."),
        packet(4, &eof),
        // A row whose first value is longer than 16 MB begins with the byte of an EOF packet.
        packet(5, &[&[0xfe], &[b'x'; 9000][..]].concat()),
        packet(6, &eof),
    ]
    .concat()
}

#[test]
fn the_scramble_is_that_of_the_native_login() {
    let mut wire = Mysql::new(login("secret", false));
    let (_, out) = feed(&mut wire, &greeting("mysql_native_password"), 7).unwrap();
    let (once, salt) = (Sha1::digest(b"secret"), b"saltsaltsaltsaltsalt");
    let mask = Sha1::new().chain_update(salt).chain_update(&Sha1::digest(&once[..])[..]).finalize();
    let scramble: Vec<u8> = once.iter().zip(mask).map(|(a, b)| a ^ b).collect();
    let wanted = [b"root\0\x14".as_slice(), &scramble, b"test\0mysql_native_password\0"].concat();
    assert!(out.ends_with(&wanted), "{out:?}");
    assert_eq!(out[3], 1, "the sequence follows that of the greeting");
}

#[test]
fn a_server_may_switch_the_login_and_want_the_password_on_a_unix_socket_only() {
    let switch = packet(2, b"\xfecaching_sha2_password\0saltsaltsaltsaltsalt\0");
    let bytes = [greeting("other"), switch, packet(4, &[1, 4])].concat();
    let mut unix = Mysql::new(login("secret", true));
    let (_, out) = feed(&mut unix, &bytes, 1000).unwrap();
    assert!(out.ends_with(b"\x05secret\0"), "{out:?}");
    let error = feed(&mut Mysql::new(login("secret", false)), &bytes, 1000).unwrap_err();
    assert!(error.to_string().contains("needs TLS"), "{error}");
    let ed25519 = [greeting("other"), packet(2, b"\xfeclient_ed25519\0salt")].concat();
    let error = feed(&mut Mysql::new(login("secret", true)), &ed25519, 1000).unwrap_err();
    assert!(error.to_string().contains("client_ed25519"), "{error}");
}

#[test]
fn a_refusal_is_reported_with_its_number() {
    let denied = packet(2, b"\xff\x15\x04#28000Access denied");
    let bytes = [greeting("mysql_native_password"), denied].concat();
    let error = feed(&mut Mysql::new(login("", false)), &bytes, 1000).unwrap_err();
    assert!(error.to_string().ends_with("1045: Access denied"), "{error}");
    // Errors before the greeting have no SQLSTATE.
    let error = feed(&mut Mysql::new(login("", false)), &packet(0, b"\xff\x10\x04Too many"), 9);
    assert!(error.unwrap_err().to_string().ends_with("1040: Too many"));
}

proptest! {
    #[test]
    fn portions_of_any_size_give_the_same_replies(step in 1usize..300) {
        let mut wire = logged_in();
        wire.query("select", &mut Vec::new());
        let (replies, _) = feed(&mut wire, &result_set(1), step).unwrap();
        prop_assert_eq!(replies, vec![Reply { error: None, in_transaction: true }]);
        wire.prepare(1, "select ?", &mut Vec::new());
        let prepared = [
            packet(1, &[0, 7, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]),
            packet(2, b"\x03def"),
            packet(3, &[0xfe, 0, 0, 2, 0]),
            packet(4, b"\x03def"),
            packet(5, &[0xfe, 0, 0, 2, 0]),
        ].concat();
        prop_assert_eq!(feed(&mut wire, &prepared, step).unwrap().0.len(), 1);
        let mut out = Vec::new();
        wire.execute(1, &[-2], &mut out);
        prop_assert_eq!(&out[4..9], &[0x17, 7, 0, 0, 0]);
        prop_assert!(out.ends_with(&(-2i64).to_le_bytes()));
        let deadlock = packet(1, b"\xff\xbd\x04#40001Deadlock found");
        let (replies, _) = feed(&mut wire, &deadlock, step).unwrap();
        let error = replies[0].error.clone().unwrap();
        prop_assert_eq!(error.code.kind(), "deadlock");
        prop_assert_eq!(error.message, "Deadlock found");
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600), step in 1usize..100,
        command in 0..4, short in any::<bool>(),
    ) {
        let mut wire = if command == 0 { Mysql::new(login("x", true)) } else { logged_in() };
        match command {
            1 => wire.query("select", &mut Vec::new()),
            2 => wire.prepare(0, "select", &mut Vec::new()),
            3 => wire.execute(0, &[], &mut Vec::new()),
            _ => {}
        }
        // Packets of plausible lengths reach further than random ones.
        let bytes = match short {
            true => bytes.chunks(12).flat_map(|one| packet(1, one)).collect(),
            false => bytes,
        };
        let _ = feed(&mut wire, &bytes, step);
    }
}

#[test]
fn a_payload_of_several_packets_is_skipped_whole() {
    let mut wire = logged_in();
    wire.query("select", &mut Vec::new());
    let head = [packet(1, &[1]), packet(2, b"\x03def"), packet(3, &[0xfe, 0, 0, 2, 0])].concat();
    feed(&mut wire, &head, 100).unwrap();
    let mut long = vec![0xff, 0xff, 0xff, 4];
    long.resize(4 + LENGTH_MAX, b'x');
    // The rest of the payload looks like an error.
    long.extend(packet(5, b"\xff\x15\x04#28000no error"));
    long.extend(packet(6, &[0xfe, 0, 0, 2, 0]));
    let (replies, _) = feed(&mut wire, &long, 1 << 20).unwrap();
    assert_eq!(replies, [Reply::default()]);
}

#[test]
fn further_results_belong_to_the_same_reply_and_a_reply_to_nothing_is_refused() {
    let mut wire = logged_in();
    wire.query("call p()", &mut Vec::new());
    let bytes = [result_set(8), packet(7, OK_PACKET)].concat();
    assert_eq!(feed(&mut wire, &bytes, 1000).unwrap().0.len(), 1);
    assert!(feed(&mut wire, &packet(0, OK_PACKET), 1000).is_err());
}

#[test]
fn a_greeting_of_another_protocol_is_refused_before_its_supposed_end() {
    for text in ["SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 400 Bad Request\r\n", "220 mail ESMTP\r\n"] {
        let mut wire = Mysql::new(login("", false));
        let error = wire.read(text.as_bytes(), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("is this a MySQL server?"), "{error}");
    }
}
