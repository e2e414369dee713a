"""Our libibverbs.so.1: programs that load it by name find devices, and nothing of the real one is missing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from openmrc import clibrary
from tests.helpers.commands import OPENMRC
from tests.helpers.programs import (
    SOURCES,
    STRICT,
    compile_c,
    need_compiler,
    need_tool,
    program,
    run,
    with_device,
)


def real(name):
    """A library of the system, or a skip."""
    need_tool("ldconfig", "libc-bin")
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^\s*{re.escape(name)} .* => (\S+)$", listed, re.MULTILINE)
    if found is None:
        pytest.skip(f"no {name}: packages libibverbs1 and ibverbs-providers")
    return found[1]


def functions(library):
    """Every function that a library offers, with its version."""
    need_tool("readelf", "binutils")
    listed = subprocess.run(
        ["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True
    ).stdout
    columns = [line.split() for line in listed.splitlines()]
    return {row[7] for row in columns if len(row) > 7 and row[3] == "FUNC" and row[6] != "UND"}


def ours():
    return clibrary.libibverbs_directory() / "libibverbs.so.1"


@pytest.fixture
def loader(tmp_path):
    need_compiler()
    built = compile_c(
        ["cc", "-std=gnu11", *STRICT[:-1]], str(SOURCES / "loader.c"), "-o", str(tmp_path / "loader"), "-ldl"
    )
    assert built.returncode == 0, built.stderr
    return tmp_path / "loader"


def test_every_function_of_the_real_library_is_there_under_its_version():
    """Those of drivers too: a vendor's library does not load if one is missing."""
    assert functions(real("libibverbs.so.1")) - functions(ours()) == set()


def test_every_function_leads_to_the_library():
    """A public function that the library lacks would answer ENOSYS."""
    public = {name.split("@")[0] for name in functions(ours()) if "PRIVATE" not in name}
    need_tool("nm", "binutils")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", clibrary.library()], capture_output=True, text=True, check=True
    ).stdout
    there = {line.split()[-1] for line in listed.splitlines()}
    assert public - there == {"ibv_register_driver"}


def test_a_program_that_loads_verbs_by_name_writes_over_mrc(loader):
    done = run([loader], **clibrary.preloaded(with_device()))
    assert (done.returncode, done.stdout, done.stderr) == (0, "mrc0\n", "")


def test_functions_newer_than_the_headers_are_found_under_their_versions(tmp_path):
    """NCCL asks for `ibv_query_port_speed` under 1.16, perftest is linked to 1.15."""
    done = run([program(tmp_path, "newer"), "versions"], LD_LIBRARY_PATH=clibrary.library_path())
    assert done.returncode == 0, done.stderr


def test_openmrc_run_is_enough(loader):
    command = [*OPENMRC, "run", "--planes", "2", "--", str(loader)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mrc0\n", "")


def test_no_preload_is_needed(loader):
    """Only files under /sys and /dev need it."""
    done = run([loader], LD_LIBRARY_PATH=clibrary.library_path())
    assert (done.returncode, done.stdout, done.stderr) == (0, "mrc0\n", "")


@pytest.mark.parametrize("preloaded", [True, False])
@pytest.mark.parametrize(
    "names", [["libmlx5.so.1"], ["libefa.so.1"], ["libibverbs.so.1"], ["librdmacm.so.1"]], ids=str
)
def test_other_libraries_of_rdma_may_be_loaded_too(loader, names, preloaded):
    environment = clibrary.preloaded({}) if preloaded else {"LD_LIBRARY_PATH": clibrary.library_path()}
    done = run([loader, *map(real, names)], **environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mrc0\n", "")


def test_a_program_for_libibverbs_1_0_is_told_that_there_are_no_devices():
    script = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
find = ctypes.CDLL(None).dlvsym
find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
address = find(lib._handle, b"ibv_get_device_list", b"IBVERBS_1.0")
count = ctypes.c_int(9)
print(ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)(ctypes.addressof(count)), count.value)
"""
    done = run([sys.executable, "-c", script, ours()])
    assert done.stdout == "None 0\n"
    assert (
        done.stderr
        == "openmrc: this program was built for libibverbs 1.0, whose structures are not known here\n"
    )


def test_without_the_library_beside_it_there_are_no_devices(tmp_path):
    place = tmp_path / "libibverbs"
    place.mkdir()
    (place / "libibverbs.so.1").write_bytes(ours().read_bytes())
    script = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1], use_errno=True)
lib.ibv_get_device_list.restype = ctypes.c_void_p
print(lib.ibv_get_device_list(None), ctypes.get_errno())
"""
    done = run([sys.executable, "-c", script, place / "libibverbs.so.1"])
    assert done.stdout == "None 38\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("openmrc: ")
    assert "libopenmrc.so.0" in line


def test_the_variable_keeps_what_it_had():
    environment = clibrary.preloaded({"LD_LIBRARY_PATH": "/opt/lib", "LD_PRELOAD": "libm.so.6"})
    assert environment["LD_LIBRARY_PATH"] == f"{clibrary.library_path()}:/opt/lib"
    assert environment["LD_PRELOAD"] == f"{clibrary.preload()}:libm.so.6"
    assert clibrary.preloaded({})["LD_LIBRARY_PATH"] == clibrary.library_path()


def test_both_names_are_one_file():
    directory = clibrary.libibverbs_directory()
    assert len({(directory / name).stat().st_ino for name in clibrary.LIBIBVERBS}) == 1
    assert os.access(Path(directory).parent / clibrary.SONAME, os.R_OK)
