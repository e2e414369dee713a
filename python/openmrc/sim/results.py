"""What a run leaves behind: columns of messages, counters, a summary."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from openmrc.errors import Error
from openmrc.sim.scenario import Scenario

if TYPE_CHECKING:
    import numpy as np

    from openmrc import _core

NEVER = 2**64 - 1
"""A time in a column at which something did not happen."""

_PS = 1e-12


@dataclass(frozen=True)
class Summary:
    """The figures one looks at first. Times are microseconds; ``None`` where nothing was delivered."""

    messages: int
    delivered: int
    failed: int
    bytes: int
    """Payload bytes of the messages delivered."""
    first_us: float | None
    median_us: float | None
    """Completion times: from a message's posting to its last byte in place."""
    p99_us: float | None
    last_us: float | None
    makespan_us: float | None
    """From the start to the last byte of all."""
    goodput_bps: float | None
    """Payload bits delivered over the makespan, all hosts together."""


@dataclass(frozen=True)
class Results:
    """Results of one run."""

    scenario: Scenario
    columns: Mapping[str, memoryview]
    """One number a message: ``src``, ``dst``, ``bytes``, ``posted_ps``, ``delivered_ps``, ``completed_ps``,
    ``failed``; unsigned 64-bit, :data:`NEVER` for a time that did not come."""
    totals: Mapping[str, int]
    """Counters of the whole run by name."""
    base_rtt_ps: int
    """Round-trip time of a full packet and its SACK on the longest idle path, picoseconds."""

    @classmethod
    def of(cls, scenario: Scenario, simulation: "_core.Simulation") -> Self:
        """The results of a simulation as it stands."""
        columns = {name: memoryview(data).cast("Q") for name, data in simulation.messages().items()}
        return cls(scenario, columns, simulation.totals(), simulation.base_rtt())

    def to_numpy(self) -> dict[str, "np.ndarray[Any, Any]"]:
        """The columns as NumPy arrays, without copying.

        Raises:
            Error: if NumPy is not installed.
        """
        try:
            import numpy as np
        except ModuleNotFoundError:
            raise Error("to_numpy needs NumPy: pip install numpy") from None
        return {name: np.frombuffer(column, dtype=np.uint64) for name, column in self.columns.items()}

    def to_arrow(self) -> Any:
        """The columns as a ``pyarrow.Table``, without copying; times that did not come stay :data:`NEVER`.

        Raises:
            Error: if PyArrow is not installed.
        """
        try:
            # PyArrow has no type stubs, hence Any.
            pa: Any = importlib.import_module("pyarrow")
        except ModuleNotFoundError:
            raise Error("to_arrow needs PyArrow: pip install pyarrow") from None
        arrays = {
            name: pa.Array.from_buffers(pa.uint64(), len(column), [None, pa.py_buffer(column)])
            for name, column in self.columns.items()
        }
        return pa.table(arrays)

    def completion_times_us(self) -> list[float]:
        """From posting to the last byte in place, of every message delivered, sorted, microseconds."""
        pairs = zip(self.columns["posted_ps"], self.columns["delivered_ps"], strict=True)
        return sorted((delivered - posted) * 1e-6 for posted, delivered in pairs if delivered != NEVER)

    def summary(self) -> Summary:
        """The figures one looks at first."""
        times = self.completion_times_us()
        delivered = self.columns["delivered_ps"]
        done = [i for i, time in enumerate(delivered) if time != NEVER]
        size = sum(self.columns["bytes"][i] for i in done)
        end = max((delivered[i] for i in done), default=None)

        def at(share: float) -> float | None:
            return times[min(len(times) - 1, int(share * len(times)))] if times else None

        return Summary(
            messages=len(delivered),
            delivered=len(done),
            failed=sum(self.columns["failed"]),
            bytes=size,
            first_us=at(0.0),
            median_us=at(0.5),
            p99_us=at(0.99),
            last_us=at(1.0),
            makespan_us=None if end is None else end * 1e-6,
            goodput_bps=None if not end else size * 8 / (end * _PS),
        )
