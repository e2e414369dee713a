"""What pip builds: the wheel has the C library, and a source distribution has all that it is built from."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from openmrc import clibrary
from tests.helpers.archives import unpack
from tests.helpers.repository import ROOT

CRATES = {path.parent.name for path in ROOT.glob("crates/*/Cargo.toml")}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    if importlib.util.find_spec("maturin") is None or shutil.which("cargo") is None:
        pytest.skip("maturin or cargo is not installed")
    directory = tmp_path_factory.mktemp("sdist")
    script = (
        "import sys; sys.path.insert(0, 'crates/python'); import backend; backend.build_sdist(sys.argv[1])"
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", script, directory],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (archive,) = directory.glob("*.tar.gz")
    assert list(directory.iterdir()) == [archive]
    unpack(archive, directory)
    return directory / archive.name.removesuffix(".tar.gz")


def test_a_source_distribution_has_every_crate_and_the_headers(unpacked):
    assert {path.parent.name for path in unpacked.glob("crates/*/Cargo.toml")} == CRATES
    for crate in CRATES:
        here, there = ROOT / "crates" / crate / "src", unpacked / "crates" / crate / "src"
        assert {f.relative_to(here) for f in here.rglob("*.rs")} == {
            f.relative_to(there) for f in there.rglob("*.rs")
        }
    assert {file.name for file in (unpacked / "crates/capi/include").iterdir()} == set(clibrary.HEADERS)
    for file in (ROOT / "crates/capi/libibverbs").iterdir():
        assert (unpacked / "crates/capi/libibverbs" / file.name).read_bytes() == file.read_bytes()
    assert (unpacked / "python/openmrc/examples/scenarios/planes-fail.yaml").is_file()


def test_cargo_can_build_the_c_library_from_it(unpacked):
    done = subprocess.run(
        ["cargo", "metadata", "--offline", "--locked", "--format-version", "1", "--no-deps"],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "openmrc-capi" in {package["name"] for package in json.loads(done.stdout)["packages"]}


def test_this_installation_has_the_c_library_and_its_headers():
    assert clibrary.library().stat().st_size > 100_000
    assert {file.name for file in clibrary.include_directory().glob("*.h")} == set(clibrary.HEADERS)
