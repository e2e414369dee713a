"""The C library without Python: a tarball with a file of pkg-config, and a .deb."""

import shlex
import subprocess
import sys

import pytest

from openmrc import clibrary
from tests.helpers.archives import unpack
from tests.helpers.programs import SOURCES, STRICT, compile_c, need_compiler, need_tool, run
from tests.helpers.repository import ROOT

HELLO = "hello over every plane (64 bytes, immediate 7)\n"


def pack(out, library=None):
    """Runs what `make c-package` runs, with the library of the wheel."""
    command = [sys.executable, str(ROOT / "crates" / "capi" / "package.py"), "--out", str(out)]
    command += ["--library", str(library or clibrary.library())]
    command += ["--libibverbs", str(clibrary.libibverbs_directory() / "libibverbs.so.1")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The directory of the packages."""
    out = tmp_path_factory.mktemp("packages")
    done = pack(out)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(str(path) for path in out.iterdir())
    return out


@pytest.fixture
def unpacked(made, tmp_path):
    """The directory of the tarball's contents, where the user of the package chose."""
    (archive,) = made.glob("*.tar.gz")
    unpack(archive, tmp_path)
    (tree,) = tmp_path.iterdir()
    return tree.rename(tmp_path / "chosen")


def pkg_config(directory, *options, **environment):
    """What pkg-config says of openmrc, whose file is in a directory."""
    need_tool("pkg-config", "pkg-config")
    said = subprocess.run(
        ["pkg-config", *options, "openmrc"],
        env={"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(directory), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return shlex.split(said.stdout)


def hello(target, options):
    """Compiles the page's example with a compiler's options from pkg-config; its path."""
    need_compiler()
    command = ["cc", "-std=gnu11", *STRICT, str(SOURCES / "hello.c"), "-o", str(target), *options]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return target


def test_a_client_is_compiled_against_the_tarball_and_says_hello(unpacked):
    options = pkg_config(unpacked / "lib" / "pkgconfig", "--cflags", "--libs")
    assert not any("openmrc/include" in option or "site-packages" in option for option in options)
    done = run([hello(unpacked / "hello", options)])
    assert (done.returncode, done.stdout, done.stderr) == (0, HELLO, "")


def test_a_program_that_loads_verbs_by_name_runs_with_two_variables(unpacked):
    need_compiler()
    loader = unpacked / "loader"
    built = compile_c(
        ["cc", "-std=gnu11", *STRICT[:-1]], str(SOURCES / "loader.c"), "-o", str(loader), "-ldl"
    )
    assert built.returncode == 0, built.stderr
    (preload,) = pkg_config(unpacked / "lib" / "pkgconfig", "--variable=preload")
    (directory,) = pkg_config(unpacked / "lib" / "pkgconfig", "--variable=verbsdir")
    done = run([loader], LD_PRELOAD=preload, LD_LIBRARY_PATH=directory)
    assert (done.returncode, done.stdout, done.stderr) == (0, "mrc0\n", "")


def test_the_deb_has_everything_in_its_place(made, tmp_path):
    need_tool("dpkg-deb", "dpkg")
    (package,) = made.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    fields = subprocess.run(["dpkg-deb", "--field", package], capture_output=True, text=True, check=True)
    assert fields.stdout.startswith("Package: openmrc-c\n")
    (found,) = tmp_path.glob("usr/lib/*/pkgconfig")
    options = pkg_config(found, "--cflags", "--libs", PKG_CONFIG_SYSROOT_DIR=str(tmp_path))
    done = run([hello(tmp_path / "hello", options)], LD_LIBRARY_PATH=str(found.parent))
    assert (done.returncode, done.stdout, done.stderr) == (0, HELLO, "")


def test_a_package_that_is_made_twice_is_the_same(made, tmp_path):
    assert pack(tmp_path).returncode == 0
    for package in made.iterdir():
        assert package.read_bytes() == (tmp_path / package.name).read_bytes(), package.name


@pytest.mark.parametrize("contents", [None, b"", b"text\n", b"\x7fELF\x01\x01" + bytes(30)])
def test_what_is_no_library_is_refused_in_one_line(tmp_path, contents):
    library = tmp_path / "libopenmrc.so"
    if contents is not None:
        library.write_bytes(contents)
    done = pack(tmp_path / "out", library)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert str(library) in line
