"""Membership of an elastic job: a small server that decides, and the worker's side of it.

A worker reports after each step whether it succeeded, and waits for the reports of all others. The answer
says whether the step counts and which workers are in the group for the next one. A worker whose connection
ends is gone.

With a token both ends prove first that they have it (:mod:`openmrc.control`).
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from openmrc.closing import Closable
from openmrc.collectives.store import TcpStore
from openmrc.control import (
    Channel,
    Deadline,
    Limits,
    Message,
    Protocol,
    Server,
    Token,
    dial,
    tcp,
)
from openmrc.errors import ArgumentError, ConnectError, DeadlineError

DEFAULT_PATIENCE = 60.0
"""Seconds for which workers wait for one that does not say how its step went."""
_MAX_MESSAGE = 1 << 10
"""Bytes of a message of a worker."""
_MAX_DECISION = 1 << 20
"""Bytes of a message of the coordinator: a job of 100,000 newcomers."""
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _Join(Message):
    """A worker wants to be in the next group."""

    type: Literal["join"] = "join"


class _Joined(Message):
    """It will be, and meets the others in the store."""

    type: Literal["joined"] = "joined"
    store: Annotated[int, Field(gt=0, lt=1 << 16)]
    """TCP port of the store, at the coordinator's address."""


class _Vote(Message):
    """How the step went at a worker."""

    type: Literal["vote"] = "vote"
    ok: bool


class _Gone(Message):
    """A worker of the present group has gone."""

    type: Literal["gone"] = "gone"
    rank: _Count
    generation: _Count


class Decision(Message):
    """What the coordinator says before each step."""

    type: Literal["decision"] = "decision"
    committed: bool
    """Whether the step before counts."""
    generation: _Count
    """Number of the group; another number is another group."""
    rank: _Count
    """This worker's rank in it."""
    size: Annotated[int, Field(ge=1, lt=1 << 63)]
    steps: _Count
    """Steps that count so far."""
    newcomers: tuple[_Count, ...]
    """Ranks that have just joined this group and lack the state of the others."""

    @property
    def source(self) -> int:
        """The lowest rank that has the state; at the beginning of the job rank 0."""
        return next((rank for rank in range(self.size) if rank not in self.newcomers), 0)


PROTOCOL = Protocol("openmrc-elastic", 1, _Join, _Joined, _Vote, _Gone, Decision)
"""After the greeting::

    worker                  coordinator
    Join            ->
                    <-      Joined {port of the store}
                    <-      Decision {group, newcomers}     once enough workers are there
    for each step:
    Vote {ok}       ->
                    <-      Gone {rank}                     if one goes meanwhile
                    <-      Decision {committed, group}     once all have voted
"""


@dataclass(eq=False)
class _Worker:
    connection: Channel[Any]
    came: float
    """When it connected, seconds of the monotonic clock."""
    joined: bool = False
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


