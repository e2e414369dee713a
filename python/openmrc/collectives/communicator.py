"""Communicators: the ranks of a job, or some of them, and the operations between them."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, Unpack

from openmrc import _core
from openmrc.closing import Closable
from openmrc.collectives.buffers import (
    Buffer,
    buffer,
    check_reduction,
    output_of,
    parts_of,
    same_count,
)
from openmrc.collectives.lifelines import Lifelines
from openmrc.collectives.records import OperationRecord
from openmrc.collectives.rendezvous import (
    Environment,
    Tuned,
    meet,
    own_address,
    planes_of_environment,
    tuned_of_environment,
)
from openmrc.collectives.store import Store, TcpStore
from openmrc.collectives.work import SLICE, CallOptions, MessageOptions, ReduceOptions, Work
from openmrc.control import Token
from openmrc.errors import ArgumentError
from openmrc.planes import Planes
from openmrc.verbs import Context

DEFAULT_TIMEOUT = 1800.0
"""Seconds for an operation, as in torch."""


class Communicator(Closable):
    """The ranks of a job, or some of them. Every rank makes the same calls in the same order.

    Args:
        rank: This rank, from 0.
        size: Number of ranks.
        store: Where the ranks find each other.
        planes: This host's planes. By default, in a host of a lab, the host's ports; if all ranks are on one
            host, planes on loopback; else one, the address by which the store is reached.
        name: Name of the communicator: each that is made over one store needs its own.
        timeout: Seconds for an operation, and for all ranks to come.
        tuned: Further options.

    Raises:
        DeadlineError: if a rank does not come.
        DeviceError: if a plane cannot be opened.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        *,
        planes: Planes | None = None,
        name: str = "world",
        timeout: float = DEFAULT_TIMEOUT,
        tuned: Tuned | None = None,
        address: str | None = None,
        _token: Token | None = None,
        _lifelines: Lifelines | None = None,
        _device: Context | None = None,
        _members: Sequence[int] | None = None,
    ) -> None:
        if not 0 <= rank < size:
            raise ArgumentError(f"rank {rank} does not exist: there are 0 to {size - 1}")
        self.rank = rank
        """This rank."""
        self.size = size
        """Number of ranks."""
        self.name = name
        """Its name."""
        self.members = tuple(_members or range(size))
        """By rank: the rank in the job's first communicator."""
        self.timeout = timeout
        """Seconds for an operation."""
        self._store = store
        self._owned_store: TcpStore | None = None
        self._planes = planes or planes_of_environment()
        self._tuned = tuned or tuned_of_environment()
        self._token = _token
        self._splits = 0
        self._shares_device = _device is not None
        where = address or own_address(store, "127.0.0.1")

        def open_device(one_host: bool, ranks: int) -> Context:
            if _device is not None:
                return _device
            # On one machine any pair of loopback addresses makes planes are chosen on loopback.
            return self._planes.open(where, where if one_host else "", count=None)

        self._context, self._core, own_lifelines = meet(
            store,
            f"openmrc/{name}",
            rank,
            size,
            address=where,
            open_device=open_device,
            planes=self._planes,
            tuned=self._tuned,
            timeout=timeout,
            token=_token,
            members=None if _lifelines else self.members,
        )
        self.lifelines = _lifelines or own_lifelines
        """By which it learns of ranks that end on other hosts, if it has such ranks."""
        if self.lifelines is not None:
            self.lifelines.watch(self)
        context = None if _device else self._context
        self._finalizer = weakref.finalize(self, _close, self._core, context, own_lifelines)
        # Whoever comes out of here can reach every rank.
        self.barrier()

    @classmethod
    def from_environment(cls, **options: Any) -> Self:
        """The communicator of all processes that a launcher has started; see :class:`Environment`.

        Args:
            **options: Those of the class. ``OPENMRC_ADDRESSES`` names the planes, or ``OPENMRC_PLANES`` says
                how many there are on loopback; ``OPENMRC_SHARED_MEMORY=0`` sends over the planes also
                between ranks of one host; ``OPENMRC_TOKEN`` is the job's secret.

        Raises:
            ArgumentError: if a variable is missing, or the token has less than 16 bytes.
            ConnectError: if rank 0 does not serve its store.
        """
        found = Environment.read()
        timeout = options.get("timeout", DEFAULT_TIMEOUT)
        store = TcpStore(
            found.host,
            found.port,
            serve=found.rank == 0,
            token=Token.from_environment(),
            timeout=min(timeout, 300.0),
        )
        try:
            communicator = cls(found.rank, found.size, store, **options)
        except BaseException:
            store.close()
            raise
        communicator._owned_store = store
        return communicator

    # --- operations -----------------------------------------------------------------------------------------

    def all_reduce(
        self,
        input: Any,
        output: Any = None,
        **options: Unpack[ReduceOptions],
    ) -> Work | None:
        """Every rank gets the reduction of all inputs, the same bit for bit.

        Args:
            input: Array, tensor or buffer; the same number and type of elements at every rank.
            output: Where the result goes; default the input.
            **options: See :class:`ReduceOptions`.

        Raises:
            ArgumentError: for arguments that do not fit; nothing was begun.
            MismatchError: if ranks have called different operations.
            RankLostError: if a rank has ended or cannot be reached.
            DeadlineError: if it did not end in time. The communicator is of no more use then.
            AbortedError: if the communicator was aborted.
        """
        source = buffer(input, "the input", writable=output is None)
        target = source if output is None else output_of(output, source.count, source)
        return self._call("all_reduce", [source.count], source, target, **options)

    def reduce_scatter(
        self,
        input: Any,
        output: Any,
        *,
        counts: Sequence[int] | None = None,
        **options: Unpack[ReduceOptions],
    ) -> Work | None:
        """Rank r gets part r of the reduction of all inputs.

        Args:
            input: Elements of all parts.
            output: Elements of this rank's part.
            counts: Elements of each part; default equal parts.
            **options: See :class:`ReduceOptions`.
        """
        source = buffer(input, "the input")
        parts = parts_of(counts, source.count, self.size, "input")
        target = output_of(output, parts[self.rank], source)
        return self._call("reduce_scatter", parts, source, target, **options)

    def all_gather(
        self,
        input: Any,
        output: Any,
        *,
        counts: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> Work | None:
        """Every rank gets the inputs of all, in the order of ranks.

        Args:
            input: Elements of this rank.
            output: Room for the elements of all.
            counts: Elements of each rank; default all alike.
            **options: See :class:`CallOptions`.
        """
        source = buffer(input, "the input")
        target = buffer(output, "the output", writable=True, dtype=source.dtype)
        parts = parts_of(counts, target.count, self.size, "output")
        same_count(source.count, parts[self.rank], "the input")
        return self._call("all_gather", parts, source, target, **options)

    def all_to_all(
        self,
        input: Any,
        output: Any,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        **options: Unpack[CallOptions],
    ) -> Work | None:
        """Rank r gets part r of every input, in the order of ranks.

        Args:
            input: Elements for each rank.
            output: Room for the elements of each rank.
            send_counts: Elements for each rank; default equal parts.
            recv_counts: Elements of each rank; default equal parts.
            **options: See :class:`CallOptions`.
        """
        source = buffer(input, "the input")
        target = buffer(output, "the output", writable=True, dtype=source.dtype)
        counts = [
            *parts_of(send_counts, source.count, self.size, "input"),
            *parts_of(recv_counts, target.count, self.size, "output"),
        ]
        return self._call("all_to_all", counts, source, target, **options)

    def broadcast(
        self,
        data: Any,
        root: int = 0,
        **options: Unpack[CallOptions],
    ) -> Work | None:
        """Every rank gets what the root has.

        Args:
            data: At the root its elements, at others room for as many.
            root: Who has them.
            **options: See :class:`CallOptions`.
        """
        memory = buffer(data, "the data", writable=self.rank != root)
        return self._call("broadcast", [memory.count], memory, memory, root=root, **options)

    def reduce(
        self,
        input: Any,
        output: Any = None,
        root: int = 0,
        **options: Unpack[ReduceOptions],
    ) -> Work | None:
        """The root gets the reduction of all inputs.

        Args:
            input: The same number and type of elements at every rank.
            output: At the root, where the result goes; default the input.
            root: Who gets it.
            **options: See :class:`ReduceOptions`.
        """
        at_root = self.rank == root
        source = buffer(input, "the input", writable=at_root and output is None)
        target = source if output is None or not at_root else output_of(output, source.count, source)
        return self._call("reduce", [source.count], source, target, root=root, **options)

    def gather(
        self,
        input: Any,
        output: Any = None,
        root: int = 0,
        **options: Unpack[CallOptions],
    ) -> Work | None:
        """The root gets the inputs of all, in the order of ranks.

        Args:
            input: The same number and type of elements at every rank.
            output: At the root, room for all.
            root: Who gets them.
            **options: See :class:`CallOptions`.
        """
        source = buffer(input, "the input")
        target = source
        if self.rank == root:
            target = output_of(output, source.count * self.size, source)
        return self._call("gather", [source.count], source, target, root=root, **options)

    def scatter(
        self,
        output: Any,
        input: Any = None,
        root: int = 0,
        **options: Unpack[CallOptions],
    ) -> Work | None:
        """Rank r gets part r of what the root has.

        Args:
            output: The same number and type of elements at every rank.
            input: At the root, the elements of all.
            root: Who has them.
            **options: See :class:`CallOptions`.
        """
        target = buffer(output, "the output", writable=True)
        source = target
        if self.rank == root:
            source = buffer(input, "the input", dtype=target.dtype)
            same_count(source.count, target.count * self.size, "the input")
        return self._call("scatter", [target.count], source, target, root=root, **options)

    def barrier(self, **options: Unpack[CallOptions]) -> Work | None:
        """Ends when every rank has called it.

        Args:
            **options: See :class:`CallOptions`.
        """
        return self._call("barrier", [], _NOTHING, _NOTHING, **options)

    def send(self, data: Any, to: int, *, tag: int = 0, **options: Unpack[MessageOptions]) -> Work | None:
        """Sends elements to a rank, which receives them with the same tag.

        It ends once the elements are in the peer's memory, or in rings of its communicator.

        Args:
            data: The elements.
            to: The rank.
            tag: Any number from 0; messages of one tag arrive in the order of sending.
            **options: See :class:`MessageOptions`.
        """
        memory = buffer(data, "the data")
        limit = options.get("timeout", self.timeout)
        work = self._core.send(to, _tag(tag), memory.carrier, memory.owner, limit)
        return self._begun(work, options.get("async_op", False))

    def recv(
        self, data: Any, source: int | None = None, *, tag: int = 0, **options: Unpack[MessageOptions]
    ) -> Work | None:
        """Receives as many elements as there is room for, from a rank or from any.

        Args:
            data: Where they go.
            source: The rank; ``None``: any.
            tag: The tag with which they are sent.
            **options: See :class:`MessageOptions`.

        Returns:
            With ``async_op`` or without a source, the work, which knows who sent it.
        """
        memory = buffer(data, "the data", writable=True)
        limit = options.get("timeout", self.timeout)
        core = self._core.recv(source, _tag(tag), memory.carrier, memory.owner, limit)
        work = self._begun(core, options.get("async_op", False), memory.copy_back)
        return Work(core, self.waits_for) if work is None and source is None else work

    # --- the communicator itself ----------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """Divides the ranks: those with the same colour make a communicator, in the order of their keys.

        Every rank calls it. The device is shared.

        Args:
            color: Which part; ``None``: none, and the result is ``None``.
            key: Order in the part; of equal keys, the order of ranks here.
        """
        self._splits += 1
        prefix = f"openmrc/{self.name}/split{self._splits}"
        self._store.set(f"{prefix}/{self.rank}", f"{'' if color is None else color},{key}".encode())
        members = []
        for other in range(self.size):
            theirs, _, order = self._store.get(f"{prefix}/{other}", self.timeout).decode().partition(",")
            if color is not None and theirs == str(color):
                members.append((int(order), other))
        ranks = [other for _, other in sorted(members)]
        part = None if color is None else self._derive(f"split{self._splits}.{color}", ranks)
        # Whoever comes out of here may end at once, and one rank serves the store in which all parts meet.
        self.barrier()
        return part

    def remake(self, ranks: Sequence[int], name: str | None = None) -> "Communicator":
        """A new communicator of some ranks of this one, which may have failed: a job goes on without a rank.

        Only those ranks call it, all with the same arguments. The device is shared.

        Args:
            ranks: Ranks of this communicator that make the new one, in this order.
            name: Name of the new one; default that of this one with a number behind it. Give one if some of
                the ranks may have tried before.
        """
        if self.rank not in ranks:
            raise ArgumentError(f"rank {self.rank} is not among {list(ranks)}")
        self._splits += 1
        return self._derive(name or f"remade{self._splits}", list(ranks))

    def _derive(self, name: str, ranks: list[int]) -> "Communicator":
        return Communicator(
            ranks.index(self.rank),
            len(ranks),
            self._store,
            planes=self._planes,
            name=f"{self.name}/{name}",
            timeout=self.timeout,
            tuned=self._tuned,
            _token=self._token,
            _lifelines=self.lifelines,
            _device=self._context,
            _members=[self.members[rank] for rank in ranks],
        )

    def __repr__(self) -> str:
        return f"<Communicator {self.name}: rank {self.rank} of {self.size}>"

    @property
    def local_peers(self) -> list[int]:
        """Ranks that are reached through shared memory."""
        return self._core.local_peers()

    @property
    def device(self) -> Context:
        """The device, for its counters and impairments."""
        return self._context

    def waits_for(self) -> str:
        """What the oldest operation waits for, in words; after some seconds also who has not called it."""
        waits = [f"{what} of rank {rank} on {self._core.host(rank)}" for rank, what in self._core.waits_for()]
        late = [f"rank {rank} on {self._core.host(rank)}" for rank in self._core.not_called()]
        return (", ".join(waits) or "nothing") + (f"; not called by {', '.join(late)}" if late else "")

    def records(self) -> list[OperationRecord]:
        """The operations and messages that have ended since the last call; the newest 65,536."""
        return [
            OperationRecord(
                number,
                name,
                algorithm,
                nbytes,
                end / 1e9,
                seconds,
                shared,
                network,
                peer,
                tag,
                self.size,
                tuple(messages),
            )
            for number, name, algorithm, nbytes, end, seconds, shared, network, peer, tag, messages in (
                self._core.take_records()
            )
        ]

    def record_messages(self, on: bool = True) -> None:
        """Whether the records of operations that begin from now on list the messages that this rank sent."""
        self._core.record_messages(on)

    def totals(self) -> Mapping[str, int]:
        """Counts since the beginning: ``operations``, ``shared_bytes``, ``network_bytes`` sent."""
        operations, shared, network = self._core.totals()
        return {"operations": operations, "shared_bytes": shared, "network_bytes": network}

    def peer_ended(self, rank: int, reason: str) -> None:
        """A rank that is reached over the network has ended: operations that need it end with an error.

        Args:
            rank: The rank.
            reason: What is known of its end.
        """
        self._core.peer_ended(rank, reason)

    def check(self) -> None:
        """Raises the error of a communicator that is of no more use."""
        self._core.check()

    def abort(self, reason: str = "abort was called") -> None:
        """Gives the communicator up: every operation, here and at the other ranks, ends with an error."""
        self._core.abort(reason)

    def close(self) -> None:
        """Ends the communicator; operations under way end with an error. A second call does nothing."""
        self._finalizer()
        if self._owned_store is not None:
            self._owned_store.close()

    # --- inside ---------------------------------------------------------------------------------------------

    def _call(
        self,
        kind: str,
        counts: list[int],
        source: Buffer,
        target: Buffer,
        *,
        root: int = 0,
        op: str = "sum",
        factor: float | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> Work | None:
        limit = self.timeout if timeout is None else timeout
        output = None if target is source else target.owner
        if kind in _REDUCE:
            op = _ALIASES.get(op, op)
            if source.carrier != source.dtype:
                check_reduction(source, op)
        if source.width > 1:
            counts = [count * source.width for count in counts]
        core = self._core.call(
            kind, counts, root, source.carrier, op, factor, source.owner, output, algorithm, limit
        )
        return self._begun(core, async_op, target.copy_back)

    def _begun(
        self, core: "_core.CollectiveWork", async_op: bool, finish: Callable[[], None] | None = None
    ) -> Work | None:
        # Most operations are short: a work is made for those that are not.
        if not async_op and core.wait(SLICE):
            core.check()
            if finish is not None:
                finish()
            return None
        work = Work(core, self.waits_for, finish)
        if async_op:
            return work
        work.wait()
        return None


_NOTHING = Buffer(None, 0, "uint8", "uint8")
_REDUCE = frozenset(("all_reduce", "reduce_scatter", "reduce"))
_ALIASES = {"prod": "product"}
"""Names of reductions in NumPy and mpi4py."""


def _tag(tag: int) -> int:
    if not 0 <= tag < 1 << 63:
        raise ArgumentError(f"tag {tag} is not within 0 and 2^63 - 1")
    return tag


def _close(core: "_core.CollectiveGroup", context: Context | None, lifelines: Lifelines | None) -> None:
    core.close()
    if lifelines is not None:
        lifelines.close()
    if context is not None:
        context.close()
