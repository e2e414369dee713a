"""State dicts over all planes, verified: from one rank to another, and to the disk of an ``openmrc serve``.

checkpoint.send(model.state_dict(), 3)                  # at rank 0: rank 3 has lost its state
model.load_state_dict(checkpoint.recv(0))               # at rank 3

checkpoint.save(model.state_dict(), "step1000.pt", "10.0.0.9:4799")     # torch.load reads the file
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from openmrc.collectives import Communicator, Work
from openmrc.control import Token
from openmrc.errors import ArgumentError, ConnectError
from openmrc.planes import Planes, parse_host
from openmrc.transfer.manifest import Source
from openmrc.transfer.protocol import DEFAULT_PORT, Entry, IfExists
from openmrc.transfer.sender import Report, Sender

_TAG = (1 << 62) + 2
_DIGEST_BYTES = 16
_LENGTH_BYTES = 8


def send(state: Any, dst: int, *, group: Any = None) -> None:
    """Sends a state dict to a rank, which calls :func:`recv`.

    Args:
        state: Dictionaries, lists and tuples of tensors in main memory, numbers and texts.
        dst: The rank in the group.
        group: A process group of the backend mrc, or a :class:`Communicator`; default that of all ranks.

    Raises:
        ArgumentError: if a tensor is not in main memory, or the group is of another backend.
        RankLostError: if the rank has ended or cannot be reached.
    """
    comm = _communicator(group)
    leaves, shape = tree_flatten(state)
    tensors = [_plain(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    skeleton = io.BytesIO()
    # A tensor on "meta" has a type and a shape, and no elements.
    torch.save(
        tree_map_only(torch.Tensor, lambda tensor: _plain(tensor).to("meta"), tree_unflatten(leaves, shape)),
        skeleton,
    )
    head = skeleton.getvalue()
    comm.send(len(head).to_bytes(_LENGTH_BYTES, "big"), dst, tag=_TAG)
    comm.send(head, dst, tag=_TAG)
    under_way = [
        _begun(comm.send(_bytes(tensor), dst, tag=_TAG, async_op=True))
        for tensor in tensors
        if tensor.numel()
    ]
    # While the network carries the tensors.
    digests = b"".join(xxhash.xxh3_128_digest(_bytes(tensor).numpy()) for tensor in tensors if tensor.numel())
    for work in under_way:
        work.wait()
    if digests:
        comm.send(digests, dst, tag=_TAG)


def recv(src: int, *, group: Any = None) -> Any:
    """Receives what a rank sends by :func:`send`.

    Args:
        src: The rank in the group.
        group: As in :func:`send`.

    Raises:
        ConnectError: if a tensor's checksum (XXH3-128) is wrong.
        RankLostError: if the rank has ended or cannot be reached.
    """
    comm = _communicator(group)
    length = bytearray(_LENGTH_BYTES)
    comm.recv(length, src, tag=_TAG)
    head = bytearray(int.from_bytes(length, "big"))
    comm.recv(head, src, tag=_TAG)
    leaves, shape = tree_flatten(torch.load(io.BytesIO(head), weights_only=True))
    found = [
        torch.empty_like(leaf, device="cpu") if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    tensors = [leaf for leaf in found if isinstance(leaf, torch.Tensor) and leaf.numel()]
    works = [_begun(comm.recv(_bytes(tensor), src, tag=_TAG, async_op=True)) for tensor in tensors]
    digests = []
    for tensor, work in zip(tensors, works, strict=True):
        work.wait()
        digests.append(xxhash.xxh3_128_digest(_bytes(tensor).numpy()))
    if tensors:
        received = bytearray(_DIGEST_BYTES * len(tensors))
        comm.recv(received, src, tag=_TAG)
        if bytes(received) != b"".join(digests):
            raise ConnectError(f"the state from rank {src} arrived with a wrong checksum")
    return tree_unflatten(found, shape)


def save(
    state: Any,
    name: str,
    receiver: str,
    *,
    if_exists: IfExists = "refuse",
    planes: Planes | None = None,
    token: Token | None = None,
) -> Report:
    """Sends a state to the disk of an ``openmrc serve``, as a file that :func:`torch.load` reads.

    It is complete and has the right checksum when it gets its name.

    Args:
        state: As for :func:`torch.save`.
        name: Path below the receiver's directory.
        receiver: ``host`` or ``host:port``.
        if_exists: If the name is taken: ``refuse``, ``replace`` or ``update``; the receiver has to allow it.
        planes: The addresses to send from.
        token: What the receiver must have.

    Raises:
        ConnectError: if there is no receiver, it refuses, or the connection breaks.
    """
    host, port = parse_host(receiver, DEFAULT_PORT)
    with _in_memory(state) as file, Sender(host, port, planes=planes, token=token) as sender:
        size = file.stat().st_size
        report = sender.send([Source(file, Entry(path=name, size=size, mode=0o644))], if_exists)
    if not report.complete:
        raise ConnectError(f"{name} was not stored: {report.files[0].reason}")
    return report


@contextmanager
def _in_memory(state: Any) -> Iterator[Path]:
    """The state as a file that is on no disk."""
    fd = os.memfd_create("openmrc-checkpoint", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            torch.save(state, file)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _communicator(group: Any) -> Communicator:
    if isinstance(group, Communicator):
        return group
    group = group or dist.group.WORLD
    if group is None:
        raise ArgumentError("there is no process group: call init_process_group('mrc') first")
    found = getattr(group._get_backend(torch.device("cpu")), "communicator", None)
    if not isinstance(found, Communicator):
        raise ArgumentError("the group is of another backend than mrc")
    return found


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Its own elements, one after the other; of a DTensor those of this rank."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if local.device.type != "cpu":
        raise ArgumentError(f"a tensor is on device {local.device}: move the state to main memory first")
    return local.detach().resolve_conj().resolve_neg().contiguous()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _begun(work: Work | None) -> Work:
    assert work is not None
    return work
