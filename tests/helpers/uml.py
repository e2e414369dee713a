"""A Linux kernel with the queueing disciplines of qos.sh, as a process: user-mode Linux.

Debian's package is user-mode-linux. It sees this machine's files: it runs this machine's ``tc`` and
writes what it finds into a file.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = Path("/usr/lib/uml/modules")
LOADED = ("net/sched/sch_prio", "net/sched/sch_red", "net/sched/cls_flower", "drivers/net/dummy")

_INIT = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None)
for kind, place in (("proc", "/proc"), ("sysfs", "/sys")):
    libc.mount(kind.encode(), place.encode(), kind.encode(), 0, None)
os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
for path in {modules!r}:
    libc.syscall(313, os.open(path, os.O_RDONLY), b"", 0)  # finit_module
with open({log!r}, "w") as log:
    subprocess.run([{python!r}, {program!r}], stdout=log, stderr=log)
libc.reboot(0x4321FEDC)
"""


def missing():
    """The reason why there is no such kernel here; ``None`` if there is."""
    if shutil.which("linux.uml") is None:
        return "no user-mode Linux here (Debian: user-mode-linux)"
    return None


def run(program, directory):
    """Runs a Python program as the only one under that kernel; its output, which must be JSON."""
    (tree,) = MODULES.glob("*/kernel")
    init, source, log = directory / "init.py", directory / "program.py", directory / "log"
    source.write_text(program)
    words = {
        "modules": [str(tree / f"{name}.ko") for name in LOADED],
        "python": sys.executable,
        "program": str(source),
        "log": str(log),
    }
    init.write_text(_INIT.format(**words))
    kernel = ["linux.uml", "rootfstype=hostfs", "rootflags=/", "rw", "mem=256M", "quiet", "con=null"]
    console = [f"uml_dir={directory}", "con0=fd:0,fd:1", f"init={sys.executable}", "--", str(init)]
    shown = subprocess.run(
        [*kernel, *console], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    if not log.exists():
        # A sandbox may forbid what the kernel needs to start: ptrace, or memory that may be executed.
        pytest.skip(f"user-mode Linux does not start here: {(shown.stdout + shown.stderr).strip()[-200:]}")
    text = log.read_text()
    try:
        return json.loads(text)
    except ValueError:
        raise AssertionError(text) from None
