"""``openmrc train-demo``: its arithmetic, and short trainings with torch, which `make test-torch` has."""

import json
import os
import subprocess
from importlib.util import find_spec

import pytest

from openmrc.demos.director import Fault
from openmrc.demos.training import analysis, faults, text
from openmrc.demos.training.run import JobReport, Outcome, Settings, TrainingDirector
from openmrc.demos.training.settings import EndReport, StepReport, decode_rules, encode_rules
from openmrc.errors import ArgumentError
from tests.helpers.commands import OPENMRC
from tests.helpers.labs import needs_root

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed (make test-torch)"
)
SMALL = ("--ranks", "3", "--steps", "40", "--layers", "1", "--width", "32", "--batch", "1", "--no-picture")
MS = 1_000_000


def train_demo(out, *arguments):
    command = [*OPENMRC, "train-demo", *SMALL, "--json", "--out", str(out)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def reported(times_ms, losses, *, digest="d", happened=()):
    """A training of two ranks whose second is always a millisecond behind."""
    rows = []
    for rank in range(2):
        end, reports = 0, []
        for step, (time_ms, loss) in enumerate(zip(times_ms, losses, strict=True)):
            begin, end = end, end + time_ms * MS
            reports.append(
                StepReport(rank, step, loss.hex(), begin, end + rank * MS, [step * 10], [rank], rank)
            )
        rows.append(reports)
    return JobReport("faults", list(happened), rows, [EndReport(rank, digest, 7, "") for rank in range(2)])


def test_the_text_is_the_same_everywhere():
    assert text.made() == text.made()
    assert text.made() != text.made(seed=2)
    assert len(text.made()) == text.BYTES


def test_rules_reach_the_ranks_as_they_are():
    for fault in faults.on_loopback(100, 8, 4):
        assert decode_rules(encode_rules(fault.rules, 5)) == (list(fault.rules), 5)


def test_faults_do_not_overlap_and_leave_time_between_them():
    for steps in (faults.MIN_STEPS, 100, 1000):
        moments = [moment for fault in faults.in_lab(steps) for moment in (fault.begin, fault.end)]
        assert moments == sorted(set(moments))
        assert moments[0] > 0
        assert moments[-1] < steps - 1
    with pytest.raises(ArgumentError, match="steps"):
        faults.on_loopback(10, 8, 4)
    with pytest.raises(ArgumentError, match="planes"):
        faults.on_loopback(100, 1, 4)


class ScriptedJob:
    """A job of one rank that ends a step, or none, whenever it is polled."""

    def __init__(self, *, polls_a_step=1, steps=40):
        self._polls = polls_a_step
        self._waiting = [step for step in range(steps) for _ in range(polls_a_step)]
        self.polled = 0

    @property
    def running(self):
        return bool(self._waiting)

    def poll(self, timeout):
        self.polled += 1
        step = self._waiting.pop(0)
        return [] if self.polled % self._polls else [StepReport(0, step, "0x0p+0", 0, 0)]


def directed(schedule, job, steps=40):
    """What a director does to the network, and what it shows, by step."""
    calls, events = [], []

    def change(_, fault, down):
        calls.append(("fail" if down else "repair", fault.kind))

    def show(progress):
        if progress.event:
            events.append((progress.done - 1, progress.event, progress.active))

    director = TrainingDirector(job, JobReport("faults", schedule, [[]]), steps, change, show)
    director.flap_period_s = 0.0
    director.direct(schedule)
    director.wait()
    return calls, events


def test_the_director_breaks_and_repairs_at_its_steps():
    silent = faults.in_lab(100)[1]
    calls, events = directed([silent], ScriptedJob(steps=100), 100)
    assert calls == [("fail", "silent"), ("repair", "silent")]
    assert events == [(34, silent.title, silent), (45, f"{silent.title}: repaired", None)]


def test_every_fault_of_the_schedule_happens_once():
    schedule = faults.on_loopback(40, 8, 4)
    _, events = directed(schedule, ScriptedJob())
    assert [(step, active) for step, _, active in events] == [
        change for fault in schedule for change in ((fault.begin, fault), (fault.end, None))
    ]


def test_what_is_broken_when_the_job_ends_is_repaired():
    silent = faults.in_lab(100)[1]
    calls, _ = directed([silent], ScriptedJob(steps=40), 100)
    assert calls == [("fail", "silent"), ("repair", "silent")]


def test_a_link_that_flaps_changes_its_state_with_every_period():
    flapping = Fault("flap", "flaps", 1, 2)
    for polls, changes in ((1, 2), (2, 4), (3, 4), (4, 6)):
        calls, _ = directed([flapping], ScriptedJob(polls_a_step=polls, steps=5))
        assert [call for call, _ in calls] == ["fail", "repair"] * (changes // 2)


def test_one_bit_of_one_loss_is_a_difference():
    losses = [3.0, 2.0, 1.5]
    plain = reported([10, 10, 10], losses)
    same = reported([10, 90, 10], losses)
    bit = reported([10, 10, 10], [3.0, 2.0, 1.5000000000000002])
    parameters = reported([10, 10, 10], losses, digest="other")
    outcomes = [Outcome(Settings(), plain, each, None) for each in (same, bit, parameters)]
    assert [outcome.same for outcome in outcomes] == [True, False, False]
    assert analysis.figures(outcomes[1]).first_difference == 2
    assert analysis.figures(outcomes[2]).first_difference is None


def test_a_fault_costs_what_the_steps_took_longer():
    fault = Fault("port", "port lost", 4, 8)
    times = [10] * 5 + [30, 20, 20, 20] + [12] * 5
    training = reported(times, [1.0] * len(times), happened=[fault])
    [found] = analysis.figures(Outcome(Settings(), training, training, None)).jobs[1].faults
    assert (found.before, found.during, found.longest, found.after) == (0.01, 0.02, 0.03, 0.012)


@needs_torch
@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_training_through_faults_is_the_undisturbed_training_bit_for_bit(tmp_path, kind):
    found = train_demo(tmp_path, "--no-gloo", *(["--fsdp"] if kind == "FSDP2" else []))
    assert found["same"]
    assert found["first_difference"] is None
    assert found["dropped"] > 0
    assert [len(job["faults"]) for job in found["jobs"]] == [0, 4]
    assert found["jobs"][0]["last_loss"] < 5
    assert json.loads((tmp_path / "train-demo.json").read_text()) == found


@needs_torch
@needs_root
def test_training_through_faults_of_the_lab(tmp_path):
    found = train_demo(tmp_path, "--no-gloo", "--lab")
    assert found["same"]
    assert found["planes"] == 2
    assert [len(job["faults"]) for job in found["jobs"]] == [0, 4]


@needs_torch
def test_a_rank_that_fails_ends_the_demo_with_its_words(tmp_path):
    command = [*OPENMRC, "train-demo", *SMALL, "--planes", "3", "--out", str(tmp_path)]
    variables = {**os.environ, "OPENMRC_ADDRESSES": "192.0.2.1,192.0.2.2,192.0.2.3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=variables)
    assert done.returncode == 1
    # Each rank knows why any of them could not start, so whichever ends first says it.
    assert "192.0.2.1 cannot be bound" in done.stderr
    assert "Traceback" not in done.stderr


@needs_torch
def test_a_width_that_heads_cannot_share_is_refused(tmp_path):
    command = [*OPENMRC, "train-demo", "--width", "33", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2
    assert "33" in done.stderr
