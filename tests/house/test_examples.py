"""The examples do what they say."""

import subprocess
import sys

from tests.helpers.repository import ROOT


def run(name):
    return subprocess.run(
        [sys.executable, ROOT / "examples" / name], capture_output=True, text=True, timeout=60, check=False
    )


def test_hello_says_hello():
    result = run("hello_mrc.py")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "SUCCESS 2026 hello over eight planes\n"


def test_hello_does_not_mind_another_one():
    command = [sys.executable, ROOT / "examples" / "hello_mrc.py"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [each.communicate(timeout=60)[0].split()[0] for each in started] == ["SUCCESS"] * 3


def test_classes_of_ones_own_deliver_every_message():
    result = run("own_classes.py")
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split(",")[0].split("  ")[-1].strip()[-8:] for line in result.stdout.splitlines()] == [
        "35 of 35"
    ] * 4
