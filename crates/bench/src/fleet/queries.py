"""Runs the queries of `examples/fleet` on a dataset and prints how long each took, as JSON."""

import json
import sys
import time
from pathlib import Path

import duckdb

QUERIES = ["entropy", "late_requests", "energy", "workloads", "checks"]


def main(dataset: str, queries: str) -> None:
    database = duckdb.connect()
    database.execute("SET VARIABLE dataset = ?", [dataset])
    database.execute((Path(queries) / "views.sql").read_text())
    took = {}
    for name in QUERIES:
        begun = time.monotonic()
        rows = database.sql((Path(queries) / f"{name}.sql").read_text()).fetchall()
        took[name] = {"seconds": time.monotonic() - begun, "rows": len(rows)}
    print(json.dumps(took))


main(*sys.argv[1:])
