"""The same operations by the backend gloo of torch.distributed, for comparison. Needs torch."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from openmrc.collectives.bench.cases import Case, Values
from openmrc.collectives.bench.settings import REDUCING, Settings
from openmrc.collectives.communicator import Communicator
from openmrc.collectives.rendezvous import own_address
from openmrc.errors import ArgumentError, DeviceError, UnsupportedError
from openmrc.extras import pip_install
from openmrc.verbs import Device

IN_PLACE = ("all_reduce", "broadcast", "reduce")
"""Operations of torch that have one buffer for input and output."""
_OPS = ("sum", "product", "min", "max", "band", "bor", "bxor")
_TIMEOUT = timedelta(minutes=10)

Cases = Callable[[Values], Case]
"""Makes the case of one size."""


def require() -> Any:
    """``torch``.

    Raises:
        UnsupportedError: if it is not installed.
    """
    try:
        import torch
        import torch.distributed
    except ImportError:
        raise UnsupportedError(
            f"gloo is a backend of PyTorch, which is not installed: {pip_install('torch')}"
        ) from None
    return torch


@contextmanager
def joined(comm: Communicator, settings: Settings, host: str, np: Any) -> Iterator[Cases]:
    """Makes a process group of gloo of the ranks of a communicator.

    Args:
        comm: Every rank of it calls this.
        settings: What is measured.
        host: Address of rank 0's host.
        np: NumPy.

    Raises:
        UnsupportedError: if torch is not installed.
        ArgumentError: for a type or a reduction that gloo does not have.
    """
    torch = require()
    dist = torch.distributed
    if settings.operation in REDUCING and settings.op not in _OPS:
        raise ArgumentError(f"gloo has no reduction {settings.op!r}: {', '.join(_OPS)}")
    try:
        torch.from_numpy(np.empty(0, settings.dtype))
    except TypeError:
        raise ArgumentError(f"torch has no type {settings.dtype!r} of NumPy") from None
    torch.set_num_threads(1)
    port = np.zeros(1, np.int64)
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(host, 0, comm.size, True, _TIMEOUT, wait_for_workers=False)
        port[0] = store.port
    comm.broadcast(port)
    if store is None:
        store = dist.TCPStore(host, int(port[0]), comm.size, False, _TIMEOUT)
    # By itself gloo takes the address of the host's name, which in a lab is the loopback.
    if interface := _interface_of(own_address(None, host)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.size, timeout=_TIMEOUT)
    try:
        yield lambda values: _case(torch, settings, values, comm.rank)
        comm.barrier()
    finally:
        dist.destroy_process_group()


def _interface_of(address: str) -> str | None:
    """The interface whose first address it is."""
    for _, name in socket.if_nameindex():
        with suppress(DeviceError):
            if Device.from_interfaces(name, ipv6=":" in address).ports[0].addr == address:
                return name
    return None


def _case(torch: Any, settings: Settings, values: Values, rank: int) -> Case:
    dist = torch.distributed
    name, root, n = settings.operation, settings.root, values.ranks
    op = getattr(dist.ReduceOp, settings.op.upper(), None)
    mine, here = values.of(rank), values.slice(rank)
    out = mine.copy()
    source, target = torch.from_numpy(mine), torch.from_numpy(out)
    part = torch.from_numpy(mine[here].copy())
    expected: Any = None
    call: Callable[[], object]
    if name == "all_reduce":
        call, expected = (lambda: dist.all_reduce(target, op)), values.reduced()
    elif name == "reduce_scatter":
        out = part.numpy()
        call, whole = (lambda: dist.reduce_scatter_tensor(part, source, op)), values.reduced()
        expected = None if whole is None else whole[here]
    elif name == "all_gather":
        call, expected = (lambda: dist.all_gather_into_tensor(target, part)), values.gathered()
    elif name == "all_to_all":
        call, expected = (lambda: dist.all_to_all_single(target, source)), values.exchanged(rank)
    elif name == "broadcast":
        call, expected = (lambda: dist.broadcast(target, root)), values.of(root)
    elif name == "reduce":
        call = lambda: dist.reduce(target, root, op)  # noqa: E731 - one of many forms
        expected = values.reduced() if rank == root else None
    elif name == "gather":
        parts = list(target.view(n, -1).unbind()) if rank == root else None
        call, expected = (lambda: dist.gather(part, parts, root)), values.gathered() if rank == root else None
    else:
        whole = torch.from_numpy(values.of(root))
        given = list(whole.view(n, -1).unbind()) if rank == root else None
        out = part.numpy()
        call, expected = (lambda: dist.scatter(part, given, root)), values.of(root)[here]
    return Case(call, out, expected)
