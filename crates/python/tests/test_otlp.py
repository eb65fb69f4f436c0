"""Services with OpenTelemetry's own SDKs export to an agent (`latency = "otlp"`)."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import queue
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

SERVICES = Path(__file__).parent / "otlp"
#: Requests of each run: most are fast, one in five is slow.
PAUSES_MS = [5, 5, 40, 5, 5] * 12

CONFIG = """
[policy]
name = "unmanaged"

[agent]
otlp = "127.0.0.1:0"
http = "127.0.0.1:0"
state = "{place}/state"
record = "{place}/runs"
epoch = "200ms"
silence = "1h"
events = false
{lines}

[[app]]
name = "shop"
class = "latency-critical"
objectives = [{{ p95 = "100ms" }}]
ideal = "1ms"
pid = {pid}
latency = "otlp"
{app}
"""
#: The bounds of the services' explicit buckets, in seconds.
BOUNDS = [0, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]


def go_service() -> Path:
    """The service in Go, built once; building it takes a minute."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("LULL_CACHE") or home / "lull")
    texts = [(SERVICES / "go" / name).read_bytes() for name in ("go.mod", "go.sum", "main.go")]
    digest = hashlib.sha256(b"".join(texts)).hexdigest()[:12]
    program = cache / f"otlp-service-{digest}"
    if program.exists():
        return program
    if shutil.which("go") is None or "LULL_OTLP_GO" not in os.environ:
        pytest.skip("the service in Go is not built: set LULL_OTLP_GO=1, with Go 1.26")
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", program, "."], cwd=SERVICES / "go", check=True)
    return program


def command_of(sdk: str) -> list[str]:
    if sdk == "go":
        return [str(go_service())]
    return [sys.executable, str(SERVICES / "service.py")]


def wait_for(what: str, found: Callable[[], object]) -> object:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"no {what} within 30 s")


class Agent:
    """A running agent, and its output."""

    def __init__(
        self, program: Path, place: Path, pid: int, lines: str = "", app: str = ""
    ) -> None:
        config = place / "lull.toml"
        config.write_text(CONFIG.format(place=place, pid=pid, lines=lines, app=app))
        self.output = place / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [program, "run", config], stdout=output, stderr=subprocess.STDOUT
            )

    def find(self, pattern: str) -> str:
        def found() -> re.Match[str] | None:
            assert self.process.poll() is None, self.output.read_text()
            return re.search(pattern, self.output.read_text())

        match = wait_for(pattern, found)
        assert isinstance(match, re.Match)
        return match[1]

    def metrics(self) -> dict[str, float]:
        """Values by name and labels."""
        try:
            with urllib.request.urlopen(f"{self.page}metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    @property
    def page(self) -> str:
        return self.find(r"page at (http://\S+/)")

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)


