"""Devices: which addresses of this host are the ports (planes) of a software NIC, and how it behaves."""

import dataclasses
import fcntl
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from openmrc import _core
from openmrc.errors import DeviceError
from openmrc.wire import EvFormat

if TYPE_CHECKING:
    from openmrc.verbs.attr import SocketAddress
    from openmrc.verbs.context import Context
    from openmrc.wire import DscpMap

_SIOCGIFADDR = 0x8915  # linux/sockios.h


class Srv6Path(Protocol):
    """One path in SRv6 mode, such as an :class:`openmrc.fabric.EvEntry`."""

    @property
    def ev(self) -> int:
        """Entropy value, 32 bits."""

    @property
    def plane(self) -> int:
        """The port it leaves by."""

    @property
    def address(self) -> IPv6Address:
        """Outer destination address: the uSID list."""


class Srv6Paths(Protocol):
    """The paths to a node in SRv6 mode, such as an :class:`openmrc.fabric.EvProfile`."""

    @property
    def entries(self) -> Sequence[Srv6Path]:
        """All of them; of each plane those in rotation first."""

    @property
    def active(self) -> int:
        """How many are in rotation, over all planes."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port of a device, which is one plane of the fabric."""

    addr: str
    """An address of this host, IPv4 or IPv6. Ports of a device differ in address or in UDP port."""
    udp_port: int = _core.ROCE_PORT
    """UDP port it receives on."""
    source_ports: Sequence[int] = ()
    """UDP source ports of the device's own entropy values; empty: ``evs_per_port`` that the kernel chooses.
    None in SRv6 mode."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A software NIC that can be opened. ``None`` stands for the core's default, named with each field.

    Raises:
        ArgumentError: says what is wrong with the description.
    """

    ports: Sequence[Port]
    """Its ports, 1 to 16, all IPv4 or all IPv6. Both ends of a connection name the planes in the same
    order."""
    name: str = "mrc0"
    """For people."""
    ev_format: EvFormat = EvFormat.UDP
    """Where entropy values go; the same at both ends of a connection. UDP: the UDP source port. STRUCTURED:
    source port and flow label. SRV6, SRV6_SRH: the NIC builds the outer header itself, which needs
    CAP_NET_RAW; its paths come with EV profiles, each to one peer."""
    paths_to: Callable[[Sequence["SocketAddress"]], Srv6Paths] | None = None
    """SRv6 mode: the paths to the node with these addresses, one per port. Asked when a queue pair is
    connected without an EV profile, and when a node is made known or probed; once per node. Without it EV
    profiles are made by hand (:meth:`openmrc.controller.Controller.ev_profile_to`)."""
    evs_per_port: int | None = None
    """Entropy values per port, half active and half in reserve; default 256 over the ports (spec: paths, EV
    set)."""
    receive_buffer: int | None = None
    """Bytes of each port's receive buffer; default 16 MiB. The kernel gives less (net.core.rmem_max) unless
    privileged."""
    send_buffer: int | None = None
    """Bytes of each path's send buffer; default 1 MiB."""
    segmentation: bool | None = None
    """Whether several packets may share a system call (UDP GSO and GRO) where the kernel has it; default
    yes."""
    ev_burst: int | None = None
    """Consecutive packets on one path, at most: fewer where so many do not fit one system call, or do not
    come at once (8 then). Default 15, as many of 4096 bytes as fit. 1 is what hardware does."""
    dscp: "DscpMap | None" = None
    """DSCP code points; default those of :data:`openmrc.wire.DSCP`."""
    network_trims: bool | None = None
    """Whether switches of this network trim packets; default no."""
    base_rtt_us: float | None = None
    """Round-trip time of an idle path, microseconds; default 500: a host that shares its processors, not a
    wire."""
    link_rate_bps: int | None = None
    """Rate of all ports together, bits per second; default 25 Gb/s."""
    fixed_window: int | None = None
    """Fixed congestion window in bytes; default 1 MiB. 0: congestion control is ``uet-1.0-nscc``."""
    ack_every_bytes: int | None = None
    """As responder, a SACK at least after so many bytes; default 128 KiB."""
    ack_delay_us: float | None = None
    """As responder, a SACK at the latest so many microseconds after a packet; default 50."""
    spin_us: float | None = None
    """Microseconds that the engine keeps looking for packets before it sleeps; default 0."""
    cpu: int | None = None
    """Processor to bind the engine's thread to; default none."""
    seed: int | None = None
    """Seed of everything random except keys; default from the system."""
    max_qps: int | None = None
    """Most queue pairs, 1 to 16384; default 16384."""

    _core: "_core.Device" = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_core", _core.Device(self))

    @classmethod
    def from_addresses(cls, *addrs: str, **options: object) -> Self:
        """A device whose ports are these addresses of this host, one plane each."""
        return cls(ports=[Port(addr) for addr in addrs], **options)  # type: ignore[arg-type]

    @classmethod
    def from_interfaces(cls, *interfaces: str, ipv6: bool = False, **options: object) -> Self:
        """A device whose ports are these network interfaces, such as ``eth0``, one plane each.

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
    def loopback(cls, node: int = 1, planes: int = 8, **options: object) -> Self:
        """A device of this host alone: plane p, from 1, at 127.p.``node``.1. Needs no configuration.

        Args:
            node: Tells devices apart, 0 to 255.
            planes: Ports, 1 to 16.
            options: Other fields.
        """
        options.setdefault("name", f"loopback{node}")
        return cls.from_addresses(*(f"127.{plane + 1}.{node}.1" for plane in range(planes)), **options)

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
            DeviceError: if an address is not of this host, a UDP port is taken, descriptors have run out,
            or SRv6
                mode lacks CAP_NET_RAW.
        """
        from openmrc.verbs.context import Context

        return Context(self)

    def replace(self, **fields: object) -> Self:
        """The same device with other values in some fields."""
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
