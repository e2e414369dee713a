"""``simulate --live``, and what a run tells those who watch it."""

import io
import itertools

from rich.console import Console

from openmrc import sim
from openmrc.cli import main
from openmrc.cli._live import Live

FABRIC = sim.Topology(hosts=64, planes=4, radix=16)


def watched(scenario):
    """The results of a run, and its moments: virtual time, and the planes."""
    moments = []
    results = sim.run(scenario, watch=lambda so_far, planes: moments.append((so_far.now_ps, planes())))
    return results, moments


def test_those_who_watch_see_every_byte_that_reaches_a_host_and_no_other_run():
    scenario = sim.Scenario(topology=FABRIC, traffic=[sim.Permutation(bytes=1 << 20)])
    results, moments = watched(scenario)
    assert results.totals == sim.run(scenario).totals
    last = moments[-1][1]
    # Data with headers, and what answers it.
    assert 64 << 20 < sum(plane.to_hosts for plane in last) < 1.1 * (64 << 20)
    assert [(plane.waiting, plane.longest, plane.longest_port) for plane in last] == [(0, 0, None)] * 4
    for (_, before), (_, after) in itertools.pairwise(moments):
        assert all(b.to_hosts <= a.to_hosts for b, a in zip(before, after, strict=True))


def test_the_longest_queue_of_an_incast_is_at_its_receiver():
    scenario = sim.Scenario(
        topology=FABRIC,
        traffic=[sim.Incast(senders=list(range(8, 40)), receiver=3, bytes=8 << 20)],
        transport=sim.Mrc(),
    )
    _, moments = watched(scenario)
    queues = [plane for _, planes in moments for plane in planes if plane.longest > 10_000]
    assert queues
    assert {plane.longest_port for plane in queues} <= {f"p{number}/t0-0:down3" for number in range(4)}
    assert all(plane.longest <= plane.waiting for _, planes in moments for plane in planes)


def test_the_display_has_a_row_for_each_plane_and_rates_since_the_look_before():
    class Plane:
        def __init__(self, to_hosts, waiting=0, port=None):
            self.to_hosts, self.waiting, self.longest, self.longest_port = to_hosts, waiting, waiting, port

    class SoFar:
        def __init__(self, now_ps):
            self.now_ps, self.finished, self.messages = now_ps, 3, 10

    out = io.StringIO()
    live = Live(Console(file=out, force_terminal=True, width=100, color_system=None))
    live.table(SoFar(1_000_000), [Plane(0), Plane(0)])
    # 125 kB in 10 us are 100 Gb/s.
    table = live.table(SoFar(11_000_000), [Plane(125_000), Plane(62_500, 5000, "p1/t0-0:down3")])
    Console(file=out, width=100).print(table)
    lines = out.getvalue().splitlines()
    assert "3 of 10 messages, 150.0 Gb/s to hosts" in lines[0]
    assert [line.count("█") for line in lines[2:4]] == [24, 12]
    assert "100.0 Gb/s" in lines[2]
    assert lines[3].rstrip().endswith("p1/t0-0:down3")


def test_without_a_terminal_the_option_changes_nothing(capsys):
    arguments = ["simulate", "--hosts", "64", "--radix", "16", "--planes", "4", "--size", "10k"]
    assert main([*arguments, "--live"]) == 0
    assert "█" not in capsys.readouterr().err
    assert main([*arguments, "--live", "--engine", "flow"]) == 2
    assert "the flow engine has no queues" in capsys.readouterr().err
