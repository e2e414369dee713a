"""Membership of an elastic job: a small server that decides, and the worker's side of it.

A worker reports after each step whether it succeeded, and waits for the reports of all others. The answer
says whether the step counts and which workers are in the group for the next one. A worker whose connection
ends is gone.

With a token both ends prove first that they have it: HMAC-SHA256 over a challenge of each.
"""

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from openmrc.closing import Closable
from openmrc.collectives.store import TcpStore
from openmrc.errors import ArgumentError, ConnectError, DeadlineError

DEFAULT_PATIENCE = 60.0
"""Seconds for which workers wait for one that does not say how its step went."""
_TICK = 0.05
_MAX_LINE = 1 << 16
_GREETING = 10.0
"""Seconds within which a new connection must join."""


def _proof(token: str | None, who: str, first: str, second: str) -> str:
    """That this end has the token; nothing without a token."""
    if not token:
        return ""
    return hmac.digest(token.encode(), f"openmrc {who} {first} {second}".encode(), "sha256").hex()


@dataclass(frozen=True, slots=True)
class Decision:
    """What the coordinator says before each step."""

    committed: bool
    """Whether the step before counts."""
    generation: int
    """Number of the group; another number is another group."""
    rank: int
    """This worker's rank in it."""
    size: int
    steps: int
    """Steps that count so far."""
    newcomers: tuple[int, ...]
    """Ranks that have just joined this group and lack the state of the others."""

    @property
    def source(self) -> int:
        """The lowest rank that has the state; at the beginning of the job rank 0."""
        return next((rank for rank in range(self.size) if rank not in self.newcomers), 0)


@dataclass(eq=False)
class _Worker:
    connection: socket.socket
    challenge: str
    came: float
    """When it connected, seconds of the monotonic clock."""
    joined: bool = False
    """It has proven, where there is a token, that it belongs to the job."""
    unread: bytes = b""
    vote: bool | None = None
    """How its step went; ``None``: it has not said yet."""
    joining: bool = False
    """It waits for its first group."""


@dataclass
class _Group:
    number: int = 0
    workers: list[_Worker] = field(default_factory=list)
    """In the order of their ranks, also those that have gone since."""
    steps: int = 0
    gone: set[int] = field(default_factory=set)
    """Ranks that have gone since."""


class Coordinator(Closable):
    """Serves the workers of one job, in a thread. It outlives them: run it where the job is started.

    Args:
        host: Address to listen on.
        port: TCP port; 0: any free one.
        least: The first group, and every later one, has at least this many workers.
        patience: Seconds after the first worker has said how its step went. Those that have not by then are
            taken for gone.
        token: Secret of the job, which workers and the store, where the keys to their memory are, ask for.
            Without one, anyone who reaches the port can join.

    Raises:
        OSError: if the port is taken.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        least: int = 1,
        patience: float = DEFAULT_PATIENCE,
        token: str | None = None,
    ) -> None:
        if least < 1:
            raise ArgumentError(f"a group has at least 1 worker, not {least}")
        self._least = least
        self._patience = patience
        self._token = token
        self._listener = socket.create_server((host, port), backlog=256)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        """Where workers find it."""
        try:
            self._store = TcpStore(host, 0, serve=True, token=token)
        except BaseException:
            self._listener.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._workers: list[_Worker] = []
        self._group = _Group()
        self._first_vote = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openmrc-coordinator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the service: workers get a ConnectError. Closing twice is harmless."""
        self._closed.set()
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            for key, _ in self._selector.select(_TICK):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            self._evict()
            self._decide()
        for worker in self._workers:
            worker.connection.close()
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # It has gone already, or there is no descriptor: it waits in the backlog.
            time.sleep(_TICK)
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(self._patience)
        worker = _Worker(connection, secrets.token_hex(16), time.monotonic())
        self._workers.append(worker)
        self._selector.register(connection, selectors.EVENT_READ, worker)
        self._send(worker, {"challenge": worker.challenge})

    def _read(self, worker: _Worker) -> None:
        try:
            data = worker.connection.recv(_MAX_LINE)
        except OSError:
            data = b""
        if not data or len(worker.unread) > _MAX_LINE:
            self._lose(worker)
            return
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                joins, proof = str(message.get("join", "")), str(message.get("proof", ""))
                vote = bool(message.get("ok"))
            except (ValueError, AttributeError, RecursionError):  # A stranger.
                self._lose(worker)
                return
            if joins and not worker.joined:
                self._join(worker, joins, proof)
            elif worker.vote is None and worker in self._group.workers:
                if not any(other.vote is not None for other in self._group.workers):
                    self._first_vote = time.monotonic()
                worker.vote = vote

    def _join(self, worker: _Worker, challenge: str, proof: str) -> None:
        expected = _proof(self._token, "worker", worker.challenge, challenge)
        if self._token and not hmac.compare_digest(proof.encode(), expected.encode()):
            self._send(worker, {})
            self._lose(worker)
            return
        worker.joined = worker.joining = True
        answer = _proof(self._token, "coordinator", challenge, worker.challenge)
        self._send(worker, {"store": list(self._store.address), "proof": answer})

    def _lose(self, worker: _Worker) -> None:
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        self._selector.unregister(worker.connection)
        worker.connection.close()
        if worker in self._group.workers:
            rank = self._group.workers.index(worker)
            self._group.gone.add(rank)
            # The others may wait for it in an operation.
            for other in self._living():
                self._send(other, {"gone": rank, "generation": self._group.number})

    def _living(self) -> list[_Worker]:
        return [worker for worker in self._group.workers if worker in self._workers]

    def _evict(self) -> None:
        overdue = time.monotonic() - _GREETING
        for worker in [each for each in self._workers if not each.joined and each.came < overdue]:
            self._lose(worker)
        living = self._living()
        voted = [worker.vote is not None for worker in living]
        if any(voted) and not all(voted) and time.monotonic() > self._first_vote + self._patience:
            for worker in living:
                if worker.vote is None:
                    self._lose(worker)

    def _decide(self) -> None:
        """Answers all, once every worker of the group has said how its step went."""
        living = self._living()
        joining = [worker for worker in self._workers if worker.joining]
        if any(worker.vote is None for worker in living) or len(living) + len(joining) < self._least:
            return
        if not living and not joining:
            return
        group = self._group
        committed = bool(living) and all(worker.vote for worker in living)
        group.steps += committed
        if not living:
            group.steps = 0  # Nobody has the state any more: the job begins again.
        if joining or group.gone or not committed:
            self._group = group = _Group(group.number + 1, [*living, *joining], group.steps)
        newcomers = [rank for rank, worker in enumerate(group.workers) if worker.joining]
        for worker in group.workers:
            worker.vote, worker.joining = None, False
        for rank, worker in enumerate(list(group.workers)):
            answer = Decision(
                committed, group.number, rank, len(group.workers), group.steps, tuple(newcomers)
            )
            self._send(worker, {"decision": asdict(answer)})

    def _send(self, worker: _Worker, message: dict[str, Any]) -> None:
        try:
            worker.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._lose(worker)


