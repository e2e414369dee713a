"""What failures cost a job over days, against closed forms, published runs and the packet simulator."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import jobs, sim
from openmrc.errors import ArgumentError, FormatError
from openmrc.jobs.draw import DAY, HOUR, draw
from openmrc.jobs.effect import Cause, Effect, Interruption, effect, interruptions_per_s, slowdown
from openmrc.jobs.network import reach
from openmrc.jobs.outcome import Loss, account, interval_s, run
from openmrc.jobs.steps import union

NEVER = 1e12
QUIET = {"nic_hours": NEVER, "link_hours": NEVER, "flap_days": NEVER, "switch_hours": NEVER}
"""Rates of a network that does not fail."""


def job(**fields):
    return jobs.Job.model_validate({"gpus": 1024, "days": 30} | fields)


def rates(**fields):
    return {"host_days": NEVER, **QUIET, **fields}


def outcomes(described, seeds=8):
    return [run(described, described.networks[0], seed) for seed in range(seeds)]


@pytest.mark.parametrize(("pause_min", "every_min", "restart_min"), [(0.5, 13.6, 10), (2, 27.2, 3)])
def test_hosts_alone_cost_what_the_closed_form_says(pause_min, every_min, restart_min):
    described = job(
        gpus=16384,
        days=300,
        spare_hosts=16384,
        networks=["mrc"],
        rates=rates(host_days=294),
        checkpoint={"pause_s": pause_min * 60, "every_min": every_min, "restart_min": restart_min},
    )
    between_min = 294 * 24 * 60 / described.hosts
    expected = (1 - (restart_min + every_min / 2) / between_min) / (1 + pause_min / every_min)
    measured = np.mean([each.effective_share for each in outcomes(described)])
    # The form leaves out failures during a restart, and what a cycle is longer than its training.
    assert measured == pytest.approx(expected, rel=0.01)


def test_checkpoints_are_as_far_apart_as_young_and_daly_say():
    described = job(gpus=16384, rates=rates(host_days=294), checkpoint={"pause_s": 30})
    network = described.networks[0]
    shape = network.shape(described.gpus, 800, 51.2)
    between = 294 * DAY / described.hosts
    assert interval_s(described, network, shape) == pytest.approx(math.sqrt(2 * 30 * between))
    # Other intervals lose more.
    best = np.mean([each.effective_share for each in outcomes(described)])
    for factor in (0.5, 2):
        every = interval_s(described, network, shape) / 60 * factor
        other = described.model_copy(update={"checkpoint": jobs.Checkpoint(pause_s=30, every_min=every)})
        assert np.mean([each.effective_share for each in outcomes(other)]) < best


def test_a_port_is_missing_for_as_long_as_queueing_theory_says():
    # Links fail and are repaired independently: the number that is down is Poisson.
    described = job(
        networks=["mrc"], rates=rates(link_hours=500_000.0, link_repair_h=4), step={"exposed": 0.5}
    )
    down = described.gpus * 8 * 4 / 500_000
    one_or_more = 1 - math.exp(-down)
    slower = 1 - 1 / float(slowdown(np.array(7 / 8), 0.5))
    lost = np.mean([each.share(Cause.NIC_LINKS) for each in outcomes(described, 40)])
    # Two links of one NIC are hardly ever down at once here; fabric links add next to nothing.
    assert lost / slower == pytest.approx(one_or_more, rel=0.1)


@pytest.mark.parametrize("network", sorted(jobs.PRESETS))
def test_interruptions_are_as_frequent_as_expected(network):
    described = job(gpus=8192, networks=[network])
    shape = described.networks[0].shape(8192, 800, 51.2)
    expected = interruptions_per_s(described, described.networks[0], shape) * described.days * DAY
    drawn = [each.interruptions.sum() for each in outcomes(described, 20)]
    assert np.mean(drawn) == pytest.approx(expected, abs=4 * math.sqrt(expected / 20))


def test_a_conventional_network_interrupts_llama_3_as_often_as_published():
    # 419 unplanned interruptions in 54 days, 42 of them of the network and its NICs. The rates are of other
    # sources, except those of hosts and NICs.
    described = job(gpus=16384, days=54, nic_gbps=400, switch_tbps=25.6, networks=["conventional"])
    found = outcomes(described)
    network = np.mean([sum(each.interruptions[list(Cause)[1:]]) for each in found])
    assert 42 / 1.5 < network < 42 * 1.5
    assert np.mean([each.interruptions.sum() for each in found]) == pytest.approx(419, rel=0.1)


@pytest.mark.parametrize(("planes", "failed"), [(4, 1), (4, 2), (8, 1)])
def test_steps_are_slower_by_no_more_than_the_packets_say(planes, failed):
    def time_us(targets):
        faults = [{"kind": "nic-port", "at_us": 0, "targets": targets}] if targets else []
        scenario = {
            "topology": {"hosts": 32, "planes": planes, "radix": 16},
            "traffic": [{"kind": "collective", "operation": "ring-all-reduce", "bytes": 64 << 20}],
            "faults": faults,
        }
        [collective] = sim.run(sim.Scenario.model_validate(scenario)).collectives
        return collective.time_us

    measured = time_us([f"h3:p{plane}" for plane in range(failed)]) / time_us([])
    taken = float(slowdown(np.array(1 - failed / planes), 1.0))
    # The latency of a step does not grow with what is missing of the bandwidth.
    assert 0.88 * taken < measured < 1.01 * taken


def test_steps_of_the_largest_job_are_slower_as_its_flows_are():
    def time_us(*targets):
        faults = [{"kind": "down", "at_us": 0, "targets": targets}] if targets else []
        scenario = {
            "engine": "flow",
            "topology": {"hosts": 131072, "planes": 8, "radix": 512},
            "traffic": [{"kind": "permutation", "bytes": 64 << 20}],
            "faults": faults,
        }
        return sim.run(sim.Scenario.model_validate(scenario)).summary().last_us

    whole = time_us()
    for lost, targets in (
        (1 / 8, ["h0:p0"]),
        (1 / 4, ["h0:p0", "h0:p1"]),
        (1 / 2048, ["p0/t0-0:up0--p0/t1-0"]),
    ):
        taken = float(slowdown(np.array(1 - lost), 1.0))
        assert time_us(*targets) / whole == pytest.approx(taken, rel=0.02)


EFFECTS = st.builds(
    lambda times, speeds, stops: Effect(
        [Interruption(t * 3600.0, Cause(c), h, t * 3600.0 + b) for t, c, h, b in sorted(stops)],
        np.array([0.0, *sorted(set(times))]) * 60,
        np.array(speeds[: len(set(times)) + 1]),
        np.full(len(set(times)) + 1, Cause.NIC_LINKS),
    ),
    st.lists(st.integers(1, 2000), max_size=20),
    st.lists(st.sampled_from([0.0, 0.5, 0.9, 1.0]), min_size=21, max_size=21),
    st.lists(
        st.tuples(st.floats(0, 47.9), st.integers(0, 4), st.integers(0, 3), st.floats(0, 1e5)),
        max_size=20,
    ),
)


@given(EFFECTS, st.floats(10, 1e5), st.floats(0, 1000), st.integers(0, 3))
@settings(max_examples=200)
def test_every_second_is_accounted_for_once(what, interval, pause, spares):
    described = job(days=2, spare_hosts=spares + 3, checkpoint={"pause_s": pause, "restart_min": 7})
    found = account(described, what, interval)
    parts = np.array([found.effective, found.checkpoints, *found.lost.ravel()])
    assert (parts >= -1e-6).all()
    assert parts.sum() == pytest.approx(2 * DAY, abs=1e-3)
    assert found.interruptions.sum() == len(what.interruptions)


def test_a_job_without_failures_loses_nothing_but_checkpoints():
    described = job(rates=rates(), checkpoint={"pause_s": 60, "every_min": 59})
    [found] = outcomes(described, 1)
    assert found.lost.sum() == 0
    assert found.effective_share == pytest.approx(59 / 60)


def test_a_job_without_spare_hosts_waits_for_repairs():
    fields = {"rates": rates(host_days=20, host_repair_h=5), "networks": ["mrc"]}
    waits = np.mean([each.lost[Cause.HOSTS, Loss.RESTART] for each in outcomes(job(spare_hosts=0, **fields))])
    not_so = np.mean(
        [each.lost[Cause.HOSTS, Loss.RESTART] for each in outcomes(job(spare_hosts=128, **fields))]
    )
    assert waits > 2 * not_so


def test_a_nic_without_any_port_ends_the_job_after_its_patience():
    described = job(gpus=16, networks=["dual-port"], rates=rates(link_hours=20.0, link_repair_h=4), days=60)
    network = described.networks[0]
    shape, failures = draw(described, network, 1)
    what = effect(described, network, shape, failures, 1)
    cut_off = [
        (max(a, c), min(b, d))
        for nic in range(16)
        for a, b in spans(failures.ports, 2 * nic)
        for c, d in spans(failures.ports, 2 * nic + 1)
        if min(b, d) > max(a, c)
    ]
    # Where several NICs are cut off at once, one interruption stands for all.
    together = union(*np.array(cut_off).T)
    expected = together.begin[together.end - together.begin > 30] + 30
    found = [each.time for each in what.interruptions if each.cause is Cause.NIC_LINKS]
    assert len(expected) > 3
    assert found == pytest.approx(expected[expected < 60 * DAY])


def spans(outages, part):
    """Merged outages of one part."""
    chosen = outages.part == part
    merged = union(outages.begin[chosen], outages.end[chosen])
    return list(zip(merged.begin, merged.end, strict=True))


def test_hosts_fail_at_the_same_times_on_every_network_and_the_same_seed_gives_the_same():
    described = job(networks=["mrc", "conventional"])
    hosts = [draw(described, network, 5)[1].hosts for network in described.networks]
    assert (hosts[0].begin == hosts[1].begin).all()
    assert jobs.study(described, 2).to_dict() == jobs.study(described, 2).to_dict()
    assert jobs.study(described, 1).to_dict() != jobs.study(job(seed=9), 1).to_dict()


def test_more_of_what_one_can_buy_is_never_worse():
    described = job(gpus=8192, networks=["mrc"])
    base = jobs.study(described, 4)
    from openmrc.jobs import studies

    for text, study in studies.compare(jobs.what_if(described), 4).items():
        [summary] = study.summaries
        if text == "4 planes":
            assert summary.effective.mean < base.summaries[0].effective.mean
        else:
            assert summary.effective.mean > base.summaries[0].effective.mean - 0.002, text


def test_shapes_are_those_of_the_published_fabrics():
    # 131,072 GPUs in two tiers of 51.2 Tb/s switches with eight planes of 100 Gb/s.
    shape = jobs.PRESETS["mrc"].shape(131072, 800, 51.2)
    assert (shape.tiers, shape.radix, shape.t0s, shape.uppers) == (2, 512, 4096, 2048)
    assert [reach(64, tiers) for tiers in (1, 2, 3, 4)] == [64, 2048, 65536, 2097152]
    assert jobs.PRESETS["conventional"].shape(131072, 800, 51.2).tiers == 4
    assert jobs.PRESETS["conventional"].shape(64, 800, 51.2).tiers == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": 1025}, "gpus: 1,025 are not a whole number of hosts of 8"),
        ({"networks": ["mcr"]}, "there is no network mcr; did you mean mrc?"),
        ({"networks": ["mrc", "mrc"]}, "two are called mrc"),
        ({"networks": []}, "networks"),
        ({"switch_tbps": 1.0, "networks": ["conventional"]}, "4 are needed"),
        ({"gpus": 1 << 20, "switch_tbps": 12.8, "networks": ["conventional"]}, "more planes have more ports"),
        ({"days": 0}, "days: must be more than 0"),
        ({"rates": {"link_hour": 3}}, "did you mean link_hours?"),
        ({"step": {"exposed": 1.0}}, "step.exposed: must be less than 1"),
        ({"rates": {"host_days": math.nan}}, "rates.host_days"),
        ({"networks": [{"like": "mrc", "planes": 0}]}, "planes: must be at least 1"),
        ({"networks": [{"like": 3}]}, "expected the name of a network"),
        ({"networks": [{"like": "mrc", "name": "a\x1b[31m"}]}, "networks.0.name"),
        ({"networks": [{"like": "mrc", "reaction_s": [2, 1]}]}, "the most, 1 s, is less than the least, 2 s"),
        ({"checkpoint": {"every_min": 1e-9}}, "checkpoint.every_min: must be at least 0.1"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(fields, message):
    with pytest.raises(ArgumentError) as raised:
        job(**fields)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flap_days": 1e-6}, "links fail about"),
        ({"link_hours": 1e-9}, "links fail about"),
        ({"host_days": 1e-9}, "hosts fail about"),
        ({"nic_hours": 1e-9}, "NICs fail about"),
        ({"switch_hours": 1e-9}, "switches fail about"),
    ],
)
def test_more_failures_than_fit_the_memory_are_refused_before_they_are_drawn(fields, message):
    described = job(networks=["mrc"], rates=fields)
    with pytest.raises(ArgumentError, match=message):
        jobs.study(described, 1)


def test_what_is_saved_is_what_more_training_is_worth():
    described = job(gpus=131072, days=3, networks=["mrc", "conventional"], usd_per_gpu_hour=1e6)
    study = jobs.study(described, 1)
    one, two = (each.effective.mean for each in study.summaries)
    saved = float(study.sentence().split("saves $")[1].split(" M")[0])
    assert saved == pytest.approx((one - two) * described.gpu_hours, rel=0.01)


def test_a_file_is_read_and_what_is_wrong_with_it_has_its_line(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "gpus: 64\ndays: 3\nnetworks: [mrc, {like: conventional, name: slow, reaction_s: [30, 60]}]\n"
    )
    described = jobs.load(path)
    assert [network.name for network in described.networks] == ["mrc", "slow"]
    assert described.networks[1].reaction_s == (30, 60)
    path.write_text("gpus: 64\ndays: -3\n")
    with pytest.raises(FormatError, match=r"job.yaml:2: days: must be more than 0"):
        jobs.load(path)


def test_hours_and_money_follow_from_shares():
    described = job(gpus=131072, days=10, networks=["conventional"], usd_per_gpu_hour=4)
    [summary] = jobs.study(described, 2).summaries
    shares = [each.network_share for each in summary.outcomes]
    assert summary.network_gpu_hours.mean == pytest.approx(np.mean(shares) * 131072 * 240)
    assert summary.network_usd.mean == pytest.approx(4 * summary.network_gpu_hours.mean)
    assert HOUR == 3600
