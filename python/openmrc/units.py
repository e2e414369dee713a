"""Sizes, rates, times and shares as people read and write them, the same in every command.

A text that could mean two things is refused, never guessed.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from openmrc.errors import ArgumentError

_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)\s*"
_SIZE = re.compile(_NUMBER + r"(?:([kmgt])(i?b)?|b)?", re.ASCII | re.IGNORECASE)
_RATE = re.compile(_NUMBER + r"([kKMGT])(?:b/s|bps|bit/s)?", re.ASCII)
_TIME = re.compile(_NUMBER + r"(ns|us|\u00b5s|\u03bcs|ms|s|min|h)?")
_SHARE = re.compile(_NUMBER + r"(%)?", re.ASCII)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "\u00b5s": Fraction(1, 10**6),
    "\u03bcs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}

_FIELDS = (
    (r"_us$", "us"),
    (r"_ns$", "ns"),
    (
        r"(^|_)bytes$|^(buffer|xoff|xon_offset|headroom|receive_buffer|snaplen|mtu|trim_size|fixed_window)$",
        "B",
    ),
    (r"(^|_)rate$|_bps$|^capacity$", "bit/s"),
    (r"^(host_t0|t0_t1|t1_t2|t2_t3|reach)$", "m"),
    (r"^watts$", "W"),
    (r"_s$", "s"),
    (r"^(every|restart)_min$", "min"),
    (r"_(h|hours)$", "h"),
    (r"(^|_)days$", "d"),
    (r"_gbps$", "Gb/s"),
    (r"_tbps$", "Tb/s"),
    (r"^usd_per_gpu_hour$", "USD"),
    (r"^(share|probability|load|control_share|exposed)$", "share"),
)


def size(count: float) -> str:
    """Bytes with a decimal prefix, as disks and ``ls --si`` count: ``2.15 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"


def parse_size(text: str) -> int:
    """Bytes of ``65536``, ``64K``, ``64KiB`` (both 65,536), ``64kB`` (64,000), ``2GiB``, ``1.5M``.

    As GNU's tools count: a letter alone and ``iB`` are powers of 1024, a letter and ``B`` powers of 1000.

    Raises:
        ArgumentError: if it is no whole number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"{text!r} is not a size; write it like 65536, 64K, 64KiB, 64kB or 2GiB")
    letter, suffix = match[2], match[3]
    base = 1000 if suffix and suffix.lower() == "b" else 1024
    count = Fraction(match[1]) * (base ** _POWER[letter.lower()] if letter else 1)
    if count.denominator != 1:
        raise ArgumentError(f"{text!r} is not a whole number of bytes")
    return int(count)


def parse_rate(text: str) -> int:
    """Bits per second of ``800G``, ``51.2T``, ``40 Mb/s``, ``200k``, with powers of 1000 as networks count.

    Raises:
        ArgumentError: if it is not a positive whole number of bit/s with a unit.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"{text!r} is not a rate; write it like 800G or 51.2T")
    bits = Fraction(match[1]) * 1000 ** _POWER[match[2].lower()]
    if bits <= 0 or bits.denominator != 1:
        raise ArgumentError(f"{text!r} is not a positive whole number of bit/s")
    return int(bits)


def parse_time(text: str, *, needs_unit: bool = False) -> float:
    """Seconds of ``5``, ``5s``, ``100ms``, ``20us``, ``2min``, ``1h``.

    Args:
        text: What the user wrote.
        needs_unit: Refuse a number without a unit: for times that nobody gives in seconds.

    Raises:
        ArgumentError: if it is not a time.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None or (needs_unit and not match[2] and float(match[1])):
        what = "a time with a unit" if needs_unit else "a time"
        raise ArgumentError(f"{text!r} is not {what}; write it like 20us, 100ms, 5s or 2min")
    return float(Fraction(match[1]) * _SECONDS[match[2] or "s"])


def parse_share(text: str) -> float:
    """A share from 0 to 1, of ``1%``, ``0.5%``, ``100%`` or ``0.01``.

    A number without the sign must be less than 1: ``1`` may mean 1 % or all.

    Raises:
        ArgumentError: if it is not a share, or not clear.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ArgumentError(f"{text!r} is not a share; write it like 1% or 0.01")
    number, percent = Fraction(match[1]), match[2] is not None
    if percent and number > 100:
        raise ArgumentError(f"{text!r} is not a share: it must be 0% to 100%")
    if not percent and number >= 1:
        raise ArgumentError(f"{text!r} is not clear: write {match[1]}% for percent, 100% for all, or 0.01")
    return float(number / 100 if percent else number)


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


def unit_of_field(name: str) -> str:
    """The unit of a field of a file, which its name says: ``us`` of ``at_us``; empty if it has none."""
    return next((unit for pattern, unit in _FIELDS if re.search(pattern, name)), "")


def parse_in(unit: str) -> Callable[[str], float] | None:
    """What reads a text with a unit of its own, as a number in ``unit``: ``2ms`` as 2000 us.

    Args:
        unit: One of :func:`unit_of_field`. ``None`` comes back for those that are written as numbers only.
    """
    if unit in ("ns", "us", "s"):
        return lambda text: round(parse_time(text, needs_unit=True) / float(_SECONDS[unit]), 9)
    return {"B": parse_size, "bit/s": parse_rate, "share": parse_share}.get(unit)