class Membership(Closable):
    """A worker's connection to its coordinator.

    Args:
        address: Host and port of the coordinator.
        on_loss: Called, from another thread, with a rank of the present group that has gone.
        token: Secret of the job.
        timeout: Seconds for the connection.

    Raises:
        ConnectError: if there is no coordinator.
    """

    def __init__(
        self,
        address: tuple[str, int],
        on_loss: Callable[[int], None],
        *,
        token: str | None = None,
        timeout: float = DEFAULT_PATIENCE,
    ) -> None:
        self._on_loss = on_loss
        self._decision: Decision | None = None
        self._generation = 0
        self._gone: int | None = None
        self._ended = False
        self._changed = threading.Condition()
        store = self._join(address, token, timeout)
        self.store = TcpStore(*store, token=token, timeout=timeout)
        """Where the workers of a group meet."""
        self._thread = threading.Thread(target=self._read, name="openmrc-membership", daemon=True)
        self._thread.start()

    def _join(self, address: tuple[str, int], token: str | None, timeout: float) -> tuple[str, int]:
        """Joins the job, and returns the address of its store."""
        where = f"{address[0]}:{address[1]}"
        own = secrets.token_hex(16)
        with contextlib.ExitStack() as undo:
            try:
                self._connection = undo.enter_context(socket.create_connection(address, timeout))
                self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._lines = undo.enter_context(self._connection.makefile("rb"))
                theirs = str(self._hear()["challenge"])
                self._send({"join": own, "proof": _proof(token, "worker", theirs, own)})
                hello = self._hear()
                host, port = hello.get("store", ("", 0))
                proof = str(hello.get("proof", ""))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConnectError(f"no coordinator answers at {where}: {error}") from error
            expected = _proof(token, "coordinator", own, theirs)
            if not host or (token and not hmac.compare_digest(proof.encode(), expected.encode())):
                raise ConnectError(f"the coordinator at {where} has another token, or none")
            self._connection.settimeout(None)
            undo.pop_all()
        return str(host), int(port)

    def _hear(self) -> dict[str, Any]:
        line = self._lines.readline(_MAX_LINE)
        if not line:
            raise ConnectionResetError("it has ended the connection")
        return dict(json.loads(line))

    def decision(self, timeout: float) -> Decision:
        """The next decision of the coordinator.

        Raises:
            DeadlineError: if it does not come: not enough workers are there.
            ConnectError: if the coordinator has gone, or has taken this worker for gone.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._decision is not None or self._ended, timeout)
            found, self._decision = self._decision, None
            if found is None:
                if self._ended:
                    raise ConnectError(
                        "the coordinator has gone, or did not hear of this worker for too long"
                    )
                raise DeadlineError(f"not enough workers have come within {timeout:.0f} s")
            return found

    def gone(self, generation: int) -> int | None:
        """A rank of this group that has gone, or ``None``."""
        with self._changed:
            return self._gone if generation == self._generation else None

    def vote(self, ok: bool) -> None:
        """Tells how the step went.

        Raises:
            ConnectError: if the coordinator has gone.
        """
        try:
            self._send({"ok": ok})
        except OSError as error:
            raise ConnectError(f"the coordinator has gone: {error}") from error

    def close(self) -> None:
        """Leaves the job. Closing twice is harmless."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._lines.close()
        self._connection.close()
        self.store.close()

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if (fields := message.get("decision")) is not None:
                    fields["newcomers"] = tuple(fields["newcomers"])
                    with self._changed:
                        self._decision = Decision(**fields)
                        if self._generation != self._decision.generation:
                            self._generation, self._gone = self._decision.generation, None
                        self._changed.notify_all()
                elif message.get("generation") == self._generation:
                    with self._changed:
                        self._gone = int(message["gone"])
                    self._on_loss(self._gone)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
