-- Requests that were later than their objectives allow, by app, host, day and policy. Needs
-- views.sql.
--
-- An objective p95 = 10ms allows 5 % of the requests to take longer than 10 ms. `used_ratio`
-- is the share that did over the share that may: above 1 the objective is missed. Requests count
-- for the first objective that was in force when they were answered, so that an app whose pods
-- brought objectives of their own has a row for each. Further objectives of the config count
-- beside its first.

SELECT
    app, host, day, policy, percentile, bound_ms, requests, late_requests,
    late_requests / requests AS late_ratio,
    late_ratio / (1 - percentile / 100) AS used_ratio
FROM (
    SELECT
        app, host, day, policy, percentile, bound_ns / 1e6 AS bound_ms,
        sum(count)::BIGINT AS requests,
        coalesce(sum(count) FILTER (latency_ns > bound_ns), 0)::BIGINT AS late_requests
    FROM (
        SELECT app, host, day, policy, percentile, bound_ns, latency_ns, count
        FROM judged_latencies
        UNION ALL
        SELECT
            app, host, day, policy, further.percentile, further.bound_ns, latency_ns, count
        FROM judged_latencies AS judged
        JOIN (SELECT * FROM day_objectives WHERE NOT is_first) AS further USING (host, day, app)
        WHERE judged.bound_ns = first_bound_ns
            AND abs(judged.percentile - first_percentile) < 1e-6
    )
    GROUP BY ALL
)
ORDER BY ALL;
