"""Rates and lengths as people write them: ``800G``, ``51.2 Tb/s``, ``30 m``."""

import re
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator

from openmrc import units

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(m|km)?", re.ASCII)


def parse_rate(text: object) -> int:
    """A rate in bit/s, as every command reads it (:func:`openmrc.units.parse_rate`).

    Raises:
        ValueError: if it is not a positive whole number of bit/s with a unit.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a rate; write it like 800G or 51.2T")
    return units.parse_rate(text)


def format_rate(rate: float) -> str:
    """A rate with a short unit: ``100G``, ``51.2T``."""
    for unit, factor in (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if rate >= factor:
            return f"{rate / factor:.6g}{unit}"
    return f"{rate:g}"


def parse_length(value: object) -> float:
    """A length in metres.

    Raises:
        ValueError: if it is neither a number nor a number with ``m`` or ``km``.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        length = float(value)
    else:
        match = _LENGTH.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"{value!r} is not a length; write it like 3 m")
        length = float(match[1]) * (1000 if match[2] == "km" else 1)
    if not 0 < length <= 100_000:
        raise ValueError(f"{value!r} is not a length of a cable: more than 0 and at most 100 km")
    return length


def parse_ratio(value: object) -> Fraction:
    """An oversubscription: ``2``, ``1.5``, ``"3:1"``.

    Raises:
        ValueError: if it is not between 1/8 and 64.
    """
    try:
        if isinstance(value, str):
            down, _, up = value.partition(":")
            ratio = Fraction(down) / Fraction(up or "1")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        else:
            ratio = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{value!r} is not a ratio; write it like 2, 1.5 or 3:1") from None
    ratio = ratio.limit_denominator(1024)
    if not Fraction(1, 8) <= ratio <= 64:
        raise ValueError(f"{value!r} is out of range: an oversubscription is between 1:8 and 64:1")
    return ratio


Rate = Annotated[int, BeforeValidator(lambda v: v if isinstance(v, int) and v >= 10**6 else parse_rate(v))]
"""bit/s; read from ``800G`` and the like (or a plain number of bit/s from a program)."""
Length = Annotated[float, BeforeValidator(parse_length)]
"""Metres."""
Ratio = Annotated[Fraction, BeforeValidator(lambda v: v if isinstance(v, Fraction) else parse_ratio(v))]
"""Downlink to uplink bandwidth."""
