"""What your own path selector or congestion controller looks like.

Any class with these methods will do, derived from these or not. One object is made for each queue pair.

>>> class RoundRobin:
...     def __init__(self, ports, seed):
...         self.ports, self.next = ports, seed
...     def select(self, now_ps, free, avoid):
...         for _ in self.ports:
...             self.next = (self.next + 1) % len(self.ports)
...             if free >> self.ports[self.next] & 1:
...                 return self.next
...     def acked(self, path): ...
...     def congested(self, path): ...
...     def lost(self, path): ...

``sim.run(scenario, path_selector=RoundRobin)`` then uses it in place of MRC's EV states. An exception of a
method ends the run, and ``run`` raises it.
"""

from collections.abc import Sequence
from typing import Protocol


class PathSelector(Protocol):
    """Chooses the path of each packet. It is made with the port of each path and the queue pair's seed."""

    def __init__(self, ports: Sequence[int], seed: int) -> None: ...

    def select(self, now_ps: int, free: int, avoid: int | None) -> int | None:
        """The path of the next packet: an index of ``ports``.

        Args:
            now_ps: Virtual time, picoseconds.
            free: Ports that can take a packet now, one bit for each. The path's port must be one of them.
            avoid: For a retransmission, the path that lost the packet.

        Returns:
            ``None`` to send nothing until feedback arrives.
        """

    def acked(self, path: int) -> None:
        """A packet sent on this path has arrived."""

    def congested(self, path: int) -> None:
        """A packet on this path was ECN-marked or trimmed."""

    def lost(self, path: int) -> None:
        """A packet on this path was lost, not trimmed."""


class Congestion(Protocol):
    """Limits what a queue pair has in flight.

    It is made with a packet's size, a host's rate and the base RTT.
    """

    window: float
    """Bytes that may be in flight; read after every call. A value below one packet counts as one packet. The
    simulator sets it too, when the receiver slows its senders down."""

    def __init__(self, mtu: int, rate_bps: int, base_rtt_ps: int) -> None: ...

    def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None:
        """A SACK has arrived.

        Args:
            now_ps: Virtual time, picoseconds.
            newly: Bytes that it acknowledges for the first time.
            rtt_ps: Round-trip time of the packet that asked for it, if it is certain.
            ecn: Whether that packet was marked.
        """

    def on_trim(self, now_ps: int, size: int) -> None:
        """A packet of ``size`` bytes was trimmed."""

    def on_loss(self, now_ps: int, size: int) -> None:
        """A packet of ``size`` bytes is considered lost."""
