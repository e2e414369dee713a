"""Where the time of a step went: closed forms, what must hold of every run, and what viewers need."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from openmrc import sim, workload
from openmrc.workload import Layout, Model, Node, Rank, Workload, critical_path, operations, waited_for
from tests.helpers.commands import run
from tests.helpers.steps import SMALL, fabric, two_ranks

MOE = Model(4, 1024, 4096, 8, 8, 128, 0, 512, experts=workload.Experts(8, 2, 1024))


@pytest.mark.parametrize("engine", ["packets", "flow"])
def test_the_slower_rank_is_the_critical_path_and_the_one_waited_for(engine):
    done = workload.run(two_ranks(), fabric(2), engine=engine)
    path = critical_path(done.times)
    assert [(each.what, each.rank) for each in path] == [
        ("computing", 0),
        ("all_reduce g", 0),
        ("message to other", 0),
    ]
    assert (path[0].begin_us, path[0].end_us, path[-1].end_us) == (0, 300, done.step_us)
    (waited,) = waited_for(done.times)
    assert waited.rank == 0
    assert waited.us == pytest.approx(200)
    rows = {row.what: row for row in operations(done.times)}
    assert rows["all_reduce g"].waited_us == pytest.approx(200)
    # Rank 0 goes on as soon as it has its own result.
    assert path[1].us <= rows["all_reduce g"].most_us <= 1.2 * path[1].us
    assert rows["message to other"].most_us == pytest.approx(path[2].us)


def test_a_receiver_that_is_not_ready_is_not_waiting():
    # The message is there long before rank 1 has computed.
    programs = {
        "a": [Node(0, "send", bytes=4096, peer=1)],
        "b": [Node(0, "compute", ns=900_000), Node(1, "receive", (0,), bytes=4096, peer=0)],
    }
    done = workload.run(Workload(programs, [Rank("a"), Rank("b")]), fabric(2))
    assert [(each.what, each.rank) for each in critical_path(done.times)] == [("computing", 1)]
    assert not waited_for(done.times)
    assert done.step_us == pytest.approx(900)


def test_messages_that_leave_in_another_order_than_that_of_the_program_are_followed_back():
    # The first send of the program waits for the answer to the second.
    programs = {
        "a": [
            Node(0, "send", (2,), bytes=4096, peer=1),
            Node(1, "send", bytes=4096, peer=1),
            Node(2, "receive", bytes=4096, peer=1),
        ],
        "b": [
            Node(0, "receive", bytes=4096, peer=0),
            Node(1, "compute", (0,), ns=100_000),
            Node(2, "send", (1,), bytes=4096, peer=0),
            Node(3, "receive", bytes=4096, peer=0),
        ],
    }
    done = workload.run(Workload(programs, [Rank("a"), Rank("b")]), fabric(2))
    path = critical_path(done.times)
    assert [(each.what, each.rank) for each in path] == [
        ("message", 0),
        ("computing", 1),
        ("message", 1),
        ("message", 0),
    ]
    assert (path[0].begin_us, path[-1].end_us) == (0, done.step_us)


LAYOUTS = [
    (SMALL, Layout(4, 1, 4, microbatches=4), 1),
    (SMALL, Layout(8, 2, 2, 2, microbatches=2), 1),
    (SMALL, Layout(8, 2, 2, 2, microbatches=4, schedule="interleaved", chunks=2), 2),
    (MOE, Layout(8, 1, 2, 4, expert=4, microbatches=2), 1),
]


@pytest.mark.parametrize("engine", ["packets", "flow"])
@pytest.mark.parametrize(("model", "layout", "domain"), LAYOUTS)
def test_the_critical_path_is_the_step_without_a_gap(model, layout, domain, engine):
    step = workload.generate(model, layout, domain=domain)
    done = workload.run(step, fabric(layout.gpus), engine=engine, placement="random")
    path = critical_path(done.times)
    assert (path[0].begin_us, path[-1].end_us) == (0, pytest.approx(done.step_us))
    for one, following in pairwise(path):
        assert one.end_us == following.begin_us
        assert following.us > 0
    parts = done.critical_path_us()
    assert sum(parts.values()) == pytest.approx(done.step_us)
    assert "idle" not in parts
    # What is computed and done in scale-up domains on the way cannot be more than a step of nothing else.
    inside = sum(us for what, us in parts.items() if what == "computing" or what.endswith("(scale-up)"))
    assert 0 < inside <= done.ideal_us + 1
    assert all(us <= done.step_us for us in parts.values())


def bars(events):
    return [event for event in events if event["ph"] == "X" and event["cat"] != "waiting"]


@pytest.mark.parametrize(("model", "layout", "domain"), LAYOUTS)
def test_a_timeline_has_every_node_and_tracks_that_viewers_can_draw(model, layout, domain, tmp_path):
    step = workload.generate(model, layout, domain=domain)
    done = workload.run(
        step, fabric(layout.gpus, faults=[sim.Down(targets=["h0:p1"], at_us=50, until_us=90)])
    )
    done.write_timeline(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert len(bars(events)) == step.nodes()
    assert max(event["ts"] + event["dur"] for event in bars(events)) == pytest.approx(done.step_us)
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["cat"]))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(tracks) == named
    for found in tracks.values():
        ends: list[float] = []
        for begin, end, _ in found:  # in the order of the file: a bar comes after the one around it
            while ends and ends[-1] <= begin + 1e-6:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-6, "two bars of a track overlap"
            ends.append(end)
    messages = sum(node.kind == "send" for rank in step.ranks for node in step.programs[rank.program])
    for kind in "sf":
        arrows = [event for event in events if event["ph"] == kind]
        assert len(arrows) == messages
        for arrow in arrows:
            assert any(
                begin <= arrow["ts"] <= end + 1e-6 for begin, end, _ in tracks[arrow["pid"], arrow["tid"]]
            )
    marks = [(event["name"], event["ts"]) for event in events if event["ph"] == "i"]
    assert marks == [("down: h0:p1", 50), ("end of down: h0:p1", 90)]


def test_of_a_step_that_has_not_ended_the_timeline_has_what_has(tmp_path):
    done = workload.run(two_ranks(), fabric(2, limit_us=310.0))
    assert not done.finished
    assert critical_path(done.times) == []
    assert done.to_dict()["critical_path_us"] == {}
    done.write_timeline(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    assert [(event["name"], event["pid"], event["dur"]) for event in bars(events)] == [
        ("forward", 0, 300),
        ("forward", 1, 100),
    ]


def test_the_command_says_where_the_time_went(tmp_path):
    workload.save(two_ranks(), str(tmp_path / "step.jsonl"))
    assert workload.load(str(tmp_path / "step.jsonl")).nodes() == 6
    shown = run("workload", "run", "step.jsonl", "--timeline", "step.json", cwd=tmp_path)
    assert shown.returncode == 0
    for text in ("critical path", "computing", "all_reduce g", "most was waited for rank 0"):
        assert text in shown.stdout
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    found = json.loads(run("workload", "run", "step.jsonl", "--json", cwd=tmp_path).stdout)
    assert sum(found["critical_path_us"].values()) == pytest.approx(found["step_us"])
    assert found["waited_for"][0]["rank"] == 0
