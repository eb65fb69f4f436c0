//! Exact k-means of numbers.
//!
//! In one dimension the clusters with the least sum of squares around their means are intervals of
//! the sorted numbers, so dynamic programming finds the optimum (Wang and Song, "Ckmeans.1d.dp",
//! R Journal 2011), without random starts.

/// The cluster of each value, numbered from the smallest values up; as many as
/// wanted, or as there are different values. No values have no clusters.
pub(crate) fn clusters(values: &[f64], wanted: usize) -> Vec<usize> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for value in sorted {
        match points.last_mut() {
            Some((last, count)) if *last == value => *count += 1.0,
            _ => points.push((value, 1.0)),
        }
    }
    let starts = starts(&points, wanted.min(points.len()));
    let cluster = |value: &f64| {
        let place = points.partition_point(|(point, _)| point < value);
        starts.partition_point(|start| *start <= place).saturating_sub(1)
    };
    values.iter().map(cluster).collect()
}

/// Indices at which the clusters of sorted, weighted points start.
fn starts(points: &[(f64, f64)], wanted: usize) -> Vec<usize> {
    let count = points.len();
    // cost[k][end]: the least of k + 1 clusters of the points before `end`.
    let mut cost = vec![vec![f64::INFINITY; count + 1]; wanted];
    let mut from = vec![vec![0; count + 1]; wanted];
    for k in 0..wanted {
        for end in k + 1..=count {
            for start in k..end {
                let before = match (k, start) {
                    (0, 0) => 0.0,
                    (0, _) => continue,
                    _ => cost[k - 1][start],
                };
                let sum = before + spread(&points[start..end]);
                if sum < cost[k][end] {
                    (cost[k][end], from[k][end]) = (sum, start);
                }
            }
        }
    }
    let mut end = count;
    let mut starts: Vec<usize> = (0..wanted)
        .rev()
        .map(|k| {
            end = from[k][end];
            end
        })
        .collect();
    starts.reverse();
    starts
}

/// Sum of squares around the mean.
fn spread(points: &[(f64, f64)]) -> f64 {
    let weight: f64 = points.iter().map(|(_, count)| count).sum();
    let mean = points.iter().map(|(value, count)| value * count).sum::<f64>() / weight;
    points.iter().map(|(value, count)| count * (value - mean) * (value - mean)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_lies_together_is_one_cluster_and_the_smallest_is_first() {
        assert_eq!(clusters(&[9.0, 1.0, 10.0, 1.5, 11.0], 2), [1, 0, 1, 0, 1]);
        assert_eq!(clusters(&[1.0, 2.0, 30.0, 31.0, 90.0], 3), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn there_are_no_more_clusters_than_values() {
        assert_eq!(clusters(&[4.0, 4.0], 3), [0, 0]);
        assert_eq!(clusters(&[5.0, 4.0], 3), [1, 0]);
        assert_eq!(clusters(&[], 2), [0; 0]);
    }

    /// Sum of squares of a division.
    fn total(values: &[f64], of: &[usize]) -> f64 {
        let most = of.iter().copied().max().map_or(0, |last| last + 1);
        let each = |cluster| {
            let members = values.iter().zip(of).filter(|(_, one)| **one == cluster);
            spread(&members.map(|(value, _)| (*value, 1.0)).collect::<Vec<_>>())
        };
        (0..most).map(each).sum()
    }

    proptest! {
        #[test]
        fn no_two_intervals_are_better(
            values in prop::collection::vec(-100.0f64..100.0, 2..20),
            cut in -100.0f64..100.0,
        ) {
            let found = total(&values, &clusters(&values, 2));
            let other: Vec<_> = values.iter().map(|value| usize::from(*value > cut)).collect();
            prop_assume!(other.contains(&0) && other.contains(&1));
            prop_assert!(found <= total(&values, &other) + 1e-6);
        }
    }
}
