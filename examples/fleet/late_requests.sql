-- Requests that were later than their objectives allow, by app, host, day and policy. Needs
-- views.sql.
--
-- An objective p95 = 10ms allows 5 % of the requests to take longer than 10 ms. `used_ratio`
-- is the share that did over the share that may: above 1 the objective is missed.

SELECT
    app, host, day, policy, percentile, bound_ms, requests, late_requests,
    late_requests / requests AS late_ratio,
    late_ratio / (1 - percentile / 100) AS used_ratio
FROM (
    SELECT
        app, host, day, policy, percentile, bound_ns / 1e6 AS bound_ms,
        sum(count)::BIGINT AS requests,
        coalesce(sum(count) FILTER (latency_ns > bound_ns), 0)::BIGINT AS late_requests
    FROM latencies
    JOIN day_objectives USING (host, day, app)
    GROUP BY ALL
)
ORDER BY ALL;
