//! The login of MySQL and MariaDB: `mysql_native_password` and `caching_sha2_password`.
//!
//! A server with `caching_sha2_password` that has not cached the account requires the password
//! itself, which is sent under TLS or on a unix socket only; MySQL's exchange by its RSA key is not
//! implemented.

use super::super::super::ProtocolError;
use super::super::wire::{Login, Wire, split_at_nul};
use super::{ERR, Mysql, OK, refused, write_packet};
use sha1::Sha1;
use sha2::{Digest, Sha256};

const NATIVE: &str = "mysql_native_password";
const CACHING_SHA2: &str = "caching_sha2_password";
const PROTOCOL_VERSION: u8 = 10;
const SALT_BYTES: usize = 20;

const CLIENT_LONG_PASSWORD: u32 = 1;
const CLIENT_CONNECT_WITH_DB: u32 = 8;
const CLIENT_PROTOCOL_41: u32 = 0x200;
const CLIENT_SSL: u32 = 0x800;
const CLIENT_TRANSACTIONS: u32 = 0x2000;
const CLIENT_SECURE_CONNECTION: u32 = 0x8000;
const CLIENT_PLUGIN_AUTH: u32 = 0x8_0000;
const UTF8MB4: u8 = 45;
const MAX_PACKET_BYTES: u32 = 1 << 24;

const MORE_DATA: u8 = 0x01;
const SWITCH: u8 = 0xfe;
/// The byte behind `MORE_DATA`: the server has cached the account, or requires the password itself.
const FAST_OK: u8 = 3;
const FULL: u8 = 4;

/// The next step after a packet of the server.
pub(super) enum Step {
    Send(Vec<u8>),
    Wait,
    Done,
}

/// The client's reply to the server's first packet.
pub(super) struct GreetingAnswer {
    /// The request for TLS, in the clear; TLS begins behind it.
    pub(super) tls_request: Option<Vec<u8>>,
    pub(super) login: Vec<u8>,
}

/// Answers the server's first packet.
pub(super) fn answer_greeting(
    login: &Login,
    payload: &[u8],
    sequence: u8,
) -> Result<GreetingAnswer, ProtocolError> {
    let unexpected = || ProtocolError::unexpected(Mysql::PROTOCOL, payload);
    let Greeting { salt, plugin, offers_tls } = read_greeting(payload).ok_or_else(unexpected)?;
    if login.is_tls && !offers_tls {
        return Err(ProtocolError::unsupported(
            Mysql::PROTOCOL,
            "the server has no TLS: give it a certificate, or leave out `?tls`",
        ));
    }
    // With another plugin the server requests one of these next, or refuses the account.
    let plugin = if plugin == CACHING_SHA2.as_bytes() { CACHING_SHA2 } else { NATIVE };
    let scramble = scramble(plugin, &login.password, &salt);
    let flags = if login.is_tls { CLIENT_SSL } else { 0 }
        | CLIENT_LONG_PASSWORD
        | CLIENT_CONNECT_WITH_DB
        | CLIENT_PROTOCOL_41
        | CLIENT_TRANSACTIONS
        | CLIENT_SECURE_CONNECTION
        | CLIENT_PLUGIN_AUTH;
    let mut head = Vec::from(flags.to_le_bytes());
    head.extend(MAX_PACKET_BYTES.to_le_bytes());
    head.push(UTF8MB4);
    head.extend([0; 23]);
    let parts: [&[u8]; 8] = [
        &head,
        login.user.as_bytes(),
        &[0, scramble.len() as u8],
        &scramble,
        login.database.as_bytes(),
        &[0],
        plugin.as_bytes(),
        &[0],
    ];
    let packet = |sequence: u8, parts: &[&[u8]]| {
        let mut out = Vec::new();
        write_packet(sequence, parts, &mut out);
        out
    };
    let [next, last] = [1, 2].map(|later| sequence.wrapping_add(later));
    Ok(match login.is_tls {
        true => GreetingAnswer {
            tls_request: Some(packet(next, &[&head])),
            login: packet(last, &parts),
        },
        false => GreetingAnswer { tls_request: None, login: packet(next, &parts) },
    })
}

