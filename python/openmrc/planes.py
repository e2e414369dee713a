"""Which addresses a command uses as planes, and what their routes carry.

Named addresses or interfaces are planes in the order they are named. Without any, an end takes the address
by which it and the other end reach each other, one plane; and if both ends are on one machine, as many
loopback addresses as planes are wanted, picked at random so that any number of programs can run side by side.
"""

import errno
import ipaddress
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openmrc.errors import ArgumentError, DeviceError
from openmrc.verbs import Context, Device, Port, SocketAddress

ACTIVE_EVS = 128
"""Paths in rotation by default, over all planes (spec: paths, EV set)."""

_ATTEMPTS = 20
_HEADERS = 128
"""More than UDP, MRC's headers, padding and iCRC take of a packet."""
_IP_MTU = 14  # linux/in.h
_IPV6_MTU = 24  # linux/in6.h


@dataclass(frozen=True, slots=True)
class Planes:
    """What a user says about planes; each field may be left to its default."""

    addresses: tuple[str, ...] = ()
    """Addresses (``10.0.0.1``, ``[fd00::1]:4791``) or interfaces (``eth0``), one per plane."""
    count: int | None = None
    """How many, where the addresses are chosen here: both ends on one machine. Default 8."""
    evs: int | None = None
    """Paths in rotation over all planes; as many again stand by. Default 128."""
    ev_burst: int | None = None
    """Consecutive packets on one path; default the device's."""

    def __post_init__(self) -> None:
        if self.count is not None and not 1 <= self.count <= 16:
            raise ArgumentError(f"planes must be 1 to 16, not {self.count}")
        if self.count is not None and self.addresses and self.count != len(self.addresses):
            raise ArgumentError(
                f"{self.count} planes were asked for and {len(self.addresses)} addresses given"
            )
        if self.evs is not None and not 1 <= self.evs <= 2048:
            raise ArgumentError(f"entropy values must be 1 to 2048, not {self.evs}")

    @property
    def active_evs(self) -> int:
        """Paths in rotation."""
        return self.evs or ACTIVE_EVS

    def open(self, local: str, remote: str, *, count: int | None = None, **options: Any) -> Context:
        """Opens a device for talking to a peer.

        Args:
            local: This end's address on the connection to the peer.
            remote: The peer's.
            count: How many planes the other end has, where addresses are chosen here and ``count`` is not
            set.
            options: Further fields of the device.

        Raises:
            DeviceError: if an address is not of this host or cannot be bound.
        """
        if self.addresses:
            return self._open(_named_ports(self.addresses), **options)
        wanted = self.count or count or 8
        if same_host(local, remote):
            choose = _loopback6 if ":" in local else _loopback4
            return self._open_chosen(lambda: choose(wanted), **options)
        return self._open_chosen(lambda: [Port(local, _free_udp_port(local))], first=[Port(local)], **options)

    def path_mtu(self, local: Sequence[SocketAddress], remote: Sequence[SocketAddress], largest: int) -> int:
        """Payload bytes per packet that every plane's route to a peer carries; see :func:`path_mtu`."""
        return path_mtu(local, remote, largest)

    def open_named(self, **options: Any) -> Context | None:
        """Opens the addresses that were named, or returns ``None`` if there are none."""
        return self._open(_named_ports(self.addresses), **options) if self.addresses else None

    def _open_chosen(
        self, choose: Callable[[], list[Port]], first: list[Port] | None = None, **options: Any
    ) -> Context:
        for _ in range(_ATTEMPTS):
            try:
                return self._open(first or choose(), **options)
            except DeviceError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                first = None
        return self._open(choose(), **options)

    def _open(self, ports: Sequence[Port], **options: Any) -> Context:
        evs = -(-self.active_evs // len(ports))
        options.setdefault("evs_per_port", 2 * evs)
        return Device(ports=ports, ev_burst=self.ev_burst, **options).open()


def same_host(local: str, remote: str) -> bool:
    """Whether two ends of a connection are on one machine."""
    return local == remote or ipaddress.ip_address(local).is_loopback


def path_mtu(local: Sequence[SocketAddress], remote: Sequence[SocketAddress], largest: int = 4096) -> int:
    """Payload bytes per packet that every plane's route carries, at most ``largest``.

    A packet too long for its route is never fragmented but lost, so this is asked of the kernel's routes.

    Raises:
        DeviceError: if a route is missing or carries less than 256 bytes of payload.
    """
    fits = largest
    for (here, _), there in zip(local, remote, strict=False):
        v6 = ":" in here
        with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((here, 0))
                probe.connect(there)
                level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if v6 else (socket.IPPROTO_IP, _IP_MTU)
                mtu = probe.getsockopt(level, option)
            except OSError as error:
                raise DeviceError(
                    error.errno, f"no route from {here} to {there[0]}: {error.strerror}"
                ) from error
        room = mtu - (40 if v6 else 20) - _HEADERS
        if room < 256:
            raise DeviceError(
                errno.EMSGSIZE, f"the route from {here} to {there[0]} has an MTU of {mtu}: too small"
            )
        fits = min(fits, room if room >= largest else room // 64 * 64)
    return fits


def parse_host(text: str, default_port: int) -> tuple[str, int]:
    """Splits ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``.

    Raises:
        ArgumentError: if it is none of these.
    """
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ArgumentError(f"{text!r} is not [address] or [address]:port")
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host:
        raise ArgumentError(f"{text!r} names no host")
    if not port:
        return host, default_port
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ArgumentError(f"{port!r} is not a port number (1 to 65535)")
    return host, int(port)


def _named_ports(names: Sequence[str]) -> list[Port]:
    ports: list[Port] = []
    for name in names:
        interfaces = [interface for _, interface in socket.if_nameindex()]
        if name in interfaces:
            ports.extend(Device.from_interfaces(name).ports)
            continue
        host, udp_port = parse_host(name, 0)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ArgumentError(
                f"{name!r} is neither an address nor an interface of this host ({', '.join(interfaces)})"
            ) from None
        ports.append(Port(host, udp_port) if udp_port else Port(host))
    return ports


def _loopback4(count: int) -> list[Port]:
    a, b = random.randint(1, 254), random.randint(1, 254)
    return [Port(f"127.{plane + 1}.{a}.{b}") for plane in range(count)]


def _loopback6(count: int) -> list[Port]:
    # ::1 is the only address; planes differ in UDP port.
    return [Port("::1", _free_udp_port("::1")) for _ in range(count)]


def _free_udp_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
