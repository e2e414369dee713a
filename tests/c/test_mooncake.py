"""Mooncake's transfer engine, unmodified, over MRC: it loads libibverbs and looks for files of the device.

It runs where `mooncake-transfer-engine-non-cuda` is installed for this interpreter; it is 46 MB.
"""

import importlib.util
import re
import subprocess
import sys

import pytest

from tests.helpers.commands import OPENMRC

PATIENCE = 120
SIZE = 64 << 20

END = """
import ctypes, os, pathlib, sys, time
from mooncake.engine import TransferEngine
role, place = sys.argv[1], pathlib.Path(sys.argv[2])
size = int(sys.argv[3])
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "mrc0") == 0
memory = ctypes.create_string_buffer(size)
address = ctypes.addressof(memory)
assert engine.register_memory(address, size) == 0
pattern = bytes(range(251)) * (size // 251 + 1)
if role == "target":
    part = place.with_suffix(".part")
    part.write_text(f"127.0.0.1:{engine.get_rpc_port()} {address}")
    part.rename(place)
    sys.stdin.readline()
    print("same", memory.raw[:size] == pattern[:size], flush=True)
else:
    while not place.exists():
        time.sleep(0.05)
    peer, there = place.read_text().split()
    ctypes.memmove(address, pattern, size)
    print("write", engine.transfer_sync_write(peer, address, int(there), size), flush=True)
    print("read", engine.transfer_sync_read(peer, address, int(there), 4096), flush=True)
os._exit(0)
"""


@pytest.fixture(autouse=True)
def _mooncake():
    if importlib.util.find_spec("mooncake") is None:
        pytest.skip("no mooncake: pip install mooncake-transfer-engine-non-cuda")


def start(role, place, **options):
    command = [*OPENMRC, "run", "--planes", "2", "--", sys.executable, "-c", END, role, place, SIZE]
    return subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def test_writes_arrive_and_reads_are_refused_with_the_reason(tmp_path):
    target = start("target", tmp_path / "peer", stdin=subprocess.PIPE)
    initiator = start("initiator", tmp_path / "peer")
    said = initiator.communicate(timeout=PATIENCE)[0]
    heard = target.communicate("\n", timeout=PATIENCE)[0]
    assert re.search(r"^write 0$", said, re.MULTILINE), said
    assert re.search(r"^same True$", heard, re.MULTILINE), heard
    # It did not fall back to another transport.
    assert "Device mrc0 port 1 is available" in said
    assert re.search(r"^read -\d+$", said, re.MULTILINE), said
    assert "openmrc: queue pair: RDMA_READ refused, MRC has only WRITE" in said