/// Answers a later packet of the login.
pub(super) fn answer(login: &Login, payload: &[u8], sequence: u8) -> Result<Step, ProtocolError> {
    let send = |bytes: &[u8]| {
        let mut out = Vec::new();
        write_packet(sequence.wrapping_add(1), &[bytes], &mut out);
        Ok(Step::Send(out))
    };
    match payload {
        [OK, ..] => Ok(Step::Done),
        [ERR, ..] => Err(refused(payload)),
        [MORE_DATA, FAST_OK] => Ok(Step::Wait),
        [MORE_DATA, FULL] if login.is_unix || login.is_tls => {
            send(&[login.password.as_bytes(), &[0]].concat())
        }
        [MORE_DATA, FULL] => Err(ProtocolError::unsupported(
            Mysql::PROTOCOL,
            "the server requires the password itself, which needs TLS: write `?tls` behind the \
             database, connect over its unix socket, or let another client log in to this account \
             first, so that the server remembers it",
        )),
        [SWITCH, rest @ ..] => {
            let (plugin, salt) = split_at_nul(rest).unwrap_or((rest, &[]));
            let salt = salt.strip_suffix(&[0]).unwrap_or(salt);
            match [NATIVE, CACHING_SHA2].into_iter().find(|known| known.as_bytes() == plugin) {
                Some(plugin) => send(&scramble(plugin, &login.password, salt)),
                None => Err(ProtocolError::unsupported(
                    Mysql::PROTOCOL,
                    &format!(
                        "the account logs in by `{}`; only {NATIVE} and {CACHING_SHA2} are \
                         supported",
                        plugin.escape_ascii()
                    ),
                )),
            }
        }
        _ => Err(ProtocolError::unexpected(Mysql::PROTOCOL, payload)),
    }
}

/// The contents of a greeting of version 10.
struct Greeting<'g> {
    salt: Vec<u8>,
    plugin: &'g [u8],
    offers_tls: bool,
}

fn read_greeting(payload: &[u8]) -> Option<Greeting<'_>> {
    let rest = payload.strip_prefix(&[PROTOCOL_VERSION])?;
    let (_version, rest) = split_at_nul(rest)?;
    // Thread, 8 bytes of salt, a zero byte, flags, character set, status, flags, length of the
    // salt, 10 reserved bytes.
    let first = rest.get(4..12)?;
    let flags = u16::from_le_bytes(*rest.get(13..15)?.first_chunk()?);
    let rest = rest.get(31..)?;
    let second = rest.get(..SALT_BYTES - first.len())?;
    // A zero byte ends the salt.
    let plugin = rest.get(second.len() + 1..).unwrap_or_default();
    let plugin = split_at_nul(plugin).map_or(plugin, |(plugin, _)| plugin);
    let offers_tls = u32::from(flags) & CLIENT_SSL != 0;
    Some(Greeting { salt: [first, second].concat(), plugin, offers_tls })
}

/// Returns the proof that the client knows the password; empty for an empty password.
fn scramble(plugin: &str, password: &str, salt: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let xor = |a: &[u8], b: &[u8]| -> Vec<u8> { a.iter().zip(b).map(|(a, b)| a ^ b).collect() };
    if plugin == CACHING_SHA2 {
        let once = Sha256::digest(password.as_bytes());
        let twice = Sha256::digest(&once[..]);
        xor(&once[..], &Sha256::new().chain_update(&twice[..]).chain_update(salt).finalize()[..])
    } else {
        let once = Sha1::digest(password.as_bytes());
        let twice = Sha1::digest(&once[..]);
        xor(&once[..], &Sha1::new().chain_update(salt).chain_update(&twice[..]).finalize()[..])
    }
}
