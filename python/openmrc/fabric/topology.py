"""A fabric: its switches, ports, paths and addresses, computed on request and not stored."""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import NamedTuple, Self, overload

from openmrc import _core
from openmrc.errors import ArgumentError, FormatError
from openmrc.fabric import catalogue as parts
from openmrc.fabric import sizing
from openmrc.fabric import spec as specification
from openmrc.fabric.ev_set import EvSet, choose_paths
from openmrc.fabric.spec import Specification

LOCAL_USID_MIN = 0xE000
"""First uSID of a T0's own downlinks."""

_LOWER_INDEX = slice(6, 10)
"""Bytes of the lower index in the address of a link end (docs/spec/fabric.md, "SRv6 addressing plan")."""


class SwitchId(NamedTuple):
    """A switch by number. ``str()`` gives its name."""

    plane: int
    tier: int
    index: int  # type: ignore[assignment]  # a number among the switches, not tuple.index

    def __str__(self) -> str:
        return f"p{self.plane}/t{self.tier}-{self.index}"


class SwitchPort(NamedTuple):
    """A connected port of a switch."""

    number: int
    """Downlinks first, then uplinks."""
    name: str
    """``down12``, ``up5``."""
    peer: str
    """Name of the host or switch at the other end."""
    peer_port: str
    """Its port: ``p3`` of a host."""
    address: str
    """Address of this end of the link."""
    peer_address: str
    """Address of the other end."""
    link: str
    """Name of the link."""

    @property
    def is_uplink(self) -> bool:
        """Whether it leads away from the hosts."""
        return self.name.startswith("up")


class Table(NamedTuple):
    """Forwarding table of a switch: its own uSIDs, and static routes."""

    own: list[int]
    routes: list[tuple[int, int]]
    """(uSID, port number)"""


class Hop(NamedTuple):
    """A switch on a path."""

    switch: str
    usid: int
    port: str
    """The port that the packet leaves at."""
    link: str
    """The link on that port."""


@dataclass(frozen=True)
class Path:
    """A path from one host to another."""

    src: str
    dst: str
    plane: int
    uplinks: tuple[int, ...]
    """Uplink taken at the sender's T0, T1, ...; none under one T0."""
    ev: int
    """The entropy value that names it, 32 bits."""
    address: ipaddress.IPv6Address
    """Outer destination address as the sender writes it."""
    first_link: str
    """The sender's cable."""
    hops: tuple[Hop, ...]

    @property
    def links(self) -> tuple[str, ...]:
        """Every link, from the sender's cable to the receiver's."""
        return (self.first_link, *(hop.link for hop in self.hops))

    @property
    def usids(self) -> tuple[int, ...]:
        """The uSIDs of the address: one per switch, then the receiver's downlink."""
        return (
            *(hop.usid for hop in self.hops),
            LOCAL_USID_MIN + int(self.hops[-1].port.removeprefix("down")),
        )

    @property
    def addresses(self) -> tuple[ipaddress.IPv6Address, ...]:
        """The outer destination address on each link: every switch removes its uSID from the front."""
        block, rest = int(self.address) >> 96 << 96, int(self.address) & (1 << 96) - 1
        shifted = (rest << 16 * i & (1 << 96) - 1 for i in range(len(self.hops) + 1))
        return tuple(ipaddress.IPv6Address(block | s) for s in shifted)


@dataclass(frozen=True)
class Trace:
    """The path of an outer destination address from a capture, or the rest of the path."""

    address: ipaddress.IPv6Address
    switches: tuple[tuple[str, int], ...]
    """The remaining switches, with their uSIDs."""
    links: tuple[str, ...]
    """The links between them, and the receiver's cable."""
    dst: str | None
    """The receiver; unknown once only its downlink is left."""
    plane: int | None
    downlink: int
    whole: bool
    """Whether the list is complete, as on the sender's cable (T0 and downlink may be the end of another
    one)."""
    uplinks: tuple[int | None, ...]
    """Uplinks taken at the sender's T0 and T1, if the list shows or implies them."""
    ev: int | None
    """The entropy value, if the list is complete."""
    senders: tuple[str, str] | None
    """First and last host that can have sent it, if the list is complete."""


