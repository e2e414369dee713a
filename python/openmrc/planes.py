"""Which addresses a command uses as planes, and what the routes between them carry.

Named addresses or interfaces are planes in the order they are named. Without any, an end uses the address by
which it and the other end reach each other: one plane. If both ends are on one machine, it uses loopback
addresses, picked at random so that any number of programs can run side by side. In SRv6 mode the fabric says
what the planes are.
"""

import errno
import ipaddress
import random
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmrc import _core
from openmrc.errors import ArgumentError, DeviceError
from openmrc.verbs import Context, Device, Port, SocketAddress
from openmrc.verbs.attr import MIN_PATH_MTU
from openmrc.verbs.device import LOOPBACK_PLANES

if TYPE_CHECKING:  # They bring the fabric along, which UDP does not need.
    from openmrc.lab.inside import LabHost
    from openmrc.sourceroutes import SourceRoutes

_ATTEMPTS = 20
_NAMESPACES = Path("/run/netns")
_HEADERS = 128
"""Upper bound for UDP, MRC's headers, padding and iCRC."""
_IPV4, _IPV6 = 20, 40
_IP_MTU = 14  # linux/in.h
_IPV6_MTU = 24  # linux/in6.h
_DOWN = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL}
"""Errors of a plane that is down: its interface, its address or its route is away."""


