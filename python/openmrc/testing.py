"""A bad network on purpose: rules that impair what a device sends. For tests and demonstrations.

Packets are dropped, duplicated, reordered, corrupted, delayed, marked or trimmed on their way out. A device
without rules has no cost.

    with impaired(context, Impairment.drop(probability=0.01)) as network:
        ...
        print(network.hits())
"""

import contextlib
import enum
import json
import operator
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.verbs import Context

_DEFAULTS: dict[str, Any] = json.loads(_core.IMPAIRMENT_DEFAULTS)
"""The core's rule without a kind."""


class PacketClass(enum.StrEnum):
    """The packets that a rule applies to."""

    ANY = "any"
    DATA = "data"
    """RDMA writes."""
    CONTROL = "control"
    """Everything else: feedback, probes, endpoint requests."""


_DEFAULT_CLASS = PacketClass(_DEFAULTS["packet_class"])


class ImpairmentKind(enum.StrEnum):
    """What happens to a packet."""

    DROP = "drop"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    DELAY = "delay"
    ECN_MARK = "ecn_mark"
    TRIM = "trim"


@dataclass(frozen=True, kw_only=True)
class Impairment:
    """One rule. Each class method makes a kind; its keywords, all optional, select the packets.

    Rules are tried in the given order. A rule acts if it matches and with its probability; after a drop no
    further rule is tried. Rules work on whole packets, in bytes, as they would leave the host. The defaults
    are the core's.
    """

    kind: ImpairmentKind
    probability: float = _DEFAULTS["probability"]
    """Probability for each selected packet, 0 to 1."""
    ports: Collection[int] | None = _DEFAULTS["ports"]
    """Ports it applies to; ``None``: all."""
    evs: Collection[int] | None = _DEFAULTS["evs"]
    """Entropy values it applies to; ``None``: all."""
    ev_fraction: float | None = _DEFAULTS["ev_fraction"]
    """Instead of ``evs``: a share of all entropy values, 0 to 1; the seed decides which."""
    packet_class: PacketClass = _DEFAULT_CLASS
    start: float = _DEFAULTS["start"]
    """The rule applies from this many seconds after the rules were set."""
    end: float | None = _DEFAULTS["end"]
    """The rule applies until this many seconds after the rules were set; ``None``: until they are
    replaced."""
    packets: int = _DEFAULTS["packets"]
    """REORDER: the packet is held until this many later packets of its port have left ..."""
    at_most_us: float = _DEFAULTS["at_most_us"]
    """... but at most this many microseconds."""
    bits: int = _DEFAULTS["bits"]
    """CORRUPT: bits flipped, anywhere in headers, payload or iCRC."""
    delay_us: float = _DEFAULTS["delay_us"]
    """DELAY: microseconds."""
    jitter_us: float = _DEFAULTS["jitter_us"]
    """DELAY: largest random addition, microseconds."""
    last_hop: bool = _DEFAULTS["last_hop"]
    """TRIM: mark as trimmed on the receiver's own downlink."""

    @classmethod
    def drop(cls, **rule: Any) -> Self:
        """Packets are lost."""
        return cls(kind=ImpairmentKind.DROP, **rule)

    @classmethod
    def duplicate(cls, **rule: Any) -> Self:
        """Packets are sent twice."""
        return cls(kind=ImpairmentKind.DUPLICATE, **rule)

    @classmethod
    def reorder(
        cls,
        packets: int = _DEFAULTS["packets"],
        at_most_us: float = _DEFAULTS["at_most_us"],
        **rule: Any,
    ) -> Self:
        """A packet is held until ``packets`` later packets of its port have left, at most ``at_most_us``."""
        return cls(kind=ImpairmentKind.REORDER, packets=packets, at_most_us=at_most_us, **rule)

    @classmethod
    def corrupt(cls, bits: int = _DEFAULTS["bits"], **rule: Any) -> Self:
        """``bits`` random bits of each packet are flipped."""
        return cls(kind=ImpairmentKind.CORRUPT, bits=bits, **rule)

    @classmethod
    def delay(cls, delay_us: float, jitter_us: float = _DEFAULTS["jitter_us"], **rule: Any) -> Self:
        """Packets are delayed by ``delay_us`` microseconds plus a random time of up to ``jitter_us``."""
        return cls(kind=ImpairmentKind.DELAY, delay_us=delay_us, jitter_us=jitter_us, **rule)

    @classmethod
    def ecn_mark(cls, **rule: Any) -> Self:
        """Packets are marked "congestion experienced"."""
        return cls(kind=ImpairmentKind.ECN_MARK, **rule)

    @classmethod
    def trim(cls, **rule: Any) -> Self:
        """Data packets lose their payload, and their DSCP says so, as when a switch trims them."""
        return cls(kind=ImpairmentKind.TRIM, **rule)

    def settings(self) -> dict[str, Any]:
        """The fields that are not ``None``, as plain values; collections are lists."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in given.items() if value is not None}


def _plain(value: Any) -> Any:
    """A list for a collection; anything else as it is."""
    return list(value) if isinstance(value, Collection) and not isinstance(value, str) else value


def _number(value: Any) -> int | float:
    """Numbers of other libraries, such as NumPy's."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _to_json(rules: Iterable[Impairment]) -> str:
    try:
        return json.dumps([rule.settings() for rule in rules], default=_number, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"an impairment has a value that is not allowed: {error}") from None


def check(rules: Iterable[Impairment], ports: int) -> None:
    """Checks rules for a device with this number of ports, without one.

    Raises:
        ArgumentError: says what is wrong with a rule.
    """
    _core.check_impairments(_to_json(rules), ports)


class ImpairedNetwork:
    """The rules in force at a device; see :func:`impair`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def set(self, *rules: Impairment, seed: int = 0) -> None:
        """Replaces all rules. Their schedules start now; random choices start anew from ``seed``.

        Packets that are held back are sent when they are due.

        Raises:
            ArgumentError: says what is wrong with a rule.
            ClosedError: if the context is closed.
        """
        _core.set_impairments(self._context._core, _to_json(rules), seed)

    def hits(self) -> list[int]:
        """How often each rule has acted, in the order given.

        Raises:
            ClosedError: if the context is closed.
        """
        return _core.impairment_hits(self._context._core)

    def last_hit_ns(self) -> list[int | None]:
        """When each rule acted last, by :func:`time.monotonic_ns`; ``None``: never.

        Raises:
            ClosedError: if the context is closed.
        """
        return _core.impairment_last_hits(self._context._core)

    def clear(self) -> None:
        """Ends all rules.

        Raises:
            ClosedError: if the context is closed.
        """
        self.set()


def impair(context: Context, *rules: Impairment, seed: int = 0) -> ImpairedNetwork:
    """Impairs what ``context`` sends from now on, until the rules are replaced.

    Args:
        context: Its packets are impaired. What the peer sends is impaired at the peer.
        rules: What happens to the packets.
        seed: Of all random choices.

    Raises:
        ArgumentError: says what is wrong with a rule.
        ClosedError: if the context is closed.
    """
    network = ImpairedNetwork(context)
    network.set(*rules, seed=seed)
    return network


@contextlib.contextmanager
def impaired(context: Context, *rules: Impairment, seed: int = 0) -> Iterator[ImpairedNetwork]:
    """As :func:`impair`, until the end of the ``with`` block."""
    network = impair(context, *rules, seed=seed)
    try:
        yield network
    finally:
        if not context.closed:
            network.clear()
