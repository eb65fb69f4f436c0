"""An HTTP service that reports its requests with OpenTelemetry's SDK.

`service.py explicit|exponential` prints its address, answers `/?ms=N` after N milliseconds, and
prints on SIGTERM how long each request took, in seconds, as it has recorded it. Any other path is
its route, too. Endpoint, name, interval and temporality are the SDK's usual environment
variables.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import (
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

BOUNDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]
NAME = "http.server.request.duration"


def main(kind: str) -> None:
    if kind == "exponential":
        aggregation = ExponentialBucketHistogramAggregation()
    else:
        aggregation = ExplicitBucketHistogramAggregation(BOUNDS)
    provider = MeterProvider(
        [PeriodicExportingMetricReader(OTLPMetricExporter())],
        views=[View(instrument_name=NAME, aggregation=aggregation)],
    )
    duration = provider.get_meter("service").create_histogram(NAME, unit="s")
    taken: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            begun = time.perf_counter()
            url = urlparse(self.path)
            time.sleep(int(parse_qs(url.query)["ms"][0]) / 1000)
            taken.append(time.perf_counter() - begun)
            duration.record(taken[-1], {"http.route": url.path, "http.request.method": "GET"})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Requests are not logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"127.0.0.1:{server.server_port}", flush=True)
    stop.wait()
    provider.force_flush()
    print(json.dumps(taken), flush=True)
    provider.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
