"""The commands that make a lab: iproute2, which also configures the switches."""

import ctypes
import errno
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from openmrc.errors import DeviceError, PrivilegeError, UnsupportedError

NAMESPACES = Path("/run/netns")
"""Where iproute2 keeps named network namespaces."""

_CLONE_NEWNET = 0x40000000
_FAILED_LINE = re.compile(r"Command failed -:(\d+)")
_MEMORY_TRIES, _MEMORY_PAUSE_S = 100, 0.01
_GRACE_S = 2.0
"""Seconds between SIGTERM and SIGKILL for processes in a lab that is taken down."""


def require_root() -> None:
    """Checks for the privileges and tools that namespaces need.

    Raises:
        PrivilegeError: if not root.
        UnsupportedError: if a tool is missing.
    """
    if os.geteuid() != 0:
        raise PrivilegeError(f"a lab creates network namespaces, which needs root: {_as_root()}")
    for tool in ("ip", "tc", "sysctl"):
        if shutil.which(tool) is None:
            raise UnsupportedError(f"{tool} is not installed; a lab needs iproute2 6.1 and procps")


def _as_root() -> str:
    """The line that runs this program as root. The path of sudo leads into no virtual environment."""
    program = Path(sys.argv[0])
    if program.name == "openmrc":
        started = [str(program.absolute())]
    elif program.name == "__main__.py" and program.parent.name == "openmrc":
        started = [sys.executable, "-m", "openmrc"]
    else:
        started = [sys.executable, str(program)]
    return shlex.join(["sudo", *started, *sys.argv[1:]])


def run(arguments: Sequence[str], text: str | None = None) -> str:
    """Runs a command with ``text`` as its input and returns its output.

    Raises:
        DeviceError: with the first lines of its error output.
    """
    result = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)
    if result.returncode:
        complaint = (result.stderr or result.stdout).strip().splitlines() or [
            f"exit code {result.returncode}"
        ]
        raise DeviceError(f"{' '.join(arguments[:6])}: {'; '.join(complaint[:2])}")
    return result.stdout


def ip(lines: Iterable[str], namespace: str | None = None) -> None:
    """Runs ``ip -6`` commands as one batch, up to the first that fails.

    SRv6 routes take memory per processor. The kernel allocates it in the background, which a batch can
    outrun; then the batch continues a moment later.

    Raises:
        DeviceError: with the error output of ``ip``.
    """
    commands = [*_tool("ip", namespace), "-6", "-batch", "-"]
    rest, patience = list(lines), _MEMORY_TRIES
    while rest:
        try:
            run(commands, "\n".join(rest) + "\n")
            return
        except DeviceError as error:
            failed = _FAILED_LINE.search(str(error))
            if os.strerror(errno.ENOMEM) not in str(error) or failed is None or not patience:
                raise
            done = int(failed[1]) - 1
            rest, patience = rest[done:], _MEMORY_TRIES if done else patience - 1
            time.sleep(_MEMORY_PAUSE_S)


def tc(lines: Iterable[str], namespace: str) -> None:
    """Runs ``tc`` commands as one batch."""
    text = "\n".join(lines)
    if text.strip():
        run([*_tool("tc", namespace), "-batch", "-"], text + "\n")


def sysctl(text: str, namespace: str) -> None:
    """Applies a sysctl.conf in a namespace."""
    run([*inside(namespace), "sysctl", "-q", "-p", "-"], text)


def inside(namespace: str) -> list[str]:
    """The prefix of a command that runs in a namespace."""
    return ["ip", "netns", "exec", namespace]


def _tool(tool: str, namespace: str | None) -> list[str]:
    return [tool] if namespace is None else [tool, "-n", namespace]


def last_line(file: Path) -> str:
    """The last line of what a process has printed."""
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed no reason"


class PreparedTool:
    """A tool of iproute2 that has started in a namespace and waits for its commands.

    Starting a process takes milliseconds. With a started one, a fault has an exact time.
    """

    def __init__(self, tool: str, namespace: str, lines: Sequence[str]) -> None:
        family = ["-6"] if tool == "ip" else []
        self._text = "".join(f"{line}\n" for line in lines)
        self._process = subprocess.Popen(
            [*_tool(tool, namespace), *family, "-batch", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def go(self) -> None:
        """Sends the commands."""
        assert self._process.stdin is not None
        self._process.stdin.write(self._text)
        self._process.stdin.flush()

    def finish(self) -> None:
        """Waits until the commands are done; without :meth:`go`, none is run.

        Raises:
            DeviceError: with the error output of the tool.
        """
        complaint = self._process.communicate()[1].strip()
        if self._process.returncode:
            raise DeviceError(f"{self._text.splitlines()[0]}: {'; '.join(complaint.splitlines()[:2])}")


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """Moves the calling thread into a namespace in this block; sockets opened in it stay there.

    Raises:
        DeviceError: if there is no such namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path: str) -> None:
        with Path(path).open("rb") as file:
            if libc.setns(file.fileno(), _CLONE_NEWNET):
                raise DeviceError(ctypes.get_errno(), f"cannot enter {path}")

    # The file of the thread, not of the process: another thread may be in another namespace.
    own = f"/proc/self/task/{threading.get_native_id()}/ns/net"
    with Path(own).open("rb") as home:
        enter(str(NAMESPACES / namespace))
        try:
            yield
        finally:
            libc.setns(home.fileno(), _CLONE_NEWNET)


def existing(namespaces: Iterable[str]) -> list[str]:
    """The namespaces that exist."""
    return [name for name in namespaces if (NAMESPACES / name).exists()]


def remove(namespaces: Iterable[str]) -> None:
    """Ends every process in the namespaces and deletes them; ignores those that do not exist."""
    names = existing(namespaces)
    _end_processes(names)
    ip(f"netns delete {name}" for name in names)


def _end_processes(namespaces: Sequence[str]) -> None:
    inodes = {(NAMESPACES / name).stat().st_ino for name in namespaces}
    deadline = time.monotonic() + _GRACE_S
    signalled: set[int] = set()
    while pids := _processes(inodes):
        late = time.monotonic() > deadline
        for pid in pids:
            if late or pid not in signalled:
                _send_signal(pid, signal.SIGKILL if late else signal.SIGTERM)
                signalled.add(pid)
        time.sleep(0.02)


def _processes(inodes: set[int]) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if (entry / "ns/net").stat().st_ino in inodes:
                    pids.append(int(entry.name))
            except OSError:
                continue  # It has ended, or is a zombie without namespaces.
    return pids


def _send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
