"""What a communicator has done."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """An operation that has ended."""

    number: int
    """Number of the call in its communicator; 0 of a message."""
    name: str
    """Name of the operation; ``send`` or ``recv`` of a message."""
    algorithm: str
    """How it was executed."""
    nbytes: int
    """Bytes of the elements that all ranks agree on; of others, bytes that this rank sent."""
    end: float
    """When it ended, seconds of the monotonic clock."""
    seconds: float
    """From call to end."""
    shared_bytes: int
    """Bytes that this rank sent through shared memory."""
    network_bytes: int
    """Bytes that this rank sent over the network."""
    peer: int
    """The root, or the other end of a message."""
    tag: int
    """Tag of a message."""
    size: int
    """Number of ranks."""
    messages: tuple[tuple[int, int], ...] = ()
    """Receivers and bytes of the messages that this rank sent for the operation, in order, if
    ``record_messages`` was on."""

    @property
    def algbw(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds if self.seconds > 0 else math.nan

    @property
    def busbw(self) -> float:
        """Bytes per second that each rank's link carries, as nccl-tests define it."""
        return self.algbw * bus_factor(self.name, self.size)


def bus_factor(name: str, size: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests define them (doc/PERFORMANCE.md there)."""
    if name == "all_reduce":
        return 2 * (size - 1) / size
    if name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (size - 1) / size
    return 1.0
