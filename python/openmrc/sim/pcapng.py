"""Captures of simulated links in pcapng format (draft-ietf-opsawg-pcapng), one interface a direction."""

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from openmrc.files import Draft
from openmrc.sim.scenario import Scenario

if TYPE_CHECKING:
    from openmrc import _core

_ETHERNET = 1
_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_OPT_END, _OPT_NAME, _OPT_RESOLUTION = 0, 2, 9
_PICOSECONDS = 12


class CaptureFile:
    """A file for captured packets, written while the run goes on. Times count from the run's start."""

    def __init__(self, path: Path, scenario: Scenario, simulation: "_core.Simulation") -> None:
        """Opens the file and describes the interfaces.

        Raises:
            OSError: if it cannot be written.
        """
        assert scenario.record.capture is not None
        self._simulation = simulation
        self._snaplen = scenario.record.capture.snaplen
        self._interfaces: dict[int, int] = {}
        self._draft = Draft(path, "wb")
        self._file = self._draft.file
        self._block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
        for name in scenario.record.capture.links:
            ports = simulation.link_ports(simulation.link_number(name))
            for direction, port in zip(("up", "down"), ports, strict=True):
                if port not in self._interfaces:
                    self._interfaces[port] = len(self._interfaces)
                    options = _option(_OPT_NAME, f"{name} {direction}".encode())
                    options += _option(_OPT_RESOLUTION, bytes([_PICOSECONDS])) + _option(_OPT_END, b"")
                    self._block(_INTERFACE, struct.pack("<HHI", _ETHERNET, 0, self._snaplen) + options)

    def write(self) -> None:
        """Writes the packets captured since the last call."""
        with self._draft.writing():
            for packet in self._simulation.captured(self._snaplen):
                interface, time, data = self._interfaces[packet.port], packet.time_ps, packet.data
                head = struct.pack(
                    "<IIIII", interface, time >> 32, time & 0xFFFFFFFF, len(data), packet.length
                )
                self._block(_PACKET, head + _padded(data))

    def close(self) -> None:
        """Writes the rest, and gives the file its name.

        Raises:
            OSError: if it cannot be written; nothing is left then.
        """
        try:
            self.write()
            self._draft.commit()
        finally:
            self.discard()

    def discard(self) -> None:
        """Leaves nothing of a file that was not closed. Calling it twice is harmless."""
        self._draft.discard()

    def _block(self, kind: int, body: bytes) -> None:
        length = len(body) + 12
        self._file.write(struct.pack("<II", kind, length) + body + struct.pack("<I", length))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _option(code: int, value: bytes) -> bytes:
    return struct.pack("<HH", code, len(value)) + _padded(value)
