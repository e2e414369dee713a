"""What a path selector or a congestion controller of one's own looks like.

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

``sim.run(scenario, path_selector=RoundRobin)`` then runs it in place of MRC's EV states. What a method raises
ends the run and comes out of ``run`` as it is.
"""

from collections.abc import Sequence
from typing import Protocol


class PathSelector(Protocol):
    """Chooses the path of each packet; made of the port of each path, and of the queue pair's seed."""

    def __init__(self, ports: Sequence[int], seed: int) -> None: ...

    def select(self, now_ps: int, free: int, avoid: int | None) -> int | None:
        """The path of the next packet: an index into ``ports``.

        Args:
            now_ps: Virtual time, picoseconds.
            free: Ports that can take a packet now, a bit each. The path's port must be one of them.
            avoid: For a retransmission, the path that lost the packet.

        Returns:
            ``None`` to send nothing until feedback comes.
        """

    def acked(self, path: int) -> None:
        """A packet sent on this path has arrived."""

    def congested(self, path: int) -> None:
        """A packet on this path was ECN-marked or trimmed."""

    def lost(self, path: int) -> None:
        """A packet on this path was lost without a trace."""


class Congestion(Protocol):
    """Bounds what a queue pair has in flight; made of a packet's size, a host's rate and the base RTT."""

    window: float
    """Bytes that may be in flight, at least one packet; read after every call. While the receiver presses its senders,
    the simulator sets it too."""

    def __init__(self, mtu: int, rate_bps: int, base_rtt_ps: int) -> None: ...

    def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None:
        """Feedback came.

        Args:
            now_ps: Virtual time, picoseconds.
            newly: Bytes that have newly arrived.
            rtt_ps: Round-trip time of the packet that asked for this, where it is known beyond doubt.
            ecn: That packet was marked.
        """

    def on_trim(self, now_ps: int, size: int) -> None:
        """A packet of so many bytes was trimmed on its way."""

    def on_loss(self, now_ps: int, size: int) -> None:
        """A packet of so many bytes is taken for lost."""
