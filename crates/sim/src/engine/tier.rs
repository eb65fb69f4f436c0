//! Tiers: the choice of the server for a call.

use crate::model::Routing;
use crate::order::Key;
use crate::replication::Stream;
use crate::tree::WinnerTree;
use rand::RngExt;

/// A group of servers and the rule by which one is chosen.
#[derive(Debug, Clone)]
pub(crate) struct TierState {
    /// First of its servers, and how many.
    pub(crate) first: u32,
    pub(crate) servers: u32,
    rule: Rule,
    stream: Stream,
}

/// A routing rule with its state.
#[derive(Debug, Clone)]
enum Rule {
    Only,
    Random,
    Turn { next: u32 },
    Least { tree: WinnerTree, chosen: Vec<u64>, choices: u64 },
    Cumulative(Vec<f64>),
    SameAs,
}

impl TierState {
    /// A tier of `servers` servers from `first` on.
    pub(crate) fn new(first: u32, servers: u32, routing: &Routing, stream: Stream) -> Self {
        let rule = match routing {
            _ if servers == 1 => Rule::Only,
            Routing::Random => Rule::Random,
            Routing::RoundRobin => Rule::Turn { next: 0 },
            Routing::LeastPending => Rule::least(servers as usize),
            Routing::Probabilities(list) => Rule::Cumulative(cumulative(list)),
            Routing::SameAs(_) => Rule::SameAs,
        };
        Self { first, servers, rule, stream }
    }

    /// The server for a call; `same_as` is the number, within its tier, of the
    /// server called earlier that the rule may refer to.
    #[inline(always)]
    pub(crate) fn choose(&mut self, same_as: u32) -> u32 {
        if let Rule::Only = self.rule {
            return self.first;
        }
        self.first + self.choose_among(same_as)
    }

    fn choose_among(&mut self, same_as: u32) -> u32 {
        match &mut self.rule {
            Rule::Only => 0,
            Rule::Random => self.stream.random_range(0..self.servers),
            Rule::Turn { next } => {
                let chosen = *next;
                *next = if chosen + 1 == self.servers { 0 } else { chosen + 1 };
                chosen
            }
            Rule::Least { tree, .. } => tree.first().owner(),
            Rule::Cumulative(sums) => {
                let point = self.stream.random::<f64>();
                sums.partition_point(|sum| *sum <= point) as u32
            }
            Rule::SameAs => same_as % self.servers,
        }
    }

    /// Updates the rule with the number of requests pending at a server; `entered` is
    /// whether a request has just chosen it.
    #[inline(always)]
    pub(crate) fn pending(&mut self, server: u32, pending: u32, entered: bool) {
        if let Rule::Least { tree, chosen, choices } = &mut self.rule {
            let at = server - self.first;
            if entered {
                *choices += 1;
                chosen[at as usize] = *choices;
            }
            tree.set(at as usize, Key::new(pending.into(), chosen[at as usize], at));
        }
    }
}

impl Rule {
    fn least(servers: usize) -> Self {
        let mut tree = WinnerTree::new(servers);
        for at in 0..servers {
            tree.set(at, Key::new(0, 0, at as u32));
        }
        Self::Least { tree, chosen: vec![0; servers], choices: 0 }
    }
}

/// Running sums; the last is infinite, so that rounding leaves no gap.
fn cumulative(list: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let mut sums: Vec<f64> = list
        .iter()
        .map(|part| {
            sum += part;
            sum
        })
        .collect();
    // Servers of probability 0 at the end must stay out of reach.
    let last = list.iter().rposition(|part| *part > 0.0).unwrap_or(0);
    sums[last..].fill(f64::INFINITY);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::{Replication, StreamPurpose};

    fn tier(servers: u32, routing: &Routing) -> TierState {
        let stream = Replication { seed: 1, number: 0 }.stream(StreamPurpose::Route, 0);
        TierState::new(10, servers, routing, stream)
    }

    #[test]
    fn round_robin_takes_each_server_in_turn() {
        let mut tier = tier(3, &Routing::RoundRobin);
        let chosen: Vec<u32> = (0..5).map(|_| tier.choose(0)).collect();
        assert_eq!(chosen, [10, 11, 12, 10, 11]);
    }

    #[test]
    fn probabilities_are_kept_and_a_zero_is_never_chosen() {
        let mut tier = tier(4, &Routing::Probabilities(vec![0.2, 0.0, 0.8, 0.0]));
        let mut seen = [0; 4];
        (0..10_000).for_each(|_| seen[tier.choose(0) as usize - 10] += 1);
        assert_eq!((seen[1], seen[3]), (0, 0));
        assert!((seen[0] as f64 - 2000.0).abs() < 200.0, "{seen:?}");
    }

    #[test]
    fn least_pending_prefers_the_idle_and_then_the_longest_unused() {
        let mut tier = tier(3, &Routing::LeastPending);
        for expected in [10, 11, 12] {
            let chosen = tier.choose(0);
            assert_eq!(chosen, expected);
            tier.pending(chosen, 1, true);
        }
        tier.pending(11, 0, false);
        assert_eq!(tier.choose(0), 11);
        tier.pending(11, 1, true);
        assert_eq!(tier.choose(0), 10, "all have one; 10 was chosen longest ago");
    }
}
