"""Protection domains: memory regions and queue pairs that belong together."""

from typing import TYPE_CHECKING, Any

from openmrc import _core
from openmrc.closing import Closable
from openmrc.verbs.attr import QpCap, QpHint
from openmrc.verbs.enums import AccessFlags
from openmrc.verbs.hint import SharedQpHint
from openmrc.verbs.memory import MemoryRegion, register
from openmrc.verbs.qp import QueuePair

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from openmrc.verbs.context import Context
    from openmrc.verbs.cq import CompletionQueue

REMOTE_WRITABLE = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE


class ProtectionDomain(Closable):
    """Memory regions and queue pairs that belong together (``ibv_pd``); made by :meth:`Context.alloc_pd`.

    A write that arrives on a queue pair of one domain cannot reach a region of another domain, whatever key
    it carries. Closing a domain closes everything made in it.
    """

    def __init__(self, context: "Context", core: _core.ProtectionDomain) -> None:
        self.context = context
        self._core = core
        # A region or queue pair lives until it is closed, as in ibverbs, even without a reference from
        # Python: peers may still name it.
        self._regions: set[MemoryRegion] = set()
        self._qps: set[QueuePair] = set()

    @property
    def handle(self) -> int:
        """Its number in the context."""
        return self._core.handle

    def register(self, buffer: "Buffer | Any", access: AccessFlags = REMOTE_WRITABLE) -> MemoryRegion:
        """Registers a buffer and pins it until the region is closed (``ibv_reg_mr``).

        Args:
            buffer: A writable, contiguous object with the buffer protocol: bytearray, memoryview, mmap,
                array, NumPy array; or a PyTorch tensor in main memory. Where the file of an mmap is
                truncated while it is registered, a peer's write beyond its end is refused, and a send from
                there ends with LOC_PROT_ERR.
            access: Access rights. A buffer that is only the source of writes needs none
                (``AccessFlags.NONE``); it may be read-only.

        Raises:
            RegistrationError: if it is no buffer, read-only, not C-contiguous, can be resized in spite of the
                registration, or holds references or addresses; the message says which.
            ArgumentError: for REMOTE_WRITE without LOCAL_WRITE, or for a mapping of a file that is shorter
                than the mapping by now.
            ClosedError: if the domain or its context is closed.
        """
        region = register(self, self._core, buffer, access)
        self._regions.add(region)
        return region

    def create_qp(
        self,
        send_cq: "CompletionQueue",
        recv_cq: "CompletionQueue | None" = None,
        *,
        cap: QpCap | None = None,
        sq_sig_all: bool = False,
        hint: QpHint | SharedQpHint | None = None,
    ) -> QueuePair:
        """A queue pair in RESET (``ibv_create_qp``).

        Args:
            send_cq: Where sends complete.
            recv_cq: Where receives complete; ``send_cq`` if not given.
            cap: How much it can hold.
            sq_sig_all: Whether every send raises a completion, whatever its flags.
            hint: What traffic is expected. One of :meth:`Context.create_qp_hint` counts with what it says
                when the queue pair is connected.

        Raises:
            ArgumentError: if a capacity is out of range, or a completion queue belongs to another context.
            ClosedError: if the domain, a completion queue or the context is closed.
        """
        return QueuePair(self, send_cq, recv_cq or send_cq, cap or QpCap(), sq_sig_all=sq_sig_all, hint=hint)

    def close(self) -> None:
        """Closes its queue pairs and regions, then itself (``ibv_dealloc_pd``). Closing twice is harmless."""
        for qp in list(self._qps):
            qp.close()
        for region in list(self._regions):
            region.close()
        self._core.close()
        self.context._pds.discard(self)

    def __repr__(self) -> str:
        return f"<ProtectionDomain {self.handle} of {self.context.device.name}>"
