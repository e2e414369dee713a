"""Completion in shells: options, their values, and names of a lab."""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from openmrc.cli import _options
from tests.helpers.commands import OPENMRC
from tests.helpers.labs import needs_root, running


def completed(shell, line):
    """What is offered at the end of a line."""
    words = line.split(" ")
    environment = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    result = subprocess.run(
        OPENMRC,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment, "_OPENMRC_COMPLETE": f"complete_{shell}"},
    )
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("openmrc wri", ["write-bw", "write-lat"]),
        ("openmrc lab sh", ["shell"]),
        ("openmrc write-bw --inter", ["--interval"]),
        ("openmrc put a b --if-exists ", ["refuse", "replace", "update"]),
        ("openmrc config f.yaml --platform s", ["sonic"]),
        ("openmrc lab demo --nic ", ["srv6", "udp"]),
        ("openmrc put --impair de", ["delay="]),
        ("openmrc put --impair delay=1%,st", ["delay=1%,start="]),
        ("openmrc reproduce --only P", ["P1", "P4"]),
        ("openmrc example plan", ["planes-fail", "planned-fabric"]),
        ("openmrc bench-collective all_", ["all_reduce", "all_gather"]),
        ("openmrc bench-collective all_reduce --algorithm h", ["halving"]),
        ("openmrc bench-collective all_reduce --op m", ["min", "max"]),
    ],
)
def test_options_and_their_values_are_offered(line, offered):
    found = completed("bash", line)
    for word in offered:
        assert word in found


CHOICES = [option for option in _options.options() if re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", option.value)]


@pytest.mark.parametrize("option", CHOICES, ids=lambda option: f"{option.command} {option.name}")
def test_an_option_that_takes_one_of_some_words_offers_them(option):
    found = completed("bash", f"openmrc {option.command} {option.name} ").split()
    assert found == option.value.split("|")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(shell):
    assert "--interval" in completed(shell, "openmrc write-bw --inter")
    assert "sonic" in completed(shell, "openmrc config f.yaml --platform s")


def test_interfaces_are_offered_one_after_the_other():
    first = socket.if_nameindex()[0][1]
    assert first in completed("bash", "openmrc write-bw --addresses ").split()
    assert f"{first},{first}" not in completed("bash", f"openmrc write-bw --addresses {first},").split()


@pytest.mark.parametrize(
    "line",
    [
        "openmrc lab exec ",
        "openmrc lab fail p",
        "openmrc lab soft --lab nowhere ",
        "openmrc write-bw h",
        "openmrc path h",
    ],
)
def test_without_a_lab_nothing_is_offered_and_nothing_fails(line, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMRC_LAB_STATE", str(tmp_path))
    assert completed("bash", line) == "\n"


@needs_root
def test_names_of_a_lab_are_offered(tmp_path):
    with running(tmp_path, "complete", hosts=8, planes=2) as lab:
        at = f"--lab {lab.name} "
        assert lab.name in completed("bash", "openmrc lab status --lab ").split()
        assert completed("bash", f"openmrc lab exec {at}h").split() == [f"h{n}" for n in range(8)]
        assert "p1/t0-1" in completed("bash", f"openmrc lab shell {at}p1/").split()
        assert "p0/t0-0:up1" in completed("bash", f"openmrc lab fail {at}p0/t0-0").split()
        assert completed("bash", f"openmrc lab soft {at}h") == "\n"
        inside = lab.command("h0", [*OPENMRC])
        environment = {
            "_OPENMRC_COMPLETE": "complete_bash",
            "COMP_WORDS": "openmrc write-bw h",
            "COMP_CWORD": "2",
        }
        result = subprocess.run(
            inside, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
        )
        assert result.stdout.split() == [f"h{n}" for n in range(8)]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_script_for_bash_completes_in_bash(tmp_path):
    program = tmp_path / "openmrc"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom openmrc.cli import main\nsys.exit(main())\n")
    program.chmod(0o755)
    code = (
        'eval "$(_OPENMRC_COMPLETE=source_bash openmrc)"\n'
        "COMP_WORDS=(openmrc config f.yaml --platform cu); COMP_CWORD=4\n"
        '_openmrc_completion openmrc; echo "${COMPREPLY[@]}"; complete -p openmrc\n'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert result.stdout.splitlines()[0] == "cumulus"
    assert "-F _openmrc_completion openmrc" in result.stdout
