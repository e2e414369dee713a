"""Sizes, rates and times as people read and write them."""

from openmrc.errors import ArgumentError

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def size(count: float) -> str:
    """Bytes with a decimal prefix, as disks and ``ls --si`` count: ``2.15 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"


def parse_size(text: str, what: str) -> int:
    """Bytes of ``2GiB``, ``500M``, ``1048576``.

    Args:
        text: What the user wrote.
        what: Its name in the error message.

    Raises:
        ArgumentError: if it is not a size of at least 1 byte.
    """
    lower = text.lower().removesuffix("b")
    number = lower.rstrip("kmgi")
    try:
        count = int(float(number) * _FACTORS[lower[len(number) :]])
    except (ValueError, KeyError):
        raise ArgumentError(
            f"{what} {text}: write a number with k, M, G, Ki, Mi or Gi, such as 2GiB"
        ) from None
    if count < 1:
        raise ArgumentError(f"{what} {text}: at least 1 byte")
    return count


def rate(count: int, seconds: float) -> str:
    """Bytes in a time as a bit rate, as networks count: ``17.2 Gb/s``."""
    if seconds <= 0 or count == 0:
        return "-"
    bits = count * 8 / seconds
    for unit in ("b/s", "kb/s", "Mb/s"):
        if bits < 1000:
            return f"{bits:.1f} {unit}"
        bits /= 1000
    return f"{bits:.1f} Gb/s"


def duration(milliseconds: float) -> str:
    """``3.2 ms``, ``250 ms`` or ``1.42 s``."""
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.1f} ms"


def files(count: int) -> str:
    """``1 file``, ``2 files``."""
    return f"{count} file{'' if count == 1 else 's'}"
