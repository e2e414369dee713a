"""Debian's perftest, unmodified, over the fabric of a lab while a plane dies."""

import os
import subprocess
import time

import pytest

from tests.helpers.commands import OPENMRC
from tests.helpers.debian_perftest import PORT, rows
from tests.helpers.labs import needs_root, running
from tests.helpers.programs import need_tool

CLIENT, SERVER = "h0", "h5"
ADDRESS = "10.99.0.2"
"""Where the client reaches the server beside the fabric."""
LISTENING = f":{PORT:04X}"
PATIENCE = 60


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    need_tool("ib_write_bw", "perftest")
    with running(tmp_path_factory.mktemp("lab"), "perftest", hosts=8, planes=2) as lab:
        # perftest exchanges parameters over IPv4: a network beside the fabric, as hosts have one.
        at(lab, CLIENT, f"ip link add beside type veth peer name beside netns {lab.namespace(SERVER)}")
        for host, address in ((CLIENT, "10.99.0.1"), (SERVER, ADDRESS)):
            at(lab, host, f"ip address add {address}/30 dev beside")
            at(lab, host, "ip link set dev beside up")
        yield lab


def at(lab, host, command):
    """Runs a command at a host; what it printed."""
    arguments = lab.command(host, command.split())
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


def start(lab, host, peer, *arguments):
    """One end at a host, which knows the other's addresses by the device's description."""
    ours, theirs = (list(map(str, lab.addresses(end))) for end in (host, peer))
    config = f'[[device]]\nname = "mrc0"\naddresses = {ours}\npeers."{theirs[0]}" = {theirs}\n'
    environment = {**os.environ, "OPENMRC_CONFIG": config.replace("'", '"'), "OPENMRC_DEVICES": ""}
    command = lab.command(host, [*OPENMRC, "run", "--", *arguments])
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_until_listening(lab, host):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        lines = at(lab, host, "cat /proc/net/tcp").splitlines()[1:]
        if any(line.split()[1].endswith(LISTENING) for line in lines):
            return
        time.sleep(0.05)


@needs_root
def test_a_run_goes_on_when_a_plane_dies(lab):
    arguments = ["ib_write_bw", "-D", "4", "-f", "1", "-s", "65536", "-m", "1024", "--report_gbits"]
    server = start(lab, SERVER, CLIENT, *arguments)
    wait_until_listening(lab, SERVER)
    client = start(lab, CLIENT, SERVER, *arguments, ADDRESS)
    time.sleep(2.0)
    lab.fail(f"{SERVER}:p1")
    said = client.communicate(timeout=PATIENCE)[0]
    if client.returncode:
        server.kill()
    heard = server.communicate(timeout=PATIENCE)[0]
    assert (client.returncode, server.returncode) == (0, 0), said + heard
    (row,) = rows(said)
    assert 0 < row[3] < 100_000
