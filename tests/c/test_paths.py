"""Files of a device under /sys and /dev, as unmodified programs look them up."""

import stat
import subprocess
import sys

import pytest

from openmrc import clibrary
from tests.helpers.programs import ADDRESSES, need_tool, run, with_device

CLASS = "/sys/class/infiniband/mrc0"


def preloaded(*command, **more):
    """What a program says about paths."""
    need_tool(command[0], "coreutils")
    return run(command, **clibrary.preloaded(with_device(**more)))


def said(*command):
    done = preloaded(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("node_type", "1: CA"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/2/link_layer", "Ethernet"),
        ("ports/1/gid_attrs/types/0", "RoCE v2"),
        ("ports/1/gid_attrs/ndevs/3", "lo"),
        ("device/numa_node", "-1"),
    ],
)
def test_files_are_read(path, text):
    """No list of devices was asked for before."""
    assert said("cat", f"{CLASS}/{path}") == text


@pytest.mark.parametrize(
    "path",
    [
        "ports/3/state",
        "ports/1/gids/4",
        "ports/1/gid_attrs/types/x",
        "nonesuch",
        "device/infiniband/mrc1/ports",
    ],
)
def test_what_is_not_there_is_missing(path):
    for tool in ("cat", "stat"):
        done = preloaded(tool, f"{CLASS}/{path}")
        assert done.returncode == 1
        assert "No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dev/infiniband", "directory"),
        ("/dev/infiniband/mrc0", "character special file"),
        ("/sys/class/infiniband", "directory"),
        (CLASS, "symbolic link"),
        (f"{CLASS}/", "directory"),
        (f"{CLASS}/device", "symbolic link"),
        (f"{CLASS}/ports/1/gid_attrs/types", "directory"),
        (f"{CLASS}/fw_ver", "regular file"),
    ],
)
def test_kinds(path, kind):
    if path.endswith("/"):
        assert said("stat", "-L", "-c", "%F", path) == kind
    else:
        assert said("stat", "-c", "%F", path) == kind


def node():
    """The character device of mrc0."""
    script = """
import ctypes, os
lib = ctypes.CDLL(None)
lib.ibv_get_device_list.restype = ctypes.c_void_p
device = ctypes.c_void_p.from_address(lib.ibv_get_device_list(None)).value
name, path = (ctypes.string_at(device + offset).decode() for offset in (88, 152))
status = os.stat("/dev/infiniband/" + name)
print(name, path, oct(status.st_mode), os.major(status.st_rdev), os.minor(status.st_rdev))
print(os.access("/dev/infiniband/" + name, os.R_OK | os.W_OK), os.access("/dev/infiniband/" + name, os.X_OK))
print(open(path + "/ibdev").read().strip(), open(path + "/dev").read().strip())
os.close(os.open("/dev/infiniband/" + name, os.O_RDWR))
"""
    done = run([sys.executable, "-c", script], **clibrary.preloaded(with_device()))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_device_has_a_node_of_its_own_number():
    first, access, verbs = node()
    name, path, mode, major, minor = first.split()
    number = int(name.removeprefix("uverbs"))
    assert path == f"/sys/class/infiniband_verbs/{name}"
    assert stat.S_ISCHR(int(mode, 8))
    assert (int(major), int(minor)) == (231, 192 + number)
    assert access == "True False"
    assert verbs == f"mrc0 231:{192 + number}"


def test_two_steps_up_from_the_device_is_its_pci_directory():
    """As Mooncake and NCCL find the device's place."""
    script = """
import ctypes, sys
find = ctypes.CDLL(None).realpath
find.restype, find.argtypes = ctypes.c_char_p, (ctypes.c_char_p, ctypes.c_void_p)
for path in sys.argv[1:]:
    print((find(path.encode(), None) or b"none").decode())
"""
    paths = [CLASS, f"{CLASS}/../..", f"{CLASS}/device", f"{CLASS}/ports/../device/.", f"{CLASS}/nonesuch"]
    done = run([sys.executable, "-c", script, *paths], **clibrary.preloaded(with_device()))
    own, up, device, around, missing = done.stdout.splitlines()
    assert own == f"{up}/infiniband/mrc0"
    assert up == device == around
    assert missing == "none"
    # Its last part looks like the address of a PCI device.
    assert len(up.rsplit("/", 1)[1]) == len("0000:00:00.0")


def test_links_say_where_they_lead():
    link = said("readlink", CLASS)
    assert link.startswith("../../devices/")
    assert link.endswith("/infiniband/mrc0")


def test_every_gid_is_the_address_of_the_first_plane():
    for index in range(4):
        text = said("cat", f"{CLASS}/ports/1/gids/{index}")
        assert bytes.fromhex(text.replace(":", ""))[12:] == bytes(map(int, ADDRESSES[0].split(".")))


def test_other_paths_and_other_devices_are_the_systems():
    for path in ("/sys/class/infiniband/mrc7", "/dev/infiniband/mrc7", "/sys/class/infinibandmrc0"):
        done = preloaded("stat", path)
        assert done.returncode == 1
        assert "No such file or directory" in done.stderr
    plain = subprocess.run(["stat", "/proc/version", "/dev/null"], capture_output=True, text=True, check=True)
    assert said("stat", "-c", "%F %t:%T", "/dev/null") == "character special file 1:3"
    assert plain.stdout.count("File:") == 2


def test_they_can_be_switched_off():
    done = preloaded("cat", f"{CLASS}/node_type", OPENMRC_SYSFS="0")
    assert done.returncode == 1
