"""``openmrc lab demo``: its arithmetic, its routing configuration, and a short run."""

import json
import os
import signal
import subprocess
import time
from ipaddress import IPv6Address
from itertools import pairwise

import pytest

from openmrc import wire
from openmrc.demos.director import Fault
from openmrc.demos.lab import analysis, frr, mrc
from openmrc.demos.lab.recording import FaultRecord, Flow, Recording
from openmrc.demos.lab.scene import RING, broken_links, fabric, pairs, schedule
from openmrc.demos.series import WINDOW_NS, Series
from openmrc.lab import Layout, system
from openmrc.lab.state import names
from openmrc.lab.tap import Seen, address_filter
from openmrc.units import duration
from tests.helpers.commands import OPENMRC
from tests.helpers.labs import needs_root

MS = 1_000_000


@pytest.fixture(scope="module")
def layout():
    return Layout(fabric())


def recorded(received, *, transport="mrc"):
    """A flow sampled every millisecond; the fault is after one second and repaired a second later."""
    flow = Flow(transport, "h0", "h2", 8e6)
    record = FaultRecord(Fault("link", "cut", 1.0, 2.0, what="p0/t0-0:up1"), 1000 * MS, 2000 * MS, 3000 * MS)
    times = [number * MS for number in range(len(received))]
    series = Series(times, [(count,) for count in received])
    return Recording(0, [flow], [record], series, ended_ns=times[-1]), record


def steadily(gap=range(0)):
    """Bytes received: a thousand per millisecond, except in a gap."""
    total, counts = 0, []
    for number in range(3000):
        total += 0 if number in gap else 1000
        counts.append(total)
    return counts


def test_a_flow_that_never_stops_has_no_outage():
    found = analysis.figures(*recorded(steadily()), "mrc")
    assert (found.flows_hit, found.outage_ms) == (0, 0)


def test_an_outage_is_as_long_as_nothing_comes():
    measured, record = recorded(steadily(range(1000, 1300)))
    found = analysis.figures(measured, record, "mrc")
    assert found.flows_hit == 1
    assert found.outage_ms == pytest.approx(300, abs=WINDOW_NS / MS)


def test_an_outage_ends_with_repair_if_nothing_else_ends_it():
    found = analysis.figures(*recorded(steadily(range(1100, 2500))), "mrc")
    assert found.outage_ms == pytest.approx(900, abs=WINDOW_NS / MS)


def test_lost_datagrams_say_how_long_a_hole_was_sent_into():
    measured, record = recorded(steadily(), transport="udp")
    measured.lost[0] = [900 * MS, 1001 * MS, 1250 * MS, 2100 * MS]
    found = analysis.figures(measured, record, "udp")
    assert (found.hole_packets, found.hole_ms, found.lost_at_repair) == (2, 250, 1)


def test_data_that_wait_are_found_by_when_they_were_posted():
    measured, record = recorded(steadily(), transport="tcp")
    for posted, wait in ((800, 2), (1001, 450), (2500, 9000)):
        measured.waits.flow.append(0)
        measured.waits.posted_ns.append(posted * MS)
        measured.waits.wait_ns.append(wait * MS)
    found = analysis.figures(measured, record, "tcp")
    assert (found.wait_ms, found.wait_before_ms) == (450, 2)


def test_a_machine_that_was_too_busy_is_said_to_be():
    measured, _ = recorded(steadily())
    assert analysis.too_busy(measured) is None
    assert analysis.as_dict(measured)["too_busy"] is None
    # For six tenths of a second, in pieces, nobody sampled.
    kept = [n for n in range(3000) if n < 2000 or n % 100 >= 60]
    series = Series([measured.series.time_ns[n] for n in kept], [measured.series.rows[n] for n in kept])
    measured.series = series
    assert "20% of the time, once for 61 ms" in analysis.too_busy(measured)
    # Half of what is offered arrives, with nothing broken.
    slow, _ = recorded([500 * number for number in range(3000)])
    assert "50% of what was offered" in analysis.too_busy(slow)
    assert "nothing was measured" in analysis.too_busy(recorded([0])[0])