class _Members:
    """Who is in the job, and what is decided; all is called by the server's thread.

    Args:
        least: Workers of a group, at least.
        patience: Seconds for votes.
        store: TCP port of the store.
        greeting: Seconds within which who has greeted must join.
    """

    def __init__(self, least: int, patience: float, store: int, greeting: float) -> None:
        self._least = least
        self._patience = patience
        self._store = store
        self._greeting = greeting
        self._workers: dict[Channel[Any], _Worker] = {}
        self._group = _Group()
        self._first_vote = 0.0

    def bound(self, server: Server) -> None:
        self._server = server

    def joined(self, peer: Channel[Any]) -> None:
        peer.limit = _MAX_MESSAGE
        self._workers[peer] = _Worker(peer, time.monotonic())

    def arrived(self, peer: Channel[Any], message: Message) -> None:
        worker = self._workers[peer]
        match message:
            case _Join() if not worker.joined:
                worker.joined = worker.joining = True
                self._server.send(peer, _Joined(store=self._store))
            case _Vote(ok=ok) if worker.joined:
                if worker.vote is None and worker in self._group.workers:
                    if not any(other.vote is not None for other in self._group.workers):
                        self._first_vote = time.monotonic()
                    worker.vote = ok
            case _:
                raise peer.unexpected(message)

    def left(self, peer: Channel[Any]) -> None:
        worker = self._workers.pop(peer)
        if worker in self._group.workers:
            rank = self._group.workers.index(worker)
            self._group.gone.add(rank)
            # The others may wait for it in an operation.
            for other in self._living():
                self._server.send(other.connection, _Gone(rank=rank, generation=self._group.number))

    def timeout(self) -> float | None:
        times = [worker.came + self._greeting for worker in self._workers.values() if not worker.joined]
        if self._overdue():
            times.append(self._first_vote + self._patience)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def poll_timers(self) -> None:
        now = time.monotonic()
        lost = [worker for worker in self._workers.values() if not worker.joined]
        lost = [worker for worker in lost if worker.came + self._greeting <= now]
        if now >= self._first_vote + self._patience:
            lost += self._overdue()
        for worker in lost:
            self._server.lose(worker.connection)
        self._decide()

    def _living(self) -> list[_Worker]:
        return [worker for worker in self._group.workers if worker.connection in self._workers]

    def _overdue(self) -> list[_Worker]:
        """Who has not voted, if others have."""
        living = self._living()
        silent = [worker for worker in living if worker.vote is None]
        return silent if len(silent) < len(living) else []

    def _decide(self) -> None:
        """Answers all, once every worker of the group has said how its step went."""
        living = self._living()
        joining = [worker for worker in self._workers.values() if worker.joining]
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
        newcomers = tuple(rank for rank, worker in enumerate(group.workers) if worker.joining)
        for worker in group.workers:
            worker.vote, worker.joining = None, False
        for rank, worker in enumerate(list(group.workers)):
            decision = Decision(
                committed=committed,
                generation=group.number,
                rank=rank,
                size=len(group.workers),
                steps=group.steps,
                newcomers=newcomers,
            )
            self._server.send(worker.connection, decision)


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
        limits: What strangers may take.

    Raises:
        DeviceError: if the port is taken, or the address is not of this host.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        least: int = 1,
        patience: float = DEFAULT_PATIENCE,
        token: Token | None = None,
        limits: Limits | None = None,
    ) -> None:
        if least < 1:
            raise ArgumentError(f"a group has at least 1 worker, not {least}")
        listening = tcp.listen(host, port)
        try:
            self._store = TcpStore(host, 0, serve=True, token=token)
        except BaseException:
            listening.close()
            raise
        limits = limits or Limits()
        members = _Members(least, patience, self._store.address[1], limits.greeting)
        self._server = Server(
            PROTOCOL, members, listening, token=token, limits=limits, name="openmrc-coordinator"
        )
        self.address: tuple[str, int] = self._server.address
        """Where workers find it."""

    def close(self) -> None:
        """Ends the service: workers get a ConnectError. Closing twice is harmless."""
        self._server.close()
        self._store.close()


class Membership(Closable):
    """A worker's connection to its coordinator.

    Args:
        address: Host and port of the coordinator.
        on_loss: Called, from another thread, with a rank of the present group that has gone.
        token: Secret of the job.
        timeout: Seconds for the connection.

    Raises:
        ConnectError: if there is no coordinator, or it has another token.
    """

    def __init__(
        self,
        address: tuple[str, int],
        on_loss: Callable[[int], None],
        *,
        token: Token | None = None,
        timeout: float = DEFAULT_PATIENCE,
    ) -> None:
        self._on_loss = on_loss
        self._decision: Decision | None = None
        self._generation = 0
        self._gone: int | None = None
        self._ended = False
        self._changed = threading.Condition()
        deadline = Deadline(timeout)
        host, port = address
        self._channel: Channel[Any]
        try:
            self._channel = dial(PROTOCOL, host, port, "is it running?", token=token, timeout=timeout)
        except ConnectError as error:
            raise type(error)(f"no coordinator answers: {error}") from error
        try:
            self._channel.limit = _MAX_DECISION
            self._channel.send(_Join())
            joined = self._channel.expect(_Joined, deadline.left())
            left = deadline.left() or 0.0
            self.store = TcpStore(host, joined.store, token=token, timeout=left)
            """Where the workers of a group meet."""
        except BaseException:
            self._channel.close()
            raise
        self._thread = threading.Thread(target=self._read, name="openmrc-membership", daemon=True)
        self._thread.start()

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
            self._channel.send(_Vote(ok=ok))
        except ConnectError as error:
            raise ConnectError(f"the coordinator has gone: {error}") from error

    def close(self) -> None:
        """Leaves the job. Closing twice is harmless."""
        self._channel.shutdown()
        self._thread.join()
        self._channel.close()
        self.store.close()

    def _read(self) -> None:
        with contextlib.suppress(ConnectError):
            while True:
                self._hear(self._channel.receive())
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _hear(self, message: Message) -> None:
        match message:
            case Decision():
                with self._changed:
                    self._decision = message
                    if self._generation != message.generation:
                        self._generation, self._gone = message.generation, None
                    self._changed.notify_all()
            case _Gone(rank=rank) if message.generation == self._generation:
                with self._changed:
                    self._gone = rank
                self._on_loss(rank)
            case _Gone():
                pass  # Of a group that is over.
            case _:
                raise self._channel.unexpected(message)
