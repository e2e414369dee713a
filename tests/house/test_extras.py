"""Hints to install what is missing, which work without openmrc on an index; and the Rust that is needed."""

import re
import tomllib

import pytest

from openmrc import Error
from openmrc.extras import import_optional, pip_install
from tests.helpers.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", ["plots", "sim", "dask"])
def test_a_hint_names_the_packages_and_not_openmrc(extra: str) -> None:
    command = pip_install(extra)
    assert "openmrc" not in command
    wanted = list(PROJECT["optional-dependencies"][extra])
    while any(package.startswith("openmrc[") for package in wanted):
        inner = next(package for package in wanted if package.startswith("openmrc["))
        wanted.remove(inner)
        wanted += PROJECT["optional-dependencies"][inner[len("openmrc[") : -1]]
    named = re.findall(r"'([^']*)'", command)
    assert sorted(named) == sorted(package.replace(" ", "") for package in wanted)


def test_what_is_missing_is_told_with_the_command() -> None:
    with pytest.raises(Error, match=r"^a sweep needs no_such_module: pip install 'matplotlib>=3"):
        import_optional("no_such_module.part", "a sweep", "openmrc[sim]")


def test_no_hint_in_the_package_asks_an_index_for_openmrc() -> None:
    for file in (ROOT / "python" / "openmrc").rglob("*.py"):
        if file.name != "extras.py":
            assert "pip install 'openmrc" not in file.read_text(), file


def test_the_readme_says_which_rust_is_needed() -> None:
    least = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
    assert f"Rust {least} or later" in (ROOT / "README.md").read_text()
