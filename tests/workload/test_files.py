"""Files of workloads: what is written is read, and what is wrong is named."""

import json
import random
from dataclasses import replace

import pytest

from openmrc import workload
from openmrc.errors import FormatError
from openmrc.workload import Layout, Node, Rank, Workload, preset
from tests.helpers.commands import one_line_error, run


@pytest.fixture(scope="module")
def step():
    return workload.generate(preset("mixtral-8x7b"), Layout(8, 2, 2, 2, expert=4, microbatches=2))


@pytest.fixture
def file(step, tmp_path):
    workload.save(step, tmp_path / "step.jsonl")
    return tmp_path / "step.jsonl"


def test_a_file_is_read_as_it_was_written(step, file):
    found = workload.load(file)
    assert workload.volume(found) == workload.volume(step)
    workload.save(found, file.with_name("again.jsonl"))
    assert file.with_name("again.jsonl").read_bytes() == file.read_bytes()


def test_a_file_that_is_cut_anywhere_is_refused(file):
    text = file.read_text().rstrip("\n")
    for length in random.Random(1).sample(range(len(text)), 60):
        file.write_text(text[:length])
        with pytest.raises(FormatError, match=r"step\.jsonl"):
            workload.load(file)


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        (0, {"format": "x"}, "line 1: it is no workload"),
        (0, {"version": 2}, "line 1: version: 2 is not read"),
        (0, {"ranks": 0}, "line 1: ranks: 0 is not a whole number"),
        (0, {"ranks": 9}, "rank 8 of 9 is missing"),
        (0, {"domain": True}, "line 1: domain: True is not"),
        (0, {"scale_up_us": -1}, "line 1: scale_up_us: -1 is not"),
        (1, {"members": [0, -1]}, "line 2: members"),
        (1, {"extra": 1}, "line 2: extra: there is no such field"),
        (-1, {"kind": "wait"}, "kind: 'wait' is none of"),
        (-1, {"ns": 1.5}, "ns: 1.5 is not a whole number"),
        (-1, {"after": "1"}, "after: not a list of nodes"),
        (-1, {"peer": -3}, "peer: -3 is no role or rank"),
        (-1, {"kind": "collective", "operation": "all"}, "operation: 'all' is none of"),
    ],
)
def test_wrong_fields_are_named_with_their_line(file, line, change, message):
    lines = file.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | change)
    file.write_text("\n".join(lines))
    with pytest.raises(FormatError, match=message):
        workload.load(file)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\n\n", '{"a":' * 100_000, "\0"])
def test_what_is_no_workload_is_refused(tmp_path, text):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(FormatError):
        workload.load(path)


def pair(first, second, groups=None):
    """Two ranks with programs of their own."""
    groups = {"g": (0, 1)} if groups is None else groups
    return Workload({"a": first, "b": second}, [Rank("a"), Rank("b")], groups)


