"""How long the goodput stayed down after a fault, from samples of bytes per interval."""

from collections.abc import Sequence
from statistics import median


def longest_dip(
    bytes_per_interval: Sequence[int], interval_ms: float, fault_ms: float, share: float
) -> float:
    """The longest time in milliseconds that goodput after a fault was below a share of what it settled at.

    What it settled at is the median over the second half of the time after the fault: what the remaining
    planes give on this machine. On loopback that is bound by the processor, not by seven eighths of a wire.

    Args:
        bytes_per_interval: Bytes completed in each interval of the run, from its beginning.
        interval_ms: The length of an interval.
        fault_ms: When the fault happened, from the beginning of the run.
        share: The share of the settled goodput that counts as down, such as 0.8.

    Raises:
        ValueError: fewer than eight intervals follow the fault.
    """
    after = bytes_per_interval[int(fault_ms / interval_ms) :]
    if len(after) < 8:
        raise ValueError(f"{len(after)} intervals after the fault are too few; run longer")
    floor = share * median(after[len(after) // 2 :])
    longest = current = 0
    for count in after:
        current = current + 1 if count < floor else 0
        longest = max(longest, current)
    return longest * interval_ms
