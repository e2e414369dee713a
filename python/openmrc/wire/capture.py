"""Capture files: read pcap and pcapng, write pcap."""

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from openmrc import _core
from openmrc.closing import Closable
from openmrc.errors import FormatError
from openmrc.files import replacing
from openmrc.wire.frame import Frame, LinkType, decode
from openmrc.wire.layers import DSCP, UDP_PORTS, DscpMap

_MAGIC_NANOSECONDS = 0xA1B23C4D
_SNAPLEN = 262_144
"""The limit of tcpdump."""


class CaptureReader(Closable):
    """An open capture file: an iterator over its decoded packets.

    It closes the file at its end, or at the end of a ``with`` block.
    """

    def __init__(
        self, file: BinaryIO, name: str, *, ports: Sequence[int] = UDP_PORTS, dscp: DscpMap = DSCP
    ) -> None:
        """Reads from an open file.

        Raises:
            FormatError: if it is neither pcap nor pcapng.
        """
        self._file = file
        self._name = name
        self._ports = ports
        self._dscp = dscp
        try:
            self._packets: Iterator[tuple[int, int, int, bytes]] = _core.CaptureReader(file)
        except ValueError as error:
            file.close()
            raise FormatError(f"{name}: {error}") from None

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        """The next packet.

        Raises:
            FormatError: if the file is damaged here, or ends within a packet.
        """
        try:
            time_ns, linktype, wire_len, data = next(self._packets)
        except StopIteration:
            self.close()
            raise
        except ValueError as error:
            self.close()
            raise FormatError(f"{self._name}: {error}") from None
        return decode(data, linktype, wire_len=wire_len, time_ns=time_ns, ports=self._ports, dscp=self._dscp)

    def close(self) -> None:
        """Closes the file; no packet follows."""
        self._file.close()
        self._packets = iter(())


def read_pcap(
    path: str | os.PathLike[str], *, ports: Sequence[int] = UDP_PORTS, dscp: DscpMap = DSCP
) -> CaptureReader:
    """Opens a capture file, pcap or pcapng, of any byte order and time resolution.

    Args:
        path: The file.
        ports: UDP destination ports of MRC.
        dscp: Code points, by which trimmed packets are recognised.

    Returns:
        An iterator of :class:`Frame`. Packets that are not MRC are included, with the reason in
        ``Frame.error``.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is no capture; during iteration, if it is damaged or ends within a packet.
    """
    return CaptureReader(Path(path).open("rb"), os.fspath(path), ports=ports, dscp=dscp)


def write_pcap(
    path: str | os.PathLike[str],
    packets: Iterable[bytes | tuple[int, bytes]],
    linktype: int = LinkType.ETHERNET,
) -> int:
    """Writes a pcap file with nanosecond times.

    Args:
        path: The file; replaced if it exists.
        packets: Bytes as from :meth:`Packet.to_bytes`, or pairs of nanoseconds since 1970 and bytes.
        linktype: The first header: RAW for packets without an Ethernet header.

    Returns:
        The number of packets.
    """
    count = 0
    with replacing(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", _MAGIC_NANOSECONDS, 2, 4, 0, 0, _SNAPLEN, linktype))
        for each in packets:
            time_ns, data = each if isinstance(each, tuple) else (0, each)
            seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
            file.write(struct.pack("<IIII", seconds, nanoseconds, len(data), len(data)) + data)
            count += 1
    return count
