"""The backend ``mrc`` of torch.distributed: calls of torch as operations of a :class:`Communicator`."""

import contextlib
import datetime
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from openmrc.collectives import Communicator
from openmrc.collectives import Work as CollectiveWork
from openmrc.collectives.rendezvous import own_address
from openmrc.errors import ArgumentError, DeadlineError, Error, UnsupportedError
from openmrc.verbs import Context

try:
    from torch._C._distributed_c10d import Backend as _Backend
    from torch._C._distributed_c10d import Work as _Work
except ImportError as error:  # torch was built without distributed.
    raise UnsupportedError("this torch has no torch.distributed") from error

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}
_SUM = dist.ReduceOp.SUM
_RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""torchrun counts its restarts here. The store outlives them, with what the processes before had stored."""
_MONITOR_TAG = 1 << 62
_LOOK = 0.0005
"""Seconds for which the oldest operation is waited for, until the others are looked at."""


class _Store:
    """A store of torch as one of :mod:`openmrc.collectives`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        try:
            self._store.wait([key], datetime.timedelta(seconds=max(timeout, 0.001)))
        except RuntimeError as error:
            raise DeadlineError(f"no rank has stored {key!r} within {timeout:.0f} s: {error}") from error
        value = self._store.get(key)
        return value if isinstance(value, bytes) else value.encode()


_PROFILED = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "_all_gather_base",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "gather": "gather",
    "gather_single": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recvAnySource",
}
"""Methods, and the names that a profiler shows, with the backend's before: those that gloo has."""


