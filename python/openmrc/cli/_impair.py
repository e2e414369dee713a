"""The option ``--impair``: a bad network on purpose, for tests."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from openmrc.cli._complete import matching
from openmrc.errors import ArgumentError
from openmrc.testing import Impairment, ImpairmentKind, PacketClass, impair
from openmrc.units import parse_share, parse_time
from openmrc.verbs import Context

KINDS = {
    "loss": ImpairmentKind.DROP,
    "drop": ImpairmentKind.DROP,
    "duplicate": ImpairmentKind.DUPLICATE,
    "reorder": ImpairmentKind.REORDER,
    "corrupt": ImpairmentKind.CORRUPT,
    "delay": ImpairmentKind.DELAY,
    "mark": ImpairmentKind.ECN_MARK,
    "trim": ImpairmentKind.TRIM,
}


FIELDS = ("ports", "evs", "class", "start", "end", "by")
"""What may follow the kind."""


def _complete(incomplete: str) -> list[str]:
    """Kinds of ``--impair``, then its fields."""
    before, comma, last = incomplete.rpartition(",")
    words = [f"{name}=" for name in (FIELDS if comma else KINDS)]
    return [f"{before}{comma}{word}" for word in matching(words, last)]


ImpairOption = Annotated[
    list[str] | None,
    typer.Option(
        "--impair",
        metavar="KIND=SHARE[,...]",
        help="For tests: impair this share of the packets that this end sends. KIND is loss, duplicate, "
        "reorder, corrupt, delay, mark or trim. More fields: ports=0+3, evs=SHARE, class=data, start=TIME, "
        "end=TIME, by=TIME (of delay). May be repeated.",
        rich_help_panel="Planes",
        autocompletion=_complete,
    ),
]


def parse(text: str) -> Impairment:
    """A rule such as ``loss=1%,ports=3`` or ``delay=100%,by=200us,evs=25%,start=2s``.

    Raises:
        ArgumentError: names the part that is wrong.
    """
    first, *rest = text.split(",")
    kind, equals, probability = first.partition("=")
    if kind not in KINDS or not equals:
        raise ArgumentError(f"--impair {text}: begin with KIND=SHARE, where KIND is {', '.join(KINDS)}")
    rule: dict[str, Any] = {"kind": KINDS[kind], "probability": _share(text, kind, probability)}
    for part in rest:
        name, _, value = part.partition("=")
        match name:
            case "ports":
                rule["ports"] = [_port(text, port) for port in value.split("+")]
            case "evs":
                rule["ev_fraction"] = _share(text, name, value)
            case "class" if value in tuple(PacketClass):
                rule["packet_class"] = PacketClass(value)
            case "start" | "end":
                rule[name] = _time(text, name, value)
            case "by" if first.startswith("delay"):
                rule["delay_us"] = _time(text, name, value, needs_unit=True) * 1e6
            case _:
                known = "ports=, evs=, class=any|data|control, start=, end=, by= (of delay)"
                raise ArgumentError(f"--impair {text}: {part!r} is none of {known}")
    return Impairment(**rule)


def parse_all(texts: Sequence[str] | None) -> list[Impairment]:
    """One rule for each text."""
    return [parse(text) for text in texts or ()]


def configure(texts: Sequence[str] | None) -> Callable[[Context], None] | None:
    """A function that puts the rules in force at a device; ``None`` if there are none."""
    rules = parse_all(texts)
    if not rules:
        return None

    def put_in_force(context: Context) -> None:
        impair(context, *rules, seed=1)

    return put_in_force


def fail_port(text: str) -> Impairment:
    """``3@2.5s``: port 3 drops everything from 2.5 seconds on; the transport is not informed.

    Raises:
        ArgumentError: if it does not have this form.
    """
    port, _, start = text.partition("@")
    if not port.isdigit():
        raise ArgumentError(f"--fail-port {text}: write a port and a time, such as 3@2.5s")
    return Impairment.drop(ports=[int(port)], start=_time(text, "time", start or "0"))


def _port(text: str, value: str) -> int:
    if not value.isdigit():
        raise ArgumentError(f"{text}: ports is {value!r}; write numbers like 0+3")
    return int(value)


def _share(text: str, name: str, value: str) -> float:
    try:
        return parse_share(value)
    except ArgumentError as error:
        raise ArgumentError(f"{text}: {name}: {error}") from None


def _time(text: str, name: str, value: str, *, needs_unit: bool = False) -> float:
    try:
        return parse_time(value, needs_unit=needs_unit)
    except ArgumentError as error:
        raise ArgumentError(f"{text}: {name}: {error}") from None
