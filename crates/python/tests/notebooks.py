"""Runs the notebooks of docs/notebooks, all in one kernel, and stores them in a small form.

    python crates/python/tests/notebooks.py           # run all and store their outputs
    python crates/python/tests/notebooks.py NAME...   # only these

A stored notebook has no execution counts and no times, so that a run which gives the same
results gives the same file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[3] / "docs/notebooks"
#: A larger notebook is slow to fetch and to show.
FILE_BYTES_MAX = 150_000


def load(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def run(paths: list[Path]) -> Iterator[tuple[Path, Any]]:
    """Run notebooks in turn, each with fresh variables; yields them as they end."""
    manager = KernelManager(kernel_name="python3")
    client = None
    try:
        for path in paths:
            notebook = load(path)
            runner = NotebookClient(
                notebook, km=manager, timeout=120, resources={"metadata": {"path": str(FOLDER)}}
            )
            runner.kc = client
            # One kernel imports the libraries once; only the variables start afresh.
            reset = nbformat.v4.new_code_cell("%reset -f\n%matplotlib inline")
            notebook.cells.insert(0, reset)
            runner.execute(cleanup_kc=False)
            notebook.cells.pop(0)
            client = runner.kc
            yield path, normalised(notebook)
    finally:
        if client is not None:
            client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)


def normalised(notebook: Any) -> Any:
    """Remove what differs from run to run."""
    for number, cell in enumerate(notebook.cells, 1):
        cell.id = f"cell-{number}"
        cell.metadata = {}
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        for output in cell.outputs:
            assert output.get("name") != "stderr", f"a warning: {output.text}"
            if output.output_type == "execute_result":
                output.execution_count = None
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main(names: list[str]) -> None:
    paths = [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb"))
    for path, notebook in run(paths):
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