def _profiled(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which a profiler that runs sees as ``mrc:name``."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        if not torch.autograd._profiler_enabled():
            return method(*arguments, **options)
        with torch.profiler.record_function(f"mrc:{name}"):
            return method(*arguments, **options)

    return call


_device: "weakref.ref[Context] | None" = None
_device_lock = threading.Lock()
_open: "set[MrcBackend]" = set()
"""Those that were not shut down. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch keeps only their part in C++."""


def communicators() -> list[Communicator]:
    """Those of all process groups of this process that are open, the default group's first."""
    found = {backend.communicator for backend in _open}
    return sorted(found, key=lambda each: (-each.size, each.name))


def create(options: Any, backend_options: Any) -> "MrcBackend":
    """Makes the backend of a process group; torch calls it at every rank of the group.

    Raises:
        UnsupportedError: for a torch older than 2.14, whose backends cannot be written in Python.
    """
    if not hasattr(_Backend, "all_gather_single"):
        raise UnsupportedError(
            f"torch {torch.__version__} is too old for the backend mrc: it needs 2.14 or later, whose"
            " backends can be written in Python"
        )
    return MrcBackend(options)


class MrcBackend(_Backend):
    """A process group over MRC; made by ``init_process_group("mrc")`` and ``new_group``.

    Args:
        options: What torch hands over: store, rank, size, timeout.
    """

    def __init__(self, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)
        global _device
        with _device_lock:
            device = _device() if _device is not None else None
            if device is not None and device.closed:
                device = None
        host = os.environ.get("MASTER_ADDR") or "127.0.0.1"
        self.communicator = Communicator(
            options.group_rank,
            options.group_size,
            _Store(options.store),
            name=f"{options.group_id or 'group'}/{os.environ.get(_RESTARTS, '0')}",
            timeout=options.timeout.total_seconds(),
            address=own_address(None, host),
            _device=device,
            _members=options.global_ranks_in_group or None,
        )
        """The communicator, for its counters, records and device."""
        with _device_lock:
            if device is None:
                _device = weakref.ref(self.communicator.device)
        self._waiter = _Waiter()
        _open.add(self)

    # --- what torch asks of a backend -----------------------------------------------------------------------

    def name(self) -> str:
        return "mrc"

    def getBackendName(self) -> str:
        return "mrc"

    @property
    def supports_coalescing(self) -> bool:
        return False  # torch 2.15 has no way to begin it in Python. Its callers make the calls one by one.

    def abort(self) -> None:
        self.communicator.abort("abort was called")

    def shutdown(self) -> None:
        _open.discard(self)
        self._waiter.close()
        self.communicator.close()

    # --- operations -----------------------------------------------------------------------------------------

    def _allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> "_Pending":
        [tensor] = _one(tensors)
        return self._in_place(
            tensor, opts, lambda data, how: self.communicator.all_reduce(data, **how), reduce=True
        )

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        return self._work(self._allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        return self._joined([self._allreduce([tensor], opts) for tensor in tensors])

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        [tensor] = _one(tensors)
        root = opts.rootRank

        def call(data: torch.Tensor, how: dict[str, Any]) -> Any:
            return self.communicator.broadcast(data, root, **how)

        return self._work(self._in_place(tensor, opts, call))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        [tensor] = _one(tensors)
        root = opts.rootRank

        def call(data: torch.Tensor, how: dict[str, Any]) -> Any:
            return self.communicator.reduce(data, None, root, **how)

        return self._work(self._in_place(tensor, opts, call, reduce=True))

    def _gather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "_Pending":
        source, target = _ready(input), _Target(output)
        work = self.communicator.all_gather(source, target.data, **self._how(opts))
        return self._begun([work], [output], [source, target.data], target.copy_back)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._work(self._gather_base(output, input, opts))

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._allgather_base(output, input, opts)

    def _allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> "_Pending":
        [input] = _one(inputs)
        [parts] = _one(outputs)
        source = _ready(input)
        counts = [part.numel() for part in parts]
        whole = torch.empty(sum(counts), dtype=input.dtype)
        work = self.communicator.all_gather(
            source, _real(whole), counts=_doubled(counts, input), **self._how(opts)
        )

        def finish() -> None:
            for part, piece in zip(parts, whole.split(counts), strict=True):
                part.copy_(piece.view(part.shape))

        return self._begun([work], list(parts), [source, whole], finish)

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        return self._work(self._allgather(outputs, inputs, opts))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        # outputs[rank][i] belongs to inputs[i].
        works = [
            self._allgather([[of_rank[i] for of_rank in outputs]], [input], opts)
            for i, input in enumerate(inputs)
        ]
        return self._joined(works)

    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return self._joined([self._gather_base(output, input, opts) for output, input in pairs])

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        return self.all_gather_single_coalesced(outputs, inputs, opts)

    def _scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "_Pending":
        source, target = _ready(input), _Target(output)
        how = self._how(opts, reduce=True)
        work = self.communicator.reduce_scatter(source, target.data, **how)
        return self._begun([work], [output], [source, target.data], target.copy_back)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._work(self._scatter_base(output, input, opts))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._reduce_scatter_base(output, input, opts)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Any:
        [output] = _one(outputs)
        [parts] = _one(inputs)
        counts = _doubled([part.numel() for part in parts], output)
        whole = _real(torch.cat([part.reshape(-1) for part in parts]))
        target = _Target(output)
        how = self._how(opts, reduce=True)
        work = self.communicator.reduce_scatter(whole, target.data, counts=counts, **how)
        return self._work(self._begun([work], [output], [whole, target.data], target.copy_back))

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        pairs = zip(outputs, inputs, strict=True)
        return self._joined([self._scatter_base(output, input, opts) for output, input in pairs])

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        return self.reduce_scatter_single_coalesced(outputs, inputs, opts)

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any,
    ) -> Any:
        source, target = _ready(input), _Target(output)
        if source.data_ptr() == target.data.data_ptr():
            source = source.clone()
        work = self.communicator.all_to_all(
            source,
            target.data,
            send_counts=_rows(input, input_split_sizes, self.size()),
            recv_counts=_rows(output, output_split_sizes, self.size()),
            **self._how(opts),
        )
        return self._work(self._begun([work], [output], [source, target.data], target.copy_back))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any,
    ) -> Any:
        return self.alltoall_base(output, input, output_split_sizes, input_split_sizes, opts)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any) -> Any:
        whole = _real(torch.cat([each.reshape(-1) for each in inputs]))
        counts = [each.numel() for each in outputs]
        room = torch.empty(sum(counts), dtype=outputs[0].dtype)
        work = self.communicator.all_to_all(
            whole,
            _real(room),
            send_counts=_doubled([each.numel() for each in inputs], inputs[0]),
            recv_counts=_doubled(counts, outputs[0]),
            **self._how(opts),
        )

        def finish() -> None:
            for part, piece in zip(outputs, room.split(counts), strict=True):
                part.copy_(piece.view(part.shape))

        return self._work(self._begun([work], list(outputs), [whole, room], finish))

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        [input] = _one(inputs)
        source = _ready(input)
        if self.rank() != opts.rootRank:
            work = self.communicator.gather(source, None, opts.rootRank, **self._how(opts))
            return self._work(self._begun([work], [], [source]))
        [parts] = _one(outputs)
        whole = torch.empty(input.numel() * self.size(), dtype=input.dtype)
        work = self.communicator.gather(source, _real(whole), opts.rootRank, **self._how(opts))

        def finish() -> None:
            for part, piece in zip(parts, whole.chunk(self.size()), strict=True):
                part.copy_(piece.view(part.shape))

        return self._work(self._begun([work], list(parts), [source, whole], finish))

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        source, target = _ready(input), _Target(output)
        out = target.data if self.rank() == opts.rootRank else None
        work = self.communicator.gather(source, out, opts.rootRank, **self._how(opts))
        return self._work(self._begun([work], [output], [source, target.data], target.copy_back))

    def gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self.gather_single(output, input, opts)

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Any:
        [output] = _one(outputs)
        target = _Target(output)
        whole = None
        if self.rank() == opts.rootRank:
            [parts] = _one(inputs)
            whole = _real(torch.cat([part.reshape(-1) for part in parts]))
        work = self.communicator.scatter(target.data, whole, opts.rootRank, **self._how(opts))
        return self._work(self._begun([work], [output], [whole, target.data], target.copy_back))

    def barrier(self, opts: Any) -> Any:
        return self._work(self._begun([self.communicator.barrier(**self._how(opts))], [], []))

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int) -> Any:
        [tensor] = _one(tensors)
        data = _ready(tensor)
        return self._work(
            self._begun([self.communicator.send(data, dst, tag=tag, async_op=True)], [tensor], [data])
        )

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int) -> Any:
        return self._work(self._receive(tensors, src, tag))

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> Any:
        return self._work(self._receive(tensors, None, tag))

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """As :func:`torch.distributed.monitored_barrier`: rank 0 names the ranks that do not come.

        Raises:
            RuntimeError: with the words of gloo.
        """
        seconds = _seconds(opts.timeout, self.communicator.timeout)
        deadline = time.monotonic() + seconds
        byte = bytearray(1)
        comm = self.communicator
        if self.rank() != 0:
            try:
                comm.send(byte, 0, tag=_MONITOR_TAG, timeout=seconds)
                comm.recv(byte, 0, tag=_MONITOR_TAG, timeout=2 * seconds)
            except Error as error:
                raise RuntimeError(
                    f"Rank {self.rank()} successfully reached monitoredBarrier, but received errors while"
                    f" waiting for send/recv from rank 0: {error}"
                ) from error
            return
        works = {
            rank: comm.recv(bytearray(1), rank, tag=_MONITOR_TAG, async_op=True)
            for rank in range(1, self.size())
        }
        missing = []
        for rank, work in works.items():
            try:
                assert work is not None
                work.wait(max(deadline - time.monotonic(), 0.0))
            except DeadlineError:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            who = f"Ranks {missing}" if wait_all_ranks else f"Rank {missing[0]}"
            raise RuntimeError(f"{who} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms")
        for rank in works:
            comm.send(byte, rank, tag=_MONITOR_TAG, timeout=seconds)

    # --- inside ---------------------------------------------------------------------------------------------

    def _how(self, opts: Any, *, reduce: bool = False) -> dict[str, Any]:
        how: dict[str, Any] = {"async_op": True, "timeout": _seconds(opts.timeout, self.communicator.timeout)}
        if reduce:
            op = opts.reduceOp
            how["op"] = "sum" if op == _SUM else _reduction(op)
        return how

    def _in_place(
        self,
        tensor: torch.Tensor,
        opts: Any,
        call: Callable[[torch.Tensor, dict[str, Any]], CollectiveWork | None],
        *,
        reduce: bool = False,
    ) -> "_Pending":
        if tensor.is_sparse:
            raise UnsupportedError("the backend mrc has no operations on sparse tensors")
        target = _Target(tensor, keep=True)
        work = call(target.data, self._how(opts, reduce=reduce))
        return self._begun([work], [tensor], [target.data], target.finish)

    def _receive(self, tensors: Sequence[torch.Tensor], source: int | None, tag: int) -> "_Pending":
        [tensor] = _one(tensors)
        target = _Target(tensor)
        work = self.communicator.recv(target.data, source, tag=tag, async_op=True)
        return self._begun([work], [tensor], [target.data], target.copy_back)

    def _joined(self, pendings: "list[_Pending]") -> "MrcWork":
        def finish() -> None:
            for each in pendings:
                each.finish()

        works = [work for each in pendings for work in each.works]
        tensors = [tensor for each in pendings for tensor in each.tensors]
        return self._work(_Pending(works, tensors, finish))

    def _work(self, pending: "_Pending") -> "MrcWork":
        return MrcWork(self._waiter, pending)

    def _begun(
        self,
        works: "list[CollectiveWork | None]",
        tensors: list[torch.Tensor],
        keep: list[Any],
        finish: Callable[[], Any] | None = None,
    ) -> "_Pending":
        return _Pending([each for each in works if each is not None], tensors, finish, keep)


