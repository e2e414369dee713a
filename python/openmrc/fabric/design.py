"""One fabric as a bill of materials: switches, links, optics, cables, watts, cost, latency, losses.

Counts come from the fabric's arithmetic, figures from the parts catalogue. If the catalogue does not have the
part, the figure is ``None``; nothing is guessed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TypeVar

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.fabric.catalogue import Cabling, Catalogue, SwitchPart
from openmrc.fabric.spec import CableLengths
from openmrc.fabric.units import format_rate

PROPAGATION_NS_PER_M = 5.0
"""Delay in fibre, and nearly the same in copper: refractive index 1.47, 4.9 ns/m."""
HEADER_BYTES = 38 + 40 + 40 + 8 + 12 + 4 + 4 + 16 + 4
"""Bytes around a payload: Ethernet, preamble and gap, two IPv6 headers, UDP, BTH, METH, TSETH, RETH, iCRC."""


@dataclass(frozen=True)
class SwitchRow:
    """The switches of one tier, all planes together."""

    tier: int
    per_plane: int
    count: int
    downlinks: int
    """Links towards hosts of a fully connected switch of this tier."""
    uplinks: int
    part: str | None
    watts: float | None
    """All of them, without transceivers."""
    price: float | None

    @property
    def name(self) -> str:
        """``T0``, ``T1``, ..."""
        return f"T{self.tier}"


@dataclass(frozen=True)
class LinkRow:
    """The links between two tiers, all planes together."""

    layer: int
    per_plane: int
    count: int
    rate: int
    """Of one link, bit/s."""
    length: float
    """Of one cable, metres."""
    cable: str | None
    lower_transceiver: str | None
    """At the end nearer to the hosts. ``None`` for copper, and if the catalogue has no cable for the layer;
    then ``cable`` is ``None`` too."""
    upper_transceiver: str | None
    modules: int | None
    """Transceivers, both ends together."""
    watts: float | None
    price: float | None

    @property
    def transceiver(self) -> str | None:
        """The modules' names, of the lower end first if the ends differ; ``None`` for copper."""
        if self.lower_transceiver == self.upper_transceiver:
            return self.lower_transceiver
        return f"{self.lower_transceiver} / {self.upper_transceiver}"

    @property
    def name(self) -> str:
        """``host-T0``, ``T0-T1``, ..."""
        return "host-T0" if self.layer == 0 else f"T{self.layer - 1}-T{self.layer}"


@dataclass(frozen=True)
class LossRow:
    """The effect of one failure on the hosts that lose most."""

    what: str
    count: int
    """Number of such parts in the fabric."""
    hosts: int
    """Number of hosts that lose capacity."""
    of_plane: float
    """Share of its bandwidth in the plane that such a host loses."""
    of_host: float
    """Share of all its bandwidth that such a host loses."""


