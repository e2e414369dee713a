"""Work requests and completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from openmrc.errors import ArgumentError
from openmrc.verbs.enums import SendFlags, WcOpcode, WcStatus, WrOpcode

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Sge(NamedTuple):
    """A piece of registered memory of this side (``ibv_sge``); :meth:`MemoryRegion.sge` makes one."""

    addr: int
    """Address of its first byte."""
    length: int
    """Bytes, 0 to 2^32 - 1."""
    lkey: int
    """:attr:`MemoryRegion.lkey`."""


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """Registered memory of a peer: what others need in order to write there.

    An application can name other addresses; then the peer's NIC refuses the write, and the queue pair goes to
    ERROR. :meth:`at` refuses such a part here, before anything is sent.
    """

    addr: int
    """Virtual address of the first byte, as in the RETH."""
    length: int
    """Bytes."""
    rkey: int
    """Key of the region, 32 bits."""

    def at(self, offset: int = 0, length: int | None = None) -> "RemoteBuffer":
        """The part of ``length`` bytes (default: the rest) at ``offset``.

        Raises:
            ArgumentError: if it exceeds the buffer.
        """
        first, size = part(f"remote buffer 0x{self.rkey:08x}", self.length, offset, length)
        return RemoteBuffer(self.addr + first, size, self.rkey)


def part(what: str, total: int, offset: int, length: int | None) -> tuple[int, int]:
    """Checks that ``length`` bytes at ``offset`` lie in ``total``; returns offset and length."""
    if not 0 <= offset <= total:
        raise ArgumentError(f"offset {offset} is outside {what} of {total} bytes: 0 to {total} is allowed")
    left = total - offset
    if length is None:
        return offset, left
    if not 0 <= length <= left:
        raise ArgumentError(
            f"{length} bytes at offset {offset} do not fit {what} of {total} bytes: at most {left} do"
        )
    return offset, length


@dataclass(slots=True, kw_only=True)
class SendWR:
    """An RDMA WRITE (``ibv_send_wr``), with immediate if ``imm_data`` is given.

    The memory in ``sg_list`` must not change before the completion. With ``SendFlags.INLINE`` the list has
    bytes-like objects instead, which are copied while posting.
    """

    sg_list: "Sequence[Sge | Buffer]" = ()
    """Pieces of memory, one after the other; empty for a write without data."""
    remote_addr: int = 0
    """Virtual address of the first byte at the peer."""
    rkey: int = 0
    """Key of the peer's region."""
    imm_data: int | None = None
    """Value for the peer's receive completion, 32 bits."""
    wr_id: int = 0
    """Returned in the completion, 64 bits."""
    opcode: WrOpcode | None = None
    """RDMA_WRITE or RDMA_WRITE_WITH_IMM; ``None``: ``imm_data`` decides. A contradiction is refused."""
    send_flags: SendFlags = SendFlags.SIGNALED


@dataclass(frozen=True, slots=True)
class RecvWR:
    """Room for one write with immediate (``ibv_recv_wr``); the peer's write says where the data go."""

    wr_id: int = 0
    """Returned in the completion, 64 bits."""


class Completion(NamedTuple):
    """A completed work request (``ibv_wc``)."""

    wr_id: int
    """The number that the application gave the work request."""
    status: WcStatus
    """The result; anything but SUCCESS means that the queue pair is in ERROR."""
    opcode: WcOpcode
    """RDMA_WRITE for sends, RECV_RDMA_WITH_IMM for receives."""
    byte_len: int
    """Bytes of the message."""
    imm_data: int | None
    """The peer's immediate value, on receives."""
    qp_num: int
    """The queue pair."""

    @property
    def ok(self) -> bool:
        """Whether the status is SUCCESS."""
        return self.status is WcStatus.SUCCESS
