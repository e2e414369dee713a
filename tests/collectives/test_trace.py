"""What communicators did as traces, and the simulator that replays them."""

import json
from dataclasses import replace

import pytest

from openmrc import sim
from openmrc.collectives import OperationRecord, trace
from openmrc.errors import Error
from tests.helpers.ranks import run
from tests.helpers.repository import ROOT

FABRIC = {"hosts": 8, "planes": 2, "radix": 8}
WORLD = trace.Group("", (0, 1))


def record(name, begin_us, end_us, nbytes=1 << 20, peer=0, tag=0, algorithm="ring"):
    seconds = (end_us - begin_us) * 1e-6
    return OperationRecord(1, name, algorithm, nbytes, 5 + end_us * 1e-6, seconds, nbytes, 0, peer, tag, 2)


def replay(prefix, **changes):
    recorded = {"kind": "recorded", "file": str(prefix), **changes}
    return sim.run(sim.Scenario.model_validate({"topology": FABRIC, "traffic": [recorded]}))


def written(directory, *ranks):
    for rank, records in enumerate(ranks):
        done = [(WORLD, each) for each in records]
        (directory / f"job.{rank}.et").write_bytes(trace.encode(rank, done))
    return directory / "job"


def test_computation_and_communication_follow_each_other(tmp_path):
    # 300 us of computation between two operations, 200 us behind one that the host did not wait for.
    calls = [
        record("all_reduce", 0, 100), record("all_reduce", 400, 900), record("barrier", 600, 950, nbytes=0)
    ]  # fmt: skip
    results = replay(written(tmp_path, calls, calls))
    # A ring of two passes each half twice.
    ring_us = (1 << 20) * 8 / 200e9 * 1e6
    least = ring_us + 300 + 200
    assert least < results.summary(0).makespan_us < least + 50
    assert results.summary(0).bytes == 2 * 2 * (1 << 20) + 2


def test_messages_are_matched_by_tag(tmp_path):
    first = [record("send", 0, 10, peer=1, tag=7), record("recv", 20, 900, peer=1, tag=8)]
    second = [record("recv", 0, 500, peer=0, tag=7), record("send", 510, 600, peer=0, tag=8)]
    results = replay(written(tmp_path, first, second))
    one_way_us = (1 << 20) * 8 / 200e9 * 1e6
    assert results.summary(0).makespan_us > 2 * one_way_us


def test_a_job_is_recorded_and_replayed(tmp_path):
    script = """
        from openmrc.collectives import trace
        part = comm.split(rank % 2)
        comm.records(), part.records()
        x = np.ones(100_000, np.float32)
        for _ in range(3):
            comm.all_reduce(x, op="max")
            time.sleep(0.002)
            part.broadcast(x, 1)
        comm.all_to_all(np.arange(400.0), np.empty(400))
        comm.all_gather(np.ones(10), np.empty(40))
        comm.reduce_scatter(np.ones(40), np.empty(10))
        comm.gather(np.ones(5), np.empty(20) if rank == 2 else None, 2)
        comm.scatter(np.empty(5), np.ones(20), 1)
        comm.reduce(x, root=3)
        if rank < 2:
            works = [comm.send(x, 1 - rank, tag=rank, async_op=True)]
            comm.recv(np.empty_like(x), 1 - rank, tag=1 - rank)
            works[0].wait()
        trace.write(os.environ["PREFIX"], comm, [part])
        part.close()
    """
    prefix = tmp_path / "job"
    run(script, 4, PREFIX=str(prefix))
    groups = json.loads((tmp_path / "job.groups.json").read_text())
    assert sorted(groups.values()) == [[0, 2], [1, 3]]
    results = replay(prefix)
    took = results.summary(0).makespan_us
    assert took > 6000
    # On a fabric with a hundredth of the rate communication takes longer, and computation as long.
    slow = sim.Scenario.model_validate(
        {
            "topology": {**FABRIC, "nic": {"rate": "4G"}},
            "traffic": [{"kind": "recorded", "file": str(prefix), "ranks": [7, 5, 3, 1]}],
        }
    )
    assert sim.run(slow).summary(0).makespan_us > took + 2000


def test_what_cannot_be_replayed_is_named(tmp_path):
    with pytest.raises(Error, match=r"job\.0\.et: No such file"):
        replay(tmp_path / "job")
    one = [record("all_reduce", 0, 100)]
    written(tmp_path, one, [replace(one[0], nbytes=5)])
    with pytest.raises(Error, match=r"rank 1, node 1 \(all_reduce\) does not agree with .* of rank 0"):
        replay(tmp_path / "job")
    written(tmp_path, one, one)
    (tmp_path / "job.0.et").write_bytes((tmp_path / "job.0.et").read_bytes()[:-1])
    with pytest.raises(Error, match=r"job\.0\.et: it ends within a record"):
        replay(tmp_path / "job")
    written(tmp_path, *[one] * 9)
    with pytest.raises(Error, match="9 ranks, but there are 8 hosts"):
        replay(tmp_path / "job")


EXAMPLE = ROOT / "examples" / "scenarios" / "recorded-training.yaml"


def test_the_recorded_training_of_the_demo_is_replayed():
    results = sim.run(sim.load(EXAMPLE))
    found = results.summary(0)
    assert found.delivered == found.messages
    # 3.3 million parameters: in each of 40 steps a ring of four sends 1.5 times 13.2 MB at each rank.
    gradients = 40 * 4 * 1.5 * 13.2e6
    assert gradients < found.bytes < 1.02 * gradients