@dataclass(frozen=True)
class Design:
    """A fabric with its parts."""

    label: str
    core: _core.Fabric = field(repr=False)
    nic_rate: int
    port_rate: int
    switch_rows: tuple[SwitchRow, ...]
    link_rows: tuple[LinkRow, ...]
    loss_rows: tuple[LossRow, ...]
    latency_near_ns: float | None
    """One-way latency of a full packet in an idle fabric, both hosts under one T0."""
    latency_far_ns: float | None
    """The same over the longest path."""
    notes: tuple[str, ...]

    @property
    def hosts(self) -> int:
        """Hosts."""
        return self.core.hosts

    @property
    def planes(self) -> int:
        """Planes."""
        return self.core.planes

    @property
    def tiers(self) -> int:
        """Tiers of switches."""
        return self.core.tiers

    @property
    def most_hosts(self) -> int:
        """Number of hosts if the top switches used all their ports."""
        return self.core.most_hosts

    @property
    def longest_path(self) -> int:
        """Switches on the longest path."""
        top = next((level for level, blocks in enumerate(self.core.blocks) if blocks == 1), self.tiers - 1)
        return 2 * top + 1

    @property
    def switches(self) -> int:
        """Switches of all planes."""
        return sum(row.count for row in self.switch_rows)

    @property
    def links(self) -> int:
        """Links of all planes, hosts' cables included."""
        return sum(row.count for row in self.link_rows)

    @property
    def modules(self) -> int | None:
        """Transceivers."""
        return _sum(row.modules for row in self.link_rows)

    @property
    def watts(self) -> float | None:
        """Switches, transceivers and cables; not the hosts."""
        return _sum([row.watts for row in self.switch_rows] + [row.watts for row in self.link_rows])

    @property
    def price(self) -> float | None:
        """Switches, transceivers and cables, in the catalogue's currency."""
        return _sum([row.price for row in self.switch_rows] + [row.price for row in self.link_rows])

    @property
    def optics_bandwidth(self) -> int:
        """Bandwidth of all links together, bit/s: a measure of optics that holds for different modules."""
        return sum(row.count * row.rate for row in self.link_rows)

    @property
    def paths_near(self) -> int:
        """Paths between two hosts under one T0."""
        return self.planes

    @property
    def paths_far(self) -> int:
        """Paths between the hosts that are farthest apart."""
        climbed = (self.longest_path - 1) // 2
        return self.planes * prod(self.core.uplinks(tier) for tier in range(climbed))

    @property
    def hosts_per_t0(self) -> int:
        """Downlinks of a T0."""
        return self.core.hosts_per_t0

    def loss(self, what: str) -> LossRow | None:
        """The row of this failure; ``None`` if the design has no such part."""
        return next((row for row in self.loss_rows if row.what == what), None)


def build(
    core: _core.Fabric,
    *,
    label: str,
    nic_rate: int,
    switch: SwitchPart | None,
    catalogue: Catalogue,
    cables: CableLengths,
    mtu: int,
) -> Design:
    """The design of a fabric: its counts, with parts of the catalogue.

    Args:
        core: The fabric.
        label: Its name in reports.
        nic_rate: Rate of all planes together, bit/s.
        switch: The switch; ``None`` leaves watts, cost and latency unknown.
        catalogue: Has the transceivers and cables; the cheapest that reach and leave no switch without a cage
            are taken.
        cables: Length of the cables of each layer.
        mtu: Payload of the packet that latencies are given for, bytes.

    Raises:
        ArgumentError: if the modules of every choice need more cages than the switch has.
    """
    rate = nic_rate // core.planes
    cage = switch.cage_rate if switch else nic_rate
    options = [
        catalogue.cablings(rate, cables.of_layer(layer), cage if layer else nic_rate, cage)
        for layer in range(core.tiers)
    ]
    notes = [
        f"{catalogue.name} has no way to join {format_rate(rate)} ports over {cables.of_layer(layer):g} m"
        for layer, ways in enumerate(options)
        if not ways
    ]
    if switch is None:
        notes.append("no switch of the catalogue was chosen: watts, cost and latency are unknown")
    ways = _cheapest_that_fits(core, options, switch)
    links = tuple(_link_row(core, layer, rate, cables.of_layer(layer), way) for layer, way in enumerate(ways))
    near, far = _latencies(core, rate, switch, cables, mtu)
    return Design(
        label=label,
        core=core,
        nic_rate=nic_rate,
        port_rate=rate,
        switch_rows=tuple(_switch_row(core, tier, switch) for tier in range(core.tiers)),
        link_rows=links,
        loss_rows=tuple(_losses(core)),
        latency_near_ns=near,
        latency_far_ns=far,
        notes=tuple(notes),
    )


def _switch_row(core: _core.Fabric, tier: int, switch: SwitchPart | None) -> SwitchRow:
    per_plane = core.switches_per_tier[tier]
    count = per_plane * core.planes
    return SwitchRow(
        tier=tier,
        per_plane=per_plane,
        count=count,
        downlinks=core.downlinks(tier),
        uplinks=core.uplinks(tier),
        part=switch.name if switch else None,
        watts=count * switch.watts if switch else None,
        price=count * switch.price if switch else None,
    )


