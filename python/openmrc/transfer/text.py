"""Figures of a transfer as people read them."""


def size(count: float) -> str:
    """Bytes with a decimal prefix, as disks and ``ls --si`` count: ``2.15 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"


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


def files(count: int) -> str:
    """``1 file``, ``2 files``."""
    return f"{count} file{'' if count == 1 else 's'}"
