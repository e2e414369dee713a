"""``openmrc tune``: the borders that it finds, and communicators that use them."""

import json
import subprocess

import pytest

from openmrc.collectives import tune, tuning
from openmrc.errors import FormatError
from tests.helpers.commands import OPENMRC
from tests.helpers.ranks import run

ALGORITHMS = """
    for count in (1000, 50_000):
        comm.all_reduce(np.ones(count, np.float32))
        comm.broadcast(np.ones(count, np.float32))
    print(json.dumps([record.algorithm for record in comm.records() if record.name != "barrier"]))
"""


def algorithms(size=2, **environment):
    """Those of all_reduce and broadcast of 4 kB, then of 200 kB, at each rank."""
    return [json.loads(out) for out in run(ALGORITHMS, size, **environment)]


def test_what_was_measured_is_used_by_all_ranks(tmp_path):
    file = tmp_path / "tuning.json"
    entries = [
        tuning.Entry(2, True, direct=1 << 20, halving=1 << 20, tree=0),
        tuning.Entry(2, False, direct=0, halving=0, tree=1 << 20),
    ]
    tuning.write(entries, file)
    default = algorithms(OPENMRC_TUNING="")
    assert default == [["direct", "tree", "halving", "tree"]] * 2
    assert algorithms(OPENMRC_TUNING=str(file)) == [["direct", "chain", "direct", "chain"]] * 2
    over_planes = algorithms(OPENMRC_TUNING=str(file), SHARED="0")
    assert over_planes == [["ring", "tree", "ring", "tree"]] * 2


def test_sizes_that_a_user_chooses_come_before_measured_ones(tmp_path):
    tuning.write([tuning.Entry(2, True, 1 << 20, None, 1 << 20)], tmp_path / "t")
    script = ALGORITHMS.replace("for count", "comm = comm.remake([0, 1])\n    for count", 1)
    head = """
        import os, sys, time, json, signal
        import numpy as np
        from openmrc.collectives import Communicator
        from openmrc.collectives.rendezvous import Tuned
        comm = Communicator.from_environment(tuned=Tuned(algorithms={"direct": 0, "halving": 0}), timeout=60)
        rank, size = comm.rank, comm.size
    """
    outs = run(script, 2, head=head, OPENMRC_TUNING=str(tmp_path / "t"))
    assert [json.loads(out) for out in outs] == [["ring", "tree", "ring", "tree"]] * 2


def test_a_file_that_is_none_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "tuning.json"
    monkeypatch.setenv(tuning.VARIABLE, str(file))
    assert tuning.read() == []
    good = {"ranks": 2, "shared_memory": True, "direct": 1, "halving": None, "tree": 3}
    for text in (
        "",
        "[]",
        '{"version": 2, "entries": []}',
        json.dumps({"version": 1, "entries": [{**good, "direct": -1}]}),
        json.dumps({"version": 1, "entries": [{**good, "direct": "8"}]}),
        json.dumps({"version": 1, "entries": [{**good, "ring": 1}]}),
    ):
        file.write_text(text)
        with pytest.raises(FormatError, match="was not written by `openmrc tune`"):
            tuning.read()
    file.write_text(json.dumps({"version": 1, "entries": [good]}))
    assert tuning.read() == [tuning.Entry(2, True, 1, None, 3)]


def test_the_entry_of_the_nearest_number_of_ranks_is_chosen():
    entries = [tuning.Entry(ranks, True, ranks, None, 0) for ranks in (2, 4, 16)]
    chosen = [tuning.choose(entries, ranks, shared_memory=True)["direct"] for ranks in (1, 3, 6, 9, 100)]
    assert chosen == [2, 4, 4, 16, 16]
    assert tuning.choose(entries, 2, shared_memory=False) == {}


def test_borders_lie_where_the_next_algorithm_becomes_faster():
    sizes = [1 << power for power in range(10, 20, 2)]
    direct = {size: 10 + size / 1000 for size in sizes}
    ring = {size: 40 + size / 8000 for size in sizes}
    # 30 us more at the beginning pay from 34 kB on.
    [border] = tune.borders([direct, ring])
    assert 1 << 14 < border < 1 << 16
    assert tune.borders([direct, dict.fromkeys(sizes, 1.0)]) == [0]
    assert tune.borders([direct, dict.fromkeys(sizes, 1e9)]) == [1 << 18]
    # One size that was disturbed does not move a border.
    assert tune.borders([{**direct, 1 << 12: 60}, ring]) == [border]


def test_tune_measures_and_writes_its_file(tmp_path):
    file = tmp_path / "deep" / "tuning.json"
    command = [*OPENMRC, "tune", "--ranks", "2", "--iters", "1", "--out", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["file"] == str(file)
    assert [each["entry"]["shared_memory"] for each in found["measured"]] == [True, False]
    assert set(found["measured"][0]["all_reduce"]) == {"direct", "halving", "ring"}
    assert json.loads(file.read_text())["entries"] == [each["entry"] for each in found["measured"]]
    refused = subprocess.run([*OPENMRC, "tune", "--ranks", "1"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "--ranks" in refused.stderr