for _method, _name in _PROFILED.items():
    setattr(MrcBackend, _method, _profiled(_name, getattr(MrcBackend, _method)))


class MrcWork(_Work):
    """Operations under way. Torch 2.15 asks a work of Python's for two things: to wait, and for a future."""

    def __init__(self, waiter: "_Waiter", pending: "_Pending") -> None:
        super().__init__()
        self._waiter = waiter
        self._pending = pending
        self._future: Future[Any] | None = None

    def wait(self, timeout: datetime.timedelta = datetime.timedelta(0)) -> bool:
        self._pending.wait(_seconds(timeout, 0.0) or None)
        return True

    def get_future(self) -> Any:
        if self._future is None:
            self._future = self._waiter.future(self._pending)
        return self._future


MrcWork.wait = _profiled("wait", MrcWork.wait)  # type: ignore[method-assign]


_finishing = threading.RLock()
"""Held while results are copied where they belong, by a wait or a future; twice for what is joined."""


class _Pending:
    """Operations under way that end together."""

    __slots__ = ("_finish", "_keep", "tensors", "works")

    def __init__(
        self,
        works: list[CollectiveWork],
        tensors: list[torch.Tensor],
        finish: Callable[[], Any] | None,
        keep: Sequence[Any] = (),
    ) -> None:
        self.works = works
        self.tensors = tensors
        self._finish = finish
        self._keep = keep

    @property
    def done(self) -> bool:
        return all(work.done for work in self.works)

    def wait(self, timeout: float | None = None) -> None:
        for work in self.works:
            work.wait(timeout)
        self.finish()

    def finish(self) -> None:
        """Copies results where they belong, once, after all has ended."""
        with _finishing:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
            self._keep = ()