def _link_row(core: _core.Fabric, layer: int, rate: int, length: float, way: Cabling | None) -> LinkRow:
    per_plane = core.links_per_layer[layer]
    count = per_plane * core.planes
    modules = watts = price = None
    if way is not None:
        modules, watts = 0, count * way.cable.watts
        price = count * (way.cable.price + way.cable.per_metre * length)
        if way.lower is not None and way.upper is not None:
            lower, upper = _modules(core, layer, way)
            modules = lower + upper
            watts += lower * way.lower.watts + upper * way.upper.watts
            price += lower * way.lower.price + upper * way.upper.price
    return LinkRow(
        layer=layer,
        per_plane=per_plane,
        count=count,
        rate=rate,
        length=length,
        cable=way.cable.name if way else None,
        lower_transceiver=way.lower.name if way and way.lower else None,
        upper_transceiver=way.upper.name if way and way.upper else None,
        modules=modules,
        watts=watts,
        price=price,
    )


def _modules(core: _core.Fabric, layer: int, way: Cabling) -> tuple[int, int]:
    """Transceivers at the lower and the upper end of a layer: each serves links of one host or switch."""
    down, up = way.lower_ports, way.upper_ports
    if layer == 0:
        lower = core.hosts * _ceil(core.planes, down)
    else:
        lower = core.planes * core.switches_per_tier[layer - 1] * _ceil(core.uplinks(layer - 1), down)
    upper = core.planes * sum(n * _ceil(links, up) for n, links in _downlinks_in_use(core, layer))
    return lower, upper


def _downlinks_in_use(core: _core.Fabric, tier: int) -> Iterator[tuple[int, int]]:
    """(switches, connected downlinks of each) of one plane: full blocks, then the last one if it is not."""
    full = core.downlinks(tier)
    places = full if tier == 0 else full // (core.parallel if tier == core.tiers - 1 else 1)
    below = core.hosts if tier == 0 else core.blocks[tier - 1]
    width = core.switches_per_tier[tier] // core.blocks[tier]
    per_place = full // places
    whole, rest = divmod(below, places)
    yield whole * width, full
    if rest:
        yield width, rest * per_place


def _cheapest_that_fits(
    core: _core.Fabric, options: list[list[Cabling]], switch: SwitchPart | None
) -> list[Cabling | None]:
    """The ways of all layers that together cost least and leave no switch without a cage.

    Raises:
        ArgumentError: if every choice needs more cages than the switch has.
    """
    choices: list[list[Cabling | None]] = [list(ways) or [None] for ways in options]
    best = [ways[0] for ways in choices]
    if switch is None or not _without_cage(core, best, switch):
        return best
    # Few: only what differs in cages matters, and of that the cheapest.
    choices = [list({_cages_of(way): way for way in reversed(ways)}.values())[::-1] for ways in choices]
    fitting = [list(ways) for ways in product(*choices) if not _without_cage(core, list(ways), switch)]
    if not fitting:
        fewest = min((_without_cage(core, list(ways), switch) for ways in product(*choices)), key=max)
        tier = fewest.index(max(fewest))
        raise ArgumentError(
            f"switch: a T{tier} of {core.downlinks(tier)} downlinks and {core.uplinks(tier)} uplinks needs"
            f" at least {switch.cages + fewest[tier]} cages with the modules of the catalogue;"
            f" {switch.name} has {switch.cages}"
        )
    return min(fitting, key=lambda ways: sum(_price(core, layer, way) for layer, way in enumerate(ways)))


def _cages_of(way: Cabling | None) -> tuple[object, ...]:
    if way is None:
        return ()
    names = (way.lower.name if way.lower else None, way.upper.name if way.upper else None)
    return (*names, way.lower_ports, way.upper_ports)


