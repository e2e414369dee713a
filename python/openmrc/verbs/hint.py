"""Hints as objects of a context, shared by queue pairs: ``struct mrc_qp_hint``."""

import dataclasses
from typing import TYPE_CHECKING

from openmrc import _core
from openmrc.closing import Closable
from openmrc.errors import ArgumentError, ClosedError, StateError, UnsupportedError
from openmrc.verbs.attr import QpHint

if TYPE_CHECKING:
    from openmrc.verbs.context import Context
    from openmrc.verbs.qp import QueuePair

VENDOR_CFG_SIZE = 128
"""Bytes of a vendor's configuration (mrc.h)."""


def check_vendor_cfg(vendor_cfg: bytes) -> None:
    """A vendor's bytes can be given where they say nothing (docs/spec/c-interface.md, section 9).

    Raises:
        ArgumentError: if there are more than 128.
        UnsupportedError: if they are not all 0.
    """
    if len(vendor_cfg) > VENDOR_CFG_SIZE:
        raise ArgumentError(f"vendor_cfg has at most {VENDOR_CFG_SIZE} bytes, not {len(vendor_cfg)}")
    if any(vendor_cfg):
        raise UnsupportedError("this NIC has no vendor configuration: vendor_cfg must be all 0")


class SharedQpHint(Closable):
    """A hint that several queue pairs have (``mrc_qp_hint``); made by :meth:`Context.create_qp_hint`."""

    def __init__(self, context: "Context", hint: QpHint, vendor_cfg: bytes) -> None:
        if len(vendor_cfg) > VENDOR_CFG_SIZE:
            raise ArgumentError(f"vendor_cfg has at most {VENDOR_CFG_SIZE} bytes, not {len(vendor_cfg)}")
        if len(context._hints) >= _core.DEVICE_LIMITS["max_qp_hints"]:
            raise StateError(f"a context has at most {_core.DEVICE_LIMITS['max_qp_hints']} hints")
        self.context = context
        self._hint = hint
        self._closed = False
        self._qps: set[QueuePair] = set()
        context._hints.add(self)

    def query(self) -> QpHint:
        """What it says (``mrc_query_qp_hint``).

        Raises:
            ClosedError: if it is closed.
        """
        if self._closed:
            raise ClosedError("the hint is closed")
        return self._hint

    def modify(self, *, vendor_cfg: bytes = b"", **counts: int) -> None:
        """Changes the counts that are given (``mrc_modify_qp_hint``); for queue pairs connected later.

        Args:
            vendor_cfg: Must be all 0, at most 128 bytes.
            counts: Fields of :class:`QpHint`.

        Raises:
            ArgumentError: if a count does not exist or is less than 1; then nothing has changed.
            UnsupportedError: if ``vendor_cfg`` is not all 0; then nothing has changed.
            ClosedError: if it is closed.
        """
        before = self.query()
        check_vendor_cfg(vendor_cfg)
        known = {field.name for field in dataclasses.fields(QpHint)}
        if unknown := counts.keys() - known:
            raise ArgumentError(
                f"a hint has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}"
            )
        self._hint = dataclasses.replace(before, **counts)

    def close(self) -> None:
        """Closes it (``mrc_destroy_qp_hint``). Closing twice is harmless.

        Raises:
            StateError: if a queue pair has it.
        """
        if self._qps:
            users = ", ".join(f"0x{qp.qp_num:06x}" for qp in self._qps)
            raise StateError(f"the hint is in use by queue pair {users}: close that first")
        self._closed = True
        self.context._hints.discard(self)

    def __repr__(self) -> str:
        return f"<SharedQpHint {'closed' if self._closed else self._hint}>"
