-- What is odd in a dataset and can mislead a query over hosts. Needs views.sql.
--
-- - Runs of one host that overlap: two agents on one machine, or two machines with one name.
-- - A host whose newest epoch is later than most others' by minutes: its clock is ahead. One
--   that is behind cannot be told from one that has not exported yet.

SELECT 'runs overlap' AS what, one.host, one.run, other.run AS other, one.day
FROM runs AS one
JOIN runs AS other USING (host, day)
WHERE one.run < other.run
    AND one.first_unix_s <= other.last_unix_s AND other.first_unix_s <= one.last_unix_s
UNION ALL BY NAME
SELECT 'clock is ahead' AS what, host, arg_max(run, last_unix_s) AS run, max(day) AS day
FROM runs
GROUP BY host
HAVING max(last_unix_s) > (
    SELECT quantile_cont(latest, 0.9) + 300
    FROM (SELECT max(last_unix_s) AS latest FROM runs GROUP BY host)
)
ORDER BY ALL;
