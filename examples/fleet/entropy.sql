-- E_S, E_LC and E_BE by host, day and policy (Ah-Q, Liu et al. 2024, equations 14 to 17), as
-- `lull entropy` computes them of one record. Needs views.sql.
--
-- Q of a latency-critical app is 1 - bound/tail where its tail over all requests of the day is
-- above the bound that was in force; E_LC is the mean of Q. E_BE is one minus the harmonic mean
-- of the progress of best-effort apps over their progress alone. E_S = 0.8 E_LC + 0.2 E_BE.

WITH judged_requests AS NOT MATERIALIZED (
    SELECT host, day, policy, app, percentile, bound_ns, latency_ns, count
    FROM judged_latencies
    SEMI JOIN (SELECT * FROM day_apps WHERE is_latency_critical) USING (host, day, app)
    WHERE bound_ns > 0
),
totals AS (
    SELECT
        host, day, policy, app, percentile, bound_ns, sum(count) AS requests,
        greatest(1, ceil(percentile / 100 * sum(count))) AS tail_rank,
        coalesce(sum(count) FILTER (latency_ns <= bound_ns), 0) AS in_time
    FROM judged_requests
    GROUP BY host, day, policy, app, percentile, bound_ns
),
-- Of apps that miss their bound: late requests up to each latency, all runs together.
late AS (
    SELECT
        host, day, policy, app, percentile, bound_ns, latency_ns,
        any_value(tail_rank - in_time) AS late_rank,
        sum(sum(count)) OVER (
            PARTITION BY host, day, policy, app, percentile, bound_ns ORDER BY latency_ns
        ) AS late_to
    FROM judged_requests
    JOIN totals USING (host, day, policy, app, percentile, bound_ns)
    WHERE latency_ns > bound_ns AND in_time < tail_rank
    GROUP BY host, day, policy, app, percentile, bound_ns, latency_ns
),
untolerated AS (
    SELECT
        host, day, policy, app, percentile, bound_ns, 1 - bound_ns / min(latency_ns) AS q
    FROM late
    WHERE late_to >= late_rank
    GROUP BY host, day, policy, app, percentile, bound_ns
),
-- Q of an app whose objective changed in the day is the mean over its requests.
critical AS (
    SELECT host, day, policy, avg(q) AS e_lc
    FROM (
        SELECT
            host, day, policy, app, sum(requests * coalesce(q, 0)) / sum(requests) AS q
        FROM totals
        LEFT JOIN untolerated USING (host, day, policy, app, percentile, bound_ns)
        GROUP BY host, day, policy, app
    )
    GROUP BY ALL
),
progress AS (
    SELECT
        host, day, policy, app, any_value(solo_per_s) AS solo_per_s,
        sum(progress_per_s_sum) / sum(progress_epochs) AS progress_per_s
    FROM app_minutes
    JOIN day_apps USING (host, day, app)
    WHERE NOT is_latency_critical AND solo_per_s > 0
    GROUP BY host, day, policy, app
    HAVING sum(progress_epochs) > 0
),
best_effort AS (
    SELECT
        host, day, policy,
        -- An app that makes no progress makes E_BE 1.
        CASE
            WHEN min(progress_per_s) <= 0 THEN 1
            ELSE 1 - 1 / avg(greatest(1, solo_per_s / progress_per_s))
        END AS e_be
    FROM progress
    GROUP BY ALL
),
judged AS (
    SELECT
        host, day, policy, sum(epochs)::BIGINT AS epochs,
        sum(missed_epochs) / nullif(sum(judged_epochs), 0) AS missed_ratio
    FROM minutes
    GROUP BY ALL
)
SELECT
    host, day, policy,
    coalesce(0.8 * e_lc + 0.2 * e_be, e_lc, e_be) AS e_s, e_lc, e_be, missed_ratio, epochs
FROM judged
LEFT JOIN critical USING (host, day, policy)
LEFT JOIN best_effort USING (host, day, policy)
ORDER BY ALL;
