"""Workloads on simulated fabrics: they send what they say, and are never faster than without a network."""

import json

import pytest

from openmrc import sim, workload
from openmrc.errors import ArgumentError
from openmrc.workload import Layout, Node, Rank, Workload
from tests.helpers.commands import one_line_error, run
from tests.helpers.steps import SMALL, fabric


def test_computations_alone_take_their_time():
    nodes = [Node(at, "compute", (at - 1,) if at else (), ns=1_499_700) for at in range(10)]
    found = workload.run(Workload({"a": nodes}, [Rank("a"), Rank("a")]))
    assert found.finished
    assert found.step_us == pytest.approx(10 * 1499.7, abs=1)
    assert found.ideal_us == found.compute_us == pytest.approx(10 * 1499.7)


@pytest.mark.parametrize(
    ("operation", "times"),
    [("all_reduce", 2 * 3 / 4), ("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("all_to_all", 3 / 4)],
)
def test_a_collective_sends_what_its_volume_says(operation, times):
    size = 1 << 20
    nodes = [Node(0, "collective", bytes=size, operation=operation, group="g")]
    step = Workload({"a": nodes}, [Rank("a")] * 4, {"g": (0, 1, 2, 3)})
    found = workload.run(step, fabric(4))
    assert found.results.summary().bytes == workload.volume(step).fabric_bytes == 4 * times * size
    assert found.step_us * 1e3 >= workload.volume(step).link_ns


def test_a_collective_within_a_domain_sends_nothing():
    nodes = [Node(0, "collective", bytes=37_000_000, operation="all_reduce", group="g")]
    step = Workload({"a": nodes}, [Rank("a")] * 4, {"g": (0, 1, 2, 3)}, "", 4, 370.0)
    found = workload.run(step, fabric(4))
    assert found.results.totals["data_packets"] == 0
    assert found.step_us == pytest.approx(6 + 150, abs=1)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(4, 1, 4, microbatches=4),
        Layout(4, 2, 2, microbatches=4, schedule="interleaved", chunks=2),
        Layout(8, 2, 2, 2, microbatches=2),
    ],
)
def test_a_step_takes_at_least_what_it_takes_without_a_network(layout):
    step = workload.generate(SMALL, layout)
    found = workload.run(step, fabric(layout.gpus))
    figures = workload.volume(step)
    assert found.finished
    assert found.exposed_us > 0
    assert found.step_us * 1e3 >= max(figures.ideal_ns, figures.link_ns)
    assert found.results.summary().bytes == figures.fabric_bytes


def test_a_step_goes_on_when_a_plane_fails():
    step = workload.generate(SMALL, Layout(4, 1, 2, 2, microbatches=2))
    healthy = workload.run(step, fabric(4))
    failed = workload.run(step, fabric(4, faults=[sim.Down(targets=["h0:p1"], at_us=0.0)]))
    assert failed.finished
    assert failed.step_us > healthy.step_us


def test_a_step_that_meets_the_limit_has_not_finished():
    step = workload.generate(SMALL, Layout(2, 1, 1, 2))
    assert not workload.run(step, fabric(2, limit_us=100.0)).finished


def test_a_job_larger_than_its_fabric_is_refused():
    step = workload.generate(SMALL, Layout(4, 1, 1, 4))
    with pytest.raises(ArgumentError, match=r"topology.hosts: 2 hosts are fewer than 4 ranks"):
        workload.run(step, fabric(2))


