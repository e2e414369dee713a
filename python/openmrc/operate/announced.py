"""Processes that announce themselves at the agent's socket: those of other users, and of containers.

A process connects, says who it is, and answers then what an observer asks. It is not trusted: the kernel says
whose it is, answers are checked and limited, and processes that do not answer cost a look a fifth of a second
all together. What cannot be used ends its connection and nothing else.
"""

import contextlib
import itertools
import os
import pwd
import selectors
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from openmrc.closing import Closable
from openmrc.errors import ArgumentError, DeviceError
from openmrc.observe import DevicePaths
from openmrc.observe.announce import VERSION, credentials
from openmrc.operate.model import Count, Uint32

MOST_PROCESSES = 64
"""Connections at a time."""
MOST_OF_A_USER = 16
"""Connections of a user other than root and the agent's own."""
MOST_ANSWER = 2 << 20
"""Bytes of an answer."""
WAIT_S = 0.2
"""A look waits this long for answers, of all processes together."""
PATIENCE_S = 5.0
"""A connection without the answer that is due ends after so long."""
LATEST_S = 2.0
"""What a process has said last holds for so long."""
_ACCEPTED = 1024
"""Connections that a look accepts: strangers do not hold it up."""
_PART = 1 << 16
_EVS_IN_A_REQUEST = 64

Address = Annotated[str, Field(pattern=r"^[0-9a-fA-F:.]{2,45}$")]
Port = Annotated[int, Field(ge=0, lt=256)]


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", frozen=True)


class _Announcement(_Model):
    announce: Annotated[int, Field(ge=VERSION, le=VERSION)]
    number: Uint32
    """Of the device in its process."""


class _Pair(_Model):
    qp_num: Uint32
    remote: Annotated[list[Address], Field(max_length=256)]
    good: list[tuple[Port, Uint32]]
    bad: list[tuple[Port, Uint32, Count]]
    denied: list[tuple[Port, Uint32]]
    changes: list[tuple[Port, Uint32, Count]] = []
    probed: list[tuple[Port, Uint32, Count, Count]] = []


class _Path(_Model):
    port: Port
    ev: Uint32
    last_tx_ns: Count
    address: Address | None = None


class _Paths(_Model):
    device: Annotated[str, Field(max_length=128)]
    job: Annotated[str, Field(max_length=1 << 12)] | None
    time_ns: Count
    srv6: bool
    addresses: Annotated[list[Address], Field(max_length=256)]
    ports_up: list[Port]
    queue_pairs: list[_Pair]
    left_out: Count
    counters: list[_Path]

    def plain(self, pid: int) -> DevicePaths:
        """The same as an observer has it."""
        return DevicePaths.of(self.model_dump(exclude_none=True) | {"job": self.job, "pid": pid})


class _PortCounters(_Model):
    rx_bytes: Count


class _Stats(_Model):
    ports: Annotated[list[_PortCounters], Field(max_length=256)]


class _State(_Model):
    stats: _Stats


class _Answer(_Model):
    """One line of a process."""

    paths: _Paths | None = None
    state: _State | None = None
    denied: Count | None = None
    allowed: Count | None = None
    probing: Count | None = None
    error: Annotated[str, Field(max_length=1 << 12)] | None = None


@dataclass(slots=True)
class Process:
    """A connection of a process."""

    connection: socket.socket
    pid: int
    uid: int
    since: float
    serial: int
    """Of the connection."""
    number: int | None = None
    """Of its device; ``None``: it has not announced itself yet."""
    due: int = 0
    """Answers that it owes."""
    asked: float = 0.0
    paths: DevicePaths | None = None
    received: list[int] = field(default_factory=list)
    """Bytes by port."""
    answered: float = 0.0
    _text: bytearray = field(default_factory=bytearray)

    @property
    def socket_name(self) -> str:
        """The name of the device's own socket, if it is of the agent's user and not in a container."""
        return f"{self.pid}-{self.number}.sock"

    @property
    def key(self) -> str:
        """What tells devices apart. A process that the agent cannot see has the number 0."""
        return f"{self.socket_name} by {self.serial}"

    def ask(self, now: float, *requests: str) -> None:
        """Sends requests.

        Raises:
            OSError: if it does not read them.
        """
        text = "".join(f"{request}\n" for request in requests).encode()
        if self.connection.send(text) != len(text):
            raise BlockingIOError("it does not read")
        self.due += len(requests)
        self.asked = now

    def deny(self, pair: int, port: int, evs: Sequence[int], *, denied: bool = True) -> None:
        """Takes paths of a queue pair out of rotation, or back; it is done when the process reads it."""
        word = "deny" if denied else "allow"
        parts = [evs[first : first + _EVS_IN_A_REQUEST] for first in range(0, len(evs), _EVS_IN_A_REQUEST)]
        # A connection that takes no more ends at the next look.
        with contextlib.suppress(OSError):
            self.ask(
                time.monotonic(), *(f"{word} {pair} {port} {' '.join(map(str, part))}" for part in parts)
            )

    def probe(self, most: int) -> None:
        """Has the process send EV probes on some of its paths; later answers tell of them."""
        with contextlib.suppress(OSError):
            self.ask(time.monotonic(), f"probe {most}")

    def read(self, now: float) -> None:
        """Takes what has come.

        Raises:
            OSError: if the process has ended.
            ValueError: if it says what it must not.
        """
        part = self.connection.recv(_PART)
        if not part:
            raise ConnectionError("it has ended")
        self._text += part
        *lines, rest = self._text.split(b"\n")
        self._text = bytearray(rest)
        for line in lines:
            self._take(bytes(line), now)
        if len(self._text) > MOST_ANSWER:
            raise ValueError("an answer is too long")

    def _take(self, line: bytes, now: float) -> None:
        if self.number is None:
            self.number = _Announcement.model_validate_json(line).number
            return
        if not self.due:
            raise ValueError("nobody has asked")
        self.due -= 1
        answer = _Answer.model_validate_json(line)
        if answer.paths is not None:
            self.paths = answer.paths.plain(self.pid)
        if answer.state is not None:
            self.received = [port.rx_bytes for port in answer.state.stats.ports]
            self.answered = now


