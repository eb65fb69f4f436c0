//! PostgreSQL's protocol, version 3: the end of each answer says all.
//!
//! A server ends every answer with `ReadyForQuery`: `Z`, its length 5, and
//! one byte: `I` idle, `T` in a transaction, `E` in a failed one
//! (postgresql.org, "Message Formats"). It stands last in what is sent.

use super::{Heard, Phase, Reader};

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;
/// What a startup message of a replica contains.
const REPLICATION: &[u8] = b"replication\0";

const READY: [u8; 5] = [b'Z', 0, 0, 0, 5];

impl Reader {
    pub(super) fn postgres_received(&mut self, bytes: &[u8]) -> Heard {
        if self.phase != Phase::Ready {
            self.postgres_starts(bytes);
            return Heard::More;
        }
        match bytes.first() {
            _ if self.is_pending => Heard::More,
            Some(b'X') => Heard::Silent,
            // Data of a copy that was given up, and passwords.
            Some(b'd' | b'c' | b'f' | b'p') | None => Heard::More,
            Some(_) => Heard::Query,
        }
    }

    /// A startup packet has a length and a number that says what it is.
    fn postgres_starts(&mut self, bytes: &[u8]) {
        let code = bytes.get(4..8).and_then(|code| code.first_chunk::<4>());
        match code.map(|code| u32::from_be_bytes(*code)) {
            Some(SSL_REQUEST | GSS_REQUEST) if bytes.len() == 8 => self.phase = Phase::Asked,
            Some(CANCEL_REQUEST) => self.phase = Phase::Exempt,
            _ if bytes.windows(REPLICATION.len()).any(|part| part == REPLICATION) => {
                self.phase = Phase::Exempt;
            }
            _ => {}
        }
    }

    /// Whether this ends an answer.
    pub(super) fn postgres_sent(&mut self, bytes: &[u8]) -> bool {
        if self.phase == Phase::Asked {
            // One letter answers: N for no. Else it goes on encrypted.
            let goes_on = bytes == b"N";
            self.phase = if goes_on { Phase::Login } else { Phase::Opaque };
            return false;
        }
        let Some(status) = self.postgres_ready(bytes) else { return false };
        if self.phase == Phase::Login {
            self.phase = Phase::Ready;
        }
        self.in_transaction = status != b'I';
        true
    }

    /// The status, if these bytes, after those before, end with `ReadyForQuery`.
    fn postgres_ready(&mut self, bytes: &[u8]) -> Option<u8> {
        let (status, before) = bytes.split_last()?;
        let is_end = match before.len() {
            0..5 => self.postgres_before(before) == READY,
            _ => before.ends_with(&READY),
        };
        self.postgres_keep(bytes);
        is_end.then_some(*status)
    }

    /// The last five bytes before the one at hand.
    fn postgres_before(&self, here: &[u8]) -> [u8; 5] {
        let kept = self.postgres_kept();
        let mut last = [0; 5];
        let from_kept = 5 - here.len();
        last[..from_kept].copy_from_slice(&kept[here.len()..]);
        last[from_kept..].copy_from_slice(here);
        last
    }

    /// The last five bytes that were sent, for an end that comes in two pieces.
    const fn postgres_kept(&self) -> [u8; 5] {
        let [a, b, c, d] = self.to_client.left.to_le_bytes();
        [a, b, c, d, self.to_client.have]
    }

    fn postgres_keep(&mut self, bytes: &[u8]) {
        let kept = match bytes.last_chunk::<5>() {
            Some(last) => *last,
            None => self.postgres_before(bytes),
        };
        let [a, b, c, d, e] = kept;
        self.to_client.left = u32::from_le_bytes([a, b, c, d]);
        self.to_client.have = e;
    }
}
