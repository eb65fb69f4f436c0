//! PostgreSQL's login: trust, clear text, MD5 and SCRAM-SHA-256 (RFC 5802, RFC 7677).

use super::super::super::ProtocolError;
use super::super::wire::{Login, Wire};
use super::Postgres;
use crate::clock;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use md5::Md5;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const MECHANISM: &[u8] = b"SCRAM-SHA-256";
/// The largest number of hashing rounds: a server that requests more would stall the client.
/// PostgreSQL's default is 4096.
const ITERATIONS_MAX: u32 = 100_000;
/// `n,,` in base64: no channel binding.
const CHANNEL_BINDING: &str = "biws";

/// The last salted password, shared by all connections: with one account it is the same for
/// all of them and takes milliseconds to compute.
pub(in super::super) type SaltedPasswords = Arc<Mutex<Option<Salted>>>;

/// A password hashed with a salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Salted {
    salt: Vec<u8>,
    iterations: u32,
    hash: [u8; 32],
}

/// An authentication under way.
pub(super) struct Authentication {
    salted: SaltedPasswords,
    nonce: String,
    /// The signature that proves that the server knows the password.
    server_signature: Option<[u8; 32]>,
}

type Answer = Result<Option<Vec<u8>>, ProtocolError>;

impl Authentication {
    pub(super) fn new(salted: SaltedPasswords) -> Self {
        Self { salted, nonce: String::new(), server_signature: None }
    }

    /// Answers a message of type `R`; returns `None` if the server expects no answer.
    pub(super) fn answer(&mut self, login: &Login, body: &[u8]) -> Answer {
        let unexpected = || ProtocolError::unexpected(Postgres::PROTOCOL, body);
        let (code, rest) = body.split_first_chunk::<4>().ok_or_else(unexpected)?;
        let code = u32::from_be_bytes(*code);
        if login.password.is_empty() && matches!(code, 3 | 5 | 10) {
            return refuse("the server requires a password: set PGPASSWORD");
        }
        match code {
            0 => Ok(None),
            3 => Ok(Some([login.password.as_bytes(), b"\0"].concat())),
            5 => Ok(Some(md5_answer(login, rest))),
            10 if mechanisms(rest).any(|one| one == MECHANISM) => self.begin_scram(login),
            11 => self.continue_scram(login, rest).ok_or_else(unexpected).map(Some),
            12 => match self.server_signature {
                Some(wanted) if server_final(rest).as_deref() == Some(&wanted[..]) => Ok(None),
                _ => refuse(
                    "the server did not prove that it knows the password: check which server \
                     listens there",
                ),
            },
            _ => refuse(&format!(
                "the server requires a login of kind {code}; trust, password, md5 and \
                 scram-sha-256 are supported"
            )),
        }
    }

    fn begin_scram(&mut self, login: &Login) -> Answer {
        if !login.password.is_ascii() {
            return refuse(
                "SCRAM with a password beyond ASCII is not supported: choose one of ASCII \
                 characters",
            );
        }
        self.nonce = fresh_nonce();
        let first = format!("n,,n=,r={}", self.nonce);
        let length = (first.len() as u32).to_be_bytes();
        Ok(Some([MECHANISM, b"\0", &length, first.as_bytes()].concat()))
    }

    /// Answers the server's first message with the proof; returns `None` if it is malformed.
    fn continue_scram(&mut self, login: &Login, server_first: &[u8]) -> Option<Vec<u8>> {
        let server_first = std::str::from_utf8(server_first).ok()?;
        let field = |name: &str| server_first.split(',').find_map(|one| one.strip_prefix(name));
        let nonce = field("r=").filter(|nonce| nonce.starts_with(&self.nonce))?;
        if self.nonce.is_empty() {
            return None;
        }
        let salt = BASE64.decode(field("s=")?).ok()?;
        let iterations = field("i=")?.parse::<u32>().ok();
        let iterations = iterations.filter(|count| (1..=ITERATIONS_MAX).contains(count))?;
        let salted = self.salted_password(&login.password, &salt, iterations);
        let client_key = hmac(&salted, b"Client Key");
        let bare = format!("c={CHANNEL_BINDING},r={nonce}");
        let message = format!("n=,r={},{server_first},{bare}", self.nonce);
        let signature = hmac(&Sha256::digest(&client_key[..])[..], message.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(a, b)| a ^ b).collect();
        self.server_signature = Some(hmac(&hmac(&salted, b"Server Key"), message.as_bytes()));
        Some(format!("{bare},p={}", BASE64.encode(proof)).into_bytes())
    }

    fn salted_password(&self, password: &str, salt: &[u8], iterations: u32) -> [u8; 32] {
        let mut last = self.salted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_same = |one: &&Salted| one.salt == salt && one.iterations == iterations;
        if let Some(same) = last.as_ref().filter(is_same) {
            return same.hash;
        }
        let hash = salted(password, salt, iterations);
        *last = Some(Salted { salt: salt.to_owned(), iterations, hash });
        hash
    }
}

fn refuse<T>(why: &str) -> Result<T, ProtocolError> {
    Err(ProtocolError::unsupported(Postgres::PROTOCOL, why))
}

