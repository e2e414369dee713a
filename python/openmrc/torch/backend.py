"""The backend ``mrc`` of torch.distributed: calls of torch as operations of a :class:`Communicator`."""

import datetime
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from openmrc.collectives import Communicator
from openmrc.collectives import Work as CollectiveWork
from openmrc.collectives.lifelines import Lifelines
from openmrc.collectives.rendezvous import own_address
from openmrc.control import Token
from openmrc.errors import AbortedError, ClosedError, ConnectError, DeadlineError, Error, UnsupportedError
from openmrc.torch.errors import as_torch_raises, of_torch
from openmrc.torch.sparse import sum_sparse
from openmrc.torch.staging import Staged, Turns, copy_back, mark, room
from openmrc.torch.tensors import Target, doubled, one, ready, real, rows
from openmrc.torch.unasked import Answered, install
from openmrc.torch.work import MrcWork, Pending, Waiter, profiled, seconds_of
from openmrc.verbs import Context

try:
    from torch._C._distributed_c10d import Backend as _Backend
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


class _Store:
    """A store of torch as one of :mod:`openmrc.collectives`."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        try:
            self._store.wait([key], datetime.timedelta(seconds=max(timeout, 0.001)))
            value = self._store.get(key)
        except dist.DistNetworkError as error:
            raise ConnectError(f"the store of the job is lost: {error}") from error
        except RuntimeError as error:
            raise DeadlineError(f"no rank has stored {key!r} within {timeout:.0f} s: {error}") from error
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


_device: "weakref.ref[Context] | None" = None
_device_lock = threading.Lock()
_open: "set[MrcBackend]" = set()
"""Those that were not shut down. With TORCH_DISTRIBUTED_DEBUG=DETAIL torch keeps only their part in C++."""


def _lifelines_of_job() -> Lifelines | None:
    """Those of the first group, which has all ranks."""
    found = (backend.communicator.lifelines for backend in _open if not backend.alone)
    return next((each for each in found if each is not None and not each.closed), None)


def _device_of_job() -> Context | None:
    with _device_lock:
        device = _device() if _device is not None else None
        return None if device is None or device.closed else device


def _set_device_of_job(device: Context) -> None:
    global _device
    with _device_lock:
        _device = weakref.ref(device)


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
    try:
        return MrcBackend(options)
    except Error as error:
        raise of_torch(error) from error.__cause__


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a group is made of, with the names of torch's options."""

    group_rank: int
    group_size: int
    store: Any
    group_id: str
    timeout: datetime.timedelta
    global_ranks_in_group: list[int]


