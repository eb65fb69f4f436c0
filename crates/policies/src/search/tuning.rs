//! A search as a policy's config describes it.

use super::gather::Protocol;
use super::rules::Rules;
use super::space::Space;

/// A search that a caller can run on its own.
#[derive(Debug, Clone)]
pub struct Tuning {
    /// The settings to search.
    pub space: Space,
    /// The rules by which the search chooses and ends.
    pub rules: Rules,
    /// The protocol of a trial.
    pub protocol: Protocol,
    /// The relative change of load after which earlier trials no longer count.
    pub load_change: f64,
}

/// Returns the result at the next higher load or, without one, at the next lower load: a setting
/// that meets its bound at a higher load is likely to meet it at a lower one.
pub fn of_another_load<T>(found: impl Iterator<Item = (f64, T)>, rate_per_s: f64) -> Option<T> {
    let order = |(rate, _): &(f64, T)| (*rate < rate_per_s, (rate - rate_per_s).abs());
    let nearest = found.min_by(|a, b| {
        let ((a_is_lower, a), (b_is_lower, b)) = (order(a), order(b));
        a_is_lower.cmp(&b_is_lower).then(a.total_cmp(&b))
    });
    nearest.map(|(_, it)| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_higher_load_comes_before_every_lower_one() {
        let at = |rates: &[f64]| of_another_load(rates.iter().map(|rate| (*rate, *rate)), 100.0);
        assert_eq!(at(&[90.0, 300.0, 200.0]), Some(200.0));
        assert_eq!(at(&[20.0, 90.0]), Some(90.0));
        assert_eq!(at(&[]), None);
    }
}
