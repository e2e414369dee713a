"""Who has the lease of a fabric: a controller by host and process, so that one knows whether it has gone."""

import os
import socket
import uuid
from pathlib import Path
from typing import NamedTuple

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Holder(NamedTuple):
    """A controller that has, or wants, the lease. As text it has at most 128 characters."""

    host: str
    boot: str
    """Of the host, drawn by its kernel."""
    processes: str
    """Namespace in which :attr:`pid` is a number."""
    pid: int
    started: str
    """When the process started, in ticks since the boot: numbers are used again."""
    serial: str
    """Tells controllers of one process apart."""

    def __str__(self) -> str:
        return ":".join(map(str, self))


def own() -> Holder:
    """A controller of this process."""
    pid = os.getpid()
    return Holder(socket.gethostname()[:48], _boot(), _namespace(), pid, _started(pid), uuid.uuid4().hex[:12])


def parsed(text: str) -> Holder | None:
    """The holder that this text stands for; ``None``: none that this version has written."""
    try:
        host, boot, processes, pid, started, serial = text.split(":")
        return Holder(host, boot, processes, int(pid), started, serial)
    except ValueError:
        return None


def shown(text: str) -> str:
    """The holder that this text stands for, for people."""
    holder = parsed(text)
    return text if holder is None else f"process {holder.pid} of {holder.host}"


def has_gone(holder: Holder) -> bool:
    """Whether it is known that this controller does not run any more: it was on this host, and has ended."""
    if holder.host != socket.gethostname()[:48] or not (holder.boot and holder.started):
        return False
    if (holder.boot, holder.processes) != (_boot(), _namespace()):
        return False  # Another host of this name, or a container: nothing is known.
    return _started(holder.pid) != holder.started


def _boot() -> str:
    try:
        return _BOOT.read_text().strip().replace("-", "")[:16]
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started; empty: there is none, or it has ended and its parent has not noticed."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]
