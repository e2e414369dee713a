"""A bad network on purpose: what a device sends is harmed by rules. For tests and demonstrations.

Packets are lost, doubled, reordered, corrupted, delayed, marked or trimmed on their way out. A device without
rules pays nothing for the possibility.

    with impaired(context, Impairment.drop(probability=0.01)) as network:
        ...
        print(network.hits())
"""

import contextlib
import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Self

from openmrc import _core
from openmrc.verbs import Context


class PacketClass(enum.StrEnum):
    """Which packets a rule looks at."""

    ANY = "any"
    DATA = "data"
    """RDMA writes."""
    CONTROL = "control"
    """Everything else: feedback, probes, endpoint requests."""


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
    """One rule. Each class method makes a kind; its keywords, all optional, choose the packets.

    Rules are tried in the order they are given; each that matches and whose dice fall acts, until one drops
    the packet. They see whole packets, in bytes, as they would leave the host.
    """

    kind: ImpairmentKind
    probability: float = 1.0
    """Of each packet chosen, 0 to 1."""
    ports: Collection[int] | None = None
    """Ports it applies to; ``None``: all."""
    evs: Collection[int] | None = None
    """Entropy values it applies to; ``None``: all."""
    ev_fraction: float | None = None
    """Instead of ``evs``: a share of all entropy values, 0 to 1, always the same ones for a seed."""
    packet_class: PacketClass = PacketClass.ANY
    start: float = 0.0
    """Seconds after the rules are set from which it applies."""
    end: float | None = None
    """Seconds after the rules are set until which it applies; ``None``: until they are replaced."""
    packets: int = 4
    """REORDER: packets of the same port that overtake it."""
    at_most_us: float = 1000.0
    """REORDER: microseconds after which it is sent if fewer follow."""
    bits: int = 1
    """CORRUPT: bits flipped, anywhere in headers, payload or iCRC."""
    delay_us: float = 0.0
    """DELAY: microseconds."""
    jitter_us: float = 0.0
    """DELAY: largest random addition, microseconds."""
    last_hop: bool = False
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
    def reorder(cls, packets: int = 4, at_most_us: float = 1000.0, **rule: Any) -> Self:
        """Packets are sent after ``packets`` later ones of their port, or after ``at_most_us``."""
        return cls(kind=ImpairmentKind.REORDER, packets=packets, at_most_us=at_most_us, **rule)

    @classmethod
    def corrupt(cls, bits: int = 1, **rule: Any) -> Self:
        """``bits`` random bits of each packet are flipped."""
        return cls(kind=ImpairmentKind.CORRUPT, bits=bits, **rule)

    @classmethod
    def delay(cls, delay_us: float, jitter_us: float = 0.0, **rule: Any) -> Self:
        """Packets are sent ``delay_us`` microseconds later, plus a random part of ``jitter_us``."""
        return cls(kind=ImpairmentKind.DELAY, delay_us=delay_us, jitter_us=jitter_us, **rule)

    @classmethod
    def ecn_mark(cls, **rule: Any) -> Self:
        """Packets are marked "congestion experienced"."""
        return cls(kind=ImpairmentKind.ECN_MARK, **rule)

    @classmethod
    def trim(cls, *, last_hop: bool = False, **rule: Any) -> Self:
        """The payload of data packets is cut off, and their DSCP says so, as a switch does."""
        return cls(kind=ImpairmentKind.TRIM, last_hop=last_hop, **rule)


class ImpairedNetwork:
    """The rules of a device while they are in force; see :func:`impair`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def set(self, *rules: Impairment, seed: int = 0) -> None:
        """Replaces all rules. Their schedules start now, their dice anew from ``seed``.

        Packets that are held back stay so until they are due.

        Raises:
            ArgumentError: says what is wrong with a rule.
            ClosedError: if the context is closed.
        """
        _core.set_impairments(self._context._core, list(rules), seed)

    def hits(self) -> list[int]:
        """How often each rule has acted, in the order given.

        Raises:
            ClosedError: if the context is closed.
        """
        return _core.impairment_hits(self._context._core)

    def last_hit_ns(self) -> list[int | None]:
        """When each rule acted last, by :func:`time.monotonic_ns`; ``None`` if it has not.

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
    """Harms what ``context`` sends from now on, until the rules are replaced.

    Args:
        context: Whose packets; what the peer sends is the peer's to harm.
        rules: What happens to them.
        seed: Of all dice and of the choice of paths.

    Raises:
        ArgumentError: says what is wrong with a rule.
        ClosedError: if the context is closed.
    """
    network = ImpairedNetwork(context)
    network.set(*rules, seed=seed)
    return network


@contextlib.contextmanager
def impaired(context: Context, *rules: Impairment, seed: int = 0) -> Iterator[ImpairedNetwork]:
    """As :func:`impair`, until the ``with`` block is left."""
    network = impair(context, *rules, seed=seed)
    try:
        yield network
    finally:
        if not context.closed:
            network.clear()