@dataclass(frozen=True)
class EvFields:
    """The fields of an entropy value, without endpoints."""

    ev: int
    plane: int
    uplinks: tuple[int, ...]
    """Uplink of the T0, of the T1 (three tiers)."""


class Paths(Sequence[Path]):
    """Every path from one host to another, plane after plane; each is computed on access."""

    def __init__(self, fabric: "Fabric", src: int, dst: int) -> None:
        self._fabric, self._src, self._dst = fabric, src, dst
        self._count = fabric.core.path_count(src, dst)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> list[Path]: ...
    def __getitem__(self, index: int | slice) -> Path | list[Path]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        number = index + self._count if index < 0 else index
        row = self._fabric.core.path_at(self._src, self._dst, number) if 0 <= number < self._count else None
        if row is None:
            raise IndexError(f"path {index}: there are {self._count}")
        return self._fabric._path(self._src, self._dst, row)

    def __repr__(self) -> str:
        return f"<{self._count} paths from h{self._src} to h{self._dst}>"


class Fabric:
    """A fabric, from its specification.

    Hosts are given as numbers or names (``12`` or ``"h12"``). Everything that needs addresses raises
    :class:`openmrc.errors.ArgumentError` for a fabric that cannot have any: one with more than three tiers,
    or with more switches than uSIDs.

    Raises:
        ArgumentError: if no fabric fits the specification; the message names the field.
    """

    def __init__(self, spec: Specification, catalogue: parts.Catalogue | None = None) -> None:
        self.spec = spec
        self.catalogue = catalogue or parts.load(catalogue_path(spec))
        self.size = sizing.solve(spec, self.catalogue)
        self.core: _core.Fabric = self.size.core

    @classmethod
    def load(cls, path: FilePath | str, *, hosts: int | None = None) -> Self:
        """Reads a specification and computes its fabric.

        Args:
            path: The YAML file.
            hosts: Compute it for this many hosts instead of the file's.

        Raises:
            FormatError: if the file is wrong, with file, line and field, or no fabric fits it.
            ArgumentError: if no fabric fits this number of hosts, with file and field.
            OSError: if the file cannot be read.
        """
        spec = specification.load(path, hosts=hosts)
        catalogue = parts.load(catalogue_path(spec))
        try:
            return cls(spec, catalogue)
        except ArgumentError as error:
            kind = FormatError if hosts is None else ArgumentError
            raise kind(f"{path}: {error}") from None

    # --- counts ---------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> int:
        """Hosts."""
        return self.core.hosts

    @property
    def planes(self) -> int:
        """Planes, that is ports of a NIC."""
        return self.core.planes

    @property
    def tiers(self) -> int:
        """Tiers of switches."""
        return self.core.tiers

    @property
    def radix(self) -> int:
        """Ports of a switch."""
        return self.core.radix

    @property
    def port_rate(self) -> int:
        """Rate of a port of a plane, bit/s."""
        return self.size.port_rate

    @property
    def switch_count(self) -> int:
        """Switches of all planes."""
        return sizing.switches(self.core)

    def __repr__(self) -> str:
        name, switches = self.spec.name, self.switch_count
        return f"<Fabric {name}: {self.hosts} hosts, {self.planes} planes, {switches} switches>"

    # --- switches -------------------------------------------------------------------------------------------

    def switches(self, plane: int | None = None) -> Iterator[SwitchId]:
        """Yields every switch (of a plane), plane after plane, tier after tier."""
        for p in range(self.planes) if plane is None else [plane]:
            for tier, count in enumerate(self.core.switches_per_tier):
                for index in range(count):
                    yield SwitchId(p, tier, index)

    def switch(self, name: str) -> SwitchId:
        """The switch of this name.

        Raises:
            ArgumentError: if there is none.
        """
        switch = self.core.node(name)[1]
        if switch is None:
            raise ArgumentError(f"{name} is a host, not a switch")
        return SwitchId(*switch)

    def ports(self, switch: SwitchId) -> list[SwitchPort]:
        """The connected ports of a switch."""
        return [SwitchPort(*row) for row in self.core.ports(switch)]

    def table(self, switch: SwitchId) -> Table:
        """The forwarding table of a switch."""
        return Table(*self.core.table(switch))

    # --- hosts ----------------------------------------------------------------------------------------------

    def host(self, host: int | str) -> int:
        """The number of a host.

        Raises:
            ArgumentError: if there is no such host.
        """
        if isinstance(host, str):
            number = self.core.node(host)[0]
            if number is None:
                raise ArgumentError(f"{host} is a switch, not a host")
            return number
        if not 0 <= host < self.hosts:
            raise ArgumentError(f"host h{host}: this fabric has h0 to h{self.hosts - 1}")
        return host

    def host_addresses(self, host: int | str) -> list[str]:
        """A host's own addresses, one per plane.

        Raises:
            ArgumentError: if there is no such host.
        """
        number = self.host(host)
        t0 = number // self.core.hosts_per_t0
        return [
            port.peer_address
            for plane in range(self.planes)
            for port in self.ports(SwitchId(plane, 0, t0))
            if port.peer == f"h{number}"
        ]

    def host_of_address(self, address: str) -> str | None:
        """The host that has this address, or ``None``.

        Raises:
            ArgumentError: if it is no IPv6 address.
        """
        try:
            packed = ipaddress.IPv6Address(address).packed
        except ValueError:
            raise ArgumentError(f"{address!r} is not an IPv6 address") from None
        # This place has the lower index of the link: for a host's link, the number of the host.
        number = int.from_bytes(packed[_LOWER_INDEX])
        if number >= self.hosts:
            return None
        own = (ipaddress.IPv6Address(each).packed for each in self.host_addresses(number))
        return f"h{number}" if packed in own else None

    # --- paths ----------------------------------------------------------------------------------------------

    def paths(self, src: int | str, dst: int | str) -> Paths:
        """Every path from one host to another."""
        return Paths(self, self.host(src), self.host(dst))

    def path(
        self,
        src: int | str,
        dst: int | str,
        *,
        ev: int | None = None,
        plane: int = 0,
        uplinks: Sequence[int] = (),
    ) -> Path:
        """One path: by its EV, or by plane and uplinks (one for each tier below the top of the path)."""
        a, b = self.host(src), self.host(dst)
        if ev is None:
            return self._path(a, b, self.core.path_by(a, b, plane, list(uplinks)))
        if not 0 <= ev < 1 << 32:
            raise ArgumentError(f"EV {ev:#x}: an EV has 32 bits")
        return self._path(a, b, self.core.path_of_ev(a, b, ev))

    def crossed(self, src: int, dst: int, ev: int) -> tuple[list[str], list[str]]:
        """The switches and the links of a path, in order: what :meth:`path` has of them, for many paths.

        Args:
            src: Number of the sender.
            dst: Number of the receiver.
            ev: The path's entropy value.

        Raises:
            ArgumentError: if it names no path between them.
        """
        *_, first, hops = self.core.path_of_ev(src, dst, ev)
        return [hop[0] for hop in hops], [first, *(hop[3] for hop in hops)]

    @overload
    def path_of(self, what: int) -> EvFields: ...
    @overload
    def path_of(self, what: int, src: int | str, dst: int | str) -> Path: ...
    @overload
    def path_of(self, what: str | ipaddress.IPv6Address) -> Trace: ...
    def path_of(
        self,
        what: int | str | ipaddress.IPv6Address,
        src: int | str | None = None,
        dst: int | str | None = None,
    ) -> Path | Trace | EvFields:
        """The path behind an entropy value or an outer destination address.

        Args:
            what: An EV (an integer), or an address from a packet.
            src: With an EV: the sender. Without endpoints an EV gives plane and uplinks only.
            dst: With an EV: the receiver.

        Raises:
            ArgumentError: if it names no path of this fabric; the message says which part is wrong.
        """
        if not isinstance(what, int):
            return self._trace(what)
        if src is not None and dst is not None:
            return self.path(src, dst, ev=what)
        return self._ev_fields(what)

    def ev_set(
        self,
        src: int | str,
        dst: int | str,
        *,
        active: int | None = None,
        backup: int | None = None,
        seed: int = 0,
    ) -> EvSet:
        """The entropy values that a queue pair from ``src`` to ``dst`` may use, the same number per plane.

        Args:
            src: Sender.
            dst: Receiver.
            active: EVs in rotation, up to 256 (docs/spec/paths.md, "EV set"); default the transport's, 128.
            backup: EVs in reserve; default the same number, if the fabric has them.
            seed: Selects other uplinks where the fabric has more than needed.

        Raises:
            ArgumentError: if the numbers are out of range or there is no such host.
        """
        a, b = self.host(src), self.host(dst)
        count = self.core.path_count(a, b)
        active = _core.QP_DEFAULTS["ev_active"] if active is None else active
        numbers = choose_paths(count, self.planes, a, b, active=active, backup=backup, seed=seed)
        rows = self.core.ev_rows(a, b, [n for group in numbers for n in group])
        return EvSet.of_rows(f"h{a}", f"h{b}", rows, active=len(numbers[0]))

    # --- helpers --------------------------------------------------------------------------------------------

    def _path(self, src: int, dst: int, row: "_core._PathRow") -> Path:
        plane, uplinks, ev, address, first, hops = row
        return Path(
            f"h{src}",
            f"h{dst}",
            plane,
            tuple(uplinks),
            ev,
            ipaddress.IPv6Address(address),
            first,
            tuple(Hop(*hop) for hop in hops),
        )

    def _ev_fields(self, ev: int) -> EvFields:
        if not 0 <= ev < 1 << 32:
            raise ArgumentError(f"EV {ev:#x}: an EV has 32 bits")
        widths = self.core.ev_widths
        counts = [self.planes, *(max(1, self.core.uplinks(tier)) for tier in range(3))]
        names = ("plane", "T0 uplink", "T1 uplink", "T2 uplink")
        fields, shift = [], 32
        for name, width, count in zip(names, widths, counts, strict=True):
            shift -= width
            value = ev >> shift & (1 << width) - 1
            if value >= count:
                raise ArgumentError(f"EV {ev:#010x}: {name} is {value}, this fabric has {count}")
            fields.append(value)
        if ev & (1 << shift) - 1:
            raise ArgumentError(f"EV {ev:#010x}: the low {shift} bits are spare and must be zero")
        return EvFields(ev, fields[0], tuple(fields[1 : self.tiers]))

    def _trace(self, what: str | ipaddress.IPv6Address) -> Trace:
        switches, links, host, plane, downlink, whole, uplinks = self.core.trace(str(what))
        address = ipaddress.IPv6Address(str(what))
        ev = senders = None
        if whole and host is not None and plane is not None:
            t0 = self.core.node(switches[0][0])[1]
            assert t0 is not None
            per_t0 = self.core.hosts_per_t0
            first, last = t0[2] * per_t0, min((t0[2] + 1) * per_t0, self.hosts) - 1
            senders = (f"h{first}", f"h{last}")
            src = first if first != host else last
            if src != host:
                path = self.core.path_by(src, host, plane, [u for u in uplinks if u is not None])
                ev = path[2]
        dst = None if host is None else f"h{host}"
        return Trace(
            address,
            tuple(switches),
            tuple(links),
            dst,
            plane,
            downlink,
            whole,
            tuple(uplinks[: self.tiers - 1]),
            ev,
            senders,
        )


def catalogue_path(spec: Specification) -> FilePath:
    """Where the specification's catalogue is: relative to its own file, or the package's example."""
    if spec.catalogue is None:
        return parts.EXAMPLE
    if spec.path is not None:
        return spec.path.parent / spec.catalogue
    return spec.catalogue
