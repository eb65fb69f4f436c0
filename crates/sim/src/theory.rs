//! Results of queueing theory, with which simulations are compared.
//!
//! Formulas as in Kleinrock, *Queueing Systems* volume 1 (1975), and Lavenberg
//! (ed.), *Computer Performance Modeling Handbook* (1983). Rates are per
//! second, times in seconds.

mod cases;
mod mva;

pub use cases::{Case, Quantity, cases};
pub use mva::{ClosedNetwork, NetworkState, mva};

/// A queue's steady state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SteadyState {
    /// Busy share of each server.
    pub utilisation: f64,
    /// Mean time between arrival and departure.
    pub response_s: f64,
    /// Mean number present.
    pub present: f64,
    /// Share of the arrivals that are turned away.
    pub lost: f64,
}

/// M/M/1 (Kleinrock section 3.2); also M/G/1 with processor sharing, which
/// does not depend on the shape of the work (section 4.4 of volume 2).
///
/// `None` if it is unstable.
pub fn mm1(arrivals_per_s: f64, work_s: f64) -> Option<SteadyState> {
    mmc(arrivals_per_s, work_s, 1)
}

/// M/M/c (Erlang C); `None` if it is unstable.
pub fn mmc(arrivals_per_s: f64, work_s: f64, servers: u32) -> Option<SteadyState> {
    let load = arrivals_per_s * work_s;
    let utilisation = load / f64::from(servers);
    if utilisation >= 1.0 {
        return None;
    }
    let waits = erlang_c(load, servers);
    let response_s = work_s + waits * work_s / (f64::from(servers) - load);
    Some(SteadyState { utilisation, response_s, present: arrivals_per_s * response_s, lost: 0.0 })
}

/// M/G/1 in order of arrival (Pollaczek-Khinchine); `cv2` is the squared
/// coefficient of variation of the work. `None` if it is unstable.
pub fn mg1(arrivals_per_s: f64, work_s: f64, cv2: f64) -> Option<SteadyState> {
    let utilisation = arrivals_per_s * work_s;
    if utilisation >= 1.0 {
        return None;
    }
    let wait_s = utilisation * work_s * (1.0 + cv2) / (2.0 * (1.0 - utilisation));
    let response_s = work_s + wait_s;
    Some(SteadyState { utilisation, response_s, present: arrivals_per_s * response_s, lost: 0.0 })
}

/// M/M/c/K: room for `room` requests, in service or waiting; others are lost.
///
/// With `room == servers` this is the Erlang loss system, whose loss does not
/// depend on the shape of the work.
pub fn mmck(arrivals_per_s: f64, work_s: f64, servers: u32, room: u32) -> SteadyState {
    let load = arrivals_per_s * work_s;
    // The probability of the last state and the means, given that no more than `state` are there.
    // Relative probabilities would overflow in a system with a long queue or many servers.
    let (mut lost, mut present, mut busy) = (1.0, 0.0, 0.0);
    for state in 1..=room {
        let serving = f64::from(state.min(servers));
        let weight = lost * load / serving;
        let sum = 1.0 + weight;
        lost = weight / sum;
        present = (present + f64::from(state) * weight) / sum;
        busy = (busy + serving * weight) / sum;
    }
    let response_s = present / (arrivals_per_s * (1.0 - lost));
    SteadyState { utilisation: busy / f64::from(servers), response_s, present, lost }
}

/// Two classes of exponential work on one server, each `(arrivals per second,
/// mean work)`, the first going first; response times in seconds
/// (Kleinrock volume 2, sections 3.2 to 3.4). `None` if it is unstable.
pub fn mm1_priority(high: (f64, f64), low: (f64, f64), preemptive: bool) -> Option<(f64, f64)> {
    let (load_high, load_low) = (high.0 * high.1, low.0 * low.1);
    let load = load_high + load_low;
    if load >= 1.0 {
        return None;
    }
    // Mean work left in service: half the second moment, which is 2 w².
    let (left_high, left_low) = (high.0 * high.1.powi(2), low.0 * low.1.powi(2));
    let left = left_high + left_low;
    let wait_low = left / ((1.0 - load_high) * (1.0 - load));
    if preemptive {
        let high_s = high.1 + left_high / (1.0 - load_high);
        return Some((high_s, low.1 / (1.0 - load_high) + wait_low));
    }
    Some((high.1 + left / (1.0 - load_high), low.1 + wait_low))
}

/// Probability that an arrival waits, `load` in erlangs below `servers`.
pub fn erlang_c(load: f64, servers: u32) -> f64 {
    let lost = erlang_b(load, servers);
    let utilisation = load / f64::from(servers);
    lost / (1.0 - utilisation * (1.0 - lost))
}

/// Probability that an arrival is lost by `servers` without a queue.
pub fn erlang_b(load: f64, servers: u32) -> f64 {
    (1..=servers).fold(1.0, |lost, servers| {
        let offered = load * lost;
        offered / (f64::from(servers) + offered)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(ours: f64, table: f64) {
        assert!((ours / table - 1.0).abs() < 1e-4, "{ours} for {table}");
    }

    #[test]
    fn the_formulas_give_textbook_values() {
        near(mm1(0.8, 1.0).unwrap().response_s, 5.0);
        near(mmc(1.6, 1.0, 2).unwrap().response_s, 2.777_78);
        near(mmc(3.2, 1.0, 4).unwrap().response_s, 1.745_53);
        near(mg1(0.7, 1.0, 4.0).unwrap().response_s, 6.833_33);
        near(mg1(0.7, 1.0, 1.0).unwrap().response_s, mm1(0.7, 1.0).unwrap().response_s);
        // Erlang's table: 10 erlangs on 12 lines lose 12.0 %.
        near(erlang_b(10.0, 12), 0.119_74);
        near(mmck(10.0, 1.0, 12, 12).lost, 0.119_74);
        // A large room is no room limit.
        near(mmck(0.8, 1.0, 1, 400).response_s, 5.0);
        // An overloaded server with a long queue, and as many lines as Erlang's recursion has.
        let full = mmck(2.0, 1.0, 1, 2000);
        near(full.lost, 0.5);
        near(full.present, 1999.0);
        near(full.utilisation, 1.0);
        near(mmck(1000.0, 1.0, 1000, 1000).lost, erlang_b(1000.0, 1000));
    }

    #[test]
    fn priorities_conserve_the_mean_work_left() {
        // Kleinrock's conservation law: the sum of load times wait is the same in any order.
        let (high, low) = ((0.3, 1.0), (0.2, 2.0));
        let (first, second) = mm1_priority(high, low, false).unwrap();
        let sum = 0.3 * (first - 1.0) + 0.4 * (second - 2.0);
        let left: f64 = 0.3 * 1.0 + 0.2 * 4.0;
        near(sum, 0.7 * left / (1.0 - 0.7));
    }

    #[test]
    fn an_unstable_queue_has_no_steady_state() {
        assert_eq!(mm1(1.0, 1.0), None);
        assert_eq!(mg1(2.0, 1.0, 1.0), None);
        assert_eq!(mm1_priority((0.5, 1.0), (0.5, 1.0), true), None);
    }
}
