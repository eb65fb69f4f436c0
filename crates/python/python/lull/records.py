"""Records of runs as tables."""

from __future__ import annotations

import os

from ._lull import Record

__all__ = ["Record", "open"]


def open(path: str | os.PathLike[str]) -> Record:  # noqa: A001
    """Open the record of a run.

    Parameters
    ----------
    path : str or os.PathLike
        The file that `lull run` wrote. It may be of a run that goes on.

    Returns
    -------
    Record
        `record.tables` lists its tables, and `record.table(name)` reads one, with the columns
        of `lull export`.

    Raises
    ------
    RecordError
        If the file is not a record, is damaged, or was written by a newer Lull.
    """
    return Record(os.fspath(path))
