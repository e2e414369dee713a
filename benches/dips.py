"""The longest dip of the goodput after a fault, from samples of bytes per interval."""

from collections.abc import Sequence
from statistics import median


def longest_dip(
    bytes_per_interval: Sequence[int], interval_ms: float, fault_ms: float, share: float
) -> float:
    """The longest time in milliseconds for which goodput after a fault was below a share of its later level.

    The later level is the median over the second half of the time after the fault: the goodput of the
    remaining planes on this machine. On loopback the processor limits it, not seven eighths of a wire.

    Args:
        bytes_per_interval: Bytes completed in each interval of the run, from its beginning.
        interval_ms: The length of an interval.
        fault_ms: Time of the fault from the beginning of the run.
        share: Goodput below this share of the later level is a dip, such as 0.8.

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
