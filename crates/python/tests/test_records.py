"""Records are read as `lull export` writes them."""

from __future__ import annotations

import csv
import shutil
import sqlite3

import pytest

import lull

CONFIG = """
[agent]
epoch = "100ms"

[policy]
name = "unmanaged"

[[app]]
name = "burner"
class = "best-effort"
progress = "push"
start = ["{program}", "burn", "compute", "--threads", "1"]
"""


@pytest.fixture(scope="module")
def record(run, program, tmp_path_factory):
    place = tmp_path_factory.mktemp("record")
    (place / "a.toml").write_text(CONFIG.format(program=program))
    run("run", "a.toml", "--for", "2s", cwd=place)
    (found,) = place.glob("**/*.db")
    return found


def test_tables_are_those_of_the_export(record, run, tmp_path):
    run("export", str(record), "--to", str(tmp_path / "out"), "--format", "csv")
    opened = lull.records.open(record)
    assert "app_epochs" in opened.tables
    written = {file.stem: file for file in (tmp_path / "out").iterdir()}
    assert set(written) == set(opened.tables)
    for name, file in written.items():
        with file.open(newline="") as lines:
            rows = list(csv.reader(lines))
        table = opened.table(name)
        assert [*table.column_names, "run", "host"] == rows[0]
        assert len(table) == len(rows) - 1
    epochs = opened.table("app_epochs").to_dict()
    assert set(epochs["app"]) == {"burner"} and len(epochs["epoch"]) >= 10
    with written["app_epochs"].open(newline="") as lines:
        exported = [row["progress_per_second"] for row in csv.DictReader(lines)]
    ours = epochs["progress_per_second"]
    assert [float(text) if text else None for text in exported] == ours
    assert any(value for value in ours)


def test_other_files_and_tables_are_refused(record, tmp_path):
    (tmp_path / "a.db").write_text("no record")
    for path in (tmp_path / "a.db", tmp_path / "missing.db"):
        with pytest.raises(lull.RecordError, match=path.name):
            lull.records.open(path)
    with pytest.raises(KeyError, match="no table `epoch`; it has: run, apps, epochs"):
        lull.records.open(record).table("epoch")


def test_hidden_characters_of_a_record_are_shown(record, tmp_path):
    copy = tmp_path / "a\x1b[2J.db"
    shutil.copy(record, copy)
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE apps SET name = ?", ["bur\x1b[2Jner\n\u202e"])
    database.close()
    opened = lull.records.open(copy)
    assert opened.table("apps").to_dict()["name"] == ["bur\x1b[2Jner\n\u202e"]
    assert r"bur\u{1b}[2Jner\u{a}\u{202e}" in str(opened.table("apps"))
    assert r"a\u{1b}[2J.db" in repr(opened)
    plan = lull.Plan()
    plan.set("cores", "0", of="a\x1b[2J")
    assert repr(plan) == r"<lull.Plan cores of a\u{1b}[2J: 0>"
