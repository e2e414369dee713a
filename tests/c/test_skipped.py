"""Libraries that need more than WRITE: they skip the device with the reason, and their programs run on."""

import os
import subprocess

import pytest

from openmrc import clibrary
from tests.helpers.commands import OPENMRC
from tests.helpers.programs import PATIENCE, compile_c, need_compiler, need_tool, run

LIBRARY = """
#include <infiniband/verbs.h>
int opens(void) { struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
	return context ? !ibv_close_device(context) : 0; }
"""
PROGRAM = """
#include <dlfcn.h>
int main(int argc, char **argv) { void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
	int (*opens)(void); *(void **)&opens = library ? dlsym(library, "opens") : 0;
	return opens ? opens() : 2; }
"""
REASON = (
    "openmrc: device mrc0: skipped for UCX: it needs SEND, UD and shared receive queues, MRC has only WRITE"
)


def through_openmrc_run(*command, **environment):
    """Runs a program with two planes; its exit code, and all that it says."""
    done = subprocess.run(
        [*OPENMRC, "run", "--planes", "2", "--", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "is_opened"), [("libuct_ib.so.0", False), ("libuct_ib_mlx5.so", False), ("libother.so", True)]
)
def test_a_device_does_not_open_for_a_library_of_ucx(tmp_path, name, is_opened):
    need_compiler()
    (tmp_path / "library.c").write_text(LIBRARY)
    (tmp_path / "program.c").write_text(PROGRAM)
    libraries = clibrary.library_directory()
    linked = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lopenmrc"]
    shared = ["-shared", "-fPIC", str(tmp_path / "library.c"), "-o", str(tmp_path / name), *linked]
    built = compile_c(["cc"], *shared)
    assert built.returncode == 0, built.stderr
    built = compile_c(["cc"], str(tmp_path / "program.c"), "-o", str(tmp_path / "program"), "-ldl")
    assert built.returncode == 0, built.stderr
    done = run([tmp_path / "program", tmp_path / name])
    assert done.returncode == is_opened, done.stderr
    assert done.stderr == ("" if is_opened else f"{REASON}\n")


def test_ucx_skips_the_device_with_the_reason():
    need_tool("ucx_info", "ucx-utils")
    code, said = through_openmrc_run("ucx_info", "-d", UCX_LOG_LEVEL="info")
    assert code == 0, said
    assert REASON in said
    assert "ibv_open_device(mrc0) failed" in said
    assert "ERROR" not in said


def test_a_program_over_ucx_takes_another_transport():
    need_tool("ucx_perftest", "ucx-utils")
    code, said = through_openmrc_run("ucx_perftest", "-l", "-t", "tag_lat", "-n", "10")
    assert code == 0, said
    assert REASON in said


def test_libfabric_skips_the_device_with_the_reason():
    need_tool("fi_info", "libfabric-bin")
    code, said = through_openmrc_run("fi_info", "-l")
    assert code == 0, said
    assert "tcp:" in said
    code, said = through_openmrc_run("fi_info", "-p", "verbs", FI_LOG_LEVEL="info")
    assert code != 0
    assert "openmrc: queue pair: UD refused, MRC has only RC" in said
    assert "skipping device: mrc0 for FI_EP_MSG" in said
