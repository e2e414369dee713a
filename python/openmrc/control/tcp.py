"""TCP sockets of control connections: dialling, listening, waiting, and the errors of accept."""

import contextlib
import errno
import select
import socket
import time
from collections.abc import Iterable
from typing import Protocol

from openmrc.errors import ConnectError, DeviceError

DIAL_TIMEOUT = 10.0
"""Seconds for one TCP connection attempt."""

BACKLOG = 1024
"""Connections that may wait to be accepted, where the system allows as many (net.core.somaxconn)."""

EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Errors of accept that pass once something is freed."""

OF_THE_CONNECTION = frozenset(
    (
        *(errno.ECONNABORTED, errno.EPROTO, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPERM, errno.EINTR),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENONET),
    )
)
"""Errors of accept that concern one connection and not the listener (accept(2))."""


_MAY_PASS = frozenset((errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH))
"""Errors of connect that may pass while the peer and its host start."""


class HasFileno(Protocol):
    """A descriptor, or an object that has one."""

    def fileno(self) -> int:
        """The descriptor."""


def wait_readable(*sources: HasFileno, timeout: float | None = None) -> bool:
    """Waits until one of the sources is readable; whether one is.

    Args:
        sources: Sockets, channels, completion queues, pipes.
        timeout: Seconds; ``None``: no limit.
    """
    return _wait(sources, select.POLLIN, timeout)


def wait_writable(source: HasFileno, timeout: float) -> bool:
    """Waits until a socket takes data; whether it does.

    Args:
        source: The socket.
        timeout: Seconds.
    """
    return _wait((source,), select.POLLOUT, timeout)


def _wait(sources: Iterable[HasFileno], event: int, timeout: float | None) -> bool:
    # poll, not select: select cannot watch descriptors above 1,023.
    poller = select.poll()
    for source in sources:
        poller.register(source.fileno(), event)
    return bool(poller.poll(None if timeout is None else max(0.0, timeout) * 1000))


def configure(connection: socket.socket) -> None:
    """Sends small messages at once, and notices a peer that vanished (power, cable) after 30 seconds."""
    connection.setblocking(True)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def plain_address(address: str) -> str:
    """An IPv4 address as itself, where a dual-stack socket shows it as IPv6."""
    return address.removeprefix("::ffff:")


def dial(
    host: str, port: int, hint: str, *, patience: float = 0.0, timeout: float | None = None
) -> socket.socket:
    """Connects over TCP.

    Args:
        host: Name or address.
        port: TCP port.
        hint: What to do if nothing listens there.
        patience: Seconds in which the peer may still start to listen, and its host to be reachable.
        timeout: Seconds for an attempt; default and at most :data:`DIAL_TIMEOUT`.

    Raises:
        ConnectError: says why it failed.
    """
    to = f"{host}:{port}"
    limit = DIAL_TIMEOUT if timeout is None else min(DIAL_TIMEOUT, max(0.01, timeout))
    deadline, pause = time.monotonic() + patience, 0.01
    try:
        while True:
            try:
                return socket.create_connection((host, port), timeout=limit)
            except OSError as error:
                if error.errno not in _MAY_PASS or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
    except socket.gaierror as error:
        raise ConnectError(f"{host}: {error.strerror}") from None
    except TimeoutError:
        raise ConnectError(f"{to} does not answer; is it up, and is the port open?") from None
    except OSError as error:
        advice = f"; {hint}" if error.errno == errno.ECONNREFUSED else ""
        raise ConnectError(f"cannot reach {to}: {error.strerror}{advice}") from None


def listen(host: str, port: int) -> socket.socket:
    """Listens on an address; if ``host`` is empty or ``::``, on all of both families. Port 0: a free one.

    Raises:
        DeviceError: names address and port.
    """
    try:
        if host not in ("", "::"):
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # IPv6 may be compiled in and switched off.
                return socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True
                )
        return socket.create_server(("", port), backlog=BACKLOG)  # All of IPv4.
    except OSError as error:
        where = f"{host or 'port'}{':' if host else ' '}{port}"
        raise DeviceError(error.errno, f"cannot listen on {where}: {error.strerror}") from None
