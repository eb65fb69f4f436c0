"""The rows of a sweep as a directory of Parquet files, to which a killed sweep returns."""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import os
import pickle
import time
import uuid
from pathlib import Path
from typing import Any

from ._cells import ESTIMATES, Cell, Job, Rows
from ._lull import VERSION
from ._simulate import _named
from .errors import DatasetError

#: Longest time that a finished cell is in memory only.
FLUSH_S = 2.0
#: What identifies a row besides the columns of the grid and the seed.
KEY = ("scenario", "version", "cell")


def job_hash(job: Job) -> str:
    """Return a hash of what all cells share: the scenario, the policies, the replications."""
    scenario, policies, replications = job
    digest = hashlib.sha256(scenario.toml.encode())
    for name, policy in _named(policies or []):
        digest.update(f"\0{name}\0".encode() + pickle.dumps(policy, protocol=4))
    digest.update(f"\0{replications}".encode())
    return digest.hexdigest()[:16]


def cell_hash(cell: Cell) -> str:
    """Return a hash of a cell's setting and seed, the same in every grid that has it."""
    text = json.dumps([cell.setting, cell.seed], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Dataset:
    """A directory of Parquet files, each of which is complete or absent.

    One sweep at a time writes to it.
    """

    def __init__(self, path: str | os.PathLike[str], job: Job, axes: dict[str, list[Any]]) -> None:
        try:
            arrow: Any = importlib.import_module("pyarrow")
            importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ImportError(
                "path= writes Parquet, which needs the package pyarrow: pip install pyarrow"
            ) from error
        self._arrow = arrow
        self._directory = Path(path)
        self._scenario = job_hash(job)
        self._schema = self._schema_of(axes)
        self._pending: list[tuple[Cell, Rows]] = []
        self._flushed = time.monotonic()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = self._lock_directory()

    def _schema_of(self, axes: dict[str, list[Any]]) -> Any:
        arrow = self._arrow
        taken = [key for key in axes if key in KEY]
        if taken:
            raise ValueError(f"`{taken[0]}` is a column of the dataset, not a key of a scenario")
        kinds = [(name, arrow.string()) for name in KEY]
        kinds += [(name, self._kind(values)) for name, values in axes.items()]
        named = {"policy": arrow.string(), "seed": arrow.uint64()}
        named |= {"figure": arrow.string(), "unit": arrow.string()}
        kinds += [(name, named.get(name, arrow.float64())) for name in ESTIMATES]
        return arrow.schema(kinds)

    def _kind(self, values: list[Any]) -> Any:
        def all_of(kinds: tuple[type, ...]) -> bool:
            return all(isinstance(it, kinds) and not isinstance(it, bool) for it in values)

        if all_of((int,)):
            return self._arrow.int64()
        return self._arrow.float64() if all_of((int, float)) else self._arrow.string()

    def _lock_directory(self) -> int:
        lock = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            # Workers that are forked do not inherit it, as they would that of `flock`.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise DatasetError(
                f"{self._directory}: another sweep writes to it: wait for its end, or give "
                "another path"
            ) from error
        return lock

    def load(self, cells: list[Cell]) -> dict[int, Rows]:
        """Return the rows of those cells that are there, by number.

        Raises
        ------
        DatasetError
            If a file is of another scenario, version or grid, or is not a Parquet file.
        """
        wanted = {cell_hash(cell): cell.number for cell in cells}
        found: dict[int, Rows] = {}
        for path in sorted(self._directory.glob("part-*.parquet")):
            for key, rows in self._read(path).items():
                if key in wanted:
                    found[wanted[key]] = rows
        return found

    def _read(self, path: Path) -> dict[str, Rows]:
        try:
            table = self._arrow.parquet.ParquetFile(path).read()
        except (self._arrow.ArrowException, OSError) as error:
            raise DatasetError(f"{path}: cannot be read as Parquet: {error}") from error
        if table.schema.names != self._schema.names or table.schema.types != self._schema.types:
            there, ours = _columns(table.schema), _columns(self._schema)
            raise DatasetError(
                f"{path}: is of another grid, with the columns {there}; this sweep has {ours}: "
                "give another path"
            )
        columns = table.to_pydict()
        for scenario, version in set(zip(columns["scenario"], columns["version"])):
            if (scenario, version) != (self._scenario, VERSION):
                raise DatasetError(
                    f"{path}: is of scenario {scenario} by lull {version}; this sweep is of "
                    f"scenario {self._scenario} by lull {VERSION}: give another path"
                )
        cells: dict[str, Rows] = {}
        for at, key in enumerate(columns["cell"]):
            rows = cells.setdefault(key, {name: [] for name in ESTIMATES})
            for name in ESTIMATES:
                rows[name].append(columns[name][at])
        return cells

    def add(self, cell: Cell, rows: Rows) -> None:
        """Take the rows of a cell; `flush_if_due` writes them."""
        if not self._pending:
            self._flushed = time.monotonic()
        self._pending.append((cell, rows))

    def flush_if_due(self) -> None:
        """Write the pending rows if the oldest of them is older than `FLUSH_S`."""
        if self._pending and time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the pending rows as one file, which is complete or absent."""
        if not self._pending:
            return
        columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        for cell, rows in sorted(self._pending, key=lambda it: it[0].number):
            self._add_rows(columns, cell, rows)
        table = self._arrow.table(columns, schema=self._schema)
        name = f"part-{uuid.uuid4().hex}.parquet"
        beside, path = self._directory / f".{name}", self._directory / name
        with open(beside, "wb") as file:
            self._arrow.parquet.write_table(table, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._pending = []

    def _add_rows(self, columns: dict[str, list[Any]], cell: Cell, rows: Rows) -> None:
        count = len(rows["policy"])
        head = dict(zip(KEY, (self._scenario, VERSION, cell_hash(cell))))
        text = self._arrow.string()
        for name, value in (head | cell.setting).items():
            is_text = self._schema.field(name).type == text and value is not None
            columns[name] += [str(value) if is_text else value] * count
        for name in ESTIMATES:
            columns[name] += rows[name]

    def close(self) -> None:
        """Write the pending rows and let another sweep write."""
        try:
            self.flush()
        finally:
            os.close(self._lock)


def _columns(schema: Any) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema if field.name not in KEY)
