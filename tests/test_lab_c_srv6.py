"""EV profiles of SRv6 in C: a program makes them and writes over them, and kernel switches forward."""

import os
import subprocess
from contextlib import ExitStack

import pytest

from c_helpers import PATIENCE, program
from lab_helpers import carried, counted, needs_root, running

CLIENT, SERVER = "h0", "h15"
PACKETS = 200
"""Fewer than one of the paths in use carries when 50 writes of 98 packets are spread over them."""
NOISE = 50
"""Most packets on a path that is not in use: the switches' own."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "csrv6") as lab:
        yield lab


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

    def __init__(self, lab, stack, binary, role, host, peer):
        values = [named(path) for path in lab.fabric.paths(host, peer)]
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


@needs_root
def test_a_program_writes_over_srv6_paths_that_it_chose_while_one_fails(tmp_path, lab):
    binary = program(tmp_path, "srv6")
    with ExitStack() as stack:
        client = End(lab, stack, binary, "client", CLIENT, SERVER)
        server = End(lab, stack, binary, "server", SERVER, CLIENT)
        ours, theirs = client.hear("me"), server.hear("me")
        server.say(ours)
        client.say(theirs)
        server.hear("connected")
        client.hear("connected")

        def packets_by_path(word):
            """Packets of the client on each path while it writes until it says the word."""
            before = counted(lab)
            client.say()
            client.hear(word)
            loads = carried(lab, before, counted(lab))
            return {path: loads[path.links[1]][0] for path in lab.fabric.paths(CLIENT, SERVER)}

        used = [path for path, packets in packets_by_path("written").items() if packets > NOISE]
        assert {path.plane for path in used} == {0, 1}
        cut = used[-1]
        lab.fail(cut.links[1])
        client.say(named(cut))
        client.hear("condemned")
        lab.repair()
        client.say()
        client.hear("good")
        client.say(named(used[0]))
        client.hear("denied")
        packets = packets_by_path("written")
        assert packets[used[0]] < NOISE
        assert max(packets.values()) > PACKETS
        client.say()
        client.finish()
        server.say()
        server.finish()
