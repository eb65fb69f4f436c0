//! Back-off of clients that present wrong tokens.
//!
//! The first few mistakes are free. After them, each further one doubles the time for which
//! orders of that client are refused, up to a minute; without a mistake for ten minutes it
//! starts again. While it lasts, a token is not even compared. All users of the machine itself
//! share the loopback address, so that one of them could lock the operator out: there the
//! right token always passes, and its 128 random bits are what protects it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Wrong tokens of one client without consequence.
const FREE_MISTAKES: u32 = 5;
/// The first wait; each further mistake doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time without a mistake after which a client is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(600);
/// Most clients that are remembered; of more, the one that has been quiet longest is forgotten.
const CLIENTS_MAX: usize = 256;

/// The clients that presented wrong tokens.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    clients: BTreeMap<IpAddr, Mistakes>,
}

#[derive(Debug, Clone, Copy)]
struct Mistakes {
    count: u32,
    last: Instant,
}

impl Mistakes {
    fn wait(&self) -> Duration {
        let Some(over) = self.count.checked_sub(FREE_MISTAKES + 1) else { return Duration::ZERO };
        FIRST_WAIT.saturating_mul(1 << over.min(16)).min(LONGEST_WAIT)
    }
}

/// Why an order is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The token is wrong.
    Wrong,
    /// The client sent too many wrong tokens, and may try again after this time.
    TooMany {
        /// The time in seconds, at least 1.
        retry_after_s: u64,
    },
}

impl Backoff {
    /// Checks an order of a client. `is_right` compares its token and is called only if the
    /// client is not waiting, or is on this machine.
    pub(super) fn check(
        &mut self,
        client: IpAddr,
        now: Instant,
        is_right: impl FnOnce() -> bool,
    ) -> Result<(), Refusal> {
        let client = network_of(client);
        let left = self.remaining(client, now);
        let is_waiting = left > Duration::ZERO;
        if (!is_waiting || client.is_loopback()) && is_right() {
            self.clients.remove(&client);
            return Ok(());
        }
        if is_waiting {
            return Err(Refusal::TooMany { retry_after_s: left.as_secs_f64().ceil() as u64 });
        }
        self.add_mistake(client, now);
        Err(Refusal::Wrong)
    }

    /// Returns how long a client has to wait.
    fn remaining(&mut self, client: IpAddr, now: Instant) -> Duration {
        let Some(mistakes) = self.clients.get(&client) else { return Duration::ZERO };
        let since = now.saturating_duration_since(mistakes.last);
        let left = mistakes.wait().saturating_sub(since);
        if since >= FORGET_AFTER {
            self.clients.remove(&client);
        }
        left
    }

    fn add_mistake(&mut self, client: IpAddr, now: Instant) {
        if !self.clients.contains_key(&client) && self.clients.len() >= CLIENTS_MAX {
            let quietest = self.clients.iter().min_by_key(|(_, mistakes)| mistakes.last);
            if let Some((&quietest, _)) = quietest {
                self.clients.remove(&quietest);
            }
        }
        let mistakes = self.clients.entry(client).or_insert(Mistakes { count: 0, last: now });
        mistakes.count = mistakes.count.saturating_add(1);
        mistakes.last = now;
    }
}

/// One machine usually has a whole /64 of IPv6 addresses, so these count as one client.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn wrong(backoff: &mut Backoff, client: IpAddr, now: Instant) -> Refusal {
        backoff.check(client, now, || false).unwrap_err()
    }

    #[test]
    fn waits_begin_after_some_mistakes_and_double_up_to_a_minute() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        for _ in 0..=FREE_MISTAKES {
            assert_eq!(wrong(&mut backoff, REMOTE, now), Refusal::Wrong);
        }
        let mut waits = Vec::new();
        for _ in 0..8 {
            let Refusal::TooMany { retry_after_s } = wrong(&mut backoff, REMOTE, now) else {
                panic!("the token was compared");
            };
            waits.push(retry_after_s);
            now += Duration::from_secs(retry_after_s);
            assert_eq!(wrong(&mut backoff, REMOTE, now), Refusal::Wrong);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        now += FORGET_AFTER;
        assert_eq!(backoff.check(REMOTE, now, || true), Ok(()));
        assert!(backoff.clients.is_empty());
    }

    #[test]
    fn a_waiting_client_is_refused_with_the_right_token_unless_it_is_on_this_machine() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        for client in [REMOTE, here] {
            for _ in 0..=FREE_MISTAKES {
                wrong(&mut backoff, client, now);
            }
        }
        let refused = backoff.check(REMOTE, now, || panic!("the token was compared"));
        assert_eq!(refused, Err(Refusal::TooMany { retry_after_s: 1 }));
        assert!(matches!(wrong(&mut backoff, here, now), Refusal::TooMany { .. }));
        assert_eq!(backoff.check(here, now, || true), Ok(()));
        assert_eq!(wrong(&mut backoff, here, now), Refusal::Wrong, "it starts again");
    }

    #[test]
    fn addresses_of_one_network_are_one_client_and_memory_is_bounded() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        for host in 0..100_u16 {
            wrong(&mut backoff, IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]), now);
        }
        assert_eq!(backoff.clients.len(), 1);
        for network in 0..10_000_u16 {
            let later = now + Duration::from_millis(u64::from(network) + 1);
            wrong(&mut backoff, IpAddr::from([0x2001, 0xdb8, network, 2, 0, 0, 0, 1]), later);
        }
        assert_eq!(backoff.clients.len(), CLIENTS_MAX);
    }
}
