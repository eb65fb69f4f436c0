"""The lab's tables are the command's."""

from __future__ import annotations

import json
import os
import signal
import threading

import pytest

import lull


def rows_of(table):
    columns = table.to_dict()
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def test_experiments_are_those_of_the_command(run):
    wanted = json.loads(run("lab", "list", "--json")[0])
    got = rows_of(lull.lab.experiments())
    assert [(it["experiment"], it["paper"], it["summary"]) for it in got] == [
        (it["name"], it["paper"], it["summary"]) for it in wanted
    ]


@pytest.mark.parametrize("name, quick", [("ahq-table2", False), ("theory", True)])
def test_a_run_has_the_rows_and_verdicts_of_the_command(name, quick, run):
    options = ("--quick",) if quick else ()
    wanted = json.loads(run("lab", "run", name, "--json", *options)[0])
    report = lull.lab.run(name, quick=quick)
    got = rows_of(report.rows())
    assert (report.experiment, report.title, report.seeds, report.quick) == (
        name, wanted["title"], wanted["seeds"], quick,
    )
    assert len(got) == len(wanted["rows"]) > 3
    for ours, theirs in zip(got, wanted["rows"]):
        ends = None if ours["low"] is None else [ours["low"], ours["high"]]
        assert (ours["row"], ours["ours"], ends, ours["values"]) == (
            theirs["row"], theirs["ours"], theirs["ci95"], theirs["values"],
        )
        assert (ours["unit"], ours["tolerance"], bool(ours["held"])) == (
            theirs["unit"], theirs["tolerance"], theirs["held"],
        )
        assert ours["verdict"] == theirs["verdict"].lower()
        assert theirs["paper"] in (ours["paper"], ours["claim"])


def test_claims_have_the_verdicts_of_the_command(run):
    papers = json.loads(run("lab", "claims", "--json")[0])
    wanted = [(paper["paper"], claim) for paper in papers for claim in paper["claims"]]
    got = rows_of(lull.lab.claims())
    assert [(it["paper"], it["claim"], it["printed"]) for it in got] == [
        (paper, claim["text"], claim["printed"]) for paper, claim in wanted
    ]
    for ours, (_, claim) in zip(got, wanted):
        finding = claim["finding"]
        judged = isinstance(finding, dict) and finding.get("judged")
        assert ours["verdict"] == (judged[0] if judged else None)
        assert not judged or ours["ours"] == judged[1]["mean"]


def test_what_cannot_be_run_is_refused_with_the_text_of_the_command(run):
    _, printed = run("lab", "run", "ntier-table1", status=2)
    with pytest.raises(ValueError, match="no experiment is called `ntier-table1`") as raised:
        lull.lab.run("ntier-table1")
    assert str(raised.value) in printed
    for arguments in ({"seeds": 0}, {"threads": 0}):
        with pytest.raises(ValueError, match="give one at least"):
            lull.lab.run("theory", **arguments)


def test_seeds_that_are_run_apart_are_shared_with_the_command(run, tmp_path):
    whole = lull.lab.run("theory", quick=True, seeds=2)
    part = lull.lab.run_cells("theory", tmp_path, "2/2", quick=True, seeds=2)
    assert part.startswith("1 cells run")
    kept = ("lab", "run", "theory", "--quick", "--seeds", "2", "--parts", str(tmp_path))
    assert "1 cells run, 1 were in" in run(*kept, "--json")[1]
    again = lull.lab.run("theory", quick=True, seeds=2, path=tmp_path)
    assert again.rows().to_dict() == whole.rows().to_dict() and again.seeds == whole.seeds
    for cells, text in [("3", "there is no cell 3"), ("0/2", "parts count from 1")]:
        with pytest.raises(ValueError, match=text):
            lull.lab.run_cells("theory", tmp_path, cells, quick=True, seeds=2)
    with pytest.raises(ValueError, match="give another directory"):
        lull.lab.run("ahq-table2", path=tmp_path)


def test_an_interrupt_ends_an_experiment():
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        lull.lab.run("ahq-load", seeds=50, threads=1)
    timer.join()
