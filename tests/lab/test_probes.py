"""Probers in a lab: real packets over real links, counted; a fault is seen by the loops that cross it."""

import contextlib
import math
import re
import signal
import socket
import sys
import time
from contextlib import ExitStack

import pytest

from openmrc import _core
from openmrc.lab.system import entered, inside, run
from openmrc.localise import Kind, loops_of_host
from openmrc.operate.model import Action, Request
from openmrc.operate.probing import Probing, addresses
from tests.helpers.commands import command
from tests.helpers.controllers import TOKEN, agent_token, controller, operator
from tests.helpers.ends import eventually
from tests.helpers.labs import needs_root, running

OUTER = 14 + 40
"""Bytes of a frame before the inner IPv6 header; the probe follows 48 bytes later."""


class Counted:
    """The prober of a host of a lab, with what it has counted since it was reset."""

    def __init__(self, lab, host, rate=1000):
        self.loops = list(loops_of_host(lab.fabric, host))
        with entered(lab.namespace(host)):
            self.prober = _core.Prober(
                list(addresses(lab.fabric, host, self.loops)),
                rate=rate,
                traffic_class=0,
                interval_ms=100,
                grace_ms=400,
            )
        self.reset()

    def reset(self):
        """Forgets what was sent until now: also what is still under way."""
        time.sleep(0.7)
        self.prober.take()
        self.sums = [(0, 0)] * len(self.loops)

    def take(self):
        for counts in self.prober.take():
            self.sums = [(sent + a, lost + b) for (sent, lost), (a, b) in zip(self.sums, counts, strict=True)]
        return self.sums

    def until(self, least, patience_s=60):
        """Counts until each loop has had so many probes."""
        assert eventually(lambda: min(sent for sent, _ in self.take()) >= least, patience_s), self.sums
        return self.sums

    def crossing(self, link):
        """For each loop whether it crosses a link."""
        return [any(c == (Kind.LINK, link) for c in loop.components) for loop in self.loops]

    @property
    def totals(self):
        return dict(self.prober.totals())


@contextlib.contextmanager
def probed(lab, host, **options):
    counted = Counted(lab, host, **options)
    try:
        yield counted
    finally:
        counted.prober.close()


@needs_root
def test_loops_of_a_whole_lab_come_back_and_a_cut_link_is_seen_by_its_own(tmp_path):
    with running(tmp_path, "probes") as lab, probed(lab, "h0") as counted:
        assert eventually(lambda: any(sent > lost for sent, lost in counted.take()), 20)
        counted.reset()
        assert all(lost == 0 for _, lost in counted.until(50))
        [uplink] = [loop.uplink for loop in counted.loops if loop.plane == 1][1:2]
        link = lab.layout.link(f"p1/t0-0:up{uplink}").name
        assert sum(counted.crossing(link)) == 1
        lab.fail(link)
        counted.reset()
        sums = counted.until(50)
        lost = [lost == sent for sent, lost in sums]
        assert lost == counted.crossing(link)
        assert all(lost in (0, sent) for sent, lost in sums)
        totals = counted.totals
        assert totals["sent"] - totals["received"] >= 50
        lab.repair(link)
        counted.reset()
        assert all(lost == 0 for _, lost in counted.until(50))
        # The cable of the host is on every loop of its plane.
        lab.fail("h0:p0")
        counted.reset()
        sums = counted.until(20)
        assert [lost == sent for sent, lost in sums] == [loop.plane == 0 for loop in counted.loops]
        lab.repair("h0:p0")
        counted.reset()
        assert all(lost == 0 for _, lost in counted.until(20))


@needs_root
def test_a_cable_whose_queue_takes_no_probe_loses_them(tmp_path):
    """The lab drops what a host sends in the host's own queue, which tells the sender."""
    with running(tmp_path, "refused") as lab, probed(lab, "h0") as counted:
        assert eventually(lambda: any(sent > lost for sent, lost in counted.take()), 20)
        lab.degrade("h0:p0", loss=1.0, direction="up")
        counted.reset()
        sums = counted.until(20)
        assert [lost == sent for sent, lost in sums] == [loop.plane == 0 for loop in counted.loops]
        before = counted.totals["unsent"]
        lab.repair("h0:p0")
        lab.degrade("h0:p0", loss=0.5, direction="up")
        counted.reset()
        # Of a queue that takes some, what it refuses says nothing.
        assert all(lost == 0 for _, lost in counted.until(20))
        assert counted.totals["unsent"] > before + 20


