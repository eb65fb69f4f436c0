"""What the tests share: small scenarios, and the program to compare with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import lull

ROOT = Path(__file__).parents[3]

NODE = """
title = "search beside batch"

[run]
seed = 7
warmup = "2s"
length = "10s"
replications = 3

[node]
cores = 4
frequency = "2GHz"
cache = { ways = 8, way-bytes = 1048576 }

[[app]]
name = "search"
class = "latency-critical"
threads = 2
objectives = [{ p95 = "8ms" }]
ideal = "3ms"
max_load = 1500
activity.requests.work = { mean = "1ms" }
activity.requests.load = [{ from = "0s", rate-per-s = 900.0 }]
memory = { share = 0.3, bytes-per-s = 1e9, floor = 0.4, ways = 4.0 }

[[app]]
name = "batch"
class = "best-effort"
threads = 4
solo = 4.0
activity = "endless"

[[policy]]
name = "unmanaged"

[[policy]]
name = "arq"
"""

TIERS = """
title = "a web server"

[run]
warmup = "1s"
length = "6s"
replications = 3

[[machine.dvfs.cores]]
pstates = [{ frequency = "2GHz", volts = 1.2 }, { frequency = "1GHz", volts = 0.8 }]

[[tier]]
name = "web"
servers = 2
machine = "dvfs"

[[app]]
name = "site"
class = "latency-critical"
objectives = [{ p95 = "8ms" }]
source = { open = { rate_per_s = 600.0 } }
steps = [{ call = { tier = "web", steps = [{ work = { mean = "1ms" } }] } }]

[[policy]]
name = "full-speed"

[[policy]]
name = "powersave"
"""


@pytest.fixture(params=[NODE, TIERS], ids=["node", "tiers"])
def text(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def node() -> lull.Scenario:
    return lull.Scenario.from_toml(NODE)


@pytest.fixture
def tiers() -> lull.Scenario:
    return lull.Scenario.from_toml(TIERS)


@pytest.fixture(scope="session")
def program() -> Path:
    """The program `lull` of the same build."""
    path = os.environ.get("LULL_PROGRAM")
    if path is None:
        pytest.skip("LULL_PROGRAM does not name the program `lull`")
    return Path(path)


@pytest.fixture(scope="session")
def run(program: Path):
    """Runs `lull` and returns what it printed on both outputs."""

    def run(*arguments: str, cwd: Path = ROOT, status: int = 0) -> tuple[str, str]:
        done = subprocess.run(
            [program, *arguments], cwd=cwd, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        return done.stdout, done.stderr

    return run


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster on this machine: two nodes of one CPU, one of which a test may kill."""
    ray = pytest.importorskip("ray")
    utilities = pytest.importorskip("ray.cluster_utils")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = utilities.Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
