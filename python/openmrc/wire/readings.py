"""Which reading of MRC 1.0 the senders of captured packets follow (docs/interop.md)."""

from collections import Counter
from ipaddress import IPv4Address, IPv6Address

from openmrc.wire.bodies import Nack, Probe, Sack, Write
from openmrc.wire.frame import Frame

_Way = tuple[IPv4Address | IPv6Address | None, IPv4Address | IPv6Address | None]


class Readings:
    """Counts over the packets of a capture, by the names of a device's ``peer_*`` counters."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sent: dict[_Way, set[int]] = {}

    def see(self, frame: Frame) -> None:
        """Takes the next packet of the capture."""
        self.counts.update(frame.differences)
        body = None if frame.packet is None else frame.packet.body
        entropy = frame.ev()
        if isinstance(body, Write | Probe) and entropy is not None:
            self._sent.setdefault((frame.src, frame.dst), set()).add(entropy)
        elif isinstance(body, Sack | Nack):
            self._reflected(self._sent.get((frame.dst, frame.src), set()), body.entropy)

    def _reflected(self, sent: set[int], entropy: int) -> None:
        """Counts feedback: whether the capture has a packet with its entropy, as it is or exchanged."""
        if entropy in sent:
            self.counts["as_sent_entropy"] += 1
        elif (entropy >> 16 | (entropy & 0xFFFF) << 16) in sent:
            self.counts["peer_swapped_entropy"] += 1
        else:
            self.counts["peer_unknown_entropy"] += 1