@dataclass(frozen=True, slots=True)
class Planes:
    """What a user says about planes; each field may be left at its default."""

    addresses: tuple[str, ...] = ()
    """Addresses (``10.0.0.1``, ``[fd00::1]:4791``) or interfaces (``eth0``), one per plane. ``10.0.0.1:0``
    takes any free UDP port; without a port it is 4791, or a free one if another program has that."""
    count: int | None = None
    """Number of planes where the addresses are chosen here: both ends on one machine."""
    evs: int | None = None
    """Paths in rotation over all planes; the same number is in reserve. Default the device's."""
    ev_burst: int | None = None
    """Consecutive packets on one path; default the device's."""
    routes: "SourceRoutes | None" = None
    """SRv6 mode: the paths of this host; ``None``: over UDP sockets."""
    lab: "LabHost | None" = None
    """The host of a lab that this process runs in. Its addresses are the planes unless others are named."""

    def __post_init__(self) -> None:
        if self.count is not None and not 1 <= self.count <= 16:
            raise ArgumentError(f"planes must be 1 to 16, not {self.count}")
        if self.count is not None and self.addresses and self.count != len(self.addresses):
            raise ArgumentError(f"{self.count} planes were asked for and {len(self.addresses)} named")
        if self.evs is not None and not 1 <= self.evs <= 2048:
            raise ArgumentError(f"entropy values must be 1 to 2048, not {self.evs}")
        if self.ev_burst is not None and not 1 <= self.ev_burst <= 255:
            raise ArgumentError(f"consecutive packets on one path must be 1 to 255, not {self.ev_burst}")

    @property
    def transport(self) -> str:
        """What carries the packets, for people."""
        return "MRC over UDP" if self.routes is None else "MRC over SRv6"

    def open(self, local: str, remote: str, *, count: int | None = None, **options: Any) -> Context:
        """Opens a device for a connection to a peer.

        Args:
            local: This end's address on the connection to the peer.
            remote: The peer's.
            count: The other end's number of planes, used where addresses are chosen here.
            options: Further fields of the device.

        Raises:
            DeviceError: if no address is of this host, one cannot be bound, or SRv6 mode lacks CAP_NET_RAW.
        """
        wanted = self.count or count or LOOPBACK_PLANES
        here = same_host(local, remote)
        if self._is_named or not here:
            context = self._open_named_beside_others(":" in local, **options)
            if context is not None:
                return context
        if here:
            choose = _loopback6 if ":" in local else _loopback4
            return self._open_chosen(lambda: choose(wanted), **options)
        return self._open_chosen(lambda: [Port(local, _free_udp_port(local))], first=[Port(local)], **options)

    @property
    def _is_named(self) -> bool:
        return bool(self.addresses) or self.routes is not None

    def _open_named_beside_others(self, ipv6: bool, **options: Any) -> Context | None:
        """As :meth:`open_named`; where another program has a UDP port that no user chose, on free ones."""
        try:
            return self.open_named(ipv6=ipv6, **options)
        except DeviceError as error:
            if error.errno != errno.EADDRINUSE or self.routes is not None:
                raise
            if self.addresses and all(_port_of(name) for name in self.addresses):
                raise

        def elsewhere() -> list[Port]:
            if self.addresses:
                return _named_ports(self.addresses, [ipv6, not ipv6], free=True)
            # The other program has the source ports of the lab's paths too.
            ports = self.lab.ports if self.lab is not None else ()
            return [Port(port.addr, _free_udp_port(port.addr)) for port in ports]

        return self._open_chosen(elsewhere, **options)

    def open_named(self, *, ipv6: bool = False, **options: Any) -> Context | None:
        """Opens the planes that are known without a peer; ``None`` if there are none.

        Args:
            ipv6: Of interfaces that have both, take the IPv6 addresses.
            options: Further fields of the device.

        Raises:
            DeviceError: as :meth:`open`.
        """
        if self.routes is not None:
            ports = _named_ports(self.addresses, [True])
            return self.routes.device(ports, ev_burst=self.ev_burst, **options).open()
        if self.addresses:
            return self._open(_named_ports(self.addresses, [ipv6, not ipv6]), **options)
        if self.lab is not None and self.count is None:
            ports = self.lab.ports
            # A number of paths is chosen among flows, which the routes hash, and not among named paths.
            named = ports if self.evs is None else [Port(port.addr, port.udp_port) for port in ports]
            return self._open(named, **options)
        return None

    def known_addresses(self) -> list[str]:
        """The planes' addresses that are known before they are opened, for TCP; none in SRv6 mode.

        Raises:
            ArgumentError: if a name is neither an address nor an interface of this host.
            DeviceError: if an interface has no address.
        """
        if self.routes is not None:
            return []
        if self.addresses:
            return [port.addr for port in _named_ports(self.addresses, [False, True])]
        return [] if self.lab is None or self.count is not None else [port.addr for port in self.lab.ports]

    def siblings(self, address: str) -> list[str]:
        """All addresses of the host that has an address, as far as a fabric is known."""
        if self.routes is not None:
            return self.routes.siblings(address)
        return [] if self.lab is None else self.lab.siblings(address)

    def path_mtu(
        self, local: Sequence[SocketAddress], remote: Sequence[SocketAddress], largest: int | None = None
    ) -> int:
        """Payload bytes per packet that the route of every plane to a peer carries, at most ``largest``.

        Raises:
            DeviceError: if no plane has a route, or the MTU of a route is too small.
            ArgumentError: in SRv6 mode, if the peer is no host of the fabric.
        """
        if self.routes is None:
            return path_mtu(local, remote, largest)
        # What counts is the route of the outer packet.
        outer = [(address, _core.ROCE_PORT) for address in self.routes.first_hops(remote)]
        return path_mtu(local, outer, largest, outer_header=_IPV6)

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
        if self.evs is not None:
            options.setdefault("evs_per_port", 2 * -(-self.evs // len(ports)))
        return Device(ports=ports, ev_burst=self.ev_burst, **options).open()


def lab_host() -> "LabHost | None":
    """The host of a lab in whose namespace this process runs."""
    # The namespaces' names are looked at first: importing the lab takes longer than all else of a start.
    try:
        names = [entry.name for entry in _NAMESPACES.iterdir()]
    except OSError:
        return None
    if not any(name.startswith("openmrc-") for name in names):
        return None
    from openmrc.lab.inside import lab_host as found

    return found()


def same_host(local: str, remote: str) -> bool:
    """Whether two ends of a connection are on one machine."""
    return local == remote or ipaddress.ip_address(local).is_loopback


def path_mtu(
    local: Sequence[SocketAddress],
    remote: Sequence[SocketAddress],
    largest: int | None = None,
    *,
    outer_header: int = 0,
) -> int:
    """Payload bytes per packet that the route of every plane carries.

    A packet too long for its route is not fragmented but lost, so the kernel is asked for the routes' MTUs.
    A plane without a route is down and does not count.

    Args:
        local: Addresses of this end, by plane.
        remote: Addresses of the other end, by plane.
        largest: The result is at most this; default the NIC's path MTU.
        outer_header: Bytes that are sent in addition to the inner packet.

    Raises:
        DeviceError: if no plane has a route, or a route carries less than 256 bytes of payload.
    """
    fits = largest = _core.QP_DEFAULTS["path_mtu"] if largest is None else largest
    missing: DeviceError | None = None
    found = False
    for (here, _), there in zip(local, remote, strict=False):
        v6 = ":" in here
        with socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((here, 0))
                probe.connect(there)
                level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if v6 else (socket.IPPROTO_IP, _IP_MTU)
                mtu = probe.getsockopt(level, option)
            except OSError as error:
                reason = DeviceError(error.errno, f"no route from {here} to {there[0]}: {error.strerror}")
                if error.errno not in _DOWN:
                    raise reason from error
                missing = missing or reason
                continue
        found = True
        room = mtu - outer_header - (_IPV6 if v6 else _IPV4) - _HEADERS
        if room < MIN_PATH_MTU:
            raise DeviceError(
                errno.EMSGSIZE, f"the route from {here} to {there[0]} has an MTU of {mtu}: too small"
            )
        fits = min(fits, room if room >= largest else room // 64 * 64)
    if missing is not None and not found:
        raise missing
    return fits


def parse_host(text: str, default_port: int, *, any_port: bool = False) -> tuple[str, int]:
    """Splits ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``.

    Args:
        text: What is split.
        default_port: The port where it has none.
        any_port: Whether port 0 is allowed: any free one.

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
    if not (port.isascii() and port.isdigit() and 0 <= int(port) < 1 << 16 and (any_port or int(port))):
        raise ArgumentError(f"{port!r} is not a port number (1 to 65535)")
    return host, int(port)


def _named_ports(names: Sequence[str], families: Sequence[bool], *, free: bool = False) -> list[Port]:
    """The ports with these addresses or interfaces.

    Args:
        names: Addresses and interfaces.
        families: Whether to take an interface's IPv6 address, in order of preference: the first one that all
            interfaces have.
        free: Take a free UDP port where a name has none; a name that ends in ``:0`` always gets one.
    """
    interfaces = [interface for _, interface in socket.if_nameindex()]
    named = [name for name in names if name in interfaces]
    found: dict[str, Port] = {}
    for ipv6 in families if named else ():
        try:
            found = dict(zip(named, Device.from_interfaces(*named, ipv6=ipv6).ports, strict=True))
            break
        except DeviceError:
            if ipv6 is families[-1]:
                raise
    ports: list[Port] = []
    for name in names:
        if name in found:
            port = found[name]
            ports.append(Port(port.addr, _free_udp_port(port.addr)) if free else port)
            continue
        host = parse_host(name, 0, any_port=True)[0]
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ArgumentError(
                f"{name!r} is neither an address nor an interface of this host ({', '.join(interfaces)})"
            ) from None
        udp_port = _port_of(name)
        if udp_port == 0 or (udp_port is None and free):
            udp_port = _free_udp_port(host)
        ports.append(Port(host) if udp_port is None else Port(host, udp_port))
    return ports


def _port_of(name: str) -> int | None:
    """The UDP port that a plane's name ends in; 0: any; ``None``: it has none."""
    port = parse_host(name, -1, any_port=True)[1]
    return None if port < 0 else port


def _loopback4(count: int) -> list[Port]:
    a, b = random.randint(1, 254), random.randint(1, 254)
    return [Port(f"127.{plane + 1}.{a}.{b}") for plane in range(count)]


def _loopback6(count: int) -> list[Port]:
    # ::1 is the only address; planes differ in UDP port.
    return [Port("::1", _free_udp_port("::1")) for _ in range(count)]


def _free_udp_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise DeviceError(error.errno, f"{address} cannot be bound: {error.strerror}") from None
        return int(probe.getsockname()[1])
