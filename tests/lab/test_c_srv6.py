"""EV profiles of SRv6 in C: a program makes them and writes over them, and kernel switches forward."""

import os
import subprocess
from contextlib import ExitStack
from ipaddress import IPv6Address

import pytest

from openmrc.wire import parse_usids
from tests.helpers.labs import carried, counted, needs_root, running
from tests.helpers.programs import PATIENCE, program

CLIENT, SERVER = "h0", "h15"
PACKETS = 200
"""Fewer than one of the paths in use carries when 50 writes of 98 packets are spread over them."""
NOISE = 50
"""Most packets on a path that is not in use: the switches' own."""


def named(path):
    """An entropy value as the program writes it. Ports count from 1."""
    return f"{path.plane + 1}/{path.address}"


def config(lab, host, peer):
    """A device in SRv6 mode that knows the other host's addresses."""
    ours, theirs = (list(map(str, lab.addresses(end))) for end in (host, peer))
    text = f"[[device]]\nname = 'mrc0'\nev_format = 'srv6'\naddresses = {ours}\n"
    text += f"peers.'{theirs[0]}' = {theirs}\n"
    return {**os.environ, "OPENMRC_CONFIG": text, "OPENMRC_DEVICES": ""}


class End:
    """The program at a host."""

    def __init__(self, lab, stack, binary, role, host, peer, values=None):
        values = values or [named(path) for path in lab.fabric.paths(host, peer)]
        self._program = stack.enter_context(
            subprocess.Popen(
                lab.command(host, [str(binary), role, *values]),
                env=config(lab, host, peer),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(self._program.kill)

    def say(self, line=""):
        print(line, file=self._program.stdin, flush=True)

    def hear(self, word):
        """The rest of the program's next line, which begins with this word."""
        line = self._program.stdout.readline().split()
        assert line[:1] == [word], self._program.stderr.read()
        return " ".join(line[1:])

    def finish(self):
        _, said = self._program.communicate(timeout=PATIENCE)
        assert self._program.returncode == 0, said


class Pair:
    """Connected programs at two hosts."""

    def __init__(self, lab, stack, binary, role, values=None):
        self._lab = lab
        self.client = End(lab, stack, binary, role, CLIENT, SERVER, values)
        self.server = End(lab, stack, binary, "server", SERVER, CLIENT)
        self.generated = self.client.hear("values").split() if role == "generated" else None
        ours, theirs = self.client.hear("me"), self.server.hear("me")
        self.server.say(ours)
        self.client.say(theirs)
        self.server.hear("connected")
        self.client.hear("connected")

    def packets_by_path(self):
        """Packets of the client on each path while it writes."""
        before = counted(self._lab)
        self.client.say()
        self.client.hear("written")
        loads = carried(self._lab, before, counted(self._lab))
        return {path: loads[path.links[1]][0] for path in self._lab.fabric.paths(CLIENT, SERVER)}

    def finish(self):
        """The server has seen every byte, and both have released everything."""
        self.client.finish()
        self.server.say()
        self.server.finish()


@needs_root
def test_a_program_writes_over_srv6_paths_that_it_chose_while_one_fails(tmp_path):
    binary = program(tmp_path, "srv6")
    with running(tmp_path, "csrv6") as lab, ExitStack() as stack:
        pair = Pair(lab, stack, binary, "client")
        used = [path for path, packets in pair.packets_by_path().items() if packets > PACKETS]
        assert {path.plane for path in used} == {0, 1}
        cut = used[-1]
        lab.fail(cut.links[1])
        pair.client.say(named(cut))
        pair.client.hear("condemned")
        lab.repair()
        pair.client.say()
        pair.client.hear("good")
        # The one in use now that carries most.
        packets = pair.packets_by_path()
        denied = max(packets, key=packets.__getitem__)
        pair.client.say(named(denied))
        pair.client.hear("denied")
        packets = pair.packets_by_path()
        assert packets[denied] < NOISE
        assert max(packets.values()) > PACKETS
        pair.client.say()
        pair.finish()


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """A lab of one plane: generated values are the same on every port."""
    with running(tmp_path_factory.mktemp("lab"), "csrv6one", planes=1) as lab:
        yield lab


@needs_root
def test_a_program_lets_the_device_generate_srv6_values(tmp_path, plane):
    paths = plane.fabric.paths(CLIENT, SERVER)
    block, usids = parse_usids(paths[0].address)
    t1s = sorted(parse_usids(path.address)[1][1] for path in paths)
    fields = [f"32:{block:x}:0:0:0", *(f"16:{usid:x}:0:0:0" for usid in usids)]
    fields[2] = f"16:0:f:{t1s[0]:x}:{t1s[-1]:x}"
    with ExitStack() as stack:
        pair = Pair(plane, stack, program(tmp_path, "srv6"), "generated", fields)
        # A value is the four bits of the mask, the first of the string.
        assert sorted(pair.generated) == [f"{t1:x}0000000" for t1 in t1s]
        packets = pair.packets_by_path()
        # Half of the values are in reserve.
        assert sum(n > PACKETS for n in packets.values()) >= 2
        pair.finish()


@needs_root
def test_a_literal_value_has_an_address_and_the_segment_of_an_srh(tmp_path, plane):
    path = plane.fabric.path(CLIENT, SERVER, plane=0, uplinks=(1,))
    block, *usids = (f"{path.address.exploded}".split(":")[i] for i in range(6))
    address = IPv6Address(f"{block}:{usids[0]}:{usids[1]}:{usids[2]}::")
    segment = IPv6Address(f"{block}:{usids[0]}:{usids[3]}:{usids[4]}::")
    with ExitStack() as stack:
        pair = Pair(plane, stack, program(tmp_path, "srv6"), "writer", [f"1/{address}/{segment}"])
        packets = pair.packets_by_path()
        assert packets.pop(path) > PACKETS
        assert max(packets.values()) < NOISE
        pair.finish()
