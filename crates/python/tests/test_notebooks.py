"""The notebooks run, and are stored as `notebooks.py` writes them."""

from __future__ import annotations

import json

import pytest

for needed in ("duckdb", "ipykernel", "matplotlib", "nbclient", "polars", "pyarrow"):
    pytest.importorskip(needed)

import notebooks

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


def test_the_notebooks_run_and_what_they_assert_holds():
    assert len(PATHS) == 5
    for path, notebook in notebooks.run(PATHS):
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert all(output.output_type != "error" for output in outputs), path
        assert any("image/png" in output.get("data", {}) for output in outputs), path


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_stored_notebook_has_outputs_and_nothing_that_changes(path):
    stored = notebooks.load(path)
    assert json.loads(json.dumps(stored)) == json.loads(
        json.dumps(notebooks.normalised(notebooks.load(path)))
    ), f"run python crates/python/tests/notebooks.py {path.stem}"
    assert path.stat().st_size < notebooks.FILE_BYTES_MAX
    assert stored.cells[0].source.startswith("# ")
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert any("assert " in cell.source for cell in code)
    assert any(cell.outputs for cell in code)
