"""Jobs that go on when a worker dies, and take it back when it returns, in the living processes.

    with Coordinator(least=2) as coordinator: ...        # where the job is started

    with Elastic(coordinator.address) as job:            # in every worker
        while job.steps < 1000:
            job.begin(state, load)                       # a newcomer gets the state of the others
            job.all_reduce(gradients, op="avg")
            if job.commit():
                ...                                      # every worker has the result: apply it

A step in which a worker dies does not count: nobody applies it, and the others do it again without the dead
one. With the replicas of torch see :mod:`openmrc.torch.elastic`.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Unpack

from openmrc.closing import Closable
from openmrc.collectives.communicator import Communicator
from openmrc.collectives.coordinator import DEFAULT_PATIENCE, Coordinator, Decision, Membership
from openmrc.collectives.store import TcpStore
from openmrc.collectives.work import ReduceOptions, Work
from openmrc.control import Token
from openmrc.errors import ConnectError, DeadlineError, Error, RankLostError, StateError

GetState = Callable[[], bytes]
"""Returns everything that a newcomer needs."""
LoadState = Callable[[bytes], None]
"""Takes it over."""
_STATE_TAG = (1 << 62) + 1
_NO_STATE = (1 << 64) - 1
"""Instead of a length: at the beginning of a job in which every worker makes the same state itself."""
_LOOK = 0.2
"""Seconds after which a worker that waits for others asks whether one has gone."""


class Elastic(Closable):
    """A worker of an elastic job.

    Args:
        address: Host and port of the :class:`Coordinator`.
        token: Secret of the job.
        timeout: Seconds for an operation, and for a group to come together; a worker that stops for longer
            counts as dead.
        **options: Those of a :class:`Communicator`.

    Raises:
        ConnectError: if there is no coordinator.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        token: Token | None = None,
        timeout: float = DEFAULT_PATIENCE,
        **options: Any,
    ) -> None:
        self._timeout = timeout
        self._options = options
        self._lock = threading.Lock()
        self._communicator: Communicator | None = None
        self._decision: Decision | None = None
        self._ready = False
        self._error: Error | None = None
        self._begun = False
        self._membership = Membership(address, self._lost, token=token, timeout=timeout)

    @property
    def rank(self) -> int:
        """This worker's rank in the present group."""
        return self._now.rank

    @property
    def size(self) -> int:
        """Workers of the present group."""
        return self._now.size

    @property
    def steps(self) -> int:
        """Steps that count so far."""
        return self._decision.steps if self._decision else 0

    @property
    def generation(self) -> int:
        """Number of the present group."""
        return self._now.generation

    @property
    def error(self) -> Error | None:
        """Why the present step cannot count any more; ``None``: nothing has gone wrong."""
        return self._error

    @property
    def communicator(self) -> Communicator:
        """That of the present group."""
        if self._communicator is None:
            raise StateError("there is no group before begin()")
        return self._communicator

    def begin(self, state: GetState | None = None, load: LoadState | None = None) -> None:
        """Begins a step: waits for a group if there is none, and brings newcomers up to date.

        Args:
            state: Called at the rank that gives newcomers what they need; at the beginning of a job, rank 0.
            load: Called at a newcomer.

        Raises:
            DeadlineError: if not enough workers come.
            ConnectError: if the coordinator has gone.
        """
        while not self._begun:
            if self._decision is None:
                self._decision = self._membership.decision(self._timeout)
            try:
                if not self._ready:
                    self._form()
                    self._bring_up_to_date(state, load)
                    self._ready = True
                self._begun = True
            except Error as error:
                if isinstance(error, ConnectError) and not isinstance(error, RankLostError):
                    raise  # The coordinator has gone.
                # A worker has died meanwhile: the next group is another one.
                self._error = error
                self._vote()

    def all_reduce(self, input: Any, output: Any = None, **options: Unpack[ReduceOptions]) -> Work | None:
        """As :meth:`Communicator.all_reduce`. An error does not raise: the step does not count then."""
        if self._error is not None:
            return None
        try:
            return self.communicator.all_reduce(input, output, **options)
        except Error as error:
            self.fail(error)
            return None

    def fail(self, error: Error) -> None:
        """Says that the step has failed here. It will not count."""
        self._error = self._error or error

    def commit(self) -> bool:
        """Ends a step; returns at every worker alike whether it counts, once all have called it.

        Raises:
            ConnectError: if the coordinator has gone, or has taken this worker for dead.
            DeadlineError: if not enough workers are left and none comes.
        """
        if not self._begun:
            raise StateError("commit() ends a step that begin() has begun")
        return self._vote()

    def close(self) -> None:
        """Leaves the job; the others go on. Closing twice is harmless."""
        self._membership.close()
        self._drop()

    # --- inside ---------------------------------------------------------------------------------------------

    @property
    def _now(self) -> Decision:
        if self._decision is None:
            raise StateError("there is no group before begin()")
        return self._decision

    def _vote(self) -> bool:
        before = self._now.generation
        self._membership.vote(self._error is None)
        self._decision = None
        self._begun = False
        self._decision = self._membership.decision(2 * self._timeout)
        self._error = None
        if self._decision.generation != before:
            self._ready = False
        return self._decision.committed

    def _form(self) -> None:
        now = self._now
        self._drop()
        store = self._membership.store
        made = Communicator(
            now.rank,
            now.size,
            _GroupStore(store, self._membership, now.generation),
            name=f"elastic{now.generation}",
            timeout=self._timeout,
            address=store.local_address,
            **self._options,
        )
        with self._lock:
            self._communicator = made

    def _bring_up_to_date(self, state: GetState | None, load: LoadState | None) -> None:
        now = self._now
        receivers = [rank for rank in now.newcomers if rank != now.source]
        if now.rank == now.source and receivers:
            if state is None and now.source not in now.newcomers:
                raise StateError("newcomers need the state of this worker: give it to begin()")
            data = None if state is None else state()
            for rank in receivers:
                length = _NO_STATE if data is None else len(data)
                self.communicator.send(length.to_bytes(8, "big"), rank, tag=_STATE_TAG)
                if data is not None:
                    self.communicator.send(data, rank, tag=_STATE_TAG)
        elif now.rank in receivers:
            header = bytearray(8)
            self.communicator.recv(header, now.source, tag=_STATE_TAG)
            length = int.from_bytes(header, "big")
            if length == _NO_STATE:
                return
            taken = bytearray(length)
            self.communicator.recv(taken, now.source, tag=_STATE_TAG)
            if load is not None:
                load(bytes(taken))

    def _drop(self) -> None:
        with self._lock:
            old, self._communicator = self._communicator, None
        if old is not None:
            old.abort("the group has changed")
            old.close()

    def _lost(self, rank: int) -> None:
        """Whoever waits for the dead rank gets an error at once, also where its host does not answer."""
        with self._lock:
            if self._communicator is not None:
                self._communicator.abort(f"rank {rank} has gone")


class _GroupStore:
    """The store for one group: nobody waits in it for a rank that has gone."""

    def __init__(self, store: TcpStore, membership: Membership, generation: int) -> None:
        self._store = store
        self._membership = membership
        self._generation = generation

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._store.get(key, min(max(deadline - time.monotonic(), 0.0), _LOOK))
            except DeadlineError:
                gone = self._membership.gone(self._generation)
                if gone is not None:
                    raise RankLostError(f"rank {gone} has gone before the group came together") from None
                if time.monotonic() >= deadline:
                    raise


__all__ = ["Coordinator", "Decision", "Elastic", "Membership"]
