"""The Containerfile: what is sent, what stays behind, who runs the program. `make image` builds it."""

import fnmatch
import re
import shutil
import subprocess

import pytest

from tests.helpers.repository import ROOT

LINES = re.sub(r"\\\n\s*", " ", (ROOT / "Containerfile").read_text()).splitlines()
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES if line and not line.startswith("#")]
STAGES: list[list[tuple[str, str]]] = []
for name, rest in INSTRUCTIONS:
    if name == "FROM":
        STAGES.append([])
    if STAGES:
        STAGES[-1].append((name, rest))
PATTERNS = [
    line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
]


def sent(file: str) -> bool:
    """Whether a file is part of what the image is built from: the last pattern that fits decides."""
    found = True
    parts = file.split("/")
    for pattern in PATTERNS:
        bare = pattern.removeprefix("!").removeprefix("**/")
        starts = range(len(parts)) if "**/" in pattern else range(1)
        if any(
            fnmatch.fnmatchcase("/".join(parts[start : start + bare.count("/") + 1]), bare)
            for start in starts
        ):
            found = pattern.startswith("!")
    return found


def test_the_program_runs_as_a_user_of_its_own_in_a_directory_of_that_user():
    last = dict(STAGES[-1])
    commands = " ".join(rest for name, rest in STAGES[-1] if name == "RUN")
    user = last["USER"]
    assert user != "root"
    assert re.search(rf"useradd [^&]*--uid [1-9]\d+ {user} ", commands)
    assert f"install --directory --owner {user} {last['WORKDIR']} " in f"{commands} "
    assert last["ENTRYPOINT"] == '["openmrc"]'


def test_compiler_and_sources_stay_behind():
    copied = [rest for name, rest in STAGES[-1] if name in ("COPY", "ADD")]
    assert copied == ["--from=wheels /dist /tmp/dist"]
    assert any("rm -rf /tmp/dist" in rest for name, rest in STAGES[-1] if name == "RUN")


def test_what_the_wheel_is_built_from_is_sent_and_nothing_else():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and the repository")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    roots = ("Cargo.toml", "Cargo.lock", "LICENSE", "README.md", "pyproject.toml")
    for file in done.stdout.splitlines():
        assert sent(file) == (file.startswith(("crates/", "python/")) or file in roots), file
    for file in (
        "target/x",
        ".git/config",
        ".venv/bin/python",
        "dist/openmrc.whl",
        "python/openmrc/lib/x.so",
    ):
        assert not sent(file), file
    assert not sent("python/openmrc/sim/__pycache__/run.cpython-311.pyc")


def test_the_releases_of_its_images_are_those_that_are_needed():
    arguments = dict(rest.split("=", 1) for name, rest in INSTRUCTIONS if name == "ARG")
    # Debian 12 has Python 3.11; the wheel that the first image builds needs its glibc in the last one.
    assert re.fullmatch(r"docker\.io/library/rust:\S*bookworm", arguments["RUST"])
    assert re.fullmatch(r"docker\.io/library/debian:bookworm\S*", arguments["DEBIAN"])
    assert 'requires-python = ">=3.11"' in (ROOT / "pyproject.toml").read_text()
