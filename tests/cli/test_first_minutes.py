"""What a new user meets: privileges, pictures that cannot be drawn, the first line of a demo, interrupts."""

import os
import subprocess
import sys

import pytest

from openmrc import pictures
from openmrc.cli import _demo, main
from openmrc.demos.loopback.run import Progress
from openmrc.demos.loopback.screen import Screen
from openmrc.lab import system
from tests.helpers.repository import ROOT

LAB = ROOT / "examples" / "fabrics" / "lab.yaml"


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("/venv/bin/openmrc", "sudo /venv/bin/openmrc lab up 'my lab.yaml'"),
        ("/lib/openmrc/__main__.py", f"sudo {sys.executable} -m openmrc lab up 'my lab.yaml'"),
        ("own.py", f"sudo {sys.executable} own.py lab up 'my lab.yaml'"),
    ],
)
def test_who_is_not_root_is_given_the_line_that_works_in_a_virtual_environment(program, line, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program, "lab", "up", "my lab.yaml"])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermissionError) as refused:
        system.require_root()
    assert str(refused.value) == f"a lab creates network namespaces, which needs root: {line}"


def test_a_picture_that_cannot_be_drawn_is_missed_before_the_run(monkeypatch, capsys):
    def draw(_path):
        raise AssertionError

    assert _demo.drawer(draw, wanted=False) is None
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(pictures, "matplotlib", None)
    assert _demo.drawer(draw, wanted=True) is None
    assert capsys.readouterr().err.startswith("note: no picture: matplotlib is not installed (pip install")


def test_the_first_line_of_a_demo_has_a_second_behind_it():
    class Console:
        is_terminal = False

        def print(self, line, **_):
            lines.append(line)

    lines = []
    screen = Screen(Console())
    for tenth in range(0, 31, 2):
        screen.progress(Progress(tenth / 10, 0, 0, 0.0 if tenth == 0 else 8.0, [1.0] * 8, [(0, 1)] * 8, []))
    assert [line.split(" s")[0].strip() for line in lines] == ["1.0", "2.0", "3.0"]
    assert all("  8.0 Gb/s" in line for line in lines)


def test_an_interrupted_config_leaves_nothing_that_refuses_the_next_one(tmp_path, monkeypatch, capsys):
    out = tmp_path / "configuration"
    arguments = ["config", str(LAB), "--platform", "linux", "--out", str(out)]
    write, written = os.open, []

    def interrupt(path, *rest, **options):
        written.append(path)
        if len(written) == 20:
            raise KeyboardInterrupt
        return write(path, *rest, **options)

    monkeypatch.setattr(os, "open", interrupt)
    assert main(arguments) == 130
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "open", write)
    assert main(arguments) == 0
    assert (out / "p0" / "t0-0" / "setup.sh").stat().st_size > 100


def test_the_module_is_the_program():
    done = subprocess.run(
        [sys.executable, "-m", "openmrc", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("openmrc ")