def test_neighbours_in_the_ring_are_under_different_t0s(layout):
    for src, dst in pairs(RING):
        assert len(layout.fabric.paths(src, dst)) == 8


def test_every_fault_concerns_links_that_exist_and_ends_before_the_next(layout):
    faults = schedule(20)
    for fault, following in pairwise(faults):
        assert fault.begin < fault.end < following.begin
    assert [len(broken_links(layout, fault)) for fault in faults] == [1, 1, 4, 1, 1]


def judged(layout, what, condemned, *, kind="link"):
    """What is said of a fault after these paths have been condemned, one after the other."""
    paths = {
        (path.src, path.dst, path.ev): path
        for src, dst in pairs(RING)
        for path in layout.fabric.paths(src, dst)
    }
    record = FaultRecord(Fault(kind, "cut", 1.0, 2.0, what=what), 1000 * MS, 2000 * MS, 3000 * MS)
    record.events = [
        ((1001 + number) * MS, *key, True)
        for number, key in enumerate(key for key, path in paths.items() if condemned(path))
    ]
    broken = broken_links(layout, record.fault)
    return mrc.judge(paths, broken, record, set()), record


def test_the_link_that_condemned_paths_share_is_named(layout):
    link = "p0/t0-0:up1--p0/t1-1"
    verdict, record = judged(layout, link, lambda path: link in path.links)
    assert verdict.links == [link]
    assert verdict.right
    assert verdict.hosts, "somebody had sent over it"
    assert record.began_ns < verdict.since_ns <= record.events[-1][0]


def test_a_verdict_is_wrong_if_it_names_another_link_or_none(layout):
    link, other = "p0/t0-0:up1--p0/t1-1", "p1/t0-1:up0--p1/t1-0"
    verdict, _ = judged(layout, link, lambda path: other in path.links)
    assert verdict.links == [other]
    assert (verdict.right, verdict.hosts, verdict.since_ns) == (False, [], None)
    both, _ = judged(layout, link, lambda path: link in path.links or other in path.links)
    assert sorted(both.links) == [link, other]
    assert not both.right
    silent, _ = judged(layout, link, lambda path: False)
    assert not silent.right


def test_a_lossy_path_is_suspected_when_it_is_condemned_again(layout):
    link = "p0/t0-0:up1--p0/t1-1"
    once, record = judged(layout, link, lambda path: link in path.links, kind="loss")
    assert once.links == []
    paths = {
        (path.src, path.dst, path.ev): path
        for src, dst in pairs(RING)
        for path in layout.fabric.paths(src, dst)
    }
    record.events += [(when + 500 * MS, *key) for when, *key in record.events]
    twice = mrc.judge(paths, broken_links(layout, record.fault), record, set())
    assert (twice.links, twice.right) == ([link], True)


def test_a_path_condemned_just_before_a_fault_was_bad_before_it():
    early, late = ("h0", "h2", 1), ("h0", "h2", 2)
    returned, bad = ("h0", "h2", 3), {("h0", "h2", 3)}
    events = [(998 * MS, *early, True), (999 * MS, *returned, False), (1000 * MS, *late, True)]
    assert mrc.events_since(1000 * MS, events, bad) == [(1000 * MS, *late, True)]
    assert bad == {early}


def test_hosts_announce_themselves_and_nobody_else(layout):
    text = frr.configuration(layout, "h3", frr.Timers())["bgpd"]
    assert f"network {frr.loopback('h3')}/128" in text
    assert text.count("filter-list own out") == 2
    assert "filter-list" not in frr.configuration(layout, "p0/t0-0", frr.Timers())["bgpd"]


def test_without_an_interval_there_is_no_bfd(layout):
    files = frr.configuration(layout, "p0/t0-0", frr.Timers(bfd_interval_ms=0))
    assert sorted(files) == ["bgpd", "zebra"]
    assert "bfd" not in files["bgpd"]


