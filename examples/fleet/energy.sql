-- Joules and watts by app, host and day. Needs views.sql.
--
-- Energy is measured for the machine. An app's share in an epoch is its CPU time over the time
-- that all cores were busy. What is left is of no app that Lull knows: it has the app NULL.
-- Where the energy of a machine is not known, there is no row of it.

WITH machines AS (
    SELECT host, day, sum(joules) AS joules, sum(measured_seconds) AS measured_seconds
    FROM machine_minutes
    GROUP BY ALL
),
shares AS (
    SELECT
        host, day, app, sum(joules) AS joules, sum(requests)::BIGINT AS requests,
        sum(cpu_seconds) AS cpu_seconds
    FROM app_minutes
    GROUP BY ALL
),
rest AS (
    SELECT
        host, day, NULL AS app,
        any_value(machines.joules) - coalesce(sum(shares.joules), 0) AS joules,
        NULL AS requests, NULL AS cpu_seconds
    FROM machines
    LEFT JOIN shares USING (host, day)
    GROUP BY ALL
)
SELECT
    app, host, day, every.joules, every.joules / measured_seconds AS watts,
    measured_seconds, cpu_seconds, every.joules / nullif(requests, 0) AS joules_per_request
FROM (FROM shares UNION ALL BY NAME FROM rest) AS every
JOIN machines USING (host, day)
WHERE every.joules IS NOT NULL
ORDER BY ALL;
