"""Whether the kernel at the other end of a TCP connection still answers.

A host without power ends no connection, and neither does a network that is gone. But a living kernel
acknowledges every byte, also for a process that is stopped. So each end sends a byte now and then, and looks
whether it was acknowledged.
"""

import contextlib
import fcntl
import socket
import struct
import termios
import time

_QUEUED = struct.Struct("i")
_INFO = struct.Struct("=24xI28xI168xI")
"""Of Linux' ``struct tcp_info``: segments that are under way, milliseconds since the last acknowledgment,
and the window that the other end offers."""
_THIN_LINEAR_TIMEOUTS = 16
"""Linux' ``TCP_THIN_LINEAR_TIMEOUTS``: repeats do not double their distance, so that loss is not silence."""


class Pulse:
    """The pulses that this end sends on one connection.

    Args:
        connection: A connected socket that does not block.
        message: What a pulse is to the other end.
    """

    def __init__(self, connection: socket.socket, message: bytes) -> None:
        self._connection, self._message = connection, message
        self._since = time.monotonic()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, _THIN_LINEAR_TIMEOUTS, 1)

    def forgive(self) -> None:
        """Counts anew: this process or its machine was stopped, and has heard nobody."""
        self._since = time.monotonic()

    def beat(self) -> float:
        """Sends a pulse if none is under way.

        Returns:
            Seconds for which the other end's kernel has left something unanswered, else 0. A process that
            does not read closes its window after a while; then nothing is sent and nothing is missing.

        Raises:
            OSError: if the connection has failed.
        """
        (queued,) = _QUEUED.unpack(fcntl.ioctl(self._connection, termios.TIOCOUTQ, bytes(_QUEUED.size)))
        if queued == 0:
            self._since = time.monotonic()
            self._connection.send(self._message)
            return 0.0
        info = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        # Before Linux 5.16 the window is not told.
        under_way, heard_ms, window = map(int, _INFO.unpack(info.ljust(_INFO.size, b"\0")))
        if under_way == 0 and window < len(self._message):
            return 0.0
        return min(time.monotonic() - self._since, heard_ms / 1000)
