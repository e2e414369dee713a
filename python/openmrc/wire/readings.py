"""Which reading of MRC 1.0 the senders of captured packets follow (docs/interop.md)."""

from collections import Counter, defaultdict
from ipaddress import IPv4Address, IPv6Address

from openmrc.wire.bodies import Nack, Probe, Sack, Write
from openmrc.wire.frame import Frame

_AddressPair = tuple[IPv4Address | IPv6Address | None, IPv4Address | IPv6Address | None]


class Readings:
    """Counts over the packets of a capture, by the names of a device's ``peer_*`` counters."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sent_to_address: defaultdict[_AddressPair, set[int]] = defaultdict(set)
        # Feedback may return over another plane than its data, between other addresses: it names its queue
        # pairs by the low 16 bits of their numbers (spdcid, dpdcid).
        self._sent_to_queue_pair: defaultdict[int, set[int]] = defaultdict(set)

    def see(self, frame: Frame) -> None:
        """Takes the next packet of the capture."""
        self.counts.update(frame.differences)
        if frame.packet is None:
            return
        body, entropy = frame.packet.body, frame.ev()
        if isinstance(body, Write | Probe) and entropy is not None:
            self._sent_to_address[frame.src, frame.dst].add(entropy)
            self._sent_to_queue_pair[frame.packet.dest_qp & 0xFFFF].add(entropy)
        elif isinstance(body, Sack | Nack):
            self.counts[self._reading_of(frame, body)] += 1

    def _reading_of(self, frame: Frame, body: Sack | Nack) -> str:
        """Whether the capture has a packet of the connection with this entropy, as it is or exchanged."""
        sent = self._sent_to_address.get((frame.dst, frame.src), set()).union(
            *(self._sent_to_queue_pair.get(cid, ()) for cid in (body.spdcid, body.dpdcid))
        )
        if body.entropy in sent:
            return "as_sent_entropy"
        if (body.entropy >> 16 | (body.entropy & 0xFFFF) << 16) in sent:
            return "peer_swapped_entropy"
        return "peer_unknown_entropy"
