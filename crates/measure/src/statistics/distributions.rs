//! Quantiles of the normal distribution and of Student's t.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Returns the quantile of the standard normal distribution at `share`, in (0, 1).
pub fn normal_quantile(share: f64) -> f64 {
    Normal::standard().inverse_cdf(share)
}

/// Returns the quantile of Student's t with `freedom` degrees of freedom at `share`, in
/// (0, 1). It is infinite without a degree of freedom: one value says nothing about its error.
pub fn student_t_quantile(share: f64, freedom: usize) -> f64 {
    match StudentsT::new(0.0, 1.0, freedom as f64) {
        Ok(t) => t.inverse_cdf(share),
        Err(_) => f64::INFINITY.copysign(share - 0.5),
    }
}

/// Returns the probability that Student's t with `freedom` degrees of freedom, at least 1, is
/// at most `t`. Without a degree of freedom it is one half: nothing is known.
pub fn student_t_cdf(t: f64, freedom: usize) -> f64 {
    StudentsT::new(0.0, 1.0, freedom as f64).map_or(0.5, |student| student.cdf(t))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_printed_table() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
        for (freedom, share, printed) in [
            (1, 0.975, 12.706),
            (2, 0.975, 4.303),
            (4, 0.975, 2.776),
            (10, 0.95, 1.812),
            (30, 0.975, 2.042),
            (100, 0.99, 2.364),
        ] {
            let found = student_t_quantile(share, freedom);
            assert!((found - printed).abs() < 6e-4, "{freedom}, {share}: {found}");
            assert!((student_t_cdf(found, freedom) - share).abs() < 1e-6, "{freedom}, {share}");
            let mirrored = student_t_quantile(1.0 - share, freedom);
            assert!((mirrored + found).abs() < 1e-9, "{freedom}, {share}: {mirrored}");
        }
        assert!((normal_quantile(0.975) - 1.959_964).abs() < 1e-6);
    }

    #[test]
    fn without_a_degree_of_freedom_everything_is_possible() {
        assert_eq!(student_t_quantile(0.975, 0), f64::INFINITY);
        assert_eq!(student_t_quantile(0.025, 0), f64::NEG_INFINITY);
        assert_eq!(student_t_cdf(3.0, 0), 0.5);
    }
}
