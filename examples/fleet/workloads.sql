-- Requests, latency, CPU time and energy of the workloads of a Kubernetes cluster, by day over all
-- nodes. Needs views.sql.
--
-- A workload is what has made pods, a Deployment for example, in its namespace. Its percentiles
-- are those of the requests of all its pods together. `late_requests` are those that took longer
-- than the first objective of the pod, its own or that of its `[[match]]`, at that time. Joules are known of
-- nodes with a meter only.

WITH sums AS (
    SELECT
        namespace, workload, day,
        count(DISTINCT host) AS hosts, count(DISTINCT pod) AS pods,
        sum(requests)::BIGINT AS requests, sum(late_requests)::BIGINT AS late_requests,
        sum(cpu_seconds) AS cpu_seconds, sum(joules) AS joules
    FROM app_minutes
    WHERE pod IS NOT NULL
    GROUP BY ALL
),
-- Requests that took up to each latency.
ranked AS (
    SELECT
        namespace, workload, day, latency_ns,
        sum(sum(count)) OVER (PARTITION BY namespace, workload, day ORDER BY latency_ns) AS up_to,
        sum(sum(count)) OVER (PARTITION BY namespace, workload, day) AS total
    FROM latencies
    WHERE pod IS NOT NULL
    GROUP BY namespace, workload, day, latency_ns
),
tails AS (
    SELECT
        namespace, workload, day,
        min(latency_ns) FILTER (up_to >= 0.5 * total) / 1e6 AS p50_ms,
        min(latency_ns) FILTER (up_to >= 0.95 * total) / 1e6 AS p95_ms,
        min(latency_ns) FILTER (up_to >= 0.99 * total) / 1e6 AS p99_ms
    FROM ranked
    GROUP BY ALL
)
SELECT
    sums.namespace, sums.workload, sums.day, hosts, pods, requests, late_requests,
    late_requests / nullif(requests, 0) AS late_ratio, p50_ms, p95_ms, p99_ms, cpu_seconds,
    joules, joules / nullif(requests, 0) AS joules_per_request
FROM sums
-- The workload of a pod can be unknown, and is NULL then.
LEFT JOIN tails
    ON sums.namespace = tails.namespace AND sums.day = tails.day
    AND sums.workload IS NOT DISTINCT FROM tails.workload
ORDER BY ALL;
