"""Datasets of many hosts, and the SQL of `examples/fleet` on them, beside what `lull` prints."""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

FLEET = Path(__file__).parents[3] / "examples/fleet"
DAY_S = 86_400

CONFIG = """
[agent]
epoch = "100ms"

[policy]
name = "unmanaged"

[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p90 = "400us" }}, {{ p99 = "2ms" }}]
start = ["{program}", "serve", "options", "--listen", "127.0.0.1:{port}", "--workers", "1"]
ready = "127.0.0.1:{port}"

[[app]]
name = "burner"
class = "best-effort"
progress = "push"
start = ["{program}", "burn", "compute", "--threads", "1"]

[[load]]
app = "server"
target = "options://127.0.0.1:{port}"
rate = "300/s"
connections = 4
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def change(record: Path, *changes: str) -> None:
    """Changes a record in one file, without a log beside it."""
    with contextlib.closing(sqlite3.connect(record)) as database:
        for sql in changes:
            database.execute(sql)
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def number(record: Path, sql: str) -> float:
    with contextlib.closing(sqlite3.connect(record)) as database:
        (found,) = database.execute(sql).fetchone()
    return found


@pytest.fixture(scope="module")
def recorded(run, program, tmp_path_factory) -> Path:
    """A record of a real run, with a power that no machine of these tests measures."""
    place = tmp_path_factory.mktemp("fleet")
    (place / "a.toml").write_text(CONFIG.format(program=program, port=free_port()))
    run("run", "a.toml", "--for", "4s", cwd=place)
    (found,) = place.glob("runs/*.db")
    watts = "(50 + epoch % 7)"
    energy = f"power_watts = {watts}, energy_joules = {watts} * epoch_seconds"
    change(found, f"UPDATE machine_epochs SET {energy}")
    return found


@pytest.fixture
def copy(recorded, tmp_path):
    """Makes records of other hosts and times of the real one, changed by SQL."""

    def copy(name: str, *changes: str, age_s: int = 0, **facts: str) -> Path:
        made = tmp_path / f"{name}.db"
        shutil.copy(recorded, made)
        noon = int(datetime.datetime.now(datetime.UTC).timestamp()) // DAY_S * DAY_S + DAY_S // 2
        # Noon of yesterday: the run is within one day.
        started_s = noon - DAY_S - age_s
        facts = {"host": name, "started_unix_ns": f"{started_s}000000000"} | facts
        set_fact = "INSERT OR REPLACE INTO run VALUES ('{}', '{}')"
        change(made, *(set_fact.format(*fact) for fact in facts.items()), *changes)
        return made

    return copy


@pytest.fixture
def export(run):
    """Adds records to a dataset and returns what the program says about it."""

    def export(place, *records: Path, arguments=(), status: int = 0) -> dict:
        done = ["export", *map(str, records), "--dataset", str(place), "--json", *arguments]
        printed, _ = run(*done, status=status)
        return json.loads(printed)

    return export


def query(place: Path, name: str) -> list[dict]:
    database = duckdb.connect()
    database.execute("SET VARIABLE dataset = ?", [str(place)])
    database.execute((FLEET / "views.sql").read_text())
    found = database.sql((FLEET / f"{name}.sql").read_text())
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def files(place: Path) -> dict[str, bytes]:
    paths = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in paths}


def by_host(rows: list[dict]) -> dict[str, dict]:
    return {row["host"]: row for row in rows}


# Bounds that the requests of the second host miss, and a progress that its burner does not reach.
HARMED = (
    "UPDATE apps SET spec = json_set(spec, '$.objectives[0].tail.bound', 1000) WHERE id = 0",
    "UPDATE apps SET spec = json_set(spec, '$.solo_per_s', 1e15) WHERE id = 1",
    # The objective that was in force, which an epoch states too.
    "UPDATE app_epochs SET tail_bound_seconds = 1e-6 WHERE app = 'server'",
)


def test_entropy_late_requests_and_watts_are_those_that_lull_reports(copy, export, run, tmp_path):
    records = [copy("calm"), copy("harmed", *HARMED)]
    done = export(tmp_path / "set", *records)
    assert [added["host"] for added in done["records"]] == ["calm", "harmed"]
    entropies = by_host(query(tmp_path / "set", "entropy"))
    late = query(tmp_path / "set", "late_requests")
    late = by_host([row for row in late if row["percentile"] == 90])
    energy = query(tmp_path / "set", "energy")
    for record in records:
        printed, _ = run("entropy", str(record), "--json")
        (part,) = json.loads(printed)["parts"]
        ours = entropies[record.stem]
        for column, name in {"e_s": "system", "e_lc": "lc", "e_be": "be"}.items():
            assert ours[column] == pytest.approx(part[name]), (record.stem, column)
        assert ours["missed_ratio"] == pytest.approx(part["missed"])
        assert ours["epochs"] == part["epochs"]
        printed, _ = run("report", str(record), "--json", "--html", str(tmp_path / "r.html"))
        rows = dict(json.loads(printed)["summary"]["parts"]["rows"])
        assert ours["e_s"] == pytest.approx(float(rows["E_S"][0]), abs=0.006)
        machine = [row for row in energy if row["host"] == record.stem]
        watts = sum(row["watts"] for row in machine)
        assert watts == pytest.approx(float(rows["power, W"][0]), rel=0.02)
        joules = number(record, "SELECT sum(energy_joules) FROM machine_epochs")
        assert sum(row["joules"] for row in machine) == pytest.approx(joules)
        assert {row["app"] for row in machine} == {"server", "burner", None}
        # A tail above a bound is more late requests than an objective of its percentile allows.
        tail_ms, ratio = float(rows["server: p95, ms"][0]), late[record.stem]["late_ratio"]
        assert (ratio > 0.05) == (tail_ms > late[record.stem]["bound_ms"])
    assert entropies["harmed"]["e_s"] > entropies["calm"]["e_s"]
    assert late["harmed"]["late_ratio"] == 1.0


def test_a_record_that_grows_is_added_to_and_exported_twice_is_one(copy, export, tmp_path):
    middle = number(copy("any"), "SELECT max(number) / 2 FROM epochs")
    cut = f"DELETE FROM epochs WHERE number > {middle}"
    half, whole = copy("half", cut, host="a"), copy("whole", host="a")
    grown, at_once = tmp_path / "grown", tmp_path / "at-once"
    first = export(grown, half)["records"][0]
    assert first["epochs"] == middle + 1
    before = files(grown)
    second = export(grown, whole)["records"][0]
    assert second["run"] == first["run"] and second["epochs"] > 0
    after = files(grown)
    assert before.items() <= after.items(), "a file was changed"
    assert export(grown, whole)["records"][0]["epochs"] == 0
    assert files(grown) == after
    # A record that has forgotten what the dataset has is nothing new either.
    forgot = copy("forgot", f"DELETE FROM epochs WHERE number <= {middle}", host="a")
    assert export(grown, forgot)["records"][0]["epochs"] == 0
    export(at_once, whole)
    for name in ["entropy", "late_requests", "energy"]:
        ours, wanted = query(grown, name), query(at_once, name)
        assert len(ours) == len(wanted) > 0
        for row, same in zip(ours, wanted, strict=True):
            assert row == pytest.approx(same), name


def test_an_export_that_was_interrupted_counts_once(copy, export, tmp_path):
    record, place = copy("a"), tmp_path / "set"
    export(place, record)
    wanted = files(place)
    (announced,) = place.glob("runs/*/*/*.parquet")
    announced.unlink()
    # What is left is of an export that had come less far.
    for path in place.glob("*/*/*/*.parquet"):
        path.rename(path.with_name(path.name.rsplit("-", 1)[0] + "-3.parquet"))
    export(place, copy("b"))
    assert {row["host"] for row in query(place, "entropy")} == {"b"}
    export(place, record)
    assert wanted.items() <= files(place).items()
    assert not list(place.glob("*/*/*/*-3.parquet"))


def test_files_that_no_run_names_do_not_count(copy, export, tmp_path):
    place = tmp_path / "set"
    export(place, copy("a"))
    wanted = query(place, "late_requests")
    assert wanted
    for path in place.glob("latencies/*/*/*.parquet"):
        shutil.copy(path, path.with_name(path.name.rsplit("-", 1)[0] + "-3.parquet"))
    assert query(place, "late_requests") == wanted


def test_old_days_go_and_files_of_others_stay(copy, export, tmp_path):
    place = tmp_path / "set"
    old, new = copy("a", age_s=100 * DAY_S), copy("a2", host="a")
    other = copy("b", age_s=100 * DAY_S)
    export(place, old, new, other)
    theirs = sorted(place.glob("minutes/host=a/*"))[0] / "part-0.parquet"
    theirs.write_bytes(b"theirs")
    removed = export(place, new, arguments=["--keep", "90d"])["removed"]
    assert [host for host, _ in removed["days"]] == ["a"] and removed["left"] == 1
    assert theirs.read_bytes() == b"theirs"
    assert len(list(theirs.parent.iterdir())) == 1
    assert len(list(place.glob("*/host=a/*"))) == 6 + 1, "empty folders of days are removed"
    assert len(list(place.glob("*/host=b/*"))) == 6, "another host's export removes its own"
    removed = export(place, arguments=["--keep", "90d"])["removed"]
    assert [host for host, _ in removed["days"]] == ["b"]
    assert {row["host"] for row in query(place, "entropy")} == {"a"}
    assert export(place, arguments=["--keep", "1d"])["removed"]["files"] == 0, "yesterday stays"


def test_days_that_would_be_removed_at_once_are_not_added(copy, export, tmp_path):
    place = tmp_path / "set"
    old, new = copy("a", age_s=100 * DAY_S), copy("b")
    done = export(place, old, new, arguments=["--keep", "90d"])
    assert [added["epochs"] > 0 for added in done["records"]] == [False, True]
    assert done["removed"]["files"] == 0
    assert not list(place.glob("*/host=a/*"))
    assert export(place, old)["records"][0]["epochs"] > 0, "without --keep all days are"


def test_one_bad_record_does_not_keep_the_others_out(copy, export, run, tmp_path):
    cut = copy("cut")
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    unset, ahead = copy("unset", started_unix_ns="7000000000"), copy("ahead", age_s=-40 * DAY_S)
    odd = copy("odd", host="a/../../b")
    nameless = copy("nameless", "DELETE FROM run WHERE key = 'host'")
    records = [cut, unset, ahead, odd, nameless, copy("good")]
    done = export(tmp_path / "set", *records, status=1)
    assert [added["host"] for added in done["records"]] == ["good"]
    why = {Path(file).stem: why for file, why in done["failed"]}
    assert set(why) == {"cut", "unset", "ahead", "odd", "nameless"}
    assert "1970-01-01" in why["unset"] and "one of them is wrong" in why["ahead"]
    assert "--host" in why["odd"] and "--host" in why["nameless"]
    assert {path.name for path in (tmp_path / "set/runs").iterdir()} == {"host=good"}
    named = export(tmp_path / "set", nameless, arguments=["--host", "c"])
    assert named["records"][0]["host"] == "c"


def test_a_place_that_is_no_dataset_is_left_alone(copy, run, tmp_path):
    (tmp_path / "other/host=a/day=2020-01-01").mkdir(parents=True)
    record = str(copy("a"))
    for arguments in (["--keep", "90d"], []):
        done = ["export", record, "--dataset", str(tmp_path / "other"), *arguments]
        _, printed = run(*done, status=2)
        assert "holds other files and no _lull.json" in printed
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["host=a"]


def test_two_agents_on_a_machine_do_not_double_its_energy(copy, export, tmp_path):
    place = tmp_path / "set"
    one, two = copy("one", host="a"), copy("two", host="a", seed="77")
    export(place, one, two)
    joules = number(one, "SELECT sum(energy_joules) FROM machine_epochs")
    seconds = number(one, "SELECT sum(epoch_seconds) FROM machine_epochs")
    found = sum(row["joules"] for row in query(place, "energy"))
    # Two runs of less than half a minute fit into one, and could have followed each other.
    assert found == pytest.approx(2 * joules)
    assert [row["what"] for row in query(place, "checks")] == ["runs overlap"]
    for record, seed in ((one, 3), (two, 4)):
        change(
            record,
            f"UPDATE machine_epochs SET epoch_seconds = epoch_seconds * {50 / seconds}",
            "UPDATE machine_epochs SET energy_joules = epoch_seconds * 50",
            f"UPDATE run SET value = '{seed}' WHERE key = 'seed'",
        )
    export(tmp_path / "long", one, two)
    found = sum(row["joules"] for row in query(tmp_path / "long", "energy"))
    assert found == pytest.approx(60 * 50), "of a minute no more than a minute's energy counts"


# The server is a pod from the first epoch on, and another one of the same workload later.
PODS = (
    "INSERT INTO pods VALUES (0, 'server', 'shop', 'web-a', '', 'web', '1')",
    "INSERT INTO pods SELECT max(number) / 2, 'server', 'shop', 'web-b', '', 'web', '2' "
    "FROM epochs",
)


def test_workloads_are_added_up_over_their_pods_on_all_hosts(copy, export, tmp_path):
    other = tuple(sql.replace("'web-", "'web-of-b-") for sql in PODS)
    export(tmp_path / "set", copy("a", *PODS), copy("b", *other), copy("bare"))
    (found,) = query(tmp_path / "set", "workloads")
    assert (found["namespace"], found["workload"]) == ("shop", "web")
    assert (found["hosts"], found["pods"]) == (2, 4), "the host without pods has no row"
    late = query(tmp_path / "set", "late_requests")
    late = {row["host"]: row for row in late if row["percentile"] == 90}
    assert found["requests"] == late["a"]["requests"] + late["b"]["requests"]
    assert found["late_requests"] == late["a"]["late_requests"] + late["b"]["late_requests"]
    assert (found["late_ratio"] > 0.05) == (found["p95_ms"] > late["a"]["bound_ms"])
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]
    energy = query(tmp_path / "set", "energy")
    joules = [row["joules"] for row in energy if row["app"] == "server" and row["host"] != "bare"]
    assert found["joules"] == pytest.approx(sum(joules))


def test_requests_are_late_by_the_objective_that_a_pod_has_brought(copy, export, tmp_path):
    # All requests of the first pod are late by its objective.
    own = (
        "UPDATE app_epochs SET tail_bound_seconds = 1e-6, tail_objective_ratio = 0.99 "
        "WHERE app = 'server' AND epoch < (SELECT max(number) / 2 FROM epochs)"
    )
    export(tmp_path / "set", copy("a", *PODS, own))
    export(tmp_path / "plain", copy("a", *PODS))
    late = query(tmp_path / "set", "late_requests")
    late = {(row["percentile"], row["bound_ms"]): row for row in late}
    assert late.keys() == {(99, 0.001), (90, 0.4), (99, 2)}
    of_pod, of_config = late[99, 0.001], late[90, 0.4]
    assert of_pod["late_requests"] == of_pod["requests"] > 0
    assert late[99, 2]["requests"] == of_config["requests"] > 0, "of the second pod alone"
    (found,) = query(tmp_path / "set", "workloads")
    for column in ("requests", "late_requests"):
        assert found[column] == of_pod[column] + of_config[column], column
    (own,), (plain,) = (query(tmp_path / name, "entropy") for name in ("set", "plain"))
    assert own["e_lc"] > plain["e_lc"]


def as_version(version: int, place: Path) -> None:
    """Makes a dataset one that has no columns for objectives, or none for pods either."""
    database = duckdb.connect()
    of_pods = [] if version > 1 else ["namespace", "pod", "container", "workload"]
    of_objectives = ["has_objective", "percentile", "bound_ns"]
    for table, gone in {"app_minutes": of_pods, "latencies": of_pods + of_objectives}.items():
        columns = f"* EXCLUDE ({', '.join(gone)})" if gone else "*"
        for file in list((place / table).rglob("*.parquet")):
            former = file.with_suffix(".former")
            read = f"SELECT {columns} FROM read_parquet('{file}', hive_partitioning = false)"
            database.execute(f"COPY ({read}) TO '{former}' (FORMAT parquet)")
            former.rename(file)
    (place / "_lull.json").write_text(f'{{"lull_dataset":{version}}}')


@pytest.mark.parametrize("version", [1, 2])
def test_a_dataset_of_a_former_version_is_read_and_added_to(copy, export, run, tmp_path, version):
    place = tmp_path / "set"

    def figures() -> list[float]:
        late = sum(row["late_requests"] for row in query(place, "late_requests"))
        joules = sum(row["joules"] for row in query(place, "energy"))
        return [late, joules, *(row["e_s"] for row in query(place, "entropy"))]

    export(place, copy("a", *PODS))
    before = figures()
    as_version(version, place)
    assert figures() == pytest.approx(before)
    assert len(query(place, "workloads")) == version - 1, "version 1 has no names of pods"
    export(place, copy("b", *PODS))
    assert json.loads((place / "_lull.json").read_text()) == {"lull_dataset": 3}
    (found,) = query(place, "workloads")
    assert found["hosts"] == version, "what was exported without pods has none"
    assert {row["host"] for row in query(place, "entropy")} == {"a", "b"}
    (place / "_lull.json").write_text('{"lull_dataset":4}')
    _, printed = run("export", str(copy("c")), "--dataset", str(place), status=1)
    assert "is a dataset of version 4; this lull writes version 3" in printed


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """A server of S3's protocol (moto) on a free port, with a bucket; its address."""
    import boto3

    port = free_port()
    log = (tmp_path_factory.mktemp("s3") / "log").open("w")
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert server.poll() is None, Path(log.name).read_text()
    address = f"http://127.0.0.1:{port}"
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="fleet")
    yield address, client
    server.terminate()
    server.wait()


