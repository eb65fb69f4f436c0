"""The examples of docs/python.md run, in the order of the page."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

for needed in ("gymnasium", "polars", "pyarrow"):
    pytest.importorskip(needed)


def test_the_examples_of_the_page_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    names: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["own"].policies == ["unmanaged", "Reserve", "arq"]
    assert names["truncated"] is True
    assert names["search"].best.meets
