"""The repository is what docs/architecture.md and architecture-sim.md say: crates, files, names, imports."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.import_graph import Crate, Graph, Module, Package, circles
from tests.helpers.repository import ROOT

PAGES = [ROOT / "docs" / name for name in ("architecture.md", "architecture-sim.md")]
CRATES = sorted(path.parent.name for path in ROOT.glob("crates/*/Cargo.toml"))


def without_reason(graph: Graph, files: dict[Module, Path]) -> list[str]:
    """The circles of which no file says why: in a comment with the words "import circle"."""
    return [
        " -> ".join("/".join(module) or "lib" for module in circle)
        for circle in circles(graph)
        if not any("import circle" in files[module].read_text().lower() for module in circle)
    ]


@pytest.mark.parametrize("name", CRATES)
def test_files_of_a_crate_import_each_other_in_circles_only_where_a_comment_says_why(name: str) -> None:
    crate = Crate(ROOT / "crates" / name / "src")
    assert without_reason(crate.graph(), crate.files) == []


def test_files_of_the_package_import_each_other_in_circles_only_where_a_comment_says_why() -> None:
    package = Package(ROOT / "python" / "openmrc")
    assert without_reason(package.graph(), package.files) == []


def test_a_circle_of_imports_is_found_through_re_exports_and_functions(tmp_path: Path) -> None:
    crate, package = tmp_path / "src", tmp_path / "some"
    for directory in (crate / "part", package):
        directory.mkdir(parents=True)
    (crate / "lib.rs").write_text("mod part;\nmod low;\npub use part::{self, inner::Deep};\n")
    (crate / "low.rs").write_text('// use crate::none;\npub fn low() { crate::Deep::new("use crate::x;") }\n')
    (crate / "part" / "mod.rs").write_text(
        "mod inner;\n#[cfg(test)]\nmod tests { use super::inner::Deep; }\n"
    )
    (crate / "part" / "inner.rs").write_text("use crate::low::{self as other, more};\npub struct Deep;\n")
    assert circles(Crate(crate).graph()) == [[("low",), ("part", "inner")]]

    (package / "__init__.py").write_text("from some.low import Low\n")
    (package / "low.py").write_text("def low():\n    from some.high import High\n")
    (package / "high.py").write_text("from some import Low\n")
    assert circles(Package(package).graph()) == [[("some", "high"), ("some", "low")]]


def test_an_import_for_type_checkers_makes_a_circle_as_well(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "low.py").write_text(f"if TYPE_CHECKING:\n    from {tmp_path.name}.high import High\n")
    (tmp_path / "high.py").write_text(f"from {tmp_path.name}.low import Low\n")
    assert circles(Package(tmp_path).graph()) == [[(tmp_path.name, "high"), (tmp_path.name, "low")]]


def test_the_table_of_crates_has_every_crate_with_what_it_uses() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", PAGES[0].read_text(), re.MULTILINE)
    told = {name: set(re.findall(r"`(\w+)`", uses)) for name, uses in rows if name in CRATES}
    used = {}
    for name in CRATES:
        manifest = tomllib.loads((ROOT / "crates" / name / "Cargo.toml").read_text())
        used[name] = {key[8:] for key in manifest.get("dependencies", {}) if key.startswith("openmrc-")}
    assert told == used


@cache
def sources() -> dict[str, str]:
    """The text of every source file, by its name in the repository."""
    patterns = ("crates/*/src/**/*.rs", "python/openmrc/**/*.py", "tests/**/*.py")
    files = [file for pattern in patterns for file in ROOT.glob(pattern)]
    return {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_functions_that_the_architecture_names_exist(page: Path) -> None:
    names = set(re.findall(r"`([^`\n]+)`", page.read_text()))
    paths = [name for name in names if re.fullmatch(r"[\w/]+(\.rs|\.py|/)", name)]
    functions = [name for name in names if re.fullmatch(r"[A-Z]\w+::[a-z]\w+", name)]
    assert len(paths) > 20, "the page names files"
    code = "\n".join(sources().values())
    tests = [file.relative_to(ROOT).as_posix() for file in ROOT.glob("tests/**/*.py")]
    known = [f"/{name}" for name in [*sources(), *tests]]
    missing = [path for path in paths if not any(f"/{path}" in name for name in known)]
    for name in functions:
        kind, function = name.split("::")
        if not re.search(rf"\b(struct|enum|trait) {kind}\b", code) or f"fn {function}" not in code:
            missing.append(name)
    assert missing == []


TESTS_OF_TESTS = {"house/test_planted_faults.py"}
"""Files whose subject is other tests."""


def test_no_test_imports_another_test() -> None:
    for file in ROOT.glob("tests/**/test_*.py"):
        if file.relative_to(ROOT / "tests").as_posix() not in TESTS_OF_TESTS:
            imports = re.findall(r"^\s*(?:from|import) .*\btest_\w+", file.read_text(), re.MULTILINE)
            assert imports == [], f"{file}: what tests share goes to tests/helpers"


def test_every_test_is_in_the_folder_of_its_room() -> None:
    beside = sorted(file.name for file in ROOT.glob("tests/*.py"))
    assert beside == ["__init__.py", "conftest.py"], "tests go to tests/ROOM, helpers to tests/helpers"
