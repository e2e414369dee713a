"""Several jobs on one fabric, and one step on several networks."""

import json

import pytest

from openmrc import sim, workload
from openmrc.errors import ArgumentError
from openmrc.workload import Layout, Node, Rank, Workload, compare, place_all, run_jobs, variants
from tests.helpers.commands import one_line_error, run
from tests.helpers.steps import SMALL, fabric, two_ranks

MESSAGE = Workload(
    {"a": [Node(0, "send", bytes=8 << 20, peer=1)], "b": [Node(0, "receive", bytes=8 << 20, peer=0)]},
    [Rank("a"), Rank("b")],
)


@pytest.mark.parametrize("placement", ["t0", "random"])
def test_jobs_that_share_nothing_take_what_they_take_alone(placement):
    alone = workload.run(two_ranks(), fabric(2))
    first, second = run_jobs([two_ranks(), MESSAGE], fabric(4), placement=placement)
    assert first.step_us == pytest.approx(alone.step_us, rel=0.01)
    assert second.step_us == pytest.approx(workload.run(MESSAGE, fabric(2)).step_us, rel=0.01)
    assert not set(first.hosts) & set(second.hosts)
    assert first.results is second.results
    assert (len(first.times.programs[0]), len(second.times.programs[0])) == (3, 1)


@pytest.mark.parametrize("engine", ["packets", "flow"])
def test_jobs_that_share_the_uplinks_of_a_t0_take_twice_as_long(engine):
    shape = {"hosts": 4, "planes": 4, "radix": 8, "hosts_per_t0": 2, "oversubscription": "2:1"}
    topology = sim.Topology.model_validate(shape)
    seed = next(
        seed for seed in range(1000) if place_all([MESSAGE, MESSAGE], "random", 4, seed) == [[0, 2], [1, 3]]
    )
    scenario = sim.Scenario(topology=topology, traffic=[sim.Permutation(bytes=1)], seed=seed)
    apart = run_jobs([MESSAGE, MESSAGE], scenario, placement="t0", engine=engine)
    shared = run_jobs([MESSAGE, MESSAGE], scenario, placement="random", engine=engine)
    # Packets may let one of two equals go first.
    last, alone = (max(step.step_us for step in steps) for steps in (shared, apart))
    assert last / alone == pytest.approx(2, rel=0.1)


def test_jobs_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentError, match=r"3 hosts are fewer than 2 \+ 2 ranks"):
        run_jobs([MESSAGE, MESSAGE], fabric(3))


def test_the_command_runs_several_jobs(tmp_path):
    workload.save(two_ranks(), tmp_path / "a.jsonl")
    workload.save(MESSAGE, tmp_path / "b.jsonl")
    shown = run("workload", "run", "a.jsonl", "b.jsonl", "--timeline", "t.json", cwd=tmp_path)
    assert shown.returncode == 0
    assert "job 0: a.jsonl, 2 ranks" in shown.stdout
    assert "job 1: b.jsonl, 2 ranks" in shown.stdout
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {
        0: "job 0, rank 0 on h0",
        1: "job 0, rank 1 on h1",
        2: "job 1, rank 0 on h2",
        3: "job 1, rank 1 on h3",
    }
    found = json.loads(run("workload", "run", "a.jsonl", "b.jsonl", "--json", cwd=tmp_path).stdout)
    assert [job["finished"] for job in found["jobs"]] == [True, True]
    missing = run("workload", "run", "a.jsonl", "--timeline", "no/t.json", cwd=tmp_path)
    assert "no" in one_line_error(missing)


def test_every_combination_runs_as_it_would_alone():
    step = workload.generate(SMALL, Layout(4, 1, 2, 2, microbatches=2))
    wanted = variants(["mrc", "rocev2:qps=4"], [1, 4], ["t0", "random"])
    assert [str(each) for each in wanted][:3] == [
        "mrc, 1 plane, t0",
        "mrc, 1 plane, random",
        "mrc, 4 planes, t0",
    ]
    found = compare(step, wanted, fabric(8, seed=3), seeds=2)
    assert list(found.results) == wanted
    assert len(found.rows()) == len(wanted) == 8
    assert [run.seed for run in found.results[wanted[0]]] == [3, 4]
    like = workload.run(step, fabric(8, seed=4), placement="random")
    same = found.results[wanted[3]][1]
    assert same.step_us == like.step_us
    assert same.critical_path_us == like.critical_path_us()
    assert found.rows()[0][4] == "1.000"
    single = sim.Topology(hosts=8, planes=1, radix=16, nic=sim.Nic(rate=400_000_000_000))
    on_one = sim.Scenario(topology=single, traffic=[sim.Permutation(bytes=1)], seed=3)
    assert found.results[wanted[0]][0].step_us == workload.run(step, on_one).step_us


def test_a_network_that_cannot_be_is_named_before_anything_runs():
    step = workload.generate(SMALL, Layout(4, 1, 2, 2, microbatches=2), domain=1)
    with pytest.raises(ArgumentError, match=r"^rocev2:qps=2, t0: .*flow"):
        compare(step, variants(["mrc", "rocev2:qps=2"]), fabric(4), engine="flow", progress=pytest.fail)
    with pytest.raises(ArgumentError, match="carrier-pigeon"):
        compare(step, variants(["mrc", "carrier-pigeon"]), fabric(4), progress=pytest.fail)
    with pytest.raises(ArgumentError, match="rail: the workload has no scale-up domains"):
        compare(step, variants(placements=["t0", "rail"]), fabric(4), progress=pytest.fail)
    for wrong, words in [
        ({"transports": ["mrc", "mrc"]}, "named twice"),
        ({"placements": ["attic"]}, "'attic' is not known"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            variants(**wrong)


def test_the_command_compares(tmp_path):
    workload.save(two_ranks(), tmp_path / "a.jsonl")
    arguments = ("workload", "compare", "a.jsonl", "--transports", "mrc,rocev2:qps=8", "--planes", "2,8")
    shown = run(*arguments, cwd=tmp_path)
    assert shown.returncode == 0
    assert "rocev2:qps=8, 2 planes, t0" in shown.stdout
    found = json.loads(run(*arguments, "--json", cwd=tmp_path).stdout)
    assert [variant["planes"] for variant in found["variants"]] == [2, 8, 2, 8]
    wrong = run("workload", "compare", "a.jsonl", "--planes", "two", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "write numbers like 1,4,8" in wrong.stderr
