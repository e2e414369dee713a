"""Conversions keep what a workload sends and in which order."""

import random
from dataclasses import replace

import pytest

from openmrc import workload
from openmrc.errors import ArgumentError
from openmrc.workload import Layout, Node, Rank, Workload, preset
from openmrc.workload.order import run as execute
from tests.helpers.commands import one_line_error, run

SMALL = replace(preset("llama3-8b"), layers=4, hidden=256, heads=8, key_value_heads=4, sequence=256)
MOE = replace(preset("mixtral-8x7b"), layers=4, hidden=256, heads=8, key_value_heads=4, sequence=256)


def steps():
    """Steps without scale-up domains, whose computations are whole microseconds."""
    pick = random.Random(5)
    for _ in range(6):
        tensor, pipeline, data = (pick.choice([1, 2, 4]) for _ in range(3))
        model, expert = (MOE, pick.choice([1, data])) if pick.random() < 0.4 else (SMALL, 1)
        count = pick.choice([1, 3, 4])
        layout = Layout(tensor * pipeline * data, tensor, pipeline, data, expert, microbatches=count)
        yield _micros(workload.generate(model, layout, domain=1), pick)


def _micros(step, pick):
    return replace(
        step,
        programs={
            name: [replace(node, ns=1000 * pick.randint(1, 9) * (node.ns > 0)) for node in nodes]
            for name, nodes in step.programs.items()
        },
    )


def sent(step):
    """Bytes of each rank."""
    return {
        rank: sum(
            workload.bytes_sent(node, len(step.groups.get(step.group_of(rank, node), (0,))))
            for node in step.programs[step.ranks[rank].program]
        )
        for rank in range(len(step.ranks))
    }


@pytest.mark.parametrize("to", workload.FORMATS)
def test_bytes_and_times_of_a_step_are_kept(tmp_path, to):
    for number, step in enumerate(steps()):
        path = tmp_path / f"step{number}"
        workload.convert(step, path, to)
        found = workload.load(path)
        assert list(workload.problems(found)) == []
        assert sent(found) == sent(step)
        assert execute(found).ns == execute(step).ns


@pytest.mark.parametrize("to", workload.FORMATS)
def test_what_was_converted_is_kept_as_it_is(tmp_path, to):
    """A second conversion finds nothing to change."""
    for number, step in enumerate(steps()):
        one, other = tmp_path / f"one{number}", tmp_path / f"other{number}"
        first = workload.convert(step, one, to)
        again = workload.convert(workload.load(one), other, to)
        assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_computations_beside_each_other_stay_so(tmp_path):
    nodes = [Node(1, "compute", ns=5), Node(2, "compute", ns=7), Node(3, "compute", (1,), ns=4)]
    step = Workload({"a": nodes}, [Rank("a")])
    workload.convert(step, tmp_path / "step.goal", "goal")
    assert execute(workload.load(tmp_path / "step.goal")).ns == 9


def test_operations_of_a_group_stay_in_their_order(tmp_path):
    """The program names a computation before the collective that it waits for."""
    reduces = [Node(at, "collective", bytes=8 * at, operation="all_reduce", group="g") for at in (1, 2)]
    step = Workload(
        {"a": [Node(9, "compute", (2,), ns=3), *reduces], "b": reduces}, [Rank("a"), Rank("b")], {"g": (0, 1)}
    )
    workload.convert(step, tmp_path / "step.goal", "goal")
    found = workload.load(tmp_path / "step.goal")
    assert list(workload.problems(found)) == []
    assert sent(found) == sent(step)


def test_a_scale_up_operation_is_a_computation(tmp_path):
    step = workload.generate(SMALL, Layout(4, 2, 2, microbatches=2), domain=2)
    workload.convert(step, tmp_path / "step.goal", "goal")
    found = workload.load(tmp_path / "step.goal")
    assert workload.volume(found).fabric_bytes == workload.volume(step).fabric_bytes
    assert execute(found).ns == workload.volume(step).ideal_ns


def test_traces_of_a_larger_job_are_not_mixed_with_new_ones(tmp_path):
    for ranks in (2, 2):
        workload.convert(workload.generate(SMALL, Layout(ranks, data=ranks)), tmp_path / "job", "chakra")
    with pytest.raises(ArgumentError, match=r"job\.1\.et is there, but the workload has 1 ranks"):
        workload.convert(workload.generate(SMALL, Layout(1)), tmp_path / "job", "chakra")


def test_the_command_converts(tmp_path):
    first, second = tmp_path / "step.jsonl", tmp_path / "step.goal"
    workload.save(workload.generate(SMALL, Layout(2, 1, 2, microbatches=2)), first)
    assert "as goal" in run("workload", "convert", first, second).stdout
    assert "as chakra" in run("workload", "convert", second, tmp_path / "job", "--to", "chakra").stdout
    assert (tmp_path / "job.1.et").exists()
    unsaid = run("workload", "convert", first, tmp_path / "job")
    assert "--to: it is needed for this OUT" in one_line_error(unsaid)
    unknown = run("workload", "convert", first, second, "--to", "xml")
    assert "--to xml: not one of openmrc, goal, chakra" in one_line_error(unknown)
