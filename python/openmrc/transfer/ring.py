"""The data path of a transfer: blocks of files as RDMA writes into a ring of memory at the receiver.

The ring is small, so blocks are hashed and stored while they are still in the processor's cache.
docs/decisions.md says why files are not mapped and written directly.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from openmrc import _core
from openmrc.closing import Closable
from openmrc.control import Account, ExhaustedError
from openmrc.control.messages import parse
from openmrc.errors import ConnectError
from openmrc.handshake import End, Offer, Options
from openmrc.transfer.protocol import RingShape
from openmrc.verbs import (
    AccessFlags,
    Completion,
    CompletionQueue,
    Context,
    MemoryRegion,
    QpCap,
    QueuePair,
    SendWR,
    Sge,
    WcOpcode,
    WcStatus,
)

BLOCKS = 16
BLOCK_BYTES = 2 << 20
"""Together a window of 32 MiB: what 100 Gb/s carry in 2.5 ms, in which a disk may stall."""

_SMALLER = ((8, BLOCKS), (16, 8), (32, 4))
_SMALLEST = 2
"""Blocks of a sender's ring by the number of senders: 64 of them get 640 MiB together, not 2 GiB."""

LIST_ROOM = 1 << 20
"""Bytes that are reserved with a receiver's ring for the sender's list of files: 1,300 short names."""

PEER_TIMEOUT = 30.0
"""Seconds without an answer on any plane after which the other end is given up: twice the 15 s for which a
process may be stopped."""

_KEEPALIVE = 1.0
"""Seconds of silence after which the other end is asked."""

_MOST_DOUBLING = 24
"""Retries with doubling interval; one more is without end."""

_U32 = (1 << 32) - 1

_MEANING = {
    WcStatus.RETRY_EXC_ERR: "it does not answer on any plane",
    WcStatus.REM_ACCESS_ERR: "it refused a write",
    WcStatus.REM_OP_ERR: "it could not execute a write",
    WcStatus.WR_FLUSH_ERR: "the queue pair broke",
}


class _Ring(Closable):
    """One end: a queue pair, one completion queue for everything, and block-sized pieces of memory."""

    def __init__(
        self, context: Context, peer: str, blocks: int, block_bytes: int, access: AccessFlags
    ) -> None:
        self.context = context
        self.peer = peer
        self.blocks = blocks
        self.block_bytes = block_bytes
        # All pages now: a page fault for each of the first blocks would look like a congested network.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        self.buffer = mmap.mmap(-1, blocks * block_bytes, flags=flags)
        self._view = memoryview(self.buffer)
        self.pd = context.alloc_pd()
        self.cq: CompletionQueue = context.create_cq(4 * blocks)
        self.region: MemoryRegion = self.pd.register(self.buffer, access)
        cap = QpCap(max_send_wr=2 * blocks, max_recv_wr=2 * blocks)
        self.qp: QueuePair = self.pd.create_qp(self.cq, cap=cap, sq_sig_all=True)
        self.peer_timeout = PEER_TIMEOUT
        """Seconds without an answer on any plane after which :meth:`completions` raises."""

    def block(self, number: int) -> memoryview:
        """The memory of the block with this number, counted from the beginning of the transfer."""
        start = number % self.blocks * self.block_bytes
        return self._view[start : start + self.block_bytes]

    def completions(self) -> Iterator[Completion]:
        """Yields completions, without waiting.

        Raises:
            ConnectError: if a request failed, or the peer has not answered for :attr:`peer_timeout`.
        """
        silent = self.qp.silent_for
        if silent is not None and silent + _KEEPALIVE > self.peer_timeout:
            raise ConnectError(
                f"lost {self.peer}: it does not answer on any plane, for {self.peer_timeout:.3g} s now"
            )
        for completion in self.cq.poll(4 * self.blocks):
            if not completion.ok:
                meaning = _MEANING.get(completion.status, "the transfer broke")
                raise ConnectError(f"lost {self.peer}: {meaning} ({completion.status.name})")
            if completion.opcode is WcOpcode.RECV_RDMA_WITH_IMM:
                self.qp.post_recv(1)
            yield completion

    def _options(self, path_mtu: int | None) -> Options:
        # Retries that end then too: of a network that carries only the peer's packets, silence means nothing.
        timeout, fixed = _core.QP_DEFAULTS["timeout"], _core.QP_DEFAULTS["linear_cnt"]
        lasting = (_core.retry_seconds(timeout, fixed, doubling) for doubling in range(_MOST_DOUBLING))
        exp_cnt = sum(seconds is not None and seconds < self.peer_timeout for seconds in lasting)
        return Options(path_mtu=path_mtu, exp_cnt=exp_cnt, keepalive_ms=int(_KEEPALIVE * 1000))

    def close(self) -> None:
        """Closes the queue pair and frees the memory. Closing twice is harmless."""
        self.pd.close()
        self.cq.close()
        # The mapping is freed with its last view; a caller may still hold one of a block.
        self._view.release()


@dataclass(frozen=True, slots=True)
class Block:
    """A block that arrived."""

    tag: int
    """The immediate value: which file."""
    data: memoryview


