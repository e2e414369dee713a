"""Jobs: goodput by plane from what agents report, and what named faults cost."""

import json
import time

import pytest
from pydantic import ValidationError

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric, Specification
from openmrc.observe import DevicePaths
from openmrc.operate import jobs as module
from openmrc.operate.goodput import Received, Watched, job_name
from openmrc.operate.jobs import MOST_JOBS, Jobs
from openmrc.operate.linkmap import Map, Topology
from openmrc.operate.model import MOST_JOBS as MOST_IN_A_REPORT
from openmrc.operate.model import JobSeen, NamedFault, Report
from openmrc.operate.series import KEPT_S, STEP_S, Series
from tests.helpers.commands import one_line_error, run
from tests.helpers.controllers import BOOT, agent, controller
from tests.helpers.ends import eventually
from tests.helpers.labs import specification

FABRIC = Fabric(
    Specification.model_validate(
        {"hosts": 16, "nic": {"rate": "200G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    )
)
TOPOLOGY = Topology(FABRIC)
START = 10_000.0
RATE = 1e9
"""Bytes a second of a host on each plane."""


class World:
    """Agents that report to the jobs of a controller every two seconds, in a time of its own."""

    def __init__(self):
        self.jobs = Jobs(TOPOLOGY)
        self.map = Map(TOPOLOGY)
        self.now = START
        self.boot = BOOT
        self._counts = {}
        self._sequence = 0
        self.open = []

    def report(self, host, job="llama", rates=(RATE, RATE), seconds=2.0, boot=None):
        counts = self._counts.setdefault((host, job), [0, 0])
        counts[:] = [count + round(rate * seconds) for count, rate in zip(counts, rates, strict=True)]
        self._sequence += 1
        report = Report(
            host=host,
            boot=boot or self.boot,
            sequence=self._sequence,
            counted_s=self.now - START + 100,
            goodput=[JobSeen(job=job, processes=2, received=counts)],
        )
        before = self.map.hosts.get(host)
        self.jobs.check(report)
        assert self.map.take(report, self.now, self.now)
        self.jobs.take(report, before, self.now, self.now)

    def go(self, seconds, hosts=("h0", "h4"), **options):
        for _ in range(round(seconds / 2)):
            self.now += 2
            for host in hosts:
                self.report(host, **options)
            self.jobs.see(self.open, self.now, self.now)

    def begin(self, number, kind="link", name="p0/t0-0:up0", suspects=()):
        name = TOPOLOGY.link(name).name if kind in ("link", "upward", "downward") else name
        fault = {"id": number, "kind": kind, "name": name, "since": self.now, "confidence": 1.0, "loss": 1.0}
        fault |= {"evidence_nats": 9.0, "paths": 4, "cost_bps": 1e9}
        self.open.append(NamedFault(**fault, suspects=list(suspects)))
        self.jobs.see(self.open, self.now, self.now)

    def end(self, number):
        self.open = [fault for fault in self.open if fault.id != number]
        self.jobs.see(self.open, self.now, self.now)

    def job(self, name="llama"):
        return next(job for job in self.jobs.info(self.now) if job.job == name)


@pytest.fixture
def world():
    return World()


def test_goodput_is_what_all_hosts_receive_on_each_plane(world):
    world.go(40, rates=(RATE, RATE / 4))
    job = world.job()
    assert (job.hosts, job.processes) == (2, 4)
    assert job.planes_bps == pytest.approx([2 * RATE * 8, 2 * RATE * 2])
    assert job.goodput_bps == pytest.approx(sum(job.planes_bps))
    series = world.jobs.series("llama", 60, world.now, world.now)
    assert series.planes_bps[1][-5:] == pytest.approx([2 * RATE * 2] * 5)
    assert series.planes_bps[0][0] is None, "nobody reported the time before the first report"
    assert series.begin == pytest.approx(world.now - 60 - module.LAG_S, abs=STEP_S)
    [(name, totals)] = world.jobs.totals()
    assert (name, totals) == ("llama", pytest.approx([38 * 2 * RATE, 38 * 2 * RATE / 4]))
    with pytest.raises(ArgumentError, match="no job"):
        world.jobs.series("other", 60, world.now, world.now)


def test_a_fault_costs_the_difference_to_the_goodput_before_it(world):
    world.go(60)
    world.begin(1)
    world.go(20, rates=(RATE / 2, RATE))
    [cost] = world.job().costs
    assert (cost.outcome, cost.until) == ("cost", None)
    world.end(1)
    world.go(20)
    [cost] = world.job().costs
    assert (cost.outcome, cost.fault, cost.together) == ("cost", 1, False)
    assert cost.before_bps == pytest.approx(4 * RATE * 8)
    assert cost.during_bps == pytest.approx(3 * RATE * 8)
    assert cost.lost_bytes == pytest.approx(20 * RATE)
    assert cost.until == pytest.approx(cost.since + 20)
    world.go(KEPT_S + 100)
    assert world.job().costs == [cost], "it stays when the goodput of then is no longer kept"


def test_the_job_s_own_variation_is_no_cost(world):
    for round_ in range(30):
        world.go(2, rates=(RATE * (round_ % 2) * 2, RATE))
    world.begin(1)
    world.go(6, rates=(RATE / 2, RATE / 2))
    world.end(1)
    world.go(20)
    [cost] = world.job().costs
    assert (cost.outcome, cost.lost_bytes) == ("none", 0.0)


def test_a_job_without_goodput_before_a_fault_is_not_judged(world):
    world.go(8)
    world.begin(1)
    world.go(20, rates=(0, 0))
    [cost] = world.job().costs
    assert (cost.outcome, cost.lost_bytes) == ("unknown", 0.0)


def test_two_faults_at_a_time_are_compared_with_what_was_before_both_and_say_so(world):
    world.go(60)
    world.begin(1)
    world.go(20, rates=(RATE / 2, RATE))
    world.begin(2, name="p1/t0-1:up0")
    world.go(20, rates=(RATE / 2, RATE / 2))
    costs = world.job().costs
    assert [(cost.fault, cost.together) for cost in costs] == [(2, True), (1, True)]
    assert [cost.before_bps for cost in costs] == pytest.approx([4 * RATE * 8] * 2)
    world.end(1)
    world.end(2)
    world.go(10)
    # The time of the earlier ones is no "before" for a later one.
    world.begin(3)
    world.go(10, rates=(RATE / 2, RATE / 2))
    newest = world.job().costs[0]
    assert (newest.fault, newest.together) == (3, False)
    assert newest.before_bps == pytest.approx(4 * RATE * 8)


def test_a_fault_that_stays_open_is_part_of_what_was_before_the_next(world):
    world.go(60)
    world.begin(1)
    world.go(200, rates=(RATE / 2, RATE))
    world.begin(2, name="p1/t0-1:up0")
    world.go(20, rates=(RATE / 2, RATE / 2))
    newest, _ = world.job().costs
    assert (newest.outcome, newest.together) == ("cost", True)
    assert newest.before_bps == pytest.approx(3 * RATE * 8)


def test_a_job_that_knows_no_time_without_faults_is_compared_with_the_time_before_and_says_so(world):
    world.go(4)
    world.begin(1)
    world.go(30)
    world.end(1)
    world.go(4)
    world.begin(2)
    world.go(20, rates=(0, 0))
    newest, first = world.job().costs
    assert (newest.outcome, newest.together, first.outcome) == ("cost", True, "unknown")


def test_a_fault_of_unknown_cause_is_not_listed_and_no_before(world):
    world.go(60)
    link = TOPOLOGY.link("p0/t0-0:up0").name
    suspects = [{"kind": "link", "name": link, "probability": 0.5}]
    world.begin(1, kind="unknown", name=link, suspects=suspects)
    world.go(10, rates=(0, 0))
    world.begin(2)
    world.go(10, rates=(0, 0))
    [cost] = world.job().costs
    assert (cost.fault, cost.outcome, cost.together) == (2, "cost", False)
    assert cost.before_bps == pytest.approx(4 * RATE * 8)


@pytest.mark.parametrize(
    ("kind", "name", "concerns"),
    [
        ("link", "p0/t0-0:up0", True),
        ("upward", "h0:p1", True),
        ("link", "h1:p1", False),
        ("link", "p0/t0-3:up0", False),
        ("switch", "p1/t1-0", True),
        ("switch", "p1/t0-1", True),
        ("switch", "p1/t0-2", False),
        ("host", "h4", True),
        ("host", "h5", False),
    ],
)
def test_only_faults_that_a_job_s_packets_may_meet_are_its_own(world, kind, name, concerns):
    world.go(60)
    world.begin(1, kind=kind, name=name)
    world.go(4)
    assert len(world.job().costs) == concerns


def test_a_host_that_is_silent_during_a_fault_is_no_cost(world):
    world.go(60)
    world.begin(1)
    world.go(20, hosts=["h0"])
    [cost] = world.job().costs
    assert cost.outcome == "none"


def test_a_restart_of_an_agent_or_a_job_counts_nothing_twice(world):
    world.go(20)
    [(_, before)] = world.jobs.totals()
    world.now += 2
    world.report("h0", boot="f" * 16)
    world.report("h4", rates=(-5 * RATE, 0))
    [(_, after)] = world.jobs.totals()
    assert after == before


def test_a_host_is_believed_no_more_than_its_ports_can_carry(world):
    world.go(10)
    world.go(2, hosts=["h0"], rates=(1e15, 1e15))
    most = FABRIC.port_rate * 2 * 1.2
    world.now += 10
    assert max(value or 0 for value in world.jobs.series("llama", 60, world.now, 0.0).planes_bps[0]) < most


def test_reports_with_other_planes_or_too_many_jobs_are_refused(world):
    one = JobSeen(job="a", processes=1, received=[1, 2, 3])
    with pytest.raises(ArgumentError, match="goodput has 3 planes; the fabric has 2"):
        world.jobs.check(Report(host="h0", boot=BOOT, sequence=1, goodput=[one]))
    for wrong in ([one] * (MOST_IN_A_REPORT + 1), [{"job": "", "processes": 1, "received": []}]):
        with pytest.raises(ValidationError):
            Report(host="h0", boot=BOOT, sequence=1, goodput=wrong)


def test_jobs_are_limited_and_those_that_run_stay(world):
    for number in range(MOST_JOBS + 10):
        world.report("h0", job=f"job {number}")
    assert len(world.jobs.info(world.now)) == MOST_JOBS
    world.now += module.LIVES_S + 1
    world.report("h0", job="job 0")
    world.report("h0", job="new")
    names = {job.job for job in world.jobs.info(world.now)}
    assert {"job 0", "new"} <= names
    assert len(names) == MOST_JOBS
    world.now += module.FORGET_S + 1
    world.jobs.see([], world.now, world.now)
    assert world.jobs.info(world.now) == []


def test_a_series_keeps_an_hour_and_old_steps_are_empty():
    series = Series(1)
    for second in range(0, 2 * round(KEPT_S), 2):
        series.add(second, second + 2, [second])
    steps = list(series.between(0, 2 * KEPT_S))
    assert len(steps) == 2 * KEPT_S / STEP_S
    assert all(not step.host_seconds for step in steps[: len(steps) // 2 - 1])
    assert [step.received[0] for step in steps[-2:]] == [2 * KEPT_S - 4, 2 * KEPT_S - 2]
    series.add(0, 2, [1.0])
    assert [step.received[0] for step in series.between(2 * KEPT_S - 2, 2 * KEPT_S)] == [2 * KEPT_S - 2]


# --- agents ------------------------------------------------------------------------------------------------


def device(key, received, job="llama", pid=7, planes=((0, 0), (1, 1))):
    paths = DevicePaths(
        device="mrc0",
        job=job,
        pid=pid,
        time_ns=1,
        srv6=False,
        addresses=["a", "b"],
        ports_up=[0, 1],
        queue_pairs=[],
        left_out=0,
        counters=[],
    )
    return Watched(key, paths, list(received), dict(planes))


def test_an_agent_counts_by_job_and_plane_from_when_it_first_sees_a_device():
    received = Received(2)
    assert [each.received for each in received.see([device("7-0", (100, 200))])] == [[0, 0]]
    both = [device("7-0", (150, 260)), device("8-0", (10, 10), pid=8), device("9-0", (5, 5), job=None)]
    [seen] = received.see(both)
    assert (seen.job, seen.processes, seen.received) == ("llama", 2, [50, 60])
    turned = device("8-0", (30, 11), pid=8, planes=[(0, 1), (1, 0)])
    assert received.see([device("7-0", (150, 260)), turned])[0].received == [51, 80]
    # Another process with the same number, and a port that is in no fabric.
    assert received.see([device("7-0", (1, 1)), device("8-0", (40, 20), planes=[])])[0].received == [51, 80]
    assert received.see([]) == []
    assert received.see([device("7-0", (9, 9))])[0].received == [0, 0]
    assert received.see([device("7-0", (1 << 63, 1 << 64))])[0].received[1] == (1 << 63) - 1


def test_names_of_jobs_are_cut_and_made_text():
    assert job_name(None) is job_name("") is None
    assert job_name("x" * 100) == "x" * 64
    [seen] = Received(2).see([device("7-0", (1, 1), job="bad \udcff")])
    assert seen.job == "bad ?"
    many = [device(f"{pid}-0", (1, 1), job=f"job {pid}", pid=pid) for pid in range(100)]
    assert len(Received(2).see(many)) == MOST_IN_A_REPORT


# --- controller, command, metrics ---------------------------------------------------------------------------


def test_jobs_are_shown_by_api_command_and_metrics(tmp_path):
    file = specification(tmp_path, "jobs")
    with controller(file, tmp_path / "c.db") as (address, _), agent(address, "h0") as client:
        assert "OPENMRC_JOB" in run("fabric", "jobs", "--controller", address).stdout
        count = 0

        def shown():
            nonlocal count
            count += 1
            seen = JobSeen(job="<b>llama</b>", processes=3, received=[count * 10**9, count * 10**8])
            report = {"sequence": time.monotonic_ns(), "counted_s": time.monotonic(), "goodput": [seen]}
            client.report(Report(host="h0", boot=BOOT, **report))
            return client.jobs()[0].goodput_bps > 0

        assert eventually(shown, 60)
        [job] = client.jobs()
        assert (job.job, job.hosts, job.processes, len(job.planes_bps)) == ("<b>llama</b>", 1, 3, 2)
        assert any(client.job(job.job).planes_bps[0])
        printed = run("fabric", "jobs", "--controller", address)
        assert "<b>llama</b>" in printed.stdout
        assert "MOST PLANE" in printed.stdout
        one = run("fabric", "jobs", job.job, "--controller", address)
        assert "plane 1" in one.stdout
        [found] = json.loads(run("fabric", "jobs", "--controller", address, "--json").stdout)
        assert found["job"] == job.job
        assert "no job" in one_line_error(run("fabric", "jobs", "other", "--controller", address))
        with client._http.stream("GET", "/metrics") as answer:
            text = answer.read().decode()
        assert 'openmrc_job_goodput_bytes_total{job_name="<b>llama</b>",plane="1"}' in text
        wrong = {"host": "h0", "boot": BOOT, "sequence": 1, "goodput": [{"job": "x" * 65, "processes": 1}]}
        assert client._http.post("/api/v1/reports", json=wrong).status_code == 422
        assert client._http.get("/api/v1/job", params={"name": "llama", "seconds": "nan"}).status_code == 422