class MrcBackend(_Backend):
    """A process group over MRC; made by ``init_process_group("mrc")`` and ``new_group``.

    Args:
        options: What torch hands over: store, rank, size, timeout.
        alone: Address of its store, for a group that is none of the job's: its ranks come and go, and it
            shares neither device nor connections with other groups.
    """

    def __init__(self, options: Any, *, alone: str | None = None) -> None:
        super().__init__(options.group_rank, options.group_size)
        self.alone = alone is not None
        """Whether the group is none of the job's."""
        host = alone or os.environ.get("MASTER_ADDR") or "127.0.0.1"
        device = None if self.alone else _device_of_job()
        # Ranks of a group of its own were started again at different times.
        name = (
            options.group_id
            if self.alone
            else f"{options.group_id or 'group'}/{os.environ.get(_RESTARTS, '0')}"
        )
        self.communicator = Communicator(
            options.group_rank,
            options.group_size,
            _Store(options.store),
            name=name,
            timeout=options.timeout.total_seconds(),
            address=own_address(None, host),
            _token=Token.from_environment(),
            _lifelines=None if self.alone else _lifelines_of_job(),
            _device=device,
            _members=options.global_ranks_in_group or None,
        )
        """The communicator, for its counters, records and device."""
        if not self.alone and device is None:
            _set_device_of_job(self.communicator.device)
        self._turns = Turns()
        self._waiter = Waiter()
        self._calls = 0
        install()
        _open.add(self)

    # --- what torch asks of a backend -----------------------------------------------------------------------

    def name(self) -> str:
        return "mrc"

    def getBackendName(self) -> str:
        return "mrc"

    # Torch looks for these as properties; those of its own base class ask the same object again, without end.

    @property
    def supports_coalescing(self) -> bool:
        return False  # torch 2.15 has no way to begin it in Python. Its callers make the calls one by one.

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def supports_shrinking(self) -> bool:
        return False

    @property
    def supports_reconfigure(self) -> bool:
        return False

    @property
    def supports_window(self) -> bool:
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    @property
    def options(self) -> Any:
        timeout = datetime.timedelta(seconds=self.communicator.timeout)
        return _Backend.Options("mrc", timeout)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self.communicator.timeout = timeout.total_seconds()

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        pass  # Every rank counts from 0.

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> Any:
        if self.rank() not in ranks:
            return None
        timeout = getattr(opts, "_timeout", None) or datetime.timedelta(seconds=self.communicator.timeout)
        return MrcBackend(
            GroupOptions(
                group_rank=list(ranks).index(self.rank()),
                group_size=len(ranks),
                store=store,
                group_id=getattr(opts, "group_name", "") or f"split of {self.communicator.name}",
                timeout=timeout,
                global_ranks_in_group=[self.communicator.members[rank] for rank in ranks],
            )
        )

    # With `device_id=` torch asks for connections at once, and tells ranks outside of a new group of it.

    def eager_connect_single_device(self, device: torch.device) -> None:
        pass  # All ranks of a group are connected when it is made.

    def perform_nocolor_split(self, device: torch.device) -> None:
        pass  # The members connect among themselves.

    def abort(self) -> None:
        self.communicator.abort("abort was called")
        self._turns.close(AbortedError("abort was called"))

    def shutdown(self) -> None:
        _open.discard(self)
        self._turns.close(ClosedError("the process group was closed before the operation had begun"))
        self._waiter.close()
        self.communicator.close()

    # --- operations -----------------------------------------------------------------------------------------

    def _allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> "Pending":
        [tensor] = one(tensors)
        if tensor.is_sparse:
            how = self._how(opts, reduce=True)
            if "op" in how or "factor" in how:
                raise UnsupportedError("the backend mrc reduces sparse tensors by their sum only")
            self._turns.settle(how["timeout"])
            sum_sparse(self.communicator, tensor, how["timeout"])
            return self._begun([], [tensor], [])
        return self._in_place(tensor, self.communicator.all_reduce, **self._how(opts, reduce=True))

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        return self._work(self._allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        return self._joined([self._allreduce([tensor], opts) for tensor in tensors])

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        [tensor] = one(tensors)
        how = self._how(opts)
        return self._work(self._in_place(tensor, self.communicator.broadcast, opts.rootRank, **how))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        [tensor] = one(tensors)
        how = self._how(opts, reduce=True)
        return self._work(self._in_place(tensor, self.communicator.reduce, None, opts.rootRank, **how))

    def _gather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "Pending":
        source, target = ready(input), Target(output)
        work = self._issue(output, self.communicator.all_gather, source, target.data, **self._how(opts))
        return self._begun([work], [output], [source, target.data], target.copy_back)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._work(self._gather_base(output, input, opts))

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._allgather_base(output, input, opts)

    def _allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> "Pending":
        [input] = one(inputs)
        [parts] = one(outputs)
        source = ready(input)
        counts = [part.numel() for part in parts]
        whole = room(sum(counts), input)
        work = self._issue(
            input,
            self.communicator.all_gather,
            source,
            real(whole),
            counts=doubled(counts, input),
            **self._how(opts),
        )
        return self._begun([work], list(parts), [source, whole], _divided(whole, parts))

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

    def _scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> "Pending":
        source, target = ready(input), Target(output)
        how = self._how(opts, reduce=True)
        work = self._issue(output, self.communicator.reduce_scatter, source, target.data, **how)
        return self._begun([work], [output], [source, target.data], target.copy_back)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._work(self._scatter_base(output, input, opts))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self._reduce_scatter_base(output, input, opts)

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Any:
        [output] = one(outputs)
        [parts] = one(inputs)
        counts = doubled([part.numel() for part in parts], output)
        whole = _end_to_end(parts)
        target = Target(output)
        how = self._how(opts, reduce=True)
        work = self._issue(output, self.communicator.reduce_scatter, whole, target.data, counts=counts, **how)
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
        source, target = ready(input), Target(output)
        if source.data_ptr() == target.data.data_ptr():
            source = source.clone()
        work = self._issue(
            output,
            self.communicator.all_to_all,
            source,
            target.data,
            send_counts=rows(input, input_split_sizes, self.size()),
            recv_counts=rows(output, output_split_sizes, self.size()),
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
        whole = _end_to_end(inputs)
        counts = [each.numel() for each in outputs]
        arriving = room(sum(counts), outputs[0])
        work = self._issue(
            inputs[0],
            self.communicator.all_to_all,
            whole,
            real(arriving),
            send_counts=doubled([each.numel() for each in inputs], inputs[0]),
            recv_counts=doubled(counts, outputs[0]),
            **self._how(opts),
        )
        finish = _divided(arriving, outputs)
        return self._work(self._begun([work], list(outputs), [whole, arriving], finish))

    def gather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any
    ) -> Any:
        [input] = one(inputs)
        source = ready(input)
        if self.rank() != opts.rootRank:
            work = self._issue(
                input, self.communicator.gather, source, None, opts.rootRank, **self._how(opts)
            )
            return self._work(self._begun([work], [], [source]))
        [parts] = one(outputs)
        whole = room(input.numel() * self.size(), input)
        work = self._issue(
            input, self.communicator.gather, source, real(whole), opts.rootRank, **self._how(opts)
        )
        return self._work(self._begun([work], list(parts), [source, whole], _divided(whole, parts)))

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        source, target = ready(input), Target(output)
        out = target.data if self.rank() == opts.rootRank else None
        work = self._issue(input, self.communicator.gather, source, out, opts.rootRank, **self._how(opts))
        return self._work(self._begun([work], [output], [source, target.data], target.copy_back))

    def gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> Any:
        return self.gather_single(output, input, opts)

    def scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> Any:
        [output] = one(outputs)
        target = Target(output)
        whole = None
        if self.rank() == opts.rootRank:
            [parts] = one(inputs)
            whole = _end_to_end(parts)
        work = self._issue(
            output, self.communicator.scatter, target.data, whole, opts.rootRank, **self._how(opts)
        )
        return self._work(self._begun([work], [output], [whole, target.data], target.copy_back))

    def barrier(self, opts: Any) -> Any:
        return self._work(
            self._begun([self._issue(None, self.communicator.barrier, **self._how(opts))], [], [])
        )

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int) -> Any:
        [tensor] = one(tensors)
        data = ready(tensor)
        work = self._issue(tensor, self.communicator.send, data, dst, tag=tag, async_op=True)
        return self._work(self._begun([work], [tensor], [data]), collective=False)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int) -> Any:
        return self._work(self._receive(tensors, src, tag), collective=False)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> Any:
        return self._work(self._receive(tensors, None, tag), collective=False)

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
        """As :func:`torch.distributed.monitored_barrier`: rank 0 names the ranks that do not come.

        Raises:
            RuntimeError: with the words of gloo.
        """
        if self.rank() == 0 and not opts.timeout:  # Here, as with gloo, 0 is no time at all.
            raise RuntimeError("Rank 0 timed out in monitoredBarrier after 0 ms")
        seconds = seconds_of(opts.timeout, self.communicator.timeout)
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
        how: dict[str, Any] = {
            "async_op": True,
            "timeout": seconds_of(opts.timeout, self.communicator.timeout),
        }
        if reduce:
            op = opts.reduceOp
            if op == dist.ReduceOp.PREMUL_SUM:
                how["factor"] = float(op.__getstate__()[1])
            elif op != _SUM:
                how["op"] = _reduction(op)
        return how

    def _issue(
        self,
        tensor: torch.Tensor | None,
        call: Callable[..., CollectiveWork | None],
        *arguments: Any,
        **how: Any,
    ) -> "CollectiveWork | Staged | None":
        """Begins an operation, once what it reads of the tensor's accelerator is in main memory."""
        timeout = how.pop("timeout", self.communicator.timeout)
        copied = None if tensor is None or tensor.is_cpu else mark(tensor.device)
        return self._turns.begin(copied, lambda left: call(*arguments, timeout=left, **how), timeout)

    def _in_place(
        self,
        tensor: torch.Tensor,
        call: Callable[..., CollectiveWork | None],
        *arguments: Any,
        **how: Any,
    ) -> "Pending":
        target = Target(tensor, keep=True)
        work = self._issue(tensor, call, target.data, *arguments, **how)
        return self._begun([work], [tensor], [target.data], target.finish)

    def _receive(self, tensors: Sequence[torch.Tensor], source: int | None, tag: int) -> "Pending":
        [tensor] = one(tensors)
        target = Target(tensor)
        work = self._issue(tensor, self.communicator.recv, target.data, source, tag=tag, async_op=True)
        return self._begun([work], [tensor], [target.data], target.copy_back)

    def _joined(self, pendings: "list[Pending]") -> "MrcWork":
        def finish() -> None:
            for each in pendings:
                each.finish()

        works = [work for each in pendings for work in each.works]
        tensors = [tensor for each in pendings for tensor in each.tensors]
        return self._work(Pending(works, tensors, finish))

    def _work(self, pending: "Pending", *, collective: bool = True) -> "MrcWork":
        self._calls += collective  # Ranks compare this number; messages concern two of them only.
        return Answered(self._waiter, pending)

    def _begun(
        self,
        works: "list[CollectiveWork | Staged | None]",
        tensors: list[torch.Tensor],
        keep: list[Any],
        finish: Callable[[], Any] | None = None,
    ) -> "Pending":
        return Pending([each for each in works if each is not None], tensors, finish, keep)


for _method, _name in _PROFILED.items():
    setattr(MrcBackend, _method, as_torch_raises(profiled(_name, getattr(MrcBackend, _method))))


def _end_to_end(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The parts as one input, one behind the other."""
    return ready(torch.cat([part.reshape(-1) for part in parts]))


def _divided(whole: torch.Tensor, parts: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Copies what has arrived to the tensors that it is for."""

    def finish() -> None:
        for part, piece in zip(parts, whole.split([part.numel() for part in parts]), strict=True):
            copy_back(part, piece.view(part.shape))

    return finish


def _reduction(op: Any) -> str:
    for known, name in _OPS.items():
        if op == known:
            return name
    raise UnsupportedError(f"the backend mrc has no reduction {op}: {', '.join(sorted(_OPS.values()))}")
