-- The tables of a dataset that `lull export --dataset` writes, as views for the other files.
--
--     duckdb -cmd "SET VARIABLE dataset = '/srv/lull'" -cmd ".read views.sql" < entropy.sql
--
-- The files of an export are read once the table `runs` has one of their name, which is written
-- last, so that an export that is going on, or was interrupted, is not counted in part. Files of
-- other names are not Lull's. The views are of the files that are there when this one is read: read
-- it again after further exports. Days are those of the hosts' clocks, in UTC.

-- The files of each table.
SET VARIABLE files = (
    WITH files AS (
        SELECT file, string_split(file, '/') AS parts
        FROM glob(
            getvariable('dataset') || '/*/host=*/day=*/????????-??????-????????-*-*.parquet')
    ),
    complete AS (SELECT parts[-3:] AS name FROM files WHERE parts[-4] = 'runs')
    SELECT map_from_entries(list((of, paths)))
    FROM (
        SELECT parts[-4] AS of, list(file ORDER BY file) AS paths
        FROM files
        WHERE parts[-3:] IN (FROM complete)
        GROUP BY ALL
    )
);

-- All files of one table.
CREATE OR REPLACE MACRO files_of(name) AS TABLE
SELECT * FROM read_parquet(
    getvariable('files')[name],
    hive_partitioning = true, hive_types = {'host': VARCHAR, 'day': DATE});

-- The same of tables that have a column for each name of a pod. A dataset of version 1 has no
-- such columns, and one that was begun then has them in some files: they are NULL elsewhere.
CREATE OR REPLACE MACRO app_files_of(name) AS TABLE
SELECT
    NULL::VARCHAR AS namespace, NULL::VARCHAR AS pod, NULL::VARCHAR AS container,
    NULL::VARCHAR AS workload
WHERE false
UNION ALL BY NAME
SELECT * FROM read_parquet(
    getvariable('files')[name],
    hive_partitioning = true, hive_types = {'host': VARCHAR, 'day': DATE}, union_by_name = true);

CREATE OR REPLACE VIEW runs AS SELECT * FROM files_of('runs');

CREATE OR REPLACE VIEW apps AS SELECT * FROM files_of('apps');

CREATE OR REPLACE VIEW objectives AS SELECT * FROM files_of('objectives');

CREATE OR REPLACE VIEW minutes AS SELECT * FROM files_of('minutes');

CREATE OR REPLACE VIEW app_minutes AS
SELECT * FROM app_files_of('app_minutes');

-- Files of datasets before version 3 do not have the first three columns, which are NULL then.
CREATE OR REPLACE VIEW latencies AS
SELECT * FROM (
    SELECT NULL::BOOLEAN AS has_objective, NULL::DOUBLE AS percentile, NULL::BIGINT AS bound_ns
    WHERE false
    UNION ALL BY NAME
    SELECT * FROM app_files_of('latencies')
);

-- What the config of an app promises on a day, beside its first objective. Where the config was
-- changed, the last one counts.
CREATE OR REPLACE VIEW day_objectives AS
SELECT
    host, day, app, percentile, bound_ns, is_first,
    max(percentile) FILTER (is_first) OVER config AS first_percentile,
    max(bound_ns) FILTER (is_first) OVER config AS first_bound_ns
FROM objectives
WINDOW config AS (PARTITION BY host, day, app, run, first_epoch)
QUALIFY rank() OVER (PARTITION BY host, day, app ORDER BY run DESC, first_epoch DESC) = 1;

-- Requests by latency, with the first objective that was in force: that of the config, or the one
-- that a pod or a LatencyObjective brought. Files that do not say which have that of the config.
CREATE OR REPLACE VIEW judged_latencies AS
SELECT
    latencies.* EXCLUDE (has_objective, percentile, bound_ns),
    CASE WHEN has_objective IS NULL THEN config.percentile ELSE latencies.percentile END
        AS percentile,
    CASE WHEN has_objective IS NULL THEN config.bound_ns ELSE latencies.bound_ns END AS bound_ns
FROM latencies
LEFT JOIN (SELECT * FROM day_objectives WHERE is_first) AS config USING (host, day, app)
WHERE coalesce(has_objective, config.bound_ns IS NOT NULL);

-- Class and progress alone of an app on a day. Where no config states that, it is the best
-- that was seen.
CREATE OR REPLACE VIEW day_apps AS
SELECT
    host, day, app,
    arg_max(is_latency_critical, run) AS is_latency_critical,
    coalesce(max(solo_per_s) FILTER (is_solo_given), max(solo_per_s)) AS solo_per_s
FROM apps
GROUP BY ALL;

-- Energy of a machine by minute. Agents that run beside each other on one machine measure the
-- same energy: where their epochs are longer than the minute, their mean counts.
CREATE OR REPLACE VIEW machine_minutes AS
SELECT
    host, day, minute_unix_s,
    least(sum(seconds), greatest(60, max(seconds))) AS measured_seconds,
    sum(joules) / sum(seconds) * measured_seconds AS joules
FROM (
    SELECT
        host, day, minute_unix_s, run, sum(joules) AS joules, sum(measured_seconds) AS seconds
    FROM minutes
    WHERE measured_seconds > 0
    GROUP BY ALL
)
GROUP BY ALL;
