"""What is checked of a release before somebody uploads it."""

import io
import json
import re
import shutil
import sys
import tarfile
import zipfile
from types import SimpleNamespace

import pytest

from tests.helpers.repository import ROOT

pytest.importorskip("packaging")
if not (ROOT / ".git").exists() or shutil.which("git") is None:
    pytest.skip("needs git and the repository", allow_module_level=True)

sys.path.insert(0, str(ROOT / "crates/python"))
import linked
import release

VERSION = "0.1.0"
METADATA = f"""\
Metadata-Version: 2.4
Name: openmrc
Version: {VERSION}
Classifier: Typing :: Typed
License-Expression: Apache-2.0
License-File: LICENSE
License-File: THIRD-PARTY-LICENSES
Requires-Python: >=3.11
Description-Content-Type: text/markdown; charset=UTF-8; variant=GFM

# openmrc
"""
INFO = f"openmrc-{VERSION}.dist-info"
WHEEL = f"openmrc-{VERSION}-cp311-abi3-manylinux_2_28_x86_64.whl"
SDIST = f"openmrc-{VERSION}.tar.gz"
LICENSE = (ROOT / "LICENSE").read_text()
CRATE = linked.Crate("crc32fast", "1.5.4", "MIT OR Apache-2.0", ROOT)


@pytest.fixture
def files(monkeypatch):
    """The contents of a wheel and a source distribution in which nothing is wrong."""
    monkeypatch.setitem(sys.modules, "trove_classifiers", SimpleNamespace(classifiers={"Typing :: Typed"}))
    monkeypatch.setattr(linked, "linked", lambda: [CRATE])
    monkeypatch.setattr(linked, "texts", lambda _: linked.TEXTS.read_text())
    monkeypatch.setattr(linked, "materials", lambda _: linked.MATERIALS.read_text())
    tracked = release._tracked()
    package = [name.removeprefix("python/") for name in tracked if name.startswith("python/openmrc/")]
    wheel = dict.fromkeys([*package, *(f"openmrc/{name}" for name in release.BUILT)], "")
    wheel[f"{INFO}/METADATA"] = METADATA
    wheel[f"{INFO}/licenses/LICENSE"] = LICENSE
    wheel[f"{INFO}/licenses/THIRD-PARTY-LICENSES"] = linked.TEXTS.read_text()
    wheel[f"{INFO}/sboms/openmrc.cdx.json"] = linked.MATERIALS.read_text()
    wheel[f"{INFO}/entry_points.txt"] = "[console_scripts]\nopenmrc = openmrc.cli:script\n"
    sdist = {name: "" for name in tracked if name.startswith(("python/", "crates/"))}
    sdist |= dict.fromkeys(("pyproject.toml", "Cargo.toml", "Cargo.lock", "README.md"), "")
    sdist |= dict.fromkeys(release.LICENCE_FILES, "")
    return {WHEEL: wheel, SDIST: sdist | {"PKG-INFO": METADATA}}


def found(directory, files):
    """What is wrong with a release that has these files."""
    for name, contents in files.items():
        if name.endswith(".whl"):
            with zipfile.ZipFile(directory / name, "w") as archive:
                for member, text in contents.items():
                    archive.writestr(member, text)
            continue
        with tarfile.open(directory / name, "w:gz") as archive:
            for member, text in contents.items():
                info = tarfile.TarInfo(f"openmrc-{VERSION}/{member}")
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
    return list(release.problems(directory, ["x86_64"], "2.28"))


def test_nothing_is_wrong_with_a_release_that_is_complete(files, tmp_path):
    assert found(tmp_path, files) == []


