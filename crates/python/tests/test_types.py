"""The package is typed: its own code passes mypy, and the stubs are those of the native part."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lull

pytest.importorskip("mypy")


def check(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=Path(lull.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_passes_mypy():
    check("mypy", "--strict", "--no-incremental", "-p", "lull")


def test_the_stubs_are_those_of_the_native_part():
    check("mypy.stubtest", "lull._lull")
