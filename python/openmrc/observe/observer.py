"""Reads what processes of this user publish about their devices."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openmrc.closing import Closable
from openmrc.errors import DeviceError
from openmrc.observe.publication import directory
from openmrc.observe.schema import DevicePaths, DeviceState, Event

PATIENCE_S = 2.0
"""For an answer: the process may be stopped."""
_MOST_ANSWER = 4 << 20
_EVS_IN_A_REQUEST = 64


class Observer(Closable):
    """A connection to a published device."""

    def __init__(self, path: Path, *, patience_s: float = PATIENCE_S) -> None:
        """Connects.

        Args:
            path: Its socket, as from :func:`devices`.
            patience_s: For an answer, seconds.

        Raises:
            OSError: if nobody publishes there any more.
        """
        self.path = path
        self._patience_s = patience_s
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._received = b""
        try:
            self._connection.settimeout(patience_s)
            self._connection.connect(os.fspath(path))
        except BaseException:
            self._connection.close()
            raise

    def state(self) -> DeviceState:
        """Counters and ports now. Not after :meth:`follow`.

        Raises:
            DeviceError: if the process does not answer, or the device has been closed.
        """
        return DeviceState(**self._ask("state")["state"])

    def paths(self) -> DevicePaths:
        """What its queue pairs believe of their paths, now. Not after :meth:`follow`.

        Raises:
            DeviceError: if the process does not answer, or the device has been closed.
        """
        return DevicePaths.of(self._ask("paths")["paths"])

    def deny(self, qp_num: int, port: int, evs: Sequence[int], *, denied: bool = True) -> int:
        """Takes paths of a queue pair out of rotation, or back. Not after :meth:`follow`.

        A queue pair that is connected later has them again.

        Args:
            qp_num: The queue pair.
            port: Of the paths.
            evs: Their entropy values.
            denied: Whether they must not be used.

        Returns:
            How many of them the queue pair has.

        Raises:
            DeviceError: if the process does not answer, or the device has been closed.
        """
        word, answer, done = ("deny", "denied", 0) if denied else ("allow", "allowed", 0)
        for first in range(0, len(evs), _EVS_IN_A_REQUEST):
            part = " ".join(map(str, evs[first : first + _EVS_IN_A_REQUEST]))
            done += self._ask(f"{word} {qp_num} {port} {part}")[answer]
        return done

    def probe(self, most: int) -> int:
        """Has the device send EV probes on its queue pairs' paths, all in turn; :meth:`paths` tells of them.

        Only the paths that :meth:`paths` has told last are probed. Not after :meth:`follow`.

        Args:
            most: Paths that are probed now, at least 1.

        Returns:
            How many are; 0 while the last ones still are.

        Raises:
            DeviceError: if the process does not answer, does not know of probes, or the device has been
                closed.
        """
        probing: int = self._ask(f"probe {most}")["probing"]
        return probing

    def follow(self, timeout_s: float | None = None) -> Iterator[Event]:
        """Yields every event from now on, until the device is closed or none has come for ``timeout_s``."""
        self._ask("follow")
        self._connection.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while (line := self._line()) is not None:
                yield Event(**line["event"])

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _ask(self, request: str) -> dict[str, Any]:
        self._connection.settimeout(self._patience_s)
        try:
            self._connection.sendall(request.encode() + b"\n")
            answer = self._line()
        except OSError as error:
            raise DeviceError(f"{self.path}: no answer ({error})") from None
        if answer is None or "error" in answer:
            raise DeviceError(f"{self.path}: {answer['error'] if answer else 'the device has been closed'}")
        return answer

    def _line(self) -> dict[str, Any] | None:
        while b"\n" not in self._received:
            received = self._connection.recv(1 << 16)
            if not received or len(self._received) > _MOST_ANSWER:
                return None
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def devices() -> list[Path]:
    """The sockets of this user's published devices, oldest process first; removes what killed ones left."""
    with contextlib.suppress(FileNotFoundError):
        found = [path for path in directory().iterdir() if path.suffix == ".sock"]
        return sorted(filter(_lives, found), key=lambda path: [int(n) for n in path.stem.split("-")])
    return []


def _lives(path: Path) -> bool:
    pid, _, serial = path.stem.partition("-")
    if not (pid.isdecimal() and serial.isdecimal()):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        with contextlib.suppress(OSError):
            path.unlink()
        return False
    except PermissionError:
        pass
    return True
