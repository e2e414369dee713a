"""What a new user meets: privileges, pictures that cannot be drawn, the first line of a demo, interrupts."""

import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import openmrc
from openmrc import pictures
from openmrc.cli import _demo, _examples, _manual, main
from openmrc.demos.loopback.run import Progress
from openmrc.demos.loopback.screen import Screen
from openmrc.lab import system
from tests.helpers.commands import command, run
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


WORKS = 'sudo "$(command -v openmrc)"'
SHOW_SUDO = [
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "sudo openmrc" in page.read_text() and page.name not in ("cli.md", "changelog.md")
]


@pytest.mark.parametrize("page", SHOW_SUDO, ids=lambda page: page.stem)
def test_a_page_with_sudo_shows_the_line_that_works_in_a_virtual_environment(page):
    assert WORKS in page.read_text()


def test_help_with_sudo_shows_the_line_that_works_in_a_virtual_environment():
    assert len(SHOW_SUDO) > 3
    assert WORKS in " ".join(run("lab", "up", "--help").stdout.split())
    pages = dict(_manual.pages())
    for name, lines in _examples.EXAMPLES.items():
        page = pages[f"openmrc-{name.replace(' ', '-')}.1"].replace("\\-", "-")
        shown = {WORKS in page, WORKS in _examples.epilog(name)}
        assert shown == {any("sudo openmrc" in line for line in lines)}


def test_a_demo_leaves_the_results_of_the_one_before(tmp_path):
    for name in ("openmrc-demo", "openmrc-demo-2"):
        done = run("demo", "--size", "1MiB", "-D", 1, "--no-picture", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"numbers: {name}/demo.json" in done.stdout
    assert len({file.read_text() for file in tmp_path.glob("*/demo.json")}) == 2


def test_demos_at_the_same_time_have_directories_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with _demo.directory(None, "demo") as one, _demo.directory(None, "demo") as two:
        assert one != two
        (two / "numbers").touch()
    # The first has left nothing.
    assert [path.name for path in tmp_path.iterdir()] == [two.name]


@pytest.fixture
def as_another_user():
    """Starts Python as another user, with an interpreter that this user may run."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    package = str(Path(openmrc.__file__).parents[1])
    environment = {"PATH": os.defpath, "PYTHONPATH": package, "HOME": "/nonexistent"}
    for python in (sys.executable, "/usr/bin/python3"):
        call = partial(subprocess.run, user=65534, group=65534, extra_groups=(), env=environment)
        call = partial(call, cwd="/", capture_output=True, text=True, timeout=60)
        with suppress(OSError):
            if call([python, "-c", "import openmrc.cli.write_bw"]).returncode == 0:
                return lambda *words: call([python, "-m", "openmrc", *map(str, words)])
    return pytest.skip("no other user can run this Python")


def test_two_users_measure_at_the_same_time(as_another_user, tmp_path):
    measure = ("write-bw", "--loopback", "-D", 2, "-s", 4096)
    with command(*measure, cwd=tmp_path) as mine:
        while not mine.line().startswith(" #bytes"):
            assert mine.process.poll() is None
        theirs = as_another_user(*measure)
        assert theirs.returncode == 0, theirs.stderr
        assert mine.wait() == 0


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


def test_verify_of_a_fabric_file_says_what_writes_configurations(capsys):
    assert main(["verify", str(LAB)]) == 1
    assert capsys.readouterr().err == (
        f"error: {LAB} is not a directory; `openmrc config {LAB} --platform NAME -o DIR` writes one\n"
    )
