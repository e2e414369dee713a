"""Memory regions: which bytes of the process peers may write."""

import importlib
from typing import TYPE_CHECKING, Any

from openmrc import _core
from openmrc.closing import Closable
from openmrc.errors import ClosedError, RegistrationError
from openmrc.verbs.enums import AccessFlags
from openmrc.verbs.work import RemoteBuffer, Sge, part

if TYPE_CHECKING:
    from openmrc.verbs.pd import ProtectionDomain


def register(
    pd: "ProtectionDomain", core: _core.ProtectionDomain, buffer: Any, access: AccessFlags
) -> "MemoryRegion":
    """See :meth:`ProtectionDomain.register`."""
    return MemoryRegion(pd, core.register(_exporter(buffer), int(access)), buffer)


def _exporter(buffer: Any) -> Any:
    """``buffer`` itself, or the bytes of a PyTorch tensor as a NumPy array, which has the buffer protocol."""
    if not (hasattr(buffer, "data_ptr") and hasattr(buffer, "is_contiguous")):
        return buffer
    if buffer.device.type != "cpu":
        raise RegistrationError(
            f"a tensor on {buffer.device}: only memory of the host can be registered; copy it with .cpu()"
        )
    if not buffer.is_contiguous():
        raise RegistrationError(
            f"a tensor of shape {tuple(buffer.shape)} and strides {tuple(buffer.stride())} is not contiguous:"
            " its bytes must lie in one piece; use .contiguous()"
        )
    # As bytes: NumPy does not have all types of PyTorch (bfloat16).
    torch = importlib.import_module("torch")
    return buffer.detach().reshape(-1).view(torch.uint8).numpy()


class MemoryRegion(Closable):
    """A registered buffer (``ibv_mr``); made by :meth:`ProtectionDomain.register`.

    The buffer is pinned: it cannot be freed or resized while it is registered. After :meth:`close` has
    returned, the NIC does not read or write any byte of it, whatever packets are still in flight. The keys
    never become valid again.
    """

    def __init__(self, pd: "ProtectionDomain", core: _core.MemoryRegion, buffer: Any) -> None:
        self.pd = pd
        self._core = core
        self._buffer = buffer

    @property
    def buffer(self) -> Any:
        """The object that was registered; ``None`` once closed."""
        return self._buffer

    @property
    def addr(self) -> int:
        """Address of the first byte; peers use the same number as virtual address."""
        return self._core.addr

    @property
    def length(self) -> int:
        """Bytes."""
        return self._core.length

    @property
    def lkey(self) -> int:
        """Key for this side's scatter lists."""
        return self._core.lkey

    @property
    def rkey(self) -> int:
        """Key for the peer's work requests: a secret, 32 random bits."""
        return self._core.rkey

    @property
    def access(self) -> AccessFlags:
        """What may be done with it."""
        return AccessFlags(self._core.access)

    @property
    def closed(self) -> bool:
        """Whether it is no longer registered."""
        return self._core.closed

    def sge(self, offset: int = 0, length: int | None = None) -> Sge:
        """The piece of ``length`` bytes (default: the rest) at ``offset``.

        Raises:
            ArgumentError: if it reaches beyond the region.
            ClosedError: if the region is closed.
        """
        self._check_open()
        first, size = part(f"memory region 0x{self.lkey:08x}", self.length, offset, length)
        return Sge(self.addr + first, size, self.lkey)

    def remote(self, offset: int = 0, length: int | None = None) -> RemoteBuffer:
        """What a peer needs to write here: address, length, rkey. Pass it on out of band.

        Raises:
            ArgumentError: if the part reaches beyond the region.
            ClosedError: if the region is closed.
        """
        self._check_open()
        return RemoteBuffer(self.addr, self.length, self.rkey).at(offset, length)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"memory region 0x{self.lkey:08x} is closed: register the buffer again")

    def close(self) -> None:
        """Ends the registration and releases the buffer (``ibv_dereg_mr``). Closing twice is harmless.

        Outstanding sends that refer to it complete with LOC_PROT_ERR.
        """
        self._core.close()
        self._buffer = None
        self.pd._regions.discard(self)

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"rkey 0x{self.rkey:08x}"
        return f"<MemoryRegion of {self.length} bytes at 0x{self.addr:x}, {state}>"