class Announced(Closable):
    """The agent's socket. Used by one thread."""

    def __init__(self, path: Path, users: Iterable[int] = ()) -> None:
        """Listens.

        Args:
            path: Of the socket.
            users: Whose processes are believed, beside root's and the agent's own.

        Raises:
            ArgumentError: if others may change the socket's directory, or another agent listens there.
            DeviceError: if it cannot listen there.
        """
        self.path = path
        self.refused: Counter[str] = Counter()
        """Connections that were not taken or were ended, by why."""
        self._users = frozenset((0, os.getuid(), *users))
        self._processes: dict[int, Process] = {}
        self._serial = itertools.count(1)
        try:
            self._listener = _listening(path)
        except OSError as error:
            raise DeviceError(f"{path}: no socket for processes to announce themselves ({error})") from None
        self._selector = selectors.DefaultSelector()

    def close(self) -> None:
        """Ends all connections and removes the socket."""
        if self._listener.fileno() < 0:
            return
        for process in list(self._processes.values()):
            self._end(process, "closed")
        self._selector.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def look(self, known: Iterable[str]) -> list[Process]:
        """Asks every process, and returns those whose answer is not older than :data:`LATEST_S`.

        Args:
            known: Names of sockets of the own user's devices that are read already.
        """
        now = time.monotonic()
        until = now + WAIT_S
        self._accept(now)
        self._read(until)
        for process in list(self._processes.values()):
            if process.number is not None and not process.due:
                with self._ending(process):
                    process.ask(time.monotonic(), "paths", "state")
        self._read(until, since=now)
        now = time.monotonic()
        for process in list(self._processes.values()):
            waited = now - process.asked if process.due else 0.0
            if process.number is None:
                waited = now - process.since
            if waited > PATIENCE_S:
                self._end(process, "silent")
        read = set(known)
        return [
            process
            for process in self._processes.values()
            if process.paths is not None
            and now - process.answered <= LATEST_S
            and not (process.uid == os.getuid() and process.socket_name in read)
        ]

    def _read(self, until: float, *, since: float | None = None) -> None:
        """Takes what has come; waits for what was asked after ``since``."""
        while (left := until - time.monotonic()) > 0:
            waits = since is not None and self._waits(since)
            if not (ready := self._selector.select(left if waits else 0)):
                return
            for key, _ in ready:
                process = self._processes[key.fd]
                stranger = process.number is None
                with self._ending(process):
                    process.read(time.monotonic())
                    if stranger and process.number is not None:
                        process.ask(time.monotonic(), "paths", "state")

    def _waits(self, since: float) -> bool:
        """Whether an answer may come soon: one that is late already is not waited for."""
        return any(
            process.asked >= since if process.due else process.number is None and process.since >= since
            for process in self._processes.values()
        )

    def _accept(self, now: float) -> None:
        for _ in range(_ACCEPTED):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # Nobody is left, or there is no descriptor: the next look takes them.
            pid, uid = credentials(connection)
            of_user = sum(process.uid == uid for process in self._processes.values())
            crowded = len(self._processes) >= MOST_PROCESSES or (
                uid not in (0, os.getuid()) and of_user >= MOST_OF_A_USER
            )
            if uid not in self._users or crowded:
                self.refused["crowded" if uid in self._users else "stranger"] += 1
                connection.close()
                continue
            connection.setblocking(False)
            self._processes[connection.fileno()] = Process(connection, pid, uid, now, next(self._serial))
            self._selector.register(connection, selectors.EVENT_READ)

    @contextlib.contextmanager
    def _ending(self, process: Process) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            self._end(process, "silent")
        except OSError:
            self._end(process, "ended")
        except ValueError:
            self._end(process, "malformed")

    def _end(self, process: Process, why: str) -> None:
        if self._processes.pop(process.connection.fileno(), None) is not None:
            self.refused[why] += 1
            self._selector.unregister(process.connection)
            process.connection.close()


def _listening(path: Path) -> socket.socket:
    """A socket that every user may connect to, in a directory that only the own user may change."""
    path.parent.mkdir(0o755, parents=True, exist_ok=True)
    found = path.parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ArgumentError(
            f"{path.parent}: the agent's socket is in a directory that belongs to the agent's user"
            " and that only it may write to"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
        probe.connect(os.fspath(path))
        raise ArgumentError(f"{path}: another agent listens there")
    if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
        raise ArgumentError(f"{path}: there is something that is no socket")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o666)
        listener.listen(MOST_PROCESSES)
    except BaseException:
        listener.close()
        raise
    return listener


def user(name: str) -> int:
    """The number of a user.

    Raises:
        ArgumentError: if there is none of this name.
    """
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ArgumentError(f"{name}: there is no such user on this machine") from None
