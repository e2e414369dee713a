"""A bad network on purpose: rules that impair what a device sends. For tests and demonstrations.

Packets are dropped, duplicated, reordered, corrupted, delayed, marked or trimmed on their way out. A device
without rules has no cost.

    with impaired(context, Impairment.drop(probability=0.01)) as network:
        ...
        print(network.hits())
"""

import contextlib
import enum
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.verbs import Context


class PacketClass(enum.StrEnum):
    """The packets that a rule applies to."""

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
    """One rule. Each class method makes a kind; its keywords, all optional, select the packets.

    Rules are tried in the given order. A rule acts if it matches and with its probability; after a drop no
    further rule is tried. Rules work on whole packets, in bytes, as they would leave the host.
    """

    kind: ImpairmentKind
    probability: float = 1.0
    """Probability for each selected packet, 0 to 1."""
    ports: Collection[int] | None = None
    """Ports it applies to; ``None``: all."""
    evs: Collection[int] | None = None
    """Entropy values it applies to; ``None``: all."""
    ev_fraction: float | None = None
    """Instead of ``evs``: a share of all entropy values, 0 to 1; the seed decides which."""
    packet_class: PacketClass = PacketClass.ANY
    start: float = 0.0
    """The rule applies from this many seconds after the rules were set."""
    end: float | None = None
    """The rule applies until this many seconds after the rules were set; ``None``: until they are
    replaced."""
    packets: int = 4
    """REORDER: the packet is held until this many later packets of its port have left ..."""
    at_most_us: float = 1000.0
    """... but at most this many microseconds."""
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
        """A packet is held until ``packets`` later packets of its port have left, at most ``at_most_us``."""
        return cls(kind=ImpairmentKind.REORDER, packets=packets, at_most_us=at_most_us, **rule)

    @classmethod
    def corrupt(cls, bits: int = 1, **rule: Any) -> Self:
        """``bits`` random bits of each packet are flipped."""
        return cls(kind=ImpairmentKind.CORRUPT, bits=bits, **rule)

    @classmethod
    def delay(cls, delay_us: float, jitter_us: float = 0.0, **rule: Any) -> Self:
        """Packets are delayed by ``delay_us`` microseconds plus a random time of up to ``jitter_us``."""
        return cls(kind=ImpairmentKind.DELAY, delay_us=delay_us, jitter_us=jitter_us, **rule)

    @classmethod
    def ecn_mark(cls, **rule: Any) -> Self:
        """Packets are marked "congestion experienced"."""
        return cls(kind=ImpairmentKind.ECN_MARK, **rule)

    @classmethod
    def trim(cls, *, last_hop: bool = False, **rule: Any) -> Self:
        """Data packets lose their payload, and their DSCP says so, as when a switch trims them."""
        return cls(kind=ImpairmentKind.TRIM, last_hop=last_hop, **rule)


def check_ports(rules: Iterable[Impairment], there: int) -> None:
    """Checks that a device with ports 0 to ``there - 1`` has those that the rules name.

    Raises:
        ArgumentError: names the first port that it does not have.
    """
    for rule in rules:
        # What is no collection of numbers is refused, with its reason, where the rules are read.
        named: Any = rule.ports
        for port in named if isinstance(named, Iterable) else ():
            if isinstance(port, int) and not 0 <= port < there:
                has = "only port 0" if there == 1 else f"ports 0 to {there - 1}"
                raise ArgumentError(f"port {port} cannot be impaired: this device has {has}")


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
        check_ports(rules, len(self._context.addresses))
        _core.set_impairments(self._context._core, list(rules), seed)

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