def test_a_t0_wants_all_its_uplinks_to_a_host_elsewhere(layout):
    wanted = dict(frr.expected(layout, "p0/t0-0"))
    assert wanted == {"h0": 1, "h1": 1} | dict.fromkeys(("h2", "h3", "h4", "h5", "h6", "h7"), 4)


def test_a_tap_passes_the_addresses_asked_for_and_no_others():
    program = address_filter(["5f00:0:1:6:2:e000::", "5f00:0:1:7:2:e000::"])

    def passes(address):
        frame = bytes(14 + 24) + IPv6Address(address).packed
        at, word = 0, 0
        while True:
            code, yes, no, operand = program[at]
            at += 1
            if code == 0x20:
                word = int.from_bytes(frame[operand : operand + 4])
            elif code == 0x15:
                at += yes if word == operand else no
            else:
                return operand > 0

    assert passes("5f00:0:1:6:2:e000::")
    assert passes("5f00:0:1:7:2:e000::")
    assert not passes("5f00:0:1:8:2:e000::")
    assert not passes("5f00:0:1:6:2:e001::")


def test_a_tap_tells_duplicates_that_probe_a_path_from_data():
    def seen(**fields):
        body = wire.Write(timestamp=wire.Timestamp(ticks=5), dma_len=4096, **fields)
        packet = wire.Packet(dest_qp=7, psn=3, body=body, payload=bytes(4096))
        path = wire.usid_address(0x5F000000, [0x11, 0x102, 0x12, 0xE00C])
        frame = packet.to_bytes(src="fd00::1", dst="fd00::2", ev=9, path=path, outer_src="fd00::9")
        return Seen.of(0, bytes(14) + frame)

    assert seen(va=0x1000, rkey=5).is_data
    assert seen(va=0, rkey=5).is_data
    assert not seen().is_data


def test_durations_have_the_unit_that_suits_them():
    assert [duration(each) for each in (3.21, 250.4, 1234.5)] == ["3.2 ms", "250 ms", "1.23 s"]


def demo(*arguments, **options):
    command = [*OPENMRC, "lab", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280, **options)


@pytest.mark.skipif(os.geteuid() == 0, reason="is root")
def test_without_root_it_says_so_in_a_line():
    done = demo()
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "root" in done.stderr


@needs_root
def test_mrc_loses_no_byte_and_names_what_broke(tmp_path):
    done = demo("--only", "mrc", "--duration", "10", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "lab-demo.json").read_text())["mrc"]
    assert found["pieces_wrong"] == 0
    assert found["pieces_arrived"] > 0
    assert [row["fault"] for row in found["faults"]] == ["link", "silent", "switch", "port", "loss"]
    for row in found["faults"]:
        [figures] = row["figures"]
        assert figures["flows"] == 8
        if row["fault"] in ("link", "silent", "switch"):
            # Hosts that had sent on the dead paths have reported them. Other suspicions depend on the
            # machine.
            assert row["named_by"]
    assert "demo" not in names()


@needs_root
@pytest.mark.skipif(frr.why_not() is not None, reason=str(frr.why_not()))
def test_bgp_carries_the_same_ring_through_the_same_faults(tmp_path):
    file, picture = tmp_path / "lab-demo.json", tmp_path / "lab-demo.png"
    done = demo("--only", "frr", "--duration", "10", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["conventional"]
    assert [row["fault"] for row in found["faults"]] == ["link", "silent", "switch", "port", "loss"]
    silent = found["faults"][1]
    udp = next(figures for figures in silent["figures"] if figures["transport"] == "udp")
    assert udp["hole_packets"] > 0, "some flow goes over the link"
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_root
def test_an_interrupt_leaves_nothing_behind(tmp_path):
    # The tests may run where ctrl-C is ignored, and children inherit that.
    process = subprocess.Popen(
        [*OPENMRC, "lab", "demo", "--only", "mrc"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    for line in process.stderr:
        if "cut" in line:
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in rest
    assert "demo" not in names()
    assert not list(system.NAMESPACES.glob("openmrc-demo-*"))
