"""GOAL: what is read is what it means, and what is wrong with it is named."""

import random

import pytest

from openmrc import workload
from openmrc.errors import FormatError
from openmrc.workload.order import run as execute
from tests.helpers.commands import one_line_error, run

EXAMPLE = """\
num_ranks 2
rank 0 {
l1: calc 300000
l2: send 4096b to 1 tag 0
l3: recv 4096b from 1 tag 0
l2 requires l1
}
rank 1 {
l1: send 4096b to 0 tag 0
l2: recv 4096b from 0 tag 0
}
"""


@pytest.fixture
def load(tmp_path):
    def loaded(text):
        path = tmp_path / "step.goal"
        path.write_text(text)
        return workload.load(path)

    return loaded


def one_rank(lines):
    return f"num_ranks 1\nrank 0 {{\n{lines}\n}}\n"


def test_a_message_follows_its_computation(load):
    step = load(EXAMPLE)
    assert list(workload.problems(step)) == []
    times = execute(step, lambda node, group: 1000)
    assert times.ends[0] == {1: 300_000, 2: 300_000, 3: 1000}
    assert times.ends[1] == {1: 0, 2: 301_000}


def test_comments_and_line_ends_do_not_matter(load):
    squeezed = " ".join(EXAMPLE.split()).replace("rank 0", "/* of\ntwo */ rank 0") + "// the end"
    assert load(squeezed) == load(EXAMPLE)


@pytest.mark.parametrize(
    ("lines", "ns"),
    [
        ("calc 5 calc 7", 12),
        ("calc 5 cpu 1 calc 7 cpu 2", 7),
        ("a: calc 5 cpu 1 b: calc 7 cpu 2 b requires a", 12),
        ("a: calc 5 cpu 1 b: calc 7 cpu 2 c: calc 9 cpu 3 b requires a c irequires b", 14),
        ("b: calc 1 a: calc 2 b requires a", 3),
    ],
)
def test_a_cpu_computes_one_thing_at_a_time(load, lines, ns):
    assert execute(load(one_rank(lines))).ns == ns


def test_a_cpu_does_not_wait_for_what_waits_for_it(load):
    """The computation that is written first needs a message that the second one lets go."""
    step = load(
        "num_ranks 2 rank 0 { r: recv 8b from 1 a: calc 10 a requires r b: calc 20 s: send 8b to 1"
        " s requires b } rank 1 { r: recv 8b from 0 s: send 8b to 0 s requires r }"
    )
    assert list(workload.problems(step)) == []
    assert execute(step).ns == 30


def test_any_order_of_a_file_can_run(load):
    """Whatever can run without cpus can run with them: messages and computations at random."""
    pick = random.Random(3)
    for _ in range(60):
        ranks, count = pick.randint(2, 4), pick.randint(3, 30)
        lines = [[] for _ in range(ranks)]
        links = [[] for _ in range(ranks)]
        made = [[] for _ in range(ranks)]

        def place(rank, label, line, lines=lines, links=links, made=made):
            if made[rank]:
                links[rank] += [
                    f"{label} requires {other}" for other in pick.sample(made[rank], min(2, len(made[rank])))
                ]
            made[rank].append(label)
            lines[rank].append(f"{label}: {line}")

        computed = [0] * ranks
        for number in range(count):
            rank, other = pick.sample(range(ranks), 2)
            if pick.random() < 0.5:
                ns = pick.choice([0, 3, 10])
                computed[rank] += ns
                place(rank, f"c{number}", f"calc {ns}")
            else:
                place(rank, f"s{number}", f"send 8b to {other} tag {number}")
                place(other, f"r{number}", f"recv 8b from {rank} tag {number}")
        for each in lines:
            pick.shuffle(each)
        blocks = [f"rank {at} {{ {' '.join(lines[at] + links[at])} }}" for at in range(ranks)]
        step = load(f"num_ranks {ranks} {' '.join(blocks)}")
        assert list(workload.problems(step)) == []
        times = execute(step)
        assert list(times.computed_ns.values()) == computed
        assert times.ns >= max(computed)


def test_a_file_that_is_cut_anywhere_is_refused(load):
    for length in range(len(EXAMPLE.rstrip())):
        with pytest.raises(FormatError, match=r"step\.goal"):
            load(EXAMPLE[:length])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_ranks 0", "line 1: num_ranks: 0 is less than 1"),
        ("num_ranks x", "line 1: num_ranks: 'x' is not a whole number"),
        ("num_ranks 1\nrank 1 { }", "line 2: rank 1 does not exist: num_ranks is 1"),
        ("num_ranks 2\nrank 0 { }", "rank 1 of 2 is missing"),
        ("num_ranks 2\nrank 0 { }\nrank 0 { }", "line 3: rank 0 is there twice"),
        (one_rank("a: calc 1\na: calc 2"), "line 4, rank 0: the label a is there twice"),
        (one_rank("a: calc 1\na requires b"), "line 4, rank 0: there is no label 'b'"),
        (one_rank("a: wait 1"), "line 3, rank 0: 'wait' is none of calc, send and recv"),
        (one_rank("a after b"), "line 3, rank 0: after a comes 'after', not"),
        (one_rank("calc -1"), "line 3: '-1' is no word of GOAL"),
        (one_rank("calc 99999999999999999999999"), "line 3, rank 0: calc: '9{23}' is not a whole number"),
        (one_rank("send 8 to 0"), "line 3, rank 0: send: '8' is no size such as 4096b"),
        (one_rank("send 8b from 0"), "line 3, rank 0: 'from' stands where to is expected"),
        (one_rank("/* calc 1"), "line 3: the comment has no end"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(load, text, message):
    with pytest.raises(FormatError, match=rf"step\.goal, {message}|step\.goal: {message}"):
        load(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            one_rank("a: calc 1 b: calc 1 a requires b b requires a"),
            "rank 0, node 1, after: the node waits for",
        ),
        (one_rank("recv 8b from 3"), "rank 0, node 1, peer: rank 3 does not exist"),
        (EXAMPLE.replace("4096b to 1", "4095b to 1"), r"rank 1, node 2, bytes: 4096, but rank 0 sends 4095"),
        (
            "num_ranks 2 rank 0 { a: recv 1b from 1 b: send 1b to 1 b requires a }"
            " rank 1 { a: recv 1b from 0 b: send 1b to 0 b requires a }",
            "rank 0, node 1, tag: deadlock: rank 1 has not sent 0",
        ),
    ],
)
def test_what_cannot_run_is_named(load, text, message):
    with pytest.raises(FormatError, match=f"^here: {message}"):
        workload.require(load(text), "here")


def test_the_commands_read_it_by_its_contents(tmp_path):
    path = tmp_path / "anything"
    path.write_text(EXAMPLE)
    assert "2 ranks, 5 nodes" in run("workload", "show", path).stdout
    done = run("workload", "run", path)
    assert done.returncode == 0, done.stderr
    assert "--gpus is for text of SimAI" in one_line_error(run("workload", "check", path, "--gpus", 2))
    path.write_text("once upon a time")
    assert "anything, line 1: it is no workload" in one_line_error(run("workload", "check", path))