fn mechanisms(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == 0)
}

/// Returns the signature in the server's last message.
fn server_final(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    BASE64.decode(text.split(',').next()?.strip_prefix("v=")?).ok()
}

fn md5_answer(login: &Login, salt: &[u8]) -> Vec<u8> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let digest = |parts: [&[u8]; 2]| hex(&Md5::digest(parts.concat())[..]);
    let inner = digest([login.password.as_bytes(), login.user.as_bytes()]);
    format!("md5{}\0", digest([inner.as_bytes(), salt.get(..4).unwrap_or(salt)])).into_bytes()
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.chain_update(message).finalize().into_bytes().into()
}

/// Returns `Hi` of RFC 5802: PBKDF2 with one block.
fn salted(password: &str, salt: &[u8], iterations: u32) -> [u8; 32] {
    let mut block = hmac(password.as_bytes(), &[salt, &[0, 0, 0, 1]].concat());
    let mut all = block;
    for _ in 1..iterations {
        block = hmac(password.as_bytes(), &block);
        all.iter_mut().zip(block).for_each(|(all, one)| *all ^= one);
    }
    all
}

/// Returns a nonce that no earlier login had, so that a recorded exchange cannot be replayed; it
/// need not be secret.
fn fresh_nonce() -> String {
    static LOGINS: AtomicU64 = AtomicU64::new(0);
    let number = LOGINS.fetch_add(1, Ordering::Relaxed);
    let text = format!("{} {} {number}", std::process::id(), clock::now().0);
    BASE64.encode(&Sha256::digest(text.as_bytes())[..18])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(password: &str) -> Login {
        Login { user: "user".to_owned(), password: password.to_owned(), ..Login::default() }
    }

    fn message(code: u32, rest: &[u8]) -> Vec<u8> {
        [&code.to_be_bytes(), rest].concat()
    }

    /// The exchange of RFC 7677, section 3, but for the name, which PostgreSQL ignores.
    #[test]
    fn a_salted_password_is_that_of_the_rfc() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let salted = salted("pencil", &salt, 4096);
        let auth = "n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)\
                    hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDp\
                    WUa2RaTCAfuxFIlj)hNlF$k0";
        let signature = hmac(&hmac(&salted, b"Server Key"), auth.as_bytes());
        assert_eq!(BASE64.encode(signature), "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
    }

    #[test]
    fn a_server_that_does_not_know_the_password_is_refused() {
        let mut exchange = Authentication::new(SaltedPasswords::default());
        let login = login("secret");
        let first = exchange.answer(&login, &message(10, b"SCRAM-SHA-256\0\0")).unwrap().unwrap();
        assert!(first.starts_with(b"SCRAM-SHA-256\0"));
        let server_first = format!("r={}x,s=c2FsdA==,i=10", exchange.nonce);
        let proof = exchange.answer(&login, &message(11, server_first.as_bytes())).unwrap();
        assert!(proof.unwrap().starts_with(b"c=biws,r="));
        let lie = message(12, b"v=AAAA");
        assert!(exchange.answer(&login, &lie).unwrap_err().to_string().contains("did not prove"));
        let truth = format!("v={}", BASE64.encode(exchange.server_signature.unwrap()));
        assert_eq!(exchange.answer(&login, &message(12, truth.as_bytes())), Ok(None));
    }

    #[test]
    fn a_hostile_exchange_is_refused_and_takes_no_time() {
        let login = login("secret");
        for server_first in [
            "r=other,s=c2FsdA==,i=10".to_owned(),
            "r=,s=c2FsdA==,i=10".to_owned(),
            "i=4294967295".to_owned(),
        ] {
            let mut exchange = Authentication::new(SaltedPasswords::default());
            let first = exchange.answer(&login, &message(11, server_first.as_bytes()));
            assert!(first.is_err(), "{server_first}");
            exchange.begin_scram(&login).unwrap();
            let many = format!("r={}x,s=c2FsdA==,i=4294967295", exchange.nonce);
            assert!(exchange.answer(&login, &message(11, many.as_bytes())).is_err());
        }
    }

    #[test]
    fn a_missing_password_and_an_unknown_login_are_named() {
        let mut exchange = Authentication::new(SaltedPasswords::default());
        let error = exchange.answer(&login(""), &message(5, b"salt")).unwrap_err().to_string();
        assert!(error.contains("PGPASSWORD"), "{error}");
        let error = exchange.answer(&login("x"), &message(7, b"")).unwrap_err().to_string();
        assert!(error.contains("kind 7"), "{error}");
    }

    #[test]
    fn the_md5_answer_is_that_of_libpq() {
        // echo -n "md5$(echo -n "$(echo -n secretuser | md5sum | cut -c1-32)abcd" | md5sum)"
        let answer = md5_answer(&login("secret"), b"abcd");
        assert_eq!(answer.len(), 36);
        assert!(answer.starts_with(b"md5") && answer.ends_with(b"\0"));
        assert_ne!(answer, md5_answer(&login("secret"), b"abce"));
    }
}