class ReceivingRing(_Ring):
    """The receiver's end: the sender writes into it."""

    def __init__(
        self, context: Context, peer: str, *, blocks: int = BLOCKS, block_bytes: int = BLOCK_BYTES
    ) -> None:
        super().__init__(
            context, peer, blocks, block_bytes, AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE
        )
        self._consumed = 0

    @classmethod
    def for_sender(
        cls, context: Context, peer: str, senders: int, account: Account | None = None
    ) -> "ReceivingRing":
        """A ring whose size depends on how many senders there are with this one, and on what memory is left.

        Args:
            context: The device.
            peer: The sender, for errors.
            senders: How many there are.
            account: Where its memory is reserved.

        Raises:
            ExhaustedError: if there is no memory for the smallest ring.
        """
        blocks = next((blocks for most, blocks in _SMALLER if senders <= most), _SMALLEST)
        while account is not None:
            try:
                account.reserve(blocks * BLOCK_BYTES + LIST_ROOM, "a ring")
                break
            except ExhaustedError:
                if blocks == _SMALLEST:
                    raise
                blocks //= 2
        return cls(context, peer, blocks=blocks)

    def end(self, path_mtu: int | None = None) -> End:
        """This end, for the handshake: the ring is offered as the one buffer."""
        shape = RingShape(blocks=self.blocks, block_bytes=self.block_bytes)
        return End(
            [self.qp],
            buffers=[self.region],
            data=shape.model_dump(),
            options=self._options(path_mtu),
            receives=2 * self.blocks,
        )

    def arrived(self) -> Iterator[Block]:
        """Yields the blocks that have arrived, in order. Asking for the next gives a block's memory back.

        Raises:
            ConnectError: if the queue pair broke or a block is too long.
        """
        for completion in self.completions():
            if completion.opcode is not WcOpcode.RECV_RDMA_WITH_IMM:
                continue
            if completion.imm_data is None or completion.byte_len > self.block_bytes:
                raise ConnectError(
                    f"{self.peer} sent a block of {completion.byte_len} bytes, more than agreed"
                )
            data = self.block(self._consumed)[: completion.byte_len]
            yield Block(completion.imm_data, data)
            self._consumed += 1
            self.qp.post_send(SendWR(imm_data=self._consumed & _U32))


class SendingRing(_Ring):
    """The sender's end: blocks are written from its memory.

    Raises:
        ConnectError: if the receiver offers no ring, or one of more than 64 MiB.
    """

    def __init__(self, context: Context, peer: str, offer: Offer) -> None:
        shape = parse(RingShape, offer.data, peer)
        if len(offer.buffers) != 1 or offer.buffers[0].length < shape.blocks * shape.block_bytes:
            raise ConnectError(
                f"{peer} offers no buffer of {shape.blocks} blocks of {shape.block_bytes} bytes"
            )
        super().__init__(context, peer, shape.blocks, shape.block_bytes, AccessFlags.NONE)
        self._addr = offer.buffers[0].addr
        self._rkey = offer.buffers[0].rkey
        self._posted = 0
        self._completed = 0
        self._consumed = 0
        self._lengths: list[int] = [0] * self.blocks
        self.bytes_consumed = 0
        """Bytes that the receiver has taken out of the ring."""

    def end(self, path_mtu: int | None = None) -> End:
        """This end, for the handshake."""
        return End([self.qp], options=self._options(path_mtu), receives=2 * self.blocks)

    @property
    def drained(self) -> bool:
        """Whether the receiver has consumed everything that was posted."""
        return self._consumed == self._posted and self._completed == self._posted

    def free(self) -> memoryview | None:
        """The next block to fill.

        ``None`` while the receiver has not consumed enough, or while packets of the block's last contents may
        still be sent again.
        """
        if self._posted - min(self._consumed, self._completed) >= self.blocks:
            return None
        return self.block(self._posted)

    def post(self, length: int, tag: int, source: Sge | None = None) -> None:
        """Writes a block.

        Args:
            length: Bytes.
            tag: Sent with the block.
            source: Where the bytes are; default the beginning of the block from :meth:`free`.
        """
        slot = self._posted % self.blocks
        offset = slot * self.block_bytes
        self._lengths[slot] = length
        self.qp.post_send(
            SendWR(
                sg_list=(source or self.region.sge(offset, length),),
                remote_addr=self._addr + offset,
                rkey=self._rkey,
                imm_data=tag,
            )
        )
        self._posted += 1

    def poll(self) -> bool:
        """Handles completions: own writes, and the receiver's credit. Returns whether there were any.

        Raises:
            ConnectError: if the queue pair broke, or the receiver claims what cannot be.
        """
        moved = False
        for completion in self.completions():
            moved = True
            if completion.opcode is WcOpcode.RDMA_WRITE:
                self._completed += 1
                continue
            consumed = (completion.imm_data or 0) - self._consumed & _U32
            if consumed > self._posted - self._consumed:
                raise ConnectError(f"{self.peer} claims to have consumed blocks that were not sent")
            for _ in range(consumed):
                self.bytes_consumed += self._lengths[self._consumed % self.blocks]
                self._consumed += 1
        return moved
