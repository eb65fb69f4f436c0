//! Loads of caches with the ETC mix: memcached, and servers with the protocol of Redis.

use super::{Decoder, RequestKind, Target, memcached, redis};
use crate::Generator;
use crate::etc::{Etc, EtcRequest};
use rand::{Rng, SeedableRng};

/// The largest value stored.
const VALUE_BYTES: usize = 1024;

/// The protocol of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheProtocol {
    /// memcached's text protocol.
    Memcached,
    /// RESP2, the protocol of Redis, Valkey and KeyDB.
    Redis {
        /// The password that is sent on every connection before the first request, unless it is
        /// empty.
        password: String,
    },
}

/// GETs and SETs of the ETC mix.
#[derive(Debug, Clone)]
pub struct Cache {
    protocol: CacheProtocol,
    etc: Etc,
    /// Bytes of which each value is a prefix.
    filler: Vec<u8>,
    /// The text of the last key.
    key: Vec<u8>,
}

impl Cache {
    /// Creates a client of the mix.
    pub fn new(protocol: CacheProtocol, etc: Etc) -> Self {
        let mut filler = vec![0; VALUE_BYTES];
        Generator::seed_from_u64(0).fill_bytes(&mut filler);
        Self { protocol, etc, filler, key: Vec::new() }
    }

    /// Returns the number of different keys.
    pub(super) fn records(&self) -> u32 {
        self.etc.records()
    }

    pub(super) const fn name(&self) -> &'static str {
        match self.protocol {
            CacheProtocol::Memcached => memcached::PROTOCOL,
            CacheProtocol::Redis { .. } => redis::PROTOCOL,
        }
    }

    fn write_get(&mut self, record: u32, out: &mut Vec<u8>) {
        self.key.clear();
        self.etc.write_key(record, &mut self.key);
        match self.protocol {
            CacheProtocol::Memcached => memcached::write_get(&self.key, out),
            CacheProtocol::Redis { .. } => redis::write_command(&[b"GET", &self.key], out),
        }
    }

    pub(super) fn write_set(&mut self, record: u32, bytes: usize, out: &mut Vec<u8>) {
        self.key.clear();
        self.etc.write_key(record, &mut self.key);
        let value = &self.filler[..bytes];
        match self.protocol {
            CacheProtocol::Memcached => memcached::write_set(&self.key, value, out),
            CacheProtocol::Redis { .. } => redis::write_command(&[b"SET", &self.key, value], out),
        }
    }
}

impl Target for Cache {
    fn encode(&mut self, rng: &mut Generator, out: &mut Vec<u8>) -> RequestKind {
        match self.etc.request(rng) {
            EtcRequest::Get(record) => {
                self.write_get(record, out);
                RequestKind::Get
            }
            EtcRequest::Set(record, bytes) => {
                self.write_set(record, bytes, out);
                RequestKind::Set
            }
        }
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        match &self.protocol {
            CacheProtocol::Memcached => Box::<memcached::Replies>::default(),
            CacheProtocol::Redis { password } => Box::new(redis::Replies::new(password)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etc::EtcConfig;
    use crate::testing::rng;

    fn requests(protocol: CacheProtocol) -> Vec<(RequestKind, Vec<u8>)> {
        let etc = Etc::new(&EtcConfig { set_share: 0.5, ..EtcConfig::default() }).unwrap();
        let (mut target, mut rng) = (Cache::new(protocol, etc), rng(1));
        let mut request = || {
            let mut out = Vec::new();
            (target.encode(&mut rng, &mut out), out)
        };
        (0..200).map(|_| request()).collect()
    }

    /// Splits a request at the end of its first line.
    fn first_line(request: &[u8]) -> (&str, usize) {
        let end = request.iter().position(|byte| *byte == b'\n').unwrap();
        (std::str::from_utf8(&request[..end]).unwrap().trim_end(), end + 1)
    }

    #[test]
    fn requests_to_memcached_are_those_of_its_protocol() {
        for (kind, request) in requests(CacheProtocol::Memcached) {
            let (line, end) = first_line(&request);
            match (kind, line.split(' ').collect::<Vec<_>>()[..].as_ref()) {
                (RequestKind::Get, ["get", _]) => assert_eq!(request.len(), end),
                (RequestKind::Set, ["set", _, "0", "0", length]) => {
                    let length: usize = length.parse().unwrap();
                    assert_eq!(request.len(), end + length + 2);
                }
                _ => panic!("{kind:?} {line}"),
            }
        }
    }

    #[test]
    fn requests_to_redis_are_arrays_of_counted_strings() {
        for (kind, request) in requests(CacheProtocol::Redis { password: String::new() }) {
            let (line, mut at) = first_line(&request);
            let count: usize = line.strip_prefix('*').unwrap().parse().unwrap();
            let mut words = Vec::new();
            for _ in 0..count {
                let (line, end) = first_line(&request[at..]);
                let length: usize = line.strip_prefix('$').unwrap().parse().unwrap();
                let word = at + end..at + end + length;
                at = word.end + 2;
                assert_eq!(&request[word.end..at], b"\r\n");
                words.push(&request[word]);
            }
            assert_eq!(request.len(), at);
            let wanted: (&[u8], usize) = match kind {
                RequestKind::Get => (b"GET", 2),
                _ => (b"SET", 3),
            };
            assert_eq!((words[0], words.len()), wanted);
        }
    }
}
