"""What tests of the C interface share: a compiler, programs built with it, environments with a device."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from openmrc import clibrary
from tests.helpers.ends import loopback
from tests.helpers.repository import ROOT

SOURCES = ROOT / "tests" / "c"
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]
ADDRESSES = loopback(2)
DEVICE = f"mrc0={','.join(ADDRESSES)}"
PATIENCE = 120


def need_compiler():
    """Skips where a C program cannot be built."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: package build-essential")
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("no infiniband/verbs.h: package libibverbs-dev")


def need_tool(tool, package):
    """Skips where a program of Debian is not installed."""
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}: package {package}")


def compile_c(compiler, *options):
    """Runs a compiler with our headers; the completed process."""
    command = [*compiler, f"-I{clibrary.include_directory()}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def program(directory, name, *options, compiler=("cc", "-std=gnu11")):
    """Builds ``tests/c/name.c`` against the library of the wheel; its path."""
    need_compiler()
    libraries = clibrary.library_directory()
    target = directory / name
    built = compile_c(
        [*compiler, "-g", *STRICT],
        *options,
        str(SOURCES / f"{name}.c"),
        "-o",
        str(target),
        f"-L{libraries}",
        f"-Wl,-rpath,{libraries}",
        "-lmrc",
        "-lpthread",
    )
    assert built.returncode == 0, built.stderr
    return target


def with_device(device=DEVICE, **more):
    """The environment of a program that uses the library."""
    return {**os.environ, "OPENMRC_DEVICES": device, **more}


def run(command, **environment):
    """Runs a program to its end with a device on loopback."""
    return subprocess.run(
        [str(part) for part in command],
        env=with_device(**environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