def reduce(number, size=8, after=(), group="g", operation="all_reduce"):
    return Node(number, "collective", after, bytes=size, operation=operation, group=group)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (pair([reduce(1)], [reduce(1), reduce(2)]), "rank 1, node 2, group: rank 0 lacks this all_reduce of"),
        (
            pair([reduce(1)], [reduce(7, 16)]),
            r"rank 1, node 7, bytes: 16, but rank 0 has 8 \(node 1, group g\)",
        ),
        (
            pair([reduce(1)], [reduce(7, operation="all_gather")]),
            "rank 1, node 7, operation: all_gather, but rank 0 has all_reduce",
        ),
        (pair([reduce(1, group="h")], []), "rank 0, node 1, group: h is not known"),
        (pair([reduce(1)], [], {"g": (1,)}), "rank 0, node 1, group: the rank is not in g"),
        (pair([], [], {"g": (0, 2)}), "rank 2, group g: the rank does not exist"),
        (pair([], [], {"g": (0, 1, 1)}), "rank 1, group g: the rank is in it twice"),
        (pair([reduce(1, after=(4,))], []), "rank 0, node 1, after: there is no node 4"),
        (pair([reduce(1), reduce(1)], []), "rank 0, node 1, node: the number is there twice"),
        (
            pair([Node(1, "compute", (2,)), Node(2, "compute", (3,)), Node(3, "compute", (2,))], []),
            "rank 0, node 2, after: the node waits for itself: 2 -> 3 -> 2",
        ),
        (pair([Node(1, "send", peer="next")], []), "rank 0, node 1, peer: the rank has no next"),
        (pair([Node(1, "send", peer=2)], []), "rank 0, node 1, peer: rank 2 does not exist"),
        (pair([Node(1, "send", peer=0)], []), "rank 0, node 1, peer: it is the rank itself"),
        (
            pair([Node(1, "send", peer=1, tag=3)], []),
            "rank 0, node 1, tag: rank 1 does not receive 3 from this rank",
        ),
        (
            pair([], [Node(5, "receive", peer=0, tag=3)]),
            "rank 1, node 5, tag: rank 0 does not send 3 to this rank",
        ),
        (
            pair([Node(1, "send", peer=1, bytes=9)], [Node(2, "receive", peer=0, bytes=8)]),
            r"rank 1, node 2, bytes: 8, but rank 0 sends 9 \(node 1\)",
        ),
        (
            # Each sends only when it has received.
            pair(
                [Node(1, "receive", peer=1), Node(2, "send", (1,), peer=1)],
                [Node(1, "receive", peer=0), Node(2, "send", (1,), peer=0)],
            ),
            "rank 0, node 1, tag: deadlock: rank 1 has not sent 0",
        ),
        (
            # Two groups of the same ranks in opposite order.
            pair(
                [reduce(1), reduce(2, after=(1,), group="h")],
                [reduce(1, group="h"), reduce(2, after=(1,))],
                {"g": (0, 1), "h": (0, 1)},
            ),
            "rank 0, node 1, group: deadlock: rank 1 has not reached its node 2 of group g",
        ),
        (
            Workload({"a": []}, [Rank("a"), Rank("c")]),
            "rank 1, program: c has no nodes",
        ),
    ],
)
def test_what_cannot_run_is_named(made, message):
    with pytest.raises(FormatError, match=f"^here: {message}"):
        workload.require(made, "here")


def test_a_group_under_two_roles_runs_in_the_order_of_the_program():
    nodes = [reduce(1, group="x"), reduce(2, 16, group="y"), reduce(3, group="x")]
    roles = {"x": "g", "y": "g"}
    both = Workload({"a": nodes}, [Rank("a", roles), Rank("a", roles)], {"g": (0, 1)})
    assert list(workload.problems(both)) == []
    other = replace(both, programs={"a": nodes, "b": [nodes[1], nodes[0], nodes[2]]})
    other = replace(other, ranks=[Rank("a", roles), Rank("b", roles)])
    assert str(next(workload.problems(other))).startswith("rank 1, node 2, bytes: 16, but rank 0 has 8")


def test_the_commands_generate_show_and_check(tmp_path):
    file = tmp_path / "step.jsonl"
    made = run(
        "workload", "generate", "--model", "llama3-8b", "--gpus", 8, "--tp", 2, "--pp", 2,
        "--microbatches", 2, "--out", file,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    shown = run("workload", "show", file)
    assert "link bound" in shown.stdout
    figures = json.loads(run("workload", "show", file, "--json").stdout)
    assert figures["ranks"] == 8
    assert figures["groups"] == {"tp": 4, "dp": 4}
    assert json.loads(run("workload", "check", file, "--json").stdout)["problems"] == []

    lines = file.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if '"group":"dp"' in line)
    lines[at] = json.dumps(json.loads(lines[at]) | {"group": "nobody"})
    file.write_text("\n".join(lines))
    for command in ("check", "show"):
        wrong = run("workload", command, file)
        assert wrong.returncode == 1
        assert "step.jsonl: rank 0, node" in one_line_error(wrong)
        assert "group: nobody is not known" in wrong.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "llama2"], "model 'llama2' is not known"),
        (["--tp", "3"], "gpus: 16 ranks are not"),
        (["--gpu", "tpu"], "gpu 'tpu' is not known"),
        (["--schedule", "gpipe"], "--schedule gpipe: not one of"),
        (["--domain", "0"], "domain: 0 is less than 1"),
        (["--tp", "0"], "tensor: 0 is less than 1"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, options, message):
    file = tmp_path / "step.jsonl"
    wrong = run("workload", "generate", "--model", "llama3-8b", "--gpus", 16, "--out", file, *options)
    assert wrong.returncode == 2
    assert message in one_line_error(wrong)
    assert not file.exists()