@pytest.mark.parametrize(
    "layout",
    [
        Layout(16, 1, 4, 4, microbatches=4),
        Layout(16, 2, 2, 4, microbatches=4, schedule="interleaved", chunks=2),
        Layout(64, 4, 4, 4, microbatches=4),
        Layout(64, 8, 2, 4, microbatches=2),
        Layout(64, 1, 4, 16, microbatches=4),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_step_at_flow_level_is_within_3_percent_of_packets(layout, seed):
    step = workload.generate(SMALL, layout)
    packets, flow = (
        workload.run(step, fabric(layout.gpus, seed=seed), placement="random", engine=engine)
        for engine in ("packets", "flow")
    )
    assert packets.finished
    assert flow.finished
    assert flow.results.totals["data_packets"] == 0 < packets.results.totals["data_packets"]
    assert flow.step_us == pytest.approx(packets.step_us, rel=0.03)
    assert packets.exposed_us > 0.05 * packets.step_us  # Else computing alone would be compared.


def rails(domain, count):
    """Each rank reduces with those of its place in the other domains."""
    groups = {f"r{at}": tuple(range(at, domain * count, domain)) for at in range(domain)}
    nodes = [Node(0, "collective", bytes=1 << 20, operation="all_reduce", group="rail")]
    ranks = [Rank("a", {"rail": f"r{at % domain}"}) for at in range(domain * count)]
    return Workload({"a": nodes}, ranks, groups, domain=domain, scale_up_gbytes=100.0)


@pytest.mark.parametrize("placement", workload.PLACEMENTS)
def test_every_rank_has_a_host_of_its_own(placement):
    hosts = workload.place(rails(4, 3), placement, 20, seed=3)
    assert len(set(hosts)) == len(hosts) == 12
    assert all(0 <= host < 20 for host in hosts)


def test_rails_are_beside_each_other():
    assert workload.place(rails(4, 2), "rail", 8) == [0, 2, 4, 6, 1, 3, 5, 7]
    # The last domain is not full.
    ragged = rails(4, 2)
    ragged = Workload(ragged.programs, ragged.ranks[:6], ragged.groups, domain=4)
    assert workload.place(ragged, "rail", 6) == [0, 2, 4, 5, 1, 3]


def test_placements_at_random_follow_the_seed():
    step = rails(4, 4)
    first, again, other = (workload.place(step, "random", 64, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_a_rail_beneath_one_t0_leaves_the_links_above_unused():
    """Of a fabric with T1s: by rail all messages stay beneath a T0, in the order of ranks none does."""
    step = rails(4, 4)
    topology = sim.Topology(hosts=16, planes=4, radix=8)

    def pairs(placement):
        scenario = sim.Scenario(topology=topology, traffic=[sim.Permutation(bytes=1)])
        found = workload.run(step, scenario, placement=placement)
        assert found.finished
        columns = found.results.columns
        return {src // 4 == dst // 4 for src, dst in zip(columns["src"], columns["dst"], strict=True)}

    assert pairs("rail") == {True}
    assert pairs("t0") == {False}


def test_placements_that_there_are_not_are_refused():
    with pytest.raises(ArgumentError, match="placement 'row' is not known: t0, rail, random"):
        workload.place(rails(2, 2), "row", 4)
    with pytest.raises(ArgumentError, match="placement rail: the workload has no scale-up domains"):
        workload.place(Workload({"a": []}, [Rank("a")]), "rail", 4)


def test_the_command_runs_a_step(tmp_path):
    file = tmp_path / "step.jsonl"
    workload.save(workload.generate(SMALL, Layout(2, 1, 2, microbatches=2)), file)
    shown = run("workload", "run", file)
    assert shown.returncode == 0, shown.stderr
    assert "exposed communication" in shown.stdout
    fields = json.loads(run("workload", "run", file, "--json").stdout)
    assert fields["step_us"] > fields["ideal_us"] > fields["compute_us"] > 0

    moved = json.loads(run("workload", "run", file, "--placement", "random", "--json").stdout)
    assert moved["finished"]
    assert moved["ideal_us"] == fields["ideal_us"]
    assert "--placement row: not one of t0, rail, random" in one_line_error(
        run("workload", "run", file, "--placement", "row")
    )

    scenario = tmp_path / "fabric.yaml"
    scenario.write_text(
        "topology: {hosts: 2, planes: 2, radix: 8}\ntraffic: [{kind: permutation, bytes: 1}]\nlimit_us: 10\n"
    )
    late = run("workload", "run", file, "--scenario", scenario)
    assert late.returncode == 1
    assert "the step has not ended" in one_line_error(late)
