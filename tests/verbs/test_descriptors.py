"""Descriptors of a device, in a process that may have few of them, and where io_uring is refused."""

import json
import os
import resource
import subprocess
import sys
import textwrap

import pytest

from openmrc.verbs import Device, Port
from tests.helpers.ends import loopback
from tests.helpers.io_uring import need_io_uring
from tests.helpers.repository import ROOT

PLANES = 8
PATHS = 256
FEW = 48

PROLOGUE = """
import ctypes, json, os, resource, struct, sys
from tests.helpers.ends import connected, device

def refuse(call, error):
    # A filter of system calls: load the number, compare, refuse or allow.
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0) == 0, ctypes.get_errno()

def descriptors():
    return len(os.listdir("/proc/self/fd"))
"""

EPILOGUE = """
before = descriptors()
with connected(PLANES, **OPTIONS) as (a, b):
    opened = (descriptors() - before) / 2
    for end, peer in ((a, b), (b, a)):
        data, memory = bytearray(range(200)) * 20_000, bytearray(4_000_000)
        end.qp.write(end.region(data), peer.region(memory).remote())
        assert end.send_cq.take(1, 20)[0].ok
        assert memory == data
    stats = a.context.stats()
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(json.dumps({"opened": opened, "limit": limit, "senders": stats["send_descriptors"]}))
"""


def opened(how="", soft=1024, **options):
    """Two devices, connected, in a process of its own; ``how`` is run there first."""
    constants = f"PLANES, OPTIONS = {PLANES}, {options!r}\n"
    program = PROLOGUE + constants + textwrap.dedent(how) + EPILOGUE
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    done = subprocess.run(
        [sys.executable, "-c", limit + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_with_few_descriptors_keeps_nearly_all_and_its_limit():
    need_io_uring()
    assert opened() == {"opened": pytest.approx(FEW, abs=FEW - 1), "limit": 1024, "senders": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_needs_no_privileges():
    need_io_uring()
    found = opened("os.setgid(65534); os.setuid(65534)")
    assert (found["senders"], found["opened"] <= FEW) == (1, True)


def test_it_can_be_turned_off():
    found = opened(io_uring=False)
    assert found["senders"] == PATHS
    assert PATHS < found["opened"] < PATHS + FEW


@pytest.mark.parametrize("call", [425, 426, 427], ids=["setup", "enter", "register"])
@pytest.mark.parametrize("error", [1, 38], ids=["EPERM", "ENOSYS"])
def test_where_io_uring_is_refused_sockets_have_descriptors(call, error):
    found = opened(f"refuse({call}, {error})", io_uring=True)
    assert found["senders"] == PATHS


def test_a_ring_smaller_than_the_device_leaves_the_rest_of_the_sockets_their_descriptors():
    need_io_uring()
    found = opened(soft=200, raise_descriptor_limit=False, evs_per_port=30)
    assert found["senders"] == 1 + 8 * 30 - 200


def test_the_child_of_a_fork_does_not_hold_the_ports_of_its_parent():
    ports = [Port(addr, source_ports=[20_001, 20_002]) for addr in loopback(2)]
    context = Device(ports=ports, io_uring=True).open()
    (there, ready), (wait, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(ready, b"x")
        os.read(wait, 1)
        os._exit(0)
    try:
        os.read(there, 1)
        context.close()
        Device(ports=ports, io_uring=True).open().close()
    finally:
        for fd in (there, ready, wait, end):
            os.close(fd)
        os.waitpid(child, 0)
