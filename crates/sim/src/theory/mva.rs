//! Exact mean value analysis of closed networks with one class.
//!
//! Reiser and Lavenberg, Mean-value analysis of closed multichain queuing
//! networks, JACM 27(2), 1980. Stations with several servers use the marginal
//! probabilities of their number of customers (Lazowska and others,
//! *Quantitative System Performance*, 1984, section 8.2).

/// A closed network: the demands of each customer per round.
#[derive(Debug, Clone, PartialEq)]
pub struct ClosedNetwork {
    /// Think time between rounds, in seconds.
    pub think_s: f64,
    /// Stations: mean work per round in seconds, and number of servers.
    pub stations: Vec<(f64, u32)>,
}

/// A closed network's steady state.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkState {
    /// Rounds completed per second.
    pub throughput_per_s: f64,
    /// Mean time of a round without the thinking, in seconds.
    pub response_s: f64,
    /// Mean number of customers at each station.
    pub present: Vec<f64>,
    /// Busy share of each station's servers.
    pub utilisation: Vec<f64>,
}

/// One station while customers are added.
struct Station {
    work_s: f64,
    servers: u32,
    present: f64,
    /// Probabilities of 0 to servers - 1 customers.
    few: Vec<f64>,
}

/// Solves a network exactly for a number of customers.
///
/// Holds for processor sharing with any work, and for FCFS with exponential
/// work of one mean.
pub fn mva(network: &ClosedNetwork, customers: u32) -> NetworkState {
    let mut stations: Vec<Station> = network.stations.iter().map(Station::empty).collect();
    let (mut throughput, mut response) = (0.0, 0.0);
    for customers in 1..=customers {
        let times: Vec<f64> = stations.iter().map(Station::response).collect();
        response = times.iter().sum();
        throughput = f64::from(customers) / (network.think_s + response);
        for (station, time) in stations.iter_mut().zip(times) {
            station.add(throughput, time);
        }
    }
    let busy = |station: &Station| throughput * station.work_s / f64::from(station.servers);
    NetworkState {
        throughput_per_s: throughput,
        response_s: response,
        present: stations.iter().map(|station| station.present).collect(),
        utilisation: stations.iter().map(busy).collect(),
    }
}

impl Station {
    fn empty(&(work_s, servers): &(f64, u32)) -> Self {
        let few = (0..servers).map(|number| if number == 0 { 1.0 } else { 0.0 }).collect();
        Self { work_s, servers, present: 0.0, few }
    }

    /// Arrival theorem: an arriving customer finds the steady state of the network with
    /// one customer less (Reiser and Lavenberg 1980).
    fn response(&self) -> f64 {
        let servers = f64::from(self.servers);
        let idle: f64 = self
            .few
            .iter()
            .enumerate()
            .take(self.few.len() - 1)
            .map(|(number, probability)| (servers - 1.0 - number as f64) * probability)
            .sum();
        self.work_s / servers * (1.0 + self.present + idle)
    }

    fn add(&mut self, throughput: f64, response_s: f64) {
        let servers = f64::from(self.servers);
        let load = throughput * self.work_s;
        self.present = throughput * response_s;
        let before = self.few.clone();
        let mut missing = 0.0;
        for number in 1..self.few.len() {
            self.few[number] = load / number as f64 * before[number - 1];
            missing += (servers - number as f64) * self.few[number];
        }
        self.few[0] = (1.0 - (load + missing) / servers).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_station_benchmark_has_its_known_throughput() {
        let stations = vec![(0.10, 1), (0.12, 1), (0.08, 1)];
        let network = ClosedNetwork { think_s: 10.0, stations };
        for (customers, known) in [(10, 0.9681), (100, 8.1093), (200, 8.3333)] {
            let throughput = mva(&network, customers).throughput_per_s;
            assert!((throughput - known).abs() < 5e-5, "{customers}: {throughput}");
        }
    }

    #[test]
    fn as_many_servers_as_customers_is_a_delay() {
        let solved = mva(&ClosedNetwork { think_s: 5.0, stations: vec![(1.0, 8)] }, 8);
        assert!((solved.response_s - 1.0).abs() < 1e-9);
        assert!((solved.throughput_per_s - 8.0 / 6.0).abs() < 1e-9);
    }

    #[test]
    fn a_machine_repair_model_agrees_with_its_birth_death_chain() {
        // Three machines, two repairers: thinking rate 1/2, work 1.
        let (customers, think_s, servers) = (3_u32, 2.0, 2_u32);
        let mut weights = vec![1.0];
        for state in 0..customers {
            let up = f64::from(customers - state) / think_s;
            let down = f64::from((state + 1).min(servers));
            weights.push(weights[state as usize] * up / down);
        }
        let sum: f64 = weights.iter().sum();
        let busy = |state: usize| (state as f64).min(f64::from(servers));
        let chain: f64 = weights.iter().enumerate().map(|(n, w)| busy(n) * w / sum).sum();
        let solved = mva(&ClosedNetwork { think_s, stations: vec![(1.0, servers)] }, customers);
        assert!((solved.throughput_per_s - chain).abs() < 1e-9, "{solved:?} {chain}");
    }
}
