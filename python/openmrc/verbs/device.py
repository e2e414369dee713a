"""Devices: the ports (planes) of a software NIC, and its settings."""

import dataclasses
import fcntl
import random
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from openmrc import _core
from openmrc.errors import DeviceError
from openmrc.verbs.device_options import DeviceOptions
from openmrc.wire import EvFormat

if TYPE_CHECKING:
    from openmrc.verbs.attr import SocketAddress
    from openmrc.verbs.context import Context

LOOPBACK_PLANES = 8
"""Planes between two ends on one machine: those of the reference fabric."""

_SIOCGIFADDR = 0x8915  # linux/sockios.h


class Srv6Path(Protocol):
    """One path in SRv6 mode, such as an :class:`openmrc.fabric.EvEntry`."""

    @property
    def ev(self) -> int:
        """Entropy value, 32 bits."""

    @property
    def plane(self) -> int:
        """The port that it starts at."""

    @property
    def address(self) -> IPv6Address:
        """Outer destination address: the uSID list."""


class Srv6Paths(Protocol):
    """The paths to a node in SRv6 mode, such as an :class:`openmrc.fabric.EvSet`."""

    @property
    def entries(self) -> Sequence[Srv6Path]:
        """All paths; in each plane those in rotation come first."""

    @property
    def active(self) -> int:
        """How many are in rotation, over all planes."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a device: one plane of the fabric."""

    addr: str
    """An address of this host, IPv4 or IPv6. Ports of a device differ in address or in UDP port."""
    udp_port: int = _core.ROCE_PORT
    """UDP port it receives on."""
    source_ports: Sequence[int] = ()
    """UDP source ports that are the device's own entropy values; empty: the kernel chooses ``evs_per_port``
    of them. Not in SRv6 mode."""


@dataclass(frozen=True, kw_only=True)
class Device(DeviceOptions):
    """A software NIC that can be opened. ``None`` means the core's default, which each field names.

    Raises:
        ArgumentError: says what is wrong with the description.
    """

    ports: Sequence[Port]
    """1 to 16 ports, all IPv4 or all IPv6. Both ends of a connection need the planes in the same order."""
    name: str = "mrc0"
    """For people."""
    paths_to: Callable[[Sequence["SocketAddress"]], Srv6Paths] | None = None
    """SRv6 mode: returns the paths to the node with these addresses, one per port. Called once per node, when
    a queue pair is connected without an EV profile, or when the node is made known or probed. Without it, EV
    profiles are made by :meth:`openmrc.controller.Controller.ev_profile_to`."""

    _core: "_core.Device" = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_core", _core.Device(self))

    @classmethod
    def from_addresses(cls, *addrs: str, **options: object) -> Self:
        """A device with these addresses of this host as its ports, one plane each."""
        return cls(ports=[Port(addr) for addr in addrs], **options)  # type: ignore[arg-type]

    @classmethod
    def from_interfaces(cls, *interfaces: str, ipv6: bool = False, **options: object) -> Self:
        """A device with these network interfaces as its ports, such as ``eth0``, one plane each.

        Args:
            interfaces: Their names.
            ipv6: Take each interface's first global IPv6 address instead of its first IPv4 address.
            options: Other fields.

        Raises:
            DeviceError: if an interface does not exist or has no such address.
        """
        address = _ipv6_address if ipv6 else _ipv4_address
        return cls.from_addresses(*(address(name) for name in interfaces), **options)

    @classmethod
    def loopback(cls, node: int | None = None, planes: int = LOOPBACK_PLANES, **options: object) -> Self:
        """A device for connections inside this host: plane p, from 1, is 127.p.``node``.1.

        Args:
            node: Number of the device, 0 to 255. ``None``: addresses of no number, drawn among 64,000, so
                that programs that do not know of each other rarely meet.
            planes: Ports, 1 to 16.
            options: Other fields.
        """
        if node is None:
            third, fourth = random.randint(1, 254), random.randint(2, 254)
            options.setdefault("name", "loopback")
        else:
            third, fourth = node, 1
            options.setdefault("name", f"loopback{node}")
        return cls.from_addresses(
            *(f"127.{plane + 1}.{third}.{fourth}" for plane in range(planes)), **options
        )

    @property
    def addresses(self) -> "list[SocketAddress]":
        """Where peers reach it, by port: their queue pairs' ``remote`` attribute."""
        return [(port.addr, port.udp_port) for port in self.ports]

    @property
    def is_srv6(self) -> bool:
        """Whether the NIC builds SRv6 frames itself."""
        return self.ev_format in (EvFormat.SRV6, EvFormat.SRV6_SRH)

    def open(self) -> "Context":
        """Opens its sockets and starts its engine (``ibv_open_device``).

        Raises:
            DeviceError: if no address is of this host (a port whose address is absent is down
                until it comes), a UDP port is taken, descriptors have run out, or
                SRv6 mode lacks CAP_NET_RAW.
        """
        from openmrc.verbs.context import Context

        return Context(self)

    def replace(self, **fields: object) -> Self:
        """The same device with other values for some fields."""
        return dataclasses.replace(self, **fields)  # type: ignore[arg-type]


def _ipv4_address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError as error:
            raise DeviceError(error.errno, _no_address(interface, "IPv4")) from error


def _ipv6_address(interface: str) -> str:
    # Address, index, prefix length, scope (00: global), flags, name: /proc/net/if_inet6.
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        digits, _, _, scope, _, name = line.split()
        if name == interface and scope == "00":
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    raise DeviceError(_no_address(interface, "global IPv6"))


def _no_address(interface: str, kind: str) -> str:
    names = ", ".join(name for _, name in socket.if_nameindex())
    if interface not in names.split(", "):
        return f"there is no interface {interface!r}; this host has {names}"
    return f"interface {interface} has no {kind} address"