def test_a_bucket_of_s3_holds_what_a_directory_does(copy, export, run, s3, tmp_path, monkeypatch):
    address, client = s3
    for name, value in {
        "AWS_ENDPOINT": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)

    def stored() -> dict[str, bytes]:
        listed = client.list_objects_v2(Bucket="fleet", Prefix="lull/").get("Contents", [])
        keys = [entry["Key"] for entry in listed]
        read = {key: client.get_object(Bucket="fleet", Key=key)["Body"].read() for key in keys}
        return {key.removeprefix("lull/"): content for key, content in read.items()}

    client.put_object(Bucket="fleet", Key="others/file", Body=b"theirs")
    records = [copy("a"), copy("b", age_s=100 * DAY_S)]
    place = tmp_path / "set"
    for where in ("s3://fleet/lull", place):
        done = export(where, *records)
        assert [added["epochs"] > 0 for added in done["records"]] == [True, True]
    assert stored() == files(place) and len(stored()) == 1 + 2 * 6
    assert [it["epochs"] for it in export("s3://fleet/lull", *records)["records"]] == [0, 0]
    for where in ("s3://fleet/lull", place):
        removed = export(where, arguments=["--keep", "90d"])["removed"]
        assert [host for host, _ in removed["days"]] == ["b"]
    assert stored() == files(place) and len(stored()) == 1 + 6
    assert client.get_object(Bucket="fleet", Key="others/file")["Body"].read() == b"theirs"
    _, printed = run("export", str(records[0]), "--dataset", "s3://fleet/others", status=2)
    assert "holds other files and no _lull.json" in printed