@pytest.mark.parametrize("kind", [WHEEL, SDIST])
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Version: 0.1.0", "Version: 0.1.1", "version 0.1.1 is not 0.1.0"),
        ("Apache-2.0", "MIT", "licence MIT, files ['LICENSE', 'THIRD-PARTY-LICENSES']"),
        ("License-File: LICENSE\n", "", "licence Apache-2.0, files ['THIRD-PARTY-LICENSES']"),
        ("Typing :: Typed", "Typing :: Untyped", "'Typing :: Untyped' is no classifier of the index"),
        ("text/markdown", "text/plain", "not Markdown"),
        ("# openmrc", "", "the description is missing"),
        ("# openmrc", "# openmrc\n![demo](docs/demo.png)", "a link to docs/demo.png"),
        (">=3.11", "three", "three"),
    ],
)
def test_wrong_metadata_are_found(files, tmp_path, kind, old, new, says):
    name = f"{INFO}/METADATA" if kind == WHEEL else "PKG-INFO"
    files[kind][name] = files[kind][name].replace(old, new)
    (problem,) = found(tmp_path, files)
    assert problem.startswith(f"{kind}: metadata: ")
    assert says in problem


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (WHEEL, "openmrc/fabric/catalogue.yaml"),
        (WHEEL, "openmrc/lib/libopenmrc.so.0"),
        (WHEEL, f"{INFO}/licenses/LICENSE"),
        (WHEEL, f"{INFO}/licenses/THIRD-PARTY-LICENSES"),
        (WHEEL, f"{INFO}/sboms/openmrc.cdx.json"),
        (SDIST, "crates/python/openmrc.cdx.json"),
        (SDIST, "crates/capi/include/mrc.h"),
        (SDIST, "python/openmrc/py.typed"),
        (SDIST, "Cargo.lock"),
    ],
)
def test_a_file_that_is_missing_is_found(files, tmp_path, kind, name):
    del files[kind][name]
    assert found(tmp_path, files) == [f"{kind}: {name} is missing"]


@pytest.mark.parametrize("kind", [WHEEL, SDIST])
def test_a_file_that_does_not_belong_there_is_found(files, tmp_path, kind):
    files[kind]["openmrc/own.key"] = "secret"
    (problem,) = found(tmp_path, files)
    assert problem.startswith(f"{kind}: openmrc/own.key is n")


def test_a_wheel_of_another_name_and_one_that_is_missing_are_found(files, tmp_path):
    other = WHEEL.replace("manylinux_2_28", "linux")
    assert found(tmp_path, {other: files[WHEEL], SDIST: files[SDIST]}) == [
        f"{WHEEL} is missing",
        f"{other} is no file of a release of x86_64",
    ]


@pytest.mark.parametrize(
    ("licence", "free"),
    [
        ("MIT/Apache-2.0", True),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("MIT OR Apache-2.0 OR LGPL-2.1-or-later", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("(MIT OR Apache-2.0) AND LGPL-2.1-only", False),
        ("", False),
    ],
)
def test_of_licences_that_one_may_choose_one_is_enough(licence, free, files, tmp_path, monkeypatch):
    assert release.free(licence) is free
    monkeypatch.setattr(linked, "linked", lambda: [linked.Crate("some", "1.0", licence, ROOT)])
    assert any("some 1.0" in problem for problem in found(tmp_path, files)) is not free


def test_all_crates_in_the_libraries_have_such_a_licence():
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    crates = linked.linked()
    assert len(crates) > 40
    assert [crate for crate in crates if not release.free(crate.licence)] == []
    assert linked.TEXTS.read_text() == linked.texts(crates)
    assert linked.MATERIALS.read_text() == linked.materials(crates)


def test_the_bill_of_materials_names_every_crate_of_both_libraries():
    found = json.loads(linked.MATERIALS.read_text())
    references = [each["bom-ref"] for each in found["components"]]
    assert len(set(references)) == len(references) > 40
    assert {each["name"] for each in found["components"]} > {"libc", "pyo3", "toml", "parking_lot"}
    assert all(re.fullmatch("[0-9a-f]{64}", each["hashes"][0]["content"]) for each in found["components"])
    assert found["dependencies"][0]["dependsOn"] == references
    assert str(ROOT) not in linked.MATERIALS.read_text()
