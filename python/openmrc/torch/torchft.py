"""A process group over MRC for torchft: its manager makes it again whenever replicas come or go.

    manager = torchft.Manager(pg=ProcessGroupMrc(), ...)

Needs torchft 0.2 or later. Every configuration has planes, connections and a communicator of its own.
"""

import datetime
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.futures import Future
from torchft import ddp
from torchft.process_group import ProcessGroupWrapper

from openmrc.errors import Error
from openmrc.torch import DEVICES
from openmrc.torch.backend import GroupOptions, MrcBackend
from openmrc.torch.errors import of_torch


class ProcessGroupMrc(ProcessGroupWrapper):
    """A process group of torchft, whose ranks are replicas, for tensors in main memory.

    Args:
        timeout: For an operation, and for all replicas to come when it is configured.
    """

    def __init__(self, timeout: datetime.timedelta = datetime.timedelta(seconds=60)) -> None:
        super().__init__(timeout)
        self._backend: MrcBackend | None = None
        self._lock = threading.Lock()
        self._host = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        """The name that a registered group goes by."""
        return "torchft-mrc"

    def configure(self, store_addr: str, *arguments: Any, **options: Any) -> None:
        """Makes the group of a quorum, without those before.

        Raises:
            RuntimeError: if a replica does not come within the timeout.
        """
        self._host = store_addr.partition("/")[0].rpartition(":")[0].strip("[]")
        super().configure(store_addr, *arguments, **options)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> ProcessGroup:
        # Replicas start again at different times: nothing of the environment may be part of the name.
        options = GroupOptions(
            group_rank=rank,
            group_size=world_size,
            store=store,
            group_id="torchft",
            timeout=self._timeout,
            global_ranks_in_group=[],
        )
        try:
            backend = MrcBackend(options, alone=self._host)
        except Error as error:
            raise of_torch(error) from error.__cause__
        with self._lock:
            self._backend = backend
        group = ProcessGroup(store, rank, world_size)
        kind = ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)
        for device in DEVICES:
            group._register_backend(torch.device(device), kind, backend)
        return group

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Of operations from now on, and of the next configuration."""
        super().set_timeout(timeout)
        backend = self._backend
        if backend is not None:
            backend.set_timeout(timeout)

    def errored(self) -> Exception | None:
        """Why the group cannot be used any more; ``None`` if it can."""
        backend = self._backend
        if backend is None:
            return None
        try:
            backend.communicator.check()
        except Error as error:
            aborted = RuntimeError(f"the group is aborted: {error}")
            aborted.__cause__ = error
            return aborted
        return None

    def abort(self, errored: bool = True) -> None:
        """Ends the operations under way, here and at the other replicas, and the group."""
        self._end(abort=True)
        super().abort(errored)

    def shutdown(self) -> None:
        """Ends the group. Others still finish operations that have all that they need from here."""
        self._end(abort=False)
        super().shutdown()

    def _end(self, *, abort: bool) -> None:
        with self._lock:
            backend, self._backend = self._backend, None
        if backend is None:
            return
        self._pg = None
        if abort:
            backend.abort()
        backend.shutdown()


class DistributedDataParallel(ddp.DistributedDataParallel):
    """That of torchft, which in 0.2 ends the training when a replica is lost; here the step does not count.

    Args:
        manager: The manager of this replica.
        module: The model.
        **options: Those of torch's ``DistributedDataParallel``.
    """

    @staticmethod
    def _comm_hook(state: Any, bucket: dist.GradBucket) -> Future[torch.Tensor]:  # Torch checks the types.
        # torchft's own asserts that the future of a failed operation exists; the manager knows of the error.
        state.allreduce(bucket.buffer()).wait()
        done: Future[torch.Tensor] = Future()
        done.set_result(bucket.buffer())
        return done


__all__ = ["DistributedDataParallel", "ProcessGroupMrc"]