@needs_root
def test_a_link_that_loses_a_tenth_is_counted_so(tmp_path):
    with running(tmp_path, "lossy") as lab, probed(lab, "h0") as counted:
        uplink = next(loop.uplink for loop in counted.loops if loop.uplink is not None)
        link = lab.layout.link(f"p0/t0-0:up{uplink}").name
        lab.degrade(link, loss=0.1)
        counted.reset()
        sums = counted.until(2000)
        # A loop crosses the link twice.
        share = 1 - 0.9**2
        for (sent, lost), crosses in zip(sums, counted.crossing(link), strict=True):
            if crosses:
                assert abs(lost / sent - share) < 5 * math.sqrt(share * (1 - share) / sent)
            else:
                assert lost == 0
        # It is suspected, and has half of the probes besides its turn.
        [suspect] = [sent for (sent, _), crosses in zip(sums, counted.crossing(link), strict=True) if crosses]
        assert suspect > 3 * min(sent for sent, _ in sums)


@needs_root
def test_forged_and_replayed_probes_are_not_counted(tmp_path):
    with running(tmp_path, "forged") as lab, probed(lab, "h0") as counted, ExitStack() as stack:
        with entered(lab.namespace("h0")):
            sniffer = stack.enter_context(
                socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD))
            )
            sniffer.bind(("p0", 0x86DD))
        t0 = next(link.upper for link in lab.layout.links_of("h0") if link.lower.port == "p0")
        with entered(lab.namespace(t0.node)):
            attacker = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            attacker.bind((t0.port, 0x86DD))
        assert eventually(lambda: any(sent > lost for sent, lost in counted.take()), 20)

        def captured():
            """A probe that has just come back."""
            sniffer.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sniffer.recv(2048)
            sniffer.settimeout(10)
            while True:
                frame, (_, _, kind, *_) = sniffer.recvfrom(2048)
                if kind == socket.PACKET_HOST and frame[OUTER + 48 : OUTER + 52] == b"MRCp":
                    return frame

        # A copy of a probe that has come back already, at once and after its interval is over.
        counted.reset()
        before = counted.totals
        frame = captured()
        for _ in range(10):
            attacker.send(frame)
        assert eventually(lambda: counted.totals["repeated"] >= before["repeated"] + 10, 20)
        time.sleep(0.6)
        for _ in range(10):
            attacker.send(frame)
        assert eventually(lambda: counted.totals["late"] >= before["late"] + 10, 20)

        # Nothing comes back from one loop, but what the attacker makes of the others' probes.
        uplink = next(loop.uplink for loop in counted.loops if loop.plane == 0 and loop.uplink is not None)
        index = next(n for n, loop in enumerate(counted.loops) if (loop.plane, loop.uplink) == (0, uplink))
        lab.degrade(f"p0/t0-0:up{uplink}", loss=1.0)
        counted.reset()
        before = counted.totals
        for _ in range(200):
            frame = bytearray(captured())
            frame[OUTER + 52 : OUTER + 56] = index.to_bytes(4, "big")
            attacker.send(bytes(frame))
        assert eventually(lambda: counted.totals["foreign"] >= before["foreign"] + 200, 20)
        sent, lost = counted.until(20)[index]
        assert lost == sent > 0
        assert all(lost == 0 for n, (_, lost) in enumerate(counted.sums) if n != index)


@needs_root
def test_a_flood_makes_counts_unknown_and_nothing_broken(tmp_path):
    with running(tmp_path, "flood") as lab, probed(lab, "h0") as counted, ExitStack() as stack:
        assert eventually(lambda: any(sent > lost for sent, lost in counted.take()), 20)
        table = run([*inside(lab.namespace("h0")), "cat", "/proc/net/udp6"])
        own = lab.addresses("h0")
        ports = {int(port, 16) for port in re.findall(r"^ *\d+: [0-9A-F]{32}:([0-9A-F]{4}) ", table, re.M)}
        assert len(ports) >= len(own)
        from scapy.layers.inet import UDP
        from scapy.layers.inet6 import IPv6
        from scapy.layers.l2 import Ether

        t0 = next(link.upper for link in lab.layout.links_of("h0") if link.lower.port == "p0")
        mac = run([*inside(lab.namespace("h0")), "cat", "/sys/class/net/p0/address"]).strip()
        with entered(lab.namespace(t0.node)):
            attacker = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            attacker.bind((t0.port, 0x86DD))
        frames = [
            bytes(
                Ether(dst=mac)
                / IPv6(src=own[0], dst="5f00:0:e000::")
                / IPv6(src=own[0], dst=own[0])
                / UDP(sport=port, dport=port)
                / bytes(24)
            )
            for port in ports
        ]
        counted.reset()
        end = time.monotonic() + 2
        while time.monotonic() < end:
            for frame in frames:
                with contextlib.suppress(BlockingIOError, OSError):
                    attacker.send(frame)
        time.sleep(0.7)
        sums = counted.take()
        assert all(lost == 0 for _, lost in sums), "what the flood pushed out is unknown and not lost"
        flooded = [sent for loop, (sent, _) in zip(counted.loops, sums, strict=True) if loop.plane == 0]
        others = [sent for loop, (sent, _) in zip(counted.loops, sums, strict=True) if loop.plane != 0]
        assert min(others) >= 0.9 * min(flooded), "the other ports' counts are known"
        assert counted.totals["foreign"] > 0
        counted.reset()
        assert all(lost == 0 for _, lost in counted.until(20))