def _price(core: _core.Fabric, layer: int, way: Cabling | None) -> float:
    if way is None:
        return 0.0
    ends = [(way.lower, way.lower_ports), (way.upper, way.upper_ports)]
    each = sum(module.price / ports for module, ports in ends if module is not None)
    return core.links_per_layer[layer] * (way.cable.price + each)


def _without_cage(core: _core.Fabric, ways: list[Cabling | None], switch: SwitchPart) -> list[int]:
    """Cages that a switch of each tier lacks; empty if it lacks none anywhere."""
    lacking = []
    for tier in range(core.tiers):
        down, up = ways[tier], ways[tier + 1] if tier + 1 < core.tiers else None
        # Module, links, and links in a cage, towards the hosts and away from them.
        ends: list[tuple[object, int, int]] = []
        if down is not None:
            ports = _ports_per_cage(down.upper_ports, down, core, switch)
            ends.append((down.upper, core.downlinks(tier), ports))
        if up is not None:
            ports = _ports_per_cage(up.lower_ports, up, core, switch)
            ends.append((up.lower, core.uplinks(tier), ports))
        if len(ends) == 2 and ends[0][0] == ends[1][0]:
            # The same module: one of them may serve downlinks and uplinks.
            need = _ceil(ends[0][1] + ends[1][1], ports)
        else:
            need = sum(_ceil(links, each) for _, links, each in ends)
        lacking.append(max(0, need - switch.cages))
    return lacking if any(lacking) else []


def _ports_per_cage(of_module: int, way: Cabling, core: _core.Fabric, switch: SwitchPart) -> int:
    return of_module if way.lower else max(1, core.radix // switch.cages)


def _latencies(
    core: _core.Fabric, rate: int, switch: SwitchPart | None, cables: CableLengths, mtu: int
) -> tuple[float | None, float | None]:
    """Cables, cut-through switches, and one serialisation at the sending port, ns."""
    if switch is None:
        return None, None
    serialisation = (mtu + HEADER_BYTES) * 8e9 / rate
    top = next((level for level, blocks in enumerate(core.blocks) if blocks == 1), core.tiers - 1)

    def one_way(climbed: int) -> float:
        metres = 2 * sum(cables.of_layer(layer) for layer in range(climbed + 1))
        return metres * PROPAGATION_NS_PER_M + (2 * climbed + 1) * switch.latency_ns + serialisation

    return one_way(0), one_way(top)


def _losses(core: _core.Fabric) -> Iterator[LossRow]:
    """The capacity that hosts lose when a cable or switch above them fails.

    A T0 shares its u uplinks between its hosts: a lost uplink is 1/u of what each can send through the plane.
    Higher up, a link carries one of the u0 x u1 ways out of the T0, and a switch carries one for each of its
    links to the block.
    """
    planes, hosts = core.planes, core.hosts
    yield LossRow("NIC port", hosts * planes, 1, 1.0, 1 / planes)
    yield LossRow(
        "T0 switch", core.switches_per_tier[0] * planes, min(core.hosts_per_t0, hosts), 1.0, 1 / planes
    )
    ways = 1
    below = min(core.hosts_per_t0, hosts)
    for tier in range(core.tiers - 1):
        uplinks = core.uplinks(tier)
        ways *= uplinks
        links = core.links_per_layer[tier + 1] * planes
        yield LossRow(f"T{tier}-T{tier + 1} link", links, below, 1 / ways, 1 / ways / planes)
        top = tier + 2 == core.tiers
        below = hosts if top else min(below * core.group[tier], hosts)
        share = (core.parallel if top else 1) / ways
        switches = core.switches_per_tier[tier + 1] * planes
        yield LossRow(f"T{tier + 1} switch", switches, below, share, share / planes)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


Number = TypeVar("Number", int, float)


def _sum(values: Iterable[Number | None]) -> Number | None:
    """The sum; ``None`` if a part of it is."""
    total = None
    for value in values:
        if value is None:
            return None
        total = value if total is None else total + value
    return total
