//! Resource equivalence: the cores that a better policy saves.
//!
//! Ah-Q (Liu et al. 2024), section V-C: `dR(p1, p2, R)` is the least amount of a
//! resource that p1 needs more than p2 for the same entropy. Entropy is
//! measured for several amounts. More of a resource cannot hurt, so an apparent
//! rise is noise and the running minimum is taken. Between amounts entropy is
//! interpolated; outside the measured range there is no result.

/// One measurement: entropy with so much of a resource.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The amount, in units such as cores.
    pub amount: f64,
    /// Entropy, in [0, 1].
    pub entropy: f64,
}

/// Returns the amount at which entropy falls to `target`, from measurements in any order; `None`
/// where the target lies outside the measured range.
pub fn amount_for(target: f64, measured: &[Measured]) -> Option<f64> {
    let mut points = measured.to_vec();
    points.sort_by(|a, b| a.amount.total_cmp(&b.amount));
    let mut before: Option<Measured> = None;
    for point in points {
        let least = before.map_or(f64::INFINITY, |before| before.entropy).min(point.entropy);
        if least <= target {
            let from = before.or((point.entropy == target).then_some(point))?;
            let fall = from.entropy - least;
            let share = if fall > 0.0 { (from.entropy - target) / fall } else { 0.0 };
            return Some(from.amount + share * (point.amount - from.amount));
        }
        before = Some(Measured { amount: point.amount, entropy: least });
    }
    None
}

/// How much more of the resource `first` needs than `second` for this
/// entropy; above zero the second is better (equation of section V-C).
pub fn equivalence(target: f64, first: &[Measured], second: &[Measured]) -> Option<f64> {
    Some(amount_for(target, first)? - amount_for(target, second)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(values: &[(f64, f64)]) -> Vec<Measured> {
        values
            .iter()
            .map(|(amount, entropy)| Measured { amount: *amount, entropy: *entropy })
            .collect()
    }

    #[test]
    fn unmanaged_needs_6_83_cores_for_a_quarter() {
        // Table II: 0.55 at 6 cores, 0.19 at 7, 0 at 8. Figure 12 says 7.61, which
        // can only hold for other loads.
        let unmanaged = points(&[(8.0, 0.0), (6.0, 0.55), (7.0, 0.19)]);
        assert!((amount_for(0.25, &unmanaged).unwrap() - 6.8333).abs() < 1e-4);
        let better = points(&[(5.0, 0.5), (6.0, 0.0)]);
        let worth = equivalence(0.25, &unmanaged, &better).unwrap();
        assert!((worth - 1.3333).abs() < 1e-4, "{worth}");
    }

    #[test]
    fn a_rise_is_noise_and_nothing_is_extrapolated() {
        let noisy = points(&[(4.0, 0.5), (5.0, 0.3), (6.0, 0.4), (7.0, 0.2)]);
        assert_eq!(amount_for(0.25, &noisy), Some(6.5));
        assert_eq!(amount_for(0.6, &noisy), None, "met with less than was measured");
        assert_eq!(amount_for(0.1, &noisy), None, "missed with all that was measured");
        assert_eq!(amount_for(0.5, &noisy), Some(4.0), "met exactly where measuring began");
        assert_eq!(amount_for(0.5, &[]), None);
    }

    proptest! {
        #[test]
        fn an_answer_lies_within_what_was_measured(
            values in prop::collection::vec((0.0f64..20.0, 0.0f64..1.0), 1..10),
            target in 0.0f64..1.0,
        ) {
            let measured = points(&values);
            if let Some(amount) = amount_for(target, &measured) {
                let least = values.iter().map(|(amount, _)| *amount).fold(f64::MAX, f64::min);
                let most = values.iter().map(|(amount, _)| *amount).fold(f64::MIN, f64::max);
                prop_assert!((least - 1e-9..=most + 1e-9).contains(&amount), "{amount}");
            }
        }
    }
}
