"""Planner, decoder and simulator need nothing from Python that only Linux has.

What macOS and Windows lack is taken away in a process of its own. The compiled module is still that of Linux.
"""

import subprocess
import sys

import pytest

from tests.helpers.repository import ROOT

WITHOUT = """
import importlib.abc, os, select, socket, sys
GONE = {"fcntl", "termios", "pwd", "grp", "resource", "pty", "tty", "syslog"}
class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
for name in GONE:
    sys.modules.pop(name, None)
for module, names in {
    socket: "AF_UNIX AF_PACKET SO_REUSEPORT SCM_RIGHTS CMSG_SPACE",
    select: "epoll",
    os: "O_CLOEXEC O_NONBLOCK O_NOCTTY O_DIRECTORY O_NOFOLLOW geteuid getuid fork memfd_create eventfd setns"
        " sched_getaffinity sched_setaffinity chown fchown posix_fallocate fdatasync",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
from openmrc.cli import main
sys.exit(main(sys.argv[1:]))
"""
LAB = ROOT / "examples/fabrics/lab.yaml"
PACKET = "6000000000080640" + "00" * 15 + "01" + "00" * 15 + "02" + "00" * 8


def without(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=cwd,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", LAB, "--csv"), "T0-T1 links"),
        (("path", "h0", "h15", "--fabric", LAB), "16 paths from h0 to h15"),
        (("config", LAB, "--platform", "sonic", "--out", "out"), "32 switches written"),
        (("simulate", ROOT / "examples/scenarios/planes-fail.yaml"), "64 of 64"),
        (("job", "--gpus", "1024", "--days", "1", "--seeds", "1"), "1,024 GPUs"),
        (("decode", "--hex", PACKET), "IP protocol 6 is not UDP"),
        (("example", "month"), "month.yaml"),
    ],
)
def test_a_command_needs_nothing_of_linux(arguments, says, tmp_path):
    done = without(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr[-2000:]
    assert says in done.stdout


def test_what_is_taken_away_is_missed_where_it_is_needed(tmp_path):
    done = without("write-bw", "--loopback", "-n", 1, cwd=tmp_path)
    assert done.returncode != 0
    assert "No module named" in done.stderr or "has no attribute" in done.stderr