def start_service(sdk: str, kind: str, temporality: str, port: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{port}/v1/metrics",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality,
        "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION": "gzip",
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
    }
    return subprocess.Popen(
        [*command_of(sdk), kind], stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize(
    ("sdk", "kind", "temporality", "route"),
    [
        ("python", "explicit", "cumulative", None),
        ("python", "exponential", "delta", None),
        ("python", "explicit", "delta", "/api/cart"),
        ("go", "exponential", "cumulative", None),
        ("go", "explicit", "delta", None),
    ],
)
def test_what_a_service_has_measured_is_what_the_agent_counts(
    program: Path, tmp_path: Path, sdk: str, kind: str, temporality: str, route: str | None
) -> None:
    command_of(sdk)
    # The agent is there before the service, whose port is known only later.
    stand_in = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    app = f'otlp = {{ route = "{route}" }}' if route else ""
    agent = Agent(program, tmp_path, stand_in.pid, app=app)
    service = None
    try:
        port = int(agent.find(r"OTLP at http://127\.0\.0\.1:(\d+)/v1/metrics"))
        assert agent.page
        service = start_service(sdk, kind, temporality, port)
        assert service.stdout is not None
        address = service.stdout.readline().strip()
        requests = requests_of(route)
        for path, pause in requests:
            urllib.request.urlopen(f"http://{address}{path}?ms={pause}", timeout=30).close()
        service.send_signal(signal.SIGTERM)
        all_taken = json.loads(service.stdout.readline())
        pairs = zip(requests, all_taken, strict=True)
        taken = [seconds for (path, _), seconds in pairs if path == (route or "/")]
        assert len(taken) == len(PAUSES_MS)

        def all_counted() -> dict[str, float] | None:
            values = agent.metrics()
            count = values.get('lull_requests_total{app="shop"}', 0)
            assert count <= len(taken), "counted twice, or of another route"
            return values if count == len(taken) else None

        values = wait_for("count of all requests", all_counted)
        assert isinstance(values, dict)
        check(values, taken, kind)
    finally:
        agent.close()
        for process in filter(None, (service, stand_in)):
            process.kill()
            process.wait()
    assert agent.process.returncode == 0, agent.output.read_text()
    check_resolution(tmp_path / "runs", kind)


def requests_of(route: str | None) -> list[tuple[str, int]]:
    """Paths and lengths in milliseconds. Beside a route there are slow requests of another one."""
    if route is None:
        return [("/", pause) for pause in PAUSES_MS]
    requests = []
    for number, pause in enumerate(PAUSES_MS):
        requests.append((route, pause))
        if number % 10 == 0:
            requests.append(("/api/search", 300))
    return requests


def check_resolution(runs: Path, kind: str) -> None:
    """The range in which a tail certainly lies is one bucket of the service."""
    (record,) = runs.glob("*.db")
    sql = "SELECT tail_latency_seconds, tail_resolution_seconds FROM app_epochs"
    with contextlib.closing(sqlite3.connect(record)) as database:
        rows = database.execute(f"{sql} WHERE tail_resolution_seconds IS NOT NULL").fetchall()
    assert rows, "no tail had a resolution"
    widths = [high - low for low, high in itertools.pairwise(BOUNDS)]
    for tail, resolution in rows:
        if kind == "explicit":
            assert any(abs(resolution - width) < 1e-6 for width in widths), (tail, resolution)
        else:
            # The widest exponential buckets of the page about OpenTelemetry.
            assert 0 < resolution <= 0.1 * tail, (tail, resolution)


def test_what_an_agent_exports_is_what_opentelemetrys_own_messages_hold(
    program: Path, tmp_path: Path
) -> None:
    bodies: queue.Queue[bytes] = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            assert self.headers["Content-Encoding"] == "gzip"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.put(gzip.decompress(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    stand_in = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lines = f'export = "http://127.0.0.1:{collector.server_port}"\nexport_period = "1s"'
    agent = Agent(program, tmp_path, stand_in.pid, lines)
    try:
        exports = [ExportMetricsServiceRequest.FromString(bodies.get(timeout=30)) for _ in "12"]
    finally:
        agent.close()
        stand_in.kill()
        stand_in.wait()
        collector.shutdown()
    first, second = (by_name(export) for export in exports)
    resources = [
        {one.key: one.value.string_value for one in export.resource_metrics[0].resource.attributes}
        for export in exports
    ]
    assert resources[0] == resources[1], "two exports of one run"
    assert resources[0]["service.name"] == "lull"
    assert resources[0]["host.name"]
    (record,) = (tmp_path / "runs").glob("*.db")
    assert resources[0]["service.instance.id"] == record.stem
    epochs = [one["lull_epochs"].sum for one in (first, second)]
    assert epochs[0].is_monotonic and epochs[0].aggregation_temporality == 2
    counts = [one.data_points[0].as_double for one in epochs]
    assert 1 <= counts[0] < counts[1], counts
    bound = first["lull_tail_bound_seconds"]
    assert (bound.unit, bound.gauge.data_points[0].as_double) == ("s", 0.1)
    assert bound.gauge.data_points[0].attributes[0].value.string_value == "shop"


def by_name(export: ExportMetricsServiceRequest) -> dict[str, Any]:
    metrics = export.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: metric for metric in metrics}


def check(values: dict[str, float], taken: list[float], kind: str) -> None:
    """Compares the counts by bucket with the requests that the service has measured."""

    def below(bound: float) -> float:
        return values[f'lull_request_latency_seconds_bucket{{app="shop",le="{bound}"}}']

    # 50 ms and 0.1 s are bounds of the service's own buckets.
    for bound in (0.05, 0.1) if kind == "explicit" else (0.01, 0.02, 0.05, 0.1):
        # Exponential buckets of 160 are narrow: 5 % either way is more than their width.
        slack = 0 if kind == "explicit" else 0.05
        least = sum(one <= bound * (1 - slack) for one in taken)
        most = sum(one <= bound * (1 + slack) for one in taken)
        assert least <= below(bound) <= most, (bound, below(bound), sorted(taken))
    late = values['lull_late_requests_total{app="shop"}']
    assert late <= sum(one > 0.1 * 0.95 for one in taken)