@needs_root
def test_an_agent_outside_probes_for_the_hosts_of_a_lab_and_a_lossy_link_is_named(tmp_path, monkeypatch):
    hosts = [f"h{number}" for number in range(8)]
    with running(tmp_path, "named", hosts=8) as lab, ExitStack() as stack:
        # Nothing is published: the lab is idle, and its links are known by probes alone.
        monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))
        tokens = tmp_path / "agents"
        tokens.write_text("".join(f"{host} {agent_token(TOKEN, host)}\n" for host in hosts))
        tokens.chmod(0o600)
        file = lab.state.directory / "fabric.yaml"
        address, _ = stack.enter_context(controller(file, tmp_path / "c.db"))
        client = stack.enter_context(operator(address))
        stack.enter_context(command("agent", address, "--token-file", tokens))
        links = len(lab.layout.links)
        assert eventually(lambda: client.status().links["good"] == links, 60), client.status()
        assert client.faults() == []
        link = lab.layout.link("p1/t0-1:up2").name
        lab.degrade(link, loss=0.01)
        assert eventually(lambda: [fault.name for fault in client.faults()] == [link], 60), client.faults()
        assert client.link(link).evidence == "lossy"
        lab.repair(link)
        assert eventually(lambda: client.faults() == [], 60)
        assert client.status().links["good"] == links


@needs_root
def test_an_agent_that_stalls_or_is_killed_for_memory_accuses_nothing_and_forgets_no_decision(tmp_path):
    """What a host without memory does to it: it is not run while its pages are read, or it is killed."""
    hosts = [f"h{number}" for number in range(8)]
    with running(tmp_path, "pressed", hosts=8) as lab, ExitStack() as stack:
        tokens, state = tmp_path / "agents", tmp_path / "state"
        tokens.write_text("".join(f"{host} {agent_token(TOKEN, host)}\n" for host in hosts))
        tokens.chmod(0o600)
        address, _ = stack.enter_context(controller(lab.state.directory / "fabric.yaml", tmp_path / "c.db"))
        client = stack.enter_context(operator(address))
        line = ("agent", address, "--token-file", tokens, "--state", state)
        agent = stack.enter_context(command(*line))
        links = len(lab.layout.links)
        assert eventually(lambda: client.status().links["good"] == links, 60), client.status()
        out = lab.layout.link("p1/t0-1:up2").name
        assert client.act(Request(action=Action.DENY, what=out, why="a test", who="ada")).done
        assert eventually(lambda: all(each.deny_version for each in client.hosts()), 60)
        for stalled_s in (0.3, 1.0, 3.0, 6.5):
            agent.process.send_signal(signal.SIGSTOP)
            time.sleep(stalled_s)
            agent.process.send_signal(signal.SIGCONT)
            assert eventually(lambda: not any(each.silent for each in client.hosts()), 60)
            time.sleep(1.5)
            assert client.faults() == []
        assert client.status().links["good"] == links
        agent.kill()
        agent.wait()
        assert eventually(lambda: all(each.silent for each in client.hosts()), 60)
        assert client.faults(over=True) == client.faults() == []
        assert client.link(out).decision == "denied"
        stack.enter_context(command(*line))
        assert eventually(lambda: client.status().links["good"] == links, 60), client.status()
        assert all(each.deny_version for each in client.hosts())


@needs_root
def test_a_lab_that_is_taken_down_ends_its_probers(tmp_path, caplog):
    with running(tmp_path, "gone", hosts=8) as lab:
        probes = Probing.start(lab.fabric, ["h0"], 100)
        assert eventually(lambda: probes.turn() or probes.seen("h0"), 20)
        counted = Counted(lab, "h0")
        time.sleep(1)
    assert eventually(lambda: probes.turn() or probes.seen("h0") == [], 20)
    assert re.search(r"interface p\d does not exist any more", caplog.text)
    probes.close()
    time.sleep(1)
    assert counted.prober.take(), "what was counted before is not lost"
    with pytest.raises(OSError, match=r"interface p\d does not exist any more"):
        counted.prober.take()


@needs_root
def test_without_cap_net_raw_the_agent_says_so_in_one_line(tmp_path):
    with running(tmp_path, "bare", hosts=8) as lab:
        program = (
            "import logging, sys; logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
            "from openmrc.fabric import Fabric\n"
            "from openmrc.operate.probing import Probing\n"
            f"probes = Probing.start(Fabric.load({str(lab.state.directory / 'fabric.yaml')!r}), ['h0'], 10)\n"
            "probes.turn(); probes.turn()\n"
        )
        line = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-all", sys.executable, "-c", program]
        said = run([*inside(lab.namespace("h0")), *line])
        assert said.strip() == (
            "no probes of h0: probes need root or CAP_NET_RAW (setcap cap_net_raw+ep, or sudo)"
        )