class _Waiter:
    """A thread that drives operations for which nobody waits, and completes their futures in any order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[_Pending, Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def future(self, pending: _Pending) -> "Future[Any]":
        """A future of the tensors, which the thread completes.

        DDP's reducer does not survive a future with an exception. One that completes, and a callback behind
        it that raises, reaches the user as the exception.
        """
        base: Future[Any] = Future()

        def result(_: Any) -> list[torch.Tensor]:
            pending.wait()
            return pending.tensors

        future = base.then(result)
        if pending.done:
            base.set_result(None)
            return future
        self._queue.put((pending, base))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="openmrc-futures", daemon=True)
            self._thread.start()
        return future

    def _run(self) -> None:
        waiting: list[tuple[_Pending, Future[Any]]] = []
        while True:
            try:
                entry = self._queue.get(block=not waiting)
            except queue.Empty:
                pass
            else:
                if entry is None:
                    return
                waiting.append(entry)
                continue
            first, _ = waiting[0]
            with contextlib.suppress(Error):  # The callback behind the future raises it.
                next(work for work in first.works if not work.done or work is first.works[-1]).wait(_LOOK)
            left = []
            for pending, future in waiting:
                if pending.done:
                    future.set_result(None)
                else:
                    left.append((pending, future))
            waiting = left

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None


class _Target:
    """Where results go: the tensor itself, or, if it is not contiguous, a copy that is copied back."""

    def __init__(self, tensor: torch.Tensor, *, keep: bool = False) -> None:
        _check(tensor)
        self._tensor = tensor
        self._copy: torch.Tensor | None = None
        if tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_complex():
            self.data = tensor
            return
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            self._copy = tensor.contiguous() if keep else torch.empty(tensor.shape, dtype=tensor.dtype)
            if keep and self._copy.data_ptr() == tensor.data_ptr():
                self._copy = tensor.clone()
        self.data = _real((tensor if self._copy is None else self._copy).detach())

    @property
    def finish(self) -> Callable[[], None] | None:
        """What is left to do once the results are there."""
        return None if self._copy is None else self.copy_back

    def copy_back(self) -> None:
        if self._copy is not None:
            with torch.no_grad():
                self._tensor.copy_(self._copy)


def _one(values: Sequence[Any]) -> Sequence[Any]:
    if len(values) != 1:
        raise ArgumentError(f"a rank has one device, and one tensor each call, not {len(values)}")
    return values


def _check(tensor: torch.Tensor) -> None:
    if not tensor.is_cpu:
        raise ArgumentError(
            f"a tensor is on device {tensor.device}: the backend mrc carries tensors in main memory"
        )
    if tensor.is_sparse:
        raise UnsupportedError("the backend mrc has no operations on sparse tensors")


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    _check(tensor)
    return _real(tensor.detach().resolve_conj().resolve_neg().contiguous())


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _doubled(counts: list[int], tensor: torch.Tensor) -> list[int]:
    return [2 * count for count in counts] if tensor.is_complex() else counts


def _rows(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Elements for each rank, of splits along the first dimension."""
    if not splits:
        if tensor.shape[0] % ranks:
            raise ArgumentError(f"{tensor.shape[0]} rows cannot be divided alike among {ranks} ranks")
        splits = [tensor.shape[0] // ranks] * ranks
    if sum(splits) != tensor.shape[0]:
        raise ArgumentError(
            f"splits {list(splits)} do not add up to the {tensor.shape[0]} rows of the tensor"
        )
    row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
    return _doubled([split * row for split in splits], tensor)


def _reduction(op: Any) -> str:
    for known, name in _OPS.items():
        if op == known:
            return name
    raise UnsupportedError(f"the backend mrc has no reduction {op}: {', '.join(sorted(_OPS.values()))}")


def _seconds(timeout: datetime.timedelta, default: float) -> float:
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else default
