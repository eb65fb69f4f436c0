//! Energy efficiency as REEF reports it (Li et al. 2025, section 5.1, table 2).
//!
//! TPP is throughput per power. EE(TPP) is TPP itself. EE(Px) divides it by the ratio
//! of tail to mean, so that a policy does not appear efficient because it lets some
//! requests wait:
//!
//! ```text
//! EE(TPP) = throughput / power            requests per joule
//! EE(Px)  = TPP / (Px / mean latency)     requests per joule
//! ```

use crate::{Joules, Latency, Percentile, Watts};

/// EE(TPP): requests per joule; `None` where the power is not above zero.
pub fn throughput_per_power(requests_per_s: f64, power: Watts) -> Option<f64> {
    (power.0 > 0.0 && requests_per_s >= 0.0).then(|| requests_per_s / power.0)
}

/// EE(Px): EE(TPP) weighted by mean/tail; `None` without requests or power.
pub fn tail_efficiency(
    requests_per_s: f64,
    power: Watts,
    latency: &Latency,
    at: Percentile,
) -> Option<f64> {
    let tail = latency.quantile(at)?.0 as f64;
    let mean = latency.mean()?.0 as f64;
    throughput_per_power(requests_per_s, power).map(|tpp| tpp * mean / tail)
}

/// Joules per request; `None` without requests.
pub fn energy_per_request(energy: Joules, requests: u64) -> Option<Joules> {
    (requests > 0).then(|| Joules(energy.0 / requests as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanos;

    #[test]
    fn a_flat_latency_leaves_throughput_per_power() {
        let flat: Latency = [Nanos::from_millis(2); 10].into_iter().collect();
        let power = Watts(50.0);
        assert_eq!(throughput_per_power(1_000.0, power), Some(20.0));
        let tail = tail_efficiency(1_000.0, power, &flat, Percentile::P99).unwrap();
        assert!((tail - 20.0).abs() < 0.02, "{tail}");
    }

    #[test]
    fn a_tail_ten_times_the_mean_costs_a_factor_of_ten() {
        // 98 requests of 1 ms and 2 of 451 ms: mean 10 ms, p99 451 ms.
        let mut spread = Latency::default();
        spread.record_many(Nanos::from_millis(1), 98);
        spread.record_many(Nanos::from_millis(451), 2);
        let got = tail_efficiency(100.0, Watts(1.0), &spread, Percentile::P99).unwrap();
        assert!((got - 100.0 * 10.0 / 451.0).abs() < 0.01, "{got}");
    }

    #[test]
    fn nothing_measured_is_no_efficiency() {
        let none = Latency::default();
        assert_eq!(throughput_per_power(1.0, Watts(0.0)), None);
        assert_eq!(tail_efficiency(1.0, Watts(1.0), &none, Percentile::P99), None);
        assert_eq!(energy_per_request(Joules(1.0), 0), None);
    }
}
