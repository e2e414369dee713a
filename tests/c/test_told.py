"""Refusals: a program is told once and in one line, and both ends of a connection end."""

import sys

import pytest

from openmrc import clibrary
from tests.helpers.programs import need_tool, run, with_device

SCRIPT = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1], use_errno=True)
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_create_cq", "ibv_create_qp",
             "ibv_create_srq", "ibv_reg_mr_iova2"):
    getattr(lib, name).restype = ctypes.c_void_p
device = ctypes.c_void_p.from_address(lib.ibv_get_device_list(None))
context = ctypes.c_void_p(lib.ibv_open_device(device))
pd = ctypes.c_void_p(lib.ibv_alloc_pd(context))
cq = lib.ibv_create_cq(context, 4, None, None, 0)
for _ in range(2):
    init = ctypes.create_string_buffer(64)
    ctypes.c_uint64.from_buffer(init, 8).value = ctypes.c_uint64.from_buffer(init, 16).value = cq
    ctypes.c_uint32.from_buffer(init, 52).value = 4  # UD
    assert lib.ibv_create_qp(pd, init) is None and ctypes.get_errno() == 95
    assert lib.ibv_create_srq(pd, init) is None and ctypes.get_errno() == 95
    assert lib.ibv_reg_mr_iova2(pd, init, ctypes.c_size_t(64), ctypes.c_uint64(0), 1) is None
"""
LINES = [
    "openmrc: queue pair: UD refused, MRC has only RC",
    "openmrc: ibv_create_srq refused, MRC has nothing like it",
    "openmrc: memory region: an iova other than the address refused, MRC has no such regions",
]


def test_each_reason_is_said_once():
    done = run([sys.executable, "-c", SCRIPT, clibrary.library()])
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == LINES


@pytest.mark.parametrize(("value", "lines"), [("1", 0), ("0", 3), ("", 3)])
def test_a_variable_turns_it_off(value, lines):
    done = run([sys.executable, "-c", SCRIPT, clibrary.library()], OPENMRC_QUIET=value)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == lines


def test_a_host_without_devices_is_told_how_to_name_one():
    need_tool("unshare", "util-linux")
    script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).ibv_get_device_list(None)"
    command = ["unshare", "-rn", sys.executable, "-c", script, clibrary.library()]
    if run(["unshare", "-rn", "true"]).returncode:
        pytest.skip("no namespaces for this user")
    done = run(command, OPENMRC_DEVICES="")
    (line,) = done.stderr.splitlines()
    assert line.startswith("openmrc: no device: no interface")


def test_ports_that_are_all_taken_are_named():
    script = """
import ctypes, socket, sys
taken = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(256)]
for slot, one in enumerate(taken):
    one.bind(("127.77.77.77", 4791 + slot))
lib = ctypes.CDLL(sys.argv[1], use_errno=True)
lib.ibv_get_device_list.restype = lib.ibv_open_device.restype = ctypes.c_void_p
device = ctypes.c_void_p.from_address(lib.ibv_get_device_list(None))
print(lib.ibv_open_device(device), ctypes.get_errno())
"""
    environment = with_device("mrc0=127.77.77.77")
    done = run(
        [sys.executable, "-c", script, clibrary.library()], OPENMRC_DEVICES=environment["OPENMRC_DEVICES"]
    )
    assert done.stdout == "None 98\n"
    assert done.stderr == (
        "openmrc: device mrc0: UDP ports 4791 to 5046 are in use: an address has room for 256 contexts\n"
    )
