"""The examples in the help of every command, and the manual pages made from the same texts."""

import re
import shlex
import shutil
import subprocess

import pytest

from openmrc.cli import _manual, _options
from openmrc.cli._examples import EXAMPLES
from tests.helpers.commands import run, unknown_words

COMMANDS = dict(_options.commands())
NEED_MORE = {
    *("train-demo", "put", "serve", "run", "decode", "reproduce", "tune", "demo", "sweep", "locate"),
    *("controller", "agent", "fabric", "validate", "replay"),
}
"""Commands whose examples need a peer, a file or torch, or take long; pages that are followed have some."""
ALONE = [
    line
    for name, lines in EXAMPLES.items()
    for line in lines
    if line.startswith("openmrc ")
    and name.split()[0] not in NEED_MORE
    and "server" not in line
    and "--follow" not in line
]


def test_every_command_has_examples_with_options_that_it_has():
    assert set(EXAMPLES) == set(COMMANDS)
    for name, lines in EXAMPLES.items():
        for line in lines:
            for called in re.findall(r"openmrc ([^)]*)", line):
                assert unknown_words(shlex.split(called)) == []
            assert f"openmrc {name}" in line


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Where the files are that the examples name."""
    where = tmp_path_factory.mktemp("examples")
    for example in ("lab", "planned-fabric", "llama3-405b"):
        assert run("example", example, cwd=where).returncode == 0
    assert run("config", "lab.yaml", "--platform", "frr", "--out", "verified", cwd=where).returncode == 0
    step = ("--model", "llama3-8b", "--gpus", 2, "--dp", 2, "--out", "step.jsonl")
    assert run("workload", "generate", *step, cwd=where).returncode == 0
    return where


@pytest.mark.parametrize("line", ALONE)
def test_examples_run(line, directory):
    if "--report" in line:
        pytest.importorskip("pyarrow")
        pytest.importorskip("matplotlib")
    words = shlex.split(line.replace("verify configs", "verify verified"))[1:]
    done = run(*words, cwd=directory, timeout=200)
    assert done.returncode == 0, done.stderr


def test_the_help_ends_with_the_examples():
    for name in ("path", "lab fail"):
        shown = run(*name.split(), "--help").stdout
        assert shown.index("Example") > shown.index("--help")
        assert all(line in shown for line in EXAMPLES[name])


def test_there_is_a_manual_page_for_every_command_with_all_of_its_options(tmp_path):
    assert _manual.write(tmp_path) == len(COMMANDS) + 1
    for name in COMMANDS:
        page = (tmp_path / f"openmrc-{name.replace(' ', '-')}.1").read_text().replace("\\-", "-")
        for option in _options.options():
            assert option.command != name or f".B {', '.join(option.names)}" in page
    overview = (tmp_path / "openmrc.1").read_text().replace("\\-", "-")
    assert all(f"openmrc-{name.replace(' ', '-')}(1)" in overview for name in COMMANDS)


def test_groff_has_no_remark_about_a_manual_page(tmp_path):
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    _manual.write(tmp_path)
    pages = sorted(tmp_path.iterdir())
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou", *pages], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "SYNOPSIS" in done.stdout
